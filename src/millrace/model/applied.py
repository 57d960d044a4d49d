"""The meaning of steps that run in Python: user functions, and `explode`.

A step maps an Arrow table to another one. Each row is mapped on its own: a function over many rows means what it
returns for each row alone, so answers do not depend on how rows are divided into tables. A row for which a function
raises, or returns what does not fit its schema, has no value; the other rows do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, TypeAlias, TypeVar, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.accepted import as_type
from millrace.model.arrow import arrow_schema, arrow_type
from millrace.model.duration import to_datetime, to_instant
from millrace.model.errors import MillraceError, NoValueError, because, raised_at, shown
from millrace.model.fitting import holder
from millrace.model.function import Function, Over
from millrace.model.schema import Column, Schema, missing
from millrace.model.stream import Applying, Explode, Filter, Map, event_time_columns
from millrace.model.types import INTEGERS

Ints: TypeAlias = npt.NDArray[np.int64]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """What a step makes of some rows."""

    rows: pa.Table
    """The rows that it gives, in order."""
    origins: Ints
    """For each of them, the number of the row that it was made of."""
    failed: dict[int, str] = field(default_factory=dict)
    """The numbers of the rows that have no value, with the reasons."""


def apply(step: Applying, rows: pa.Table) -> Applied:
    """Map rows that have the columns of the step's parent; other columns are ignored."""
    rows = as_arrow(rows, step.parent.schema)
    match step:
        case Explode():
            return _exploded(step, rows)
        case Filter(function=Function(over=Over.ROWS)):
            return _filtered(step, rows)
        case Map(function=Function(over=Over.ROWS)):
            return _mapped(step, rows)
        case Filter() | Map():
            return _vectorised(step, rows)
        case never:
            assert_never(never)


def as_arrow(rows: pa.Table, schema: Schema) -> pa.Table:
    """The columns of a schema, with the Arrow types that functions receive."""
    kinds = {column.name: arrow_type(column.type) for column in schema}
    return pa.table(
        {name: pa.nulls(len(rows)) if kind is None else rows[name].cast(kind) for name, kind in kinds.items()}
    )


def _filtered(step: Filter, rows: pa.Table) -> Applied:
    kept: list[int] = []
    failed: dict[int, str] = {}
    for number, row in enumerate(_dicts(rows)):
        try:
            if _called(step, row, bool):
                kept.append(number)
        except NoValueError as error:
            failed[number] = str(error)
    return Applied(rows.take(pa.array(kept, pa.int64())), np.array(kept, np.int64), failed)


def _mapped(step: Map, rows: pa.Table) -> Applied:
    made: list[Mapping[str, Any]] = []
    origins: list[int] = []
    failed: dict[int, str] = {}
    names = frozenset(step.schema.names)
    for number, row in enumerate(_dicts(rows)):
        try:
            own = _called(step, row, list if step.many else _as_one)
            for each in own:
                if not isinstance(each, Mapping):
                    raise NoValueError(f"{step} returned {shown(each)}, which is not a mapping of columns to values")
                if not names.issuperset(each):
                    raise _no_column(step, next(name for name in each if name not in names))
        except NoValueError as error:
            failed[number] = str(error)
            continue
        made += own
        origins += [number] * len(own)
    try:
        table = _table(step, made, rows.take(pa.array(origins, pa.int64())))
        return Applied(table, np.array(origins, np.int64), failed)
    except NoValueError:
        return _without_misfits(step, made, origins, rows, failed)


def _without_misfits(
    step: Map, made: list[Mapping[str, Any]], origins: list[int], rows: pa.Table, failed: dict[int, str]
) -> Applied:
    """The rows that fit: a row has no value if one of the rows that were made of it does not fit."""
    for number, each in zip(origins, made, strict=True):
        try:
            _table(step, [each], rows.slice(number, 1))
        except NoValueError as error:
            failed.setdefault(number, str(error))
    places = [place for place, number in enumerate(origins) if number not in failed]
    kept = np.array(origins, np.int64)[places]
    table = _table(step, [made[place] for place in places], rows.take(pa.array(kept)))
    return Applied(table, kept, dict(sorted(failed.items())))


