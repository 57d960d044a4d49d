"""The fingerprint of a stage: what must not change between two runs from one checkpoint.

State and offsets mean something only to the computation that wrote them. A fingerprint is a JSON value made from the
structure of the stage, the code of user functions included. It leaves out what may change: columns that the stage does
not read, the numbers in a trigger, lateness, what becomes of late records, how long event time waits, which records a
source accepts (NOT NULL, strict), the rows of joined tables, where a source starts when it is first read.
"""

import hashlib
import pickle
from collections.abc import Container, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, assert_never

from millrace.edge.fused import columns_read
from millrace.model.expression import Expression
from millrace.model.query import Query
from millrace.model.schema import Schema
from millrace.model.shared import is_narrowed
from millrace.model.stream import (
    METADATA,
    AnswerStream,
    AnswerTime,
    Dedup,
    EventTime,
    Explode,
    Filter,
    Join,
    JoinStream,
    Map,
    Select,
    Source,
    Stream,
    Union,
    Where,
    WithColumns,
    node_of,
    parents,
)
from millrace.model.trigger import Trigger, parts_of
from millrace.plan.code import code_hash


def fingerprint_of(of: Query | Stream) -> dict[str, Any]:
    """By aspect, so that a difference can be named."""
    read = columns_read(of)
    if not isinstance(of, Query):
        return {"stream": _stream(of, read)}
    query = of
    return {
        "stream": _stream(query.stream, read),
        "keys": list(query.keys),
        "window": canonical(query.windowing),
        "trigger": _shape(query.when),
        "mode": canonical(query.mode),
        "aggregates": {each.name: _computed(each.aggregate, each.arguments) for each in query.computed},
    }


def sources_in(fingerprint: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The kinds and names of the sources that the stage with this fingerprint reads."""
    found, left = set(), [fingerprint["stream"]]
    while left:
        node = left.pop()
        left += node["of"]
        if node["is"] == AnswerStream.__name__:
            left.append(node["query"]["stream"])
        if node["is"] == JoinStream.__name__:
            left += node["sides"]
        if node["is"] == Source.__name__:
            found.add((node["kind"], node["name"]))
    return found


def _computed(aggregate: Any, arguments: tuple[Expression, ...]) -> dict[str, Any]:
    return {**canonical(aggregate), "arguments": [canonical(argument) for argument in arguments]}


def _stream(stream: Stream, read: Container[str]) -> dict[str, Any]:
    if is_narrowed(stream):  # columns that are left out are not read
        (stream,) = parents(stream)
    before = [_stream(parent, read) for parent in parents(stream)]
    return {"is": type(stream).__name__, **_own(stream, read), "of": before}


def _own(stream: Stream, read: Container[str]) -> dict[str, Any]:
    """What a node adds to its parents. Of a source, only the columns that are read count."""
    match node_of(stream):
        case Source(kind=kind, name=name, schema=schema, options=options):
            kept = {
                key: value
                for key, value in options
                if key == "format" or (key.startswith(METADATA) and key.removeprefix(METADATA) in read)
            }
            columns = ", ".join(f"{column} {type}" for column, type in schema.typed if column in read)
            return {"kind": kind, "name": name, "schema": columns, "options": kept}
        case AnswerStream(query=query):
            return {"query": fingerprint_of(query)}
        case JoinStream(left=left, right=right, spec=spec):
            sides = [_stream(side, columns_read(side)) for side in (left, right)]
            within, windowing = canonical(spec.within), canonical(spec.windowing)
            how = {"how": spec.how, "unmatched": spec.unmatched, "within": within, "window": windowing}
            return {"sides": sides, "on": list(spec.on), **how}
        case AnswerTime(column=column):
            return {"column": column}
        case Where(condition=condition):
            return {"condition": canonical(condition)}
        case Select(columns=columns) | WithColumns(columns=columns):
            return {"columns": [[name, canonical(expression)] for name, expression in columns]}
        case Map(function=function, many=many, schema=schema):
            return {"function": canonical(function), "many": many, "schema": str(schema)}
        case Filter(function=function):
            return {"function": canonical(function)}
        case Explode(column=column, outer=outer):
            return {"column": column, "outer": outer}
        case Dedup(by=by, within=within):
            return {"by": list(by), "within": within}
        case Union():
            return {}
        case Join(table=table, on=on, how=how, as_of=as_of):
            return {"table": table.name, "schema": str(table.schema), "on": list(on), "how": how, "as_of": as_of}
        case EventTime(column=column):
            return {"column": column}
        case never:
            assert_never(never)


def _shape(trigger: Trigger) -> dict[str, Any]:
    """A trigger without its numbers."""
    return {"is": type(trigger).__name__, "parts": [_shape(part) for part in parts_of(trigger)]}


def canonical(value: Any) -> Any:
    """A value as JSON, equal for equal values. A function is its code, unless its owner has a version."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return repr(value)
        case Enum():
            return str(value.value)
        case Decimal() | date() | datetime() | time() | timedelta():
            return {"is": type(value).__name__, "value": str(value)}
        case bytes():
            return {"is": "bytes", "value": value.hex()}
        case Expression(sql=sql):
            return {"sql": sql}  # its type follows from that and the schema, and may not be known before Spark starts
        case Schema():
            return str(value)
        case Mapping():
            return {str(key): canonical(item) for key, item in value.items()}
        case tuple() | list():
            return [canonical(item) for item in value]
        case set() | frozenset():
            return sorted((canonical(item) for item in value), key=repr)
    if is_dataclass(value) and not isinstance(value, type):
        compared = {each.name: getattr(value, each.name) for each in fields(value) if each.compare}
        version = compared.pop("version", None)
        if version is not None:
            compared = {name: item for name, item in compared.items() if not callable(item)} | {"version": version}
        return {"is": type(value).__name__, **{name: canonical(item) for name, item in compared.items()}}
    if callable(value):
        return {"is": "code", "name": getattr(value, "__name__", type(value).__name__), "hash": code_hash(value)}
    return {"is": type(value).__qualname__, "hash": hashlib.sha256(_pickled(value)).hexdigest()[:16]}


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=4)
    except Exception:  # an object of the user's that has no bytes: its type is all that is known
        return b""
