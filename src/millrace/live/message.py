"""The messages of the protocol, as JSON text ([docs/live.md](../../../docs/live.md)).

Rows are put into messages as text that was made once for all subscriptions. A body lacks its subscription; `to` adds
it, so that subscriptions of one query share the body.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import Any

from millrace.live.window import Difference
from millrace.model.errors import MillraceError, PipelineError, shown, unknown_option

PROTOCOL = 1
FORMS = ("diff", "upsert", "invalidate")
_LONGEST_NAME = 100
_MOST_INTERVAL = 86_400
_FIELDS = {
    "subscribe": {"sub", "sql", "params", "form", "min_interval", "up_to", "protocol"},
    "resume": {"sub", "token", "version", "protocol"},
    "unsubscribe": {"sub"},
}


@dataclass(frozen=True, slots=True)
class SubscribeMessage:
    """A client asks for a query."""

    sub: str
    sql: str
    params: tuple[Any, ...] = ()
    form: str = "diff"
    min_interval: int = 0
    """In microseconds."""
    up_to: int | None = None


@dataclass(frozen=True, slots=True)
class ResumeMessage:
    """A client goes on after a version; None for that of the token."""

    sub: str
    token: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class UnsubscribeMessage:
    """A client ends a subscription."""

    sub: str


def read_message(text: str | bytes) -> SubscribeMessage | ResumeMessage | UnsubscribeMessage:
    """A message of a client. Refuses one that is not of the protocol."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise PipelineError("the message is not JSON") from None
    if not isinstance(said, dict):
        raise PipelineError(f"a message is a JSON object, not {shown(said)}")
    kind = said.pop("type", None)
    if kind not in _FIELDS:
        raise unknown_option("type of message", kind, _FIELDS)
    for name in said:
        if name not in _FIELDS[kind]:
            raise unknown_option(f"field of {kind}", name, sorted(_FIELDS[kind]))
    if said.pop("protocol", PROTOCOL) != PROTOCOL:
        raise PipelineError(f"the server speaks version {PROTOCOL} of the protocol")
    sub = said.get("sub")
    if not isinstance(sub, str) or not 0 < len(sub) <= _LONGEST_NAME:
        raise PipelineError(f"sub is a name that the client chooses, of up to {_LONGEST_NAME} characters")
    match kind:
        case "subscribe":
            return _subscribe(sub, said)
        case "resume":
            return ResumeMessage(sub, _text(said, "token"), _version(said, "version"))
        case _:
            return UnsubscribeMessage(sub)


def _subscribe(sub: str, said: dict[str, Any]) -> SubscribeMessage:
    form = said.get("form", "diff")
    if form not in FORMS:
        raise unknown_option("form", form, FORMS)
    params = said.get("params", [])
    if not isinstance(params, list):
        raise PipelineError(f"params is a list, not {shown(params)}")
    seconds = said.get("min_interval", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _MOST_INTERVAL:
        raise PipelineError(f"min_interval is in seconds, from 0 to {_MOST_INTERVAL}, not {shown(seconds)}")
    interval = round(seconds * 1_000_000)
    return SubscribeMessage(sub, _text(said, "sql"), tuple(params), form, interval, _version(said, "up_to"))


def _text(said: dict[str, Any], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str):
        raise PipelineError(f"{name} must be text, not {shown(value)}")
    return value


def _version(said: dict[str, Any], name: str) -> int | None:
    value = said.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53):
        raise PipelineError(f"{name} is the number of a version, not {shown(value)}")
    return value


# What the server says.


def to(sub: str, body: str) -> str:
    """A message to a subscription."""
    return f'{{"sub":{quoted(sub)},{body}}}'


def snapshot(columns: Sequence[str], is_sorted: bool, first: int, rows: Iterable[tuple[str, str]]) -> str:
    """A part of the rows; that with the first row 0 begins a new result."""
    names = ",".join(map(quoted, columns))
    told = "true" if is_sorted else "false"
    return f'"type":"snapshot","columns":[{names}],"sorted":{told},"from":{first},"rows":[{_pairs(rows)}]'


def ready(version: int, token: str) -> str:
    """The snapshot is whole, and of this version."""
    return f'"type":"ready","protocol":{PROTOCOL},"version":{version},"token":{quoted(token)}'


def batch(version: int, found: Difference) -> str:
    """The changes of a result at a version."""
    removes = ",".join(map(quoted, found.removes))
    moves = ",".join(f"[{quoted(id)},{place}]" for id, place in found.moves)
    adds = ",".join(
        f"[{quoted(id)},{text}]" if place is None else f"[{quoted(id)},{text},{place}]"
        for id, text, place in found.adds
    )
    parts = f'"removes":[{removes}],"moves":[{moves}],"changes":[{_pairs(found.changes)}],"adds":[{adds}]'
    return f'"type":"batch","version":{version},{parts}'


def upsert(version: int, found: Difference) -> str:
    """The changes of a result as rows by id; null for one that is gone."""
    rows = [(id, "null") for id in found.removes] + found.changes + [(id, text) for id, text, _ in found.adds]
    return f'"type":"upsert","version":{version},"rows":[{_pairs(rows)}]'


def invalidate(version: int) -> str:
    """The result has changed."""
    return f'"type":"invalidate","version":{version}'


def progress(version: int, watermark: str | None, rows: int, checksum: int) -> str:
    """The result is at a version, with so many rows and this checksum."""
    told = "null" if watermark is None else quoted(watermark)
    return f'"type":"progress","version":{version},"watermark":{told},"rows":{rows},"checksum":{checksum}'


def refetch(reason: str) -> str:
    """The result begins anew: a snapshot follows."""
    return f'"type":"refetch","reason":{quoted(reason)}'


def closed(reason: str, token: str) -> str:
    """The subscription has ended; it can be resumed with the token."""
    return f'"type":"closed","reason":{quoted(reason)},"token":{quoted(token)}'


def error(problem: MillraceError) -> str:
    """The subscription has failed, or was refused."""
    advice = "null" if problem.advice is None else quoted(problem.advice)
    return f'"type":"error","kind":{quoted(problem.kind)},"problem":{quoted(problem.problem)},"advice":{advice}'


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    return ",".join(f"[{quoted(id)},{text}]" for id, text in rows)
