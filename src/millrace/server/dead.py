"""Requests about the dead letters of pipelines."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from millrace.eventlog.topics import Log
from millrace.letters.box import find_box
from millrace.letters.fixing import Fixed, fix, fix_texts
from millrace.letters.letter import Chosen
from millrace.letters.resending import resend
from millrace.letters.tabular import letters_of, reasons_of
from millrace.server.door import check_admin, check_reads_all
from millrace.server.given import given, taking
from millrace.server.tables import table_answer, wants_arrow

MOST = 1_000
"""The maximum number of letters in a response of JSON."""
_ADVICE = "GET /openapi.json describes it"
Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""The number of a letter."""


class Some(BaseModel):
    """The letters that a request is about: those with these numbers or this reason; all if neither is given."""

    model_config = ConfigDict(extra="forbid")

    letters: list[Number] = []
    reason: str | None = None

    @property
    def chosen(self) -> Chosen:
        """The choice."""
        return Chosen(tuple(self.letters), self.reason)


class Fix(Some):
    """A correction: expressions by field, or new values by letter."""

    set: dict[str, str] = {}
    values: dict[Number, str] = {}


class Resend(Some):
    """Letters to send again."""

    unchanged: bool = False
    anyway: bool = False


def dead_routes(folder: Path, log: Log) -> APIRouter:
    """The requests about dead letters of the pipelines whose checkpoints are in a folder."""
    routes = APIRouter(prefix="/pipelines/{pipeline}/dead")

    @routes.get("")
    def reasons(pipeline: str, request: Request) -> Response:
        """The reasons of dead letters, with the number of letters."""
        check_reads_all(request)
        return table_answer(request, reasons_of(find_box(folder, pipeline)), {"pipeline": pipeline}, "reasons")

    @routes.get("/letters")
    def letters(
        pipeline: str,
        request: Request,
        letter: Annotated[list[Number] | None, Query(description="The numbers of letters. Default: all.")] = None,
        reason: Annotated[str | None, Query(description="The reason of the letters. Default: any.")] = None,
        limit: Annotated[int | None, Query(description="The maximum number of letters.", ge=0, lt=2**63)] = None,
    ) -> Response:
        """Dead letters."""
        check_reads_all(request)
        most = limit if wants_arrow(request) else MOST if limit is None else min(limit, MOST)
        found = letters_of(find_box(folder, pipeline), Chosen(tuple(letter or ()), reason), most)
        return table_answer(request, found, {"pipeline": pipeline}, "letters")

    @routes.post("/fix", openapi_extra=taking(Fix))
    async def fixed(pipeline: str, request: Request) -> dict[str, Any]:
        """Correct dead letters."""
        check_admin(request)
        asked, box = await given(Fix, request, _ADVICE), find_box(folder, pipeline)
        done: Fixed = await asyncio.to_thread(
            lambda: fix_texts(box, asked.values) if asked.values else fix(box, asked.chosen, asked.set)
        )
        return {"fixed": done.fixed, "failed": {str(number): reason for number, reason in done.failed.items()}}

    @routes.post("/resend", openapi_extra=taking(Resend))
    async def resent(pipeline: str, request: Request) -> dict[str, Any]:
        """Send dead letters again."""
        check_admin(request)
        asked, box = await given(Resend, request, _ADVICE), find_box(folder, pipeline)
        return {"resent": await asyncio.to_thread(resend, box, log, asked.chosen, asked.unchanged, asked.anyway)}

    @routes.post("/drop", openapi_extra=taking(Some))
    async def dropped(pipeline: str, request: Request) -> dict[str, Any]:
        """Drop dead letters."""
        check_admin(request)
        asked, box = await given(Some, request, _ADVICE), find_box(folder, pipeline)
        return {"dropped": await asyncio.to_thread(box.drop, asked.chosen)}

    return routes
