"""Tables as responses: JSON for people and scripts, an Arrow stream for those who accept it."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from fastapi import Request, Response

from millrace.model.plain import to_json
from millrace.views.tabular import ARROW, VERSION


def wants_arrow(request: Request) -> bool:
    """Whether a client accepts an Arrow stream."""
    return ARROW in request.headers.get("accept", "")


def json_answer(content: Any) -> Response:
    """A value as JSON."""
    return Response(to_json(content), media_type="application/json")


def arrow_answer(table: pa.Table, version: int | None = None) -> Response:
    """A table as an Arrow IPC stream, with types and without a row limit; the version is metadata of the schema."""
    if version is not None:
        table = table.replace_schema_metadata({VERSION: str(version)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Response(sink.getvalue().to_pybytes(), media_type=ARROW)


def table_answer(request: Request, table: pa.Table, about: Mapping[str, Any], name: str) -> Response:
    """A table as Arrow, or as rows of a JSON object under a name, beside what the object says about it."""
    return arrow_answer(table) if wants_arrow(request) else json_answer({**about, name: table.to_pylist()})