_EXACT = {"STRING": str, "BOOLEAN": bool, "DOUBLE": float, "TIMESTAMP": datetime, "DATE": date, "BINARY": bytes}
_EXACT |= dict.fromkeys(INTEGERS, int)
"""The Python type whose values Arrow converts exactly, or not at all; all other values are converted one by one."""


def _table(step: Map, made: Sequence[Mapping[str, Any]], before: pa.Table) -> pa.Table:
    """Mappings as rows; `before` has the row that each was made of. Raises NoValueError if a value does not fit."""
    timed = event_time_columns(step.parent)
    columns = [
        _same_times(step, column.name, made, before)
        if column.name in timed
        else _array(step, column, [each.get(column.name) for each in made])
        for column in step.schema
    ]
    return _complete(step, pa.table(columns, schema=arrow_schema(step.schema)))


def _complete(step: Map, rows: pa.Table) -> pa.Table:
    """The rows. Raises NoValueError if a NOT NULL column has no value for one of them."""
    for name in step.schema.required:
        if rows[name].null_count:
            raise NoValueError(f"{step} returned {name}: {missing(name)}")
    return rows


def _array(step: Map, column: Column, values: list[Any]) -> pa.Array:
    kind = arrow_type(column.type)
    try:
        if {type(None), _EXACT.get(column.type)}.issuperset(map(type, values)):
            with suppress(pa.ArrowException, OverflowError):  # a number is out of range
                return pa.array(values, kind)
        hold = holder(column.type)
        return pa.array([hold(each.item() if isinstance(each, np.generic) else each) for each in values], kind)
    except NoValueError as error:
        raise NoValueError(f"{step} returned {column.name}: {error}") from None
    except (pa.ArrowException, ValueError, OverflowError) as error:  # a value that Python holds and Arrow does not
        raise NoValueError(f"{step} returned {column.name}: {because(error)}") from None


def _same_times(step: Map, name: str, made: Sequence[Mapping[str, Any]], before: pa.Table) -> pa.ChunkedArray:
    """The event times that rows had. A function may leave them out, but not change them."""
    for each, known in zip(made, values_of(before[name]), strict=True):
        if name in each and each[name] is not known and _instant(each[name]) != _instant(known):
            raise _changed(step, name)
    return before[name]


def _instant(value: Any) -> int | None:
    return to_instant(value) if isinstance(value, datetime) else None


def _vectorised(step: Map | Filter, rows: pa.Table) -> Applied:
    """Call a function for all rows; if that fails, for each half, so that only the failing rows have no value."""
    many = len(rows)
    if not many:
        return Applied(arrow_schema(step.schema).empty_table(), np.arange(0))
    try:
        return _whole(step, rows)
    except NoValueError as error:
        if many == 1:
            return Applied(arrow_schema(step.schema).empty_table(), np.arange(0), {0: str(error)})
    half = many // 2
    first, second = _vectorised(step, rows.slice(0, half)), _vectorised(step, rows.slice(half))
    return Applied(
        pa.concat_tables([first.rows, second.rows]),
        np.concatenate([first.origins, second.origins + half]),
        first.failed | {number + half: reason for number, reason in second.failed.items()},
    )


def _whole(step: Map | Filter, rows: pa.Table) -> Applied:
    given = rows if step.function.over is Over.ARROW else _to_pandas(rows)
    (returned,) = _called(step, given, _as_one)
    if isinstance(step, Filter):
        mask = _column(step, "a condition", returned, "BOOLEAN", len(rows)).fill_null(False)
        return Applied(rows.filter(mask), np.flatnonzero(mask.to_numpy()))
    columns = _columns(step, returned)
    unknown = [name for name in columns if name not in step.schema]
    if unknown:
        raise _no_column(step, unknown[0])
    made = {}
    for column in step.schema:
        if column.name not in columns:
            made[column.name] = pa.chunked_array([pa.nulls(len(rows), arrow_type(column.type))])
        else:
            made[column.name] = _column(step, column.name, columns[column.name], column.type, len(rows))
    for name in event_time_columns(step.parent):
        if name in columns and not made[name].equals(rows[name]):
            raise _changed(step, name)
        made[name] = rows[name]
    return Applied(_complete(step, pa.table(made)), np.arange(len(rows)))


