"""Records by column, with the fields of a Kafka record: key, value, timestamp, headers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.errors import refuse, shown

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", TIMESTAMP), ("headers", HEADERS)])

MOST = 512 << 20
"""The maximum size of one append in bytes."""

Texts: TypeAlias = pa.Array | pa.ChunkedArray | Sequence[bytes | str | None]
"""A column of bytes or text: an Arrow array, or a list."""

Headers: TypeAlias = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""The headers of one record."""


def records_of(
    values: Texts,
    keys: Texts | None,
    timestamps: pa.Array | pa.ChunkedArray | Sequence[Any] | None,
    headers: pa.Array | pa.ChunkedArray | Sequence[Headers | None] | None,
    now: int,
) -> pa.Table:
    """The arguments of an append as one table in one chunk. Refuses arguments that are not records.

    A timestamp is a datetime or microseconds; a missing one becomes `now`.
    """
    value = _binary(values, "value")
    count = len(value)
    key = pa.nulls(count, pa.binary()) if keys is None else _binary(keys, "key")
    header = pa.nulls(count, HEADERS) if headers is None else _headers(headers)
    stamp = pa.array(np.full(count, now), TIMESTAMP) if timestamps is None else _timestamps(timestamps, now)
    for column, what in ((key, "keys"), (stamp, "timestamps"), (header, "headers")):
        if len(column) != count:
            raise refuse(f"{count} values but {len(column)} {what}; give one for each value")
    records = pa.table([key, value, stamp, header], schema=SCHEMA)
    if records.nbytes > MOST:
        raise refuse(f"an append of {records.nbytes >> 20} MB is too large; append at most {MOST >> 20} MB at a time")
    return records


def _binary(values: Any, what: str) -> pa.Array:
    """A column of bytes, from a list or an Arrow array."""
    try:
        return _cast(values, pa.binary()) if isinstance(values, pa.Array | pa.ChunkedArray) else _listed(values, what)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        hint = "; write it as JSON first" if "dict" in str(error) else ""
        raise refuse(f"{what}s are bytes or text, in a list or an Arrow array, not {shown(values)}{hint}") from None


def _listed(values: Any, what: str) -> pa.Array:
    if isinstance(values, str | bytes | Mapping):
        raise refuse(f"give {what}s in a list, even one: [{shown(values)}]")
    return _cast(pa.array(values, pa.large_binary()), pa.binary())


def _timestamps(given: Any, now: int) -> pa.Array:
    try:
        arrow = isinstance(given, pa.Array | pa.ChunkedArray)
        given = _cast(given, TIMESTAMP) if arrow else pa.array(given, TIMESTAMP)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError):
        raise refuse(f"timestamps are datetimes, or microseconds since 1970, not {shown(given)}") from None
    return pc.fill_null(given, pa.scalar(now, TIMESTAMP)) if given.null_count else given


def _headers(given: Any) -> pa.Array:
    try:
        if isinstance(given, pa.Array | pa.ChunkedArray):
            return _cast(given, HEADERS)
        rows = [None if each is None else list(each.items() if isinstance(each, Mapping) else each) for each in given]
        return pa.array([row and [{"key": key, "value": value} for key, value in row] for row in rows], HEADERS)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError):
        raise refuse(f"headers are names with bytes for each record, as {{'v': b'1'}}, not {shown(given)}") from None


def _cast(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """The column as one chunk of the given type."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # an older pyarrow, or more than fits into one array
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column if column.type == kind else column.cast(kind)
