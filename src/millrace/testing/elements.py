"""Parses the elements of the sources of a transcript with stages, and finds the columns of each source."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from millrace.model.duration import SECOND, to_datetime
from millrace.model.errors import refuse, refuse_unknown
from millrace.model.inputs import memory
from millrace.model.schema import Column, Schema, parse_schema
from millrace.model.stream import Source
from millrace.model.types import is_decimal
from millrace.testing.transcript import FURTHEST, instant, is_number, listed, type_of

_TIMES = ("at", "closes")
"""The columns that are times, in seconds, without a schema that says so."""
_COLUMNS = ("k", "v", "at")
"""The columns of every source without a schema."""


def parse_elements(given: object, where: str) -> list[dict[str, Any]]:
    """The elements of one source in one step, as the transcript gives them."""
    elements = []
    for item in listed(given, where):
        element = {"v": item, "at": item} if is_number(item) else item
        if not isinstance(element, Mapping):
            raise refuse(f"{where}: an element must be like {{k: a, v: 5, at: 3}} or a number, not {item!r:.80}")
        for name in element:
            if not isinstance(name, str):
                raise refuse(f"{where}: the name of a column must be text, not {name!r:.80}")
        elements.append(dict(element))
    return elements


def with_keys(
    steps: Mapping[int, Mapping[str, list[dict[str, Any]]]], schemas: object
) -> dict[int, dict[str, list[dict[str, Any]]]]:
    """The elements of each step and source, with a key for each that has no `k`, unless `sources:` has its columns.

    It is one key for all sources, that no element names and that is not NULL, as joins pair no NULL.
    """
    named = [each["k"] for step in steps.values() for some in step.values() for each in some if "k" in each]
    keys = [key for key in named if key is not None]
    common: Any = None  # of keys that are neither text nor numbers, or are mixed
    if all(map(is_number, keys)):
        common = max(keys, default=-1) + 1
    elif all(isinstance(key, str) for key in keys):
        common = max(map(len, keys)) * "-" + "-"
    stated = schemas if isinstance(schemas, Mapping) else {}
    return {
        number: {
            name: some if name in stated else [{"k": common, **each} for each in some] for name, some in step.items()
        }
        for number, step in steps.items()
    }


def parse_sources(
    names: Iterable[str], schemas: object, elements: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Source]:
    """The sources by name: with the columns of their schema, or with those of their elements."""
    given = {} if schemas is None else schemas
    if not isinstance(given, Mapping):
        raise refuse(f'sources: must map names to schemas, like {{plays: "k STRING, v BIGINT"}}, not {given!r:.80}')
    known = list(names)
    for name in given:
        if name not in known:
            raise refuse_unknown("source", name, known).about("sources")
    found = {}
    for name in known:
        schema = _with_time(parse_schema(given[name])) if name in given else _inferred(elements, name)
        found[name] = memory(name, schema)
    return found


def to_row(element: Mapping[str, Any], source: Source, where: str) -> dict[str, Any]:
    """An element as a row of its source: `v` defaults to `at`, times are timestamps."""
    for name in element:
        if name not in source.schema:
            raise refuse_unknown("column", name, source.schema.names).about(where)
    return {
        column.name: _value(_held(element, column.name), column.type, f"{where}, {column.name}")
        for column in source.schema
    }


def _held(element: Mapping[str, Any], name: str) -> Any:
    return element.get("at") if name == "v" and "v" not in element else element.get(name)


def _with_time(schema: Schema) -> Schema:
    return schema if "at" in schema else schema.with_columns([Column("at", "TIMESTAMP")])


def _inferred(elements: Mapping[str, list[dict[str, Any]]], source: str) -> Schema:
    """The columns of the elements of a source. A column without a value has the type that it has in other sources."""
    everything = [element for each in elements.values() for element in each]
    own = elements.get(source, [])
    types = {}
    for name in dict.fromkeys((*_COLUMNS, *(name for element in own for name in element))):
        if name in _TIMES:
            types[name] = "TIMESTAMP"
            continue
        values = [_held(element, name) for element in own]
        if all(value is None for value in values):
            values = [_held(element, name) for element in everything]
        types[name] = type_of(name, values)
    return parse_schema(types)


def _value(value: Any, type: str, where: str) -> Any:
    if type == "TIMESTAMP" and is_number(value):
        at = instant(value, where)
        if not abs(at) < FURTHEST * SECOND:
            raise refuse(f"{where}: the time of an element must be finite, not {value}")
        return to_datetime(at)
    if type == "TIMESTAMP" and value is not None:
        raise refuse(f"{where}: the value must be a time in seconds, not {value!r:.80}")
    if is_decimal(type) and isinstance(value, float | str):
        try:
            return Decimal(str(value))
        except InvalidOperation:
            raise refuse(f"{where}: {value!r:.80} is not {type}") from None
    if type == "STRING" and isinstance(value, date | datetime):  # YAML reads 2020-01-01 as a date
        return str(value)
    return value