def _columns(step: Map | Filter, returned: Any) -> dict[str, Any]:
    """The columns of a table or a DataFrame by name."""
    if step.function.over is Over.ARROW:
        if isinstance(returned, pa.Table | pa.RecordBatch):
            return dict(zip(returned.schema.names, returned.columns, strict=True))
        raise NoValueError(f"{step} returned a {type(returned).__name__}, which is not an Arrow table")
    import pandas

    if isinstance(returned, pandas.DataFrame):
        return {str(name): series for name, series in returned.items()}
    raise NoValueError(f"{step} returned a {type(returned).__name__}, which is not a DataFrame")


def _column(step: Map | Filter, name: str, values: Any, type: str, many: int) -> pa.ChunkedArray:
    """A column that a function returned, with its declared type."""
    try:
        held = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, from_pandas=True)
        whole = held if isinstance(held, pa.ChunkedArray) else pa.chunked_array([held])
        if len(whole) != many:
            raise NoValueError(f"{step} returned {len(whole)} rows for {many}")
        return as_type(whole, type, f"{step} returned {name}: it")
    except MillraceError as error:
        raise NoValueError(error.message) from None
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise NoValueError(f"{step} returned {name}: {because(error)}") from None


def _to_pandas(rows: pa.Table) -> Any:
    """Rows as a DataFrame whose types are Arrow's, so that they do not depend on whether a value is NULL."""
    import pandas

    return rows.to_pandas(types_mapper=pandas.ArrowDtype)


def _called(step: Map | Filter, given: Any, read: Callable[[Any], _T]) -> _T:
    """What a user's function returns, read by another. Raises NoValueError with the user's line if that raises."""
    try:
        return read(step.function.call(given))
    except NoValueError as error:  # a value of a `udf` that does not fit
        raise NoValueError(f"{step}: {error}") from None
    except Exception as error:
        place = raised_at(error)
        raise NoValueError(f"{'' if place is None else f'{place}: '}{step}: {because(error)}") from None


def _as_one(returned: Any) -> tuple[Any]:
    return (returned,)


def _no_column(step: Map | Filter, name: Any) -> NoValueError:
    return NoValueError(f"{step} returned a column {name!r}, which its schema does not have")


def _changed(step: Map | Filter, name: str) -> NoValueError:
    return NoValueError(f"{step} changed {name}, which is the event time; call .event_time(...) after it")


def _dicts(rows: pa.Table) -> Iterator[dict[str, Any]]:
    names = rows.column_names
    return (dict(zip(names, values, strict=True)) for values in zip(*map(values_of, rows.columns), strict=True))


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The Python values of a column. Arrow itself takes ten times as long for a time with a zone."""
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist(maps_as_pydicts="lossy")  # type: ignore[no-any-return]
    instants = column.cast(pa.int64()).to_pylist()
    return [None if instant is None else to_datetime(instant) for instant in instants]


def _exploded(step: Explode, rows: pa.Table) -> Applied:
    whole = rows[step.column].combine_chunks()
    lengths = np.diff(whole.offsets.to_numpy())
    lengths[whole.is_null().to_numpy(zero_copy_only=False)] = 0
    given = np.maximum(lengths, 1) if step.outer else lengths
    origins = np.repeat(np.arange(len(rows)), given)
    # The position of each element in its array, and from it the position in the values of all arrays.
    within = np.arange(len(origins)) - np.repeat(np.cumsum(given) - given, given)
    starts = whole.offsets.to_numpy()[:-1].astype(np.int64)
    places = pa.array(starts[origins] + within, mask=lengths[origins] == 0)
    parts = (whole.keys, whole.items) if isinstance(whole, pa.MapArray) else (whole.values,)
    elements = iter([part.take(places) for part in parts])
    kept = {name: rows[name].take(pa.array(origins)) for name in rows.column_names if name != step.column}
    made = [kept[name] if name in kept else next(elements) for name in step.schema.names]
    return Applied(pa.table(made, schema=arrow_schema(step.schema)), origins)
