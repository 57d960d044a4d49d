"""Converts the records that a program sends to the texts of JSON objects."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from json import JSONEncoder
from typing import Any, TypeAlias

import pyarrow as pa

from millrace.model.errors import PipelineError, shown
from millrace.server.body import records_of

Records: TypeAlias = Mapping[str, Any] | Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch | bytes | str
"""A dict, several, an Arrow table, or JSON: lines of objects or an array of them."""
_NONE_SENT = "no record was sent: correct the record, and send all of them again"


def texts_of(records: Records) -> pa.Array:
    """The records as texts, each a JSON object. Refuses all of them if one is not an object."""
    if isinstance(records, bytes | str):
        body = records.encode() if isinstance(records, str) else records
        return records_of(body, not body.lstrip().startswith(b"[")).cast(pa.string())
    if isinstance(records, pa.Table | pa.RecordBatch):
        records = records.to_pylist()
    rows = [records] if isinstance(records, Mapping) else records
    if not isinstance(rows, Iterable):
        raise PipelineError(f"send() takes dicts, an Arrow table or JSON, not {shown(records)}")
    return pa.array([_text(number, row) for number, row in enumerate(rows, 1)], pa.string())


def _text(number: int, row: object) -> str:
    if not isinstance(row, Mapping):
        raise PipelineError(f"record {number} must be a dict, not {shown(row)}", _NONE_SENT)
    try:
        return _ENCODER.encode(row)
    except (TypeError, ValueError) as error:
        raise PipelineError(f"record {number} cannot be written as JSON: {error}", _NONE_SENT) from None


def _default(value: object) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):  # as text it keeps all its digits
        return str(value)
    raise TypeError(f"{shown(value)} has no JSON form")


_ENCODER = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_default)
