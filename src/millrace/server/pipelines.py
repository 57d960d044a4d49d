"""Requests about pipelines: their status, their flow and their recent micro-batches."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from millrace.model.errors import not_found
from millrace.server.door import check_reads_all
from millrace.spark.recent import flow, recent


def pipeline_routes(folder: Path, pipelines: Callable[[], Sequence[dict[str, Any]]]) -> APIRouter:
    """The requests about the pipelines whose checkpoints are in a folder; `pipelines` returns the status of each."""
    routes = APIRouter(prefix="/pipelines", dependencies=[Depends(check_reads_all)])

    def named(name: str) -> list[dict[str, Any]]:
        found = pipelines()
        own = [status for status in found if status["pipeline"] == name]
        if not own:
            known = dict.fromkeys(status["pipeline"] for status in found)
            raise not_found("pipeline", name, known, "name one of GET /pipelines")
        return own

    def checkpoint(name: str) -> Path:
        """The checkpoint in use: the one of a run, or else the one that was used last."""
        last = max(named(name), key=lambda status: (status["running"], status.get("at", 0.0)))
        return folder / str(last["checkpoint"])

    @routes.get("")
    def statuses() -> list[dict[str, Any]]:
        """The status of all pipelines."""
        return list(pipelines())

    @routes.get("/{name}")
    def statuses_of(name: str) -> list[dict[str, Any]]:
        """The status of one pipeline: one for the checkpoint of each generation."""
        return named(name)

    @routes.get("/{name}/flow")
    def flow_of(name: str) -> dict[str, Any]:
        """The steps of a pipeline and the lines between them; empty before its first micro-batch."""
        return flow(checkpoint(name)) or {"steps": [], "lines": []}

    @routes.get("/{name}/progress")
    def progress_of(
        name: str,
        since: Annotated[int, Query(description="The micro-batch after which others are returned.", ge=-1)] = -1,
    ) -> dict[str, Any]:
        """The recent micro-batches of a pipeline, oldest first."""
        used = checkpoint(name)
        return {"pipeline": name, "checkpoint": used.name, "batches": recent(used, since)}

    return routes
