"""Tables as responses: JSON for people and scripts, an Arrow stream for those who accept it."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from fastapi import Request, Response

from millrace.model.plain import to_json
from millrace.views.tabular import ARROW, arrow_bytes


def wants_arrow(request: Request) -> bool:
    """Whether a client accepts an Arrow stream."""
    return ARROW in request.headers.get("accept", "")


def json_answer(content: Any) -> Response:
    """A value as JSON."""
    return Response(to_json(content), media_type="application/json")


def table_answer(request: Request, table: pa.Table, about: Mapping[str, Any], name: str) -> Response:
    """A table as Arrow, or as rows of a JSON object under a name, beside what the object says about it."""
    return (
        Response(arrow_bytes(table), media_type=ARROW)
        if wants_arrow(request)
        else json_answer({**about, name: table.to_pylist()})
    )
