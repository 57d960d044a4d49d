"""Interceptors change or filter the records of a topic before they are stored.

    create("plays", interceptors=[drop("ip"), rename(ts="at"), add(region="eu"), keep("ms >= 30000", "ms BIGINT")])

They apply to values that are JSON objects, and to their top-level fields only. Any other value is stored unchanged: it
becomes a dead letter of the pipeline that reads it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from millrace.eventlog.condition import are_objects, holds, statement
from millrace.formats.fields import Bools, Edits, Fields, edit, scan, without
from millrace.model.errors import refuse, shown
from millrace.model.schema import Schema


@dataclass(frozen=True, slots=True)
class Add:
    """Sets fields of each record to constants; a field that the record has already is overwritten."""

    fields: tuple[tuple[str, str], ...]
    """Names, and values as JSON."""

    def edits(self, found: Fields) -> list[Edits]:
        """The edits that this interceptor makes."""
        edits = []
        filled = found.having(np.ones(len(found.key), np.bool_)) & (found.comma < 0)
        for name, value in self.fields:
            same = found.named(name)
            edits.append(Edits(found.colon[same] + 1, found.end[same], value.encode()))
            missing = ~found.having(same)
            for rows, comma in ((missing & filled, ","), (missing & ~filled, "")):
                text = f"{comma}{_quoted(name)}:{value}".encode()
                edits.append(Edits(found.close[rows], found.close[rows], text))
            filled = filled | missing
        return edits

    def __str__(self) -> str:
        return f"add({', '.join(f'{name}={json.loads(value)!r}' for name, value in self.fields)})"


@dataclass(frozen=True, slots=True)
class Drop:
    """Removes fields from each record."""

    names: tuple[str, ...]

    def edits(self, found: Fields) -> list[Edits]:
        """The edits that this interceptor makes."""
        return without(found, _any_named(found, self.names))

    def __str__(self) -> str:
        return f"drop({', '.join(map(repr, self.names))})"


@dataclass(frozen=True, slots=True)
class Rename:
    """Renames fields of each record, all at once. A field that already has the new name is removed."""

    names: tuple[tuple[str, str], ...]

    def edits(self, found: Fields) -> list[Edits]:
        """The edits that this interceptor makes."""
        renamed = _any_named(found, [old for old, _ in self.names])
        edits, dropped = [], np.zeros(len(renamed), np.bool_)
        for old, new in self.names:
            same = found.named(old)
            edits.append(Edits(found.key[same], found.quote[same] + 1, _quoted(new).encode()))
            dropped |= found.named(new) & ~renamed & found.having(same)[found.record]
        return [*edits, *without(found, dropped)]

    def __str__(self) -> str:
        return f"rename({', '.join(f'{old}={new!r}' for old, new in self.names)})"


@dataclass(frozen=True, slots=True)
class Keep:
    """Drops the records for which a condition does not hold.

    Fields are decoded as in a pipeline: a missing or null field is NULL, and a condition that is NULL does not hold. A
    record with a field that does not fit its type is stored: it becomes a dead letter of the pipeline.
    """

    condition: str
    schema: str

    def __post_init__(self) -> None:
        """Refuse a condition that cannot be computed."""
        statement(self.condition, self.schema)

    def kept(self, objects: pa.Array) -> Bools:
        """Flags the JSON objects to store."""
        return holds(statement(self.condition, self.schema), objects)

    def __str__(self) -> str:
        return f"keep({self.condition!r}, {self.schema!r})"


_NEAR = 200_000
"""About how many bytes of records are edited at a time."""

Interceptor: TypeAlias = Add | Drop | Rename | Keep
INTERCEPTORS = (Add, Drop, Rename, Keep)


def add(**fields: Any) -> Add:
    """Set these fields in each record, to any values that JSON can hold."""
    try:
        return Add(tuple((_name(name), _json(value)) for name, value in _some(fields, "add").items()))
    except (TypeError, ValueError) as error:
        raise refuse(f"add() takes JSON values: {error}") from None


def drop(*names: str) -> Drop:
    """Remove these fields from each record."""
    return Drop(tuple(_name(name) for name in _some(names, "drop")))


def rename(**names: str) -> Rename:
    """Rename fields: `rename(old="new")`."""
    pairs = tuple((_name(old), _name(new)) for old, new in _some(names, "rename").items())
    if len({new for _, new in pairs}) < len(pairs):
        raise refuse(f"rename() gives two fields one name: {', '.join(new for _, new in pairs)}")
    return Rename(pairs)


def keep(condition: str, schema: str | Schema) -> Keep:
    """Keep the records for which a condition holds over fields of these types: `keep("ms >= 30000", "ms BIGINT")`."""
    return Keep(condition, schema if isinstance(schema, str) else ", ".join(f"`{c.name}` {c.type}" for c in schema))


def intercept(interceptors: Sequence[Interceptor], records: pa.Table) -> pa.Table:
    """The records after all interceptors, applied in order."""
    if not interceptors or not len(records):
        return records
    values = records["value"].chunk(0)
    objects = are_objects(values)
    for each in interceptors:
        places = np.flatnonzero(objects)
        chosen = values if len(places) == len(values) else values.take(pa.array(places))
        if isinstance(each, Keep):
            kept = np.ones(len(values), np.bool_)
            kept[places] = each.kept(chosen)
            records, values, objects = records.filter(pa.array(kept)), values.filter(pa.array(kept)), objects[kept]
        elif len(places):
            values = _put_back(values, _edited(each, chosen), places)
    return records.set_column(1, records.schema.field("value"), values).combine_chunks()


def dump(interceptors: Iterable[Interceptor]) -> str:
    """Interceptors as JSON."""
    return json.dumps([_plain(each) for each in interceptors])


@lru_cache(256)
def load(text: str) -> tuple[Interceptor, ...]:
    """Interceptors from JSON."""
    makers: dict[str, Any] = {
        "add": lambda of: Add(tuple((name, value) for name, value in of)),
        "drop": lambda of: Drop(tuple(of)),
        "rename": lambda of: Rename(tuple((old, new) for old, new in of)),
        "keep": lambda of: Keep(*of),
    }
    return tuple(makers[kind](of) for each in json.loads(text) for kind, of in each.items())


def _plain(interceptor: Interceptor) -> dict[str, Any]:
    match interceptor:
        case Add(fields):
            return {"add": fields}
        case Drop(names):
            return {"drop": names}
        case Rename(pairs):
            return {"rename": pairs}
        case Keep(condition, schema):
            return {"keep": [condition, schema]}


def _any_named(found: Fields, names: Iterable[str]) -> Bools:
    some = np.zeros(len(found.key), np.bool_)
    for name in names:
        some |= found.named(name)
    return some


def _edited(interceptor: Add | Drop | Rename, objects: pa.Array) -> pa.Array:
    """The edited records. Edits run on pieces that fit into the CPU cache."""
    step = max(1, len(objects) * _NEAR // max(1, objects.nbytes))
    parts = []
    for start in range(0, len(objects), step):
        found = scan(objects.slice(start, step))
        parts.append(edit(found, interceptor.edits(found)))
    return pa.concat_arrays(parts)


def _put_back(values: pa.Array, edited: pa.Array, places: Any) -> pa.Array:
    if len(edited) == len(values):
        return edited
    chosen = np.arange(len(values))
    chosen[places] = len(values) + np.arange(len(edited))
    return pa.concat_arrays([values, edited]).take(pa.array(chosen))


def _some(given: Any, what: str) -> Any:
    if not given:
        raise refuse(f"{what}() needs at least one field")
    return given


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise refuse(f"the name of a field is text, not {shown(name)}")
    return name


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
