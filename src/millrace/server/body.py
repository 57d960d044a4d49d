"""Decodes the bodies of requests into records: one JSON object, an array of them, or JSON lines."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from millrace.eventlog.condition import are_objects
from millrace.formats.duck import asked
from millrace.formats.texts import SPACES
from millrace.model.errors import MillraceError, PipelineError
from millrace.sources.collect import first_misfit
from millrace.sources.files import lines

_NONE_STORED = "no record was stored: correct the body, and send it again"
_NO_RECORD = PipelineError("record 1 of the body is not a JSON object", _NONE_STORED)
_SPACES = SPACES.encode()


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request: JSON, or JSON lines."""

    content: bytes
    is_lines: bool = False


def records_of(body: bytes, is_lines: bool) -> pa.Array:
    """The records of a body, each the text of a JSON object. Refuses the whole body if it holds anything else."""
    if is_lines:
        values = lines("body", body).texts
        assert values is not None
    else:
        values = _members(_text(body))
    wrong = first_misfit(values)
    if wrong is not None:
        raise PipelineError(f"record {wrong + 1} of the body is not a JSON object", _NONE_STORED)
    return values


def records_of_each(bodies: Sequence[Body]) -> list[pa.Array | MillraceError]:
    """The records of each body, or why it is refused. Bodies of one object, which are most, are checked together."""
    found: list[pa.Array | MillraceError | None] = [None] * len(bodies)
    single: list[int] = []
    for place, body in enumerate(bodies):
        if not body.is_lines and body.content.lstrip(_SPACES).startswith(b"{"):
            single.append(place)
            continue
        try:
            found[place] = records_of(body.content, body.is_lines).cast(pa.string())
        except MillraceError as error:
            found[place] = error
    if single:
        texts = pa.array([bodies[place].content.strip(_SPACES) for place in single], pa.binary())
        are = are_objects(texts)
        objects = texts.filter(pa.array(are)).cast(pa.string())
        at = 0
        for place, is_object in zip(single, are.tolist(), strict=True):
            found[place] = objects.slice(at, 1) if is_object else _why(bodies[place].content)
            at += is_object
    return [each for each in found if each is not None]


def _why(content: bytes) -> MillraceError:
    """The error for a body that is not an object."""
    try:
        _text(content)
    except MillraceError as error:
        return error
    return _NO_RECORD


def _members(text: str) -> pa.Array:
    if not text.lstrip(SPACES).startswith("["):
        return pa.array([text.strip(SPACES)], pa.string())
    try:
        return asked("SELECT unnest(json_extract(?, '$[*]'))::VARCHAR AS value", {}, [text])["value"].combine_chunks()
    except (duckdb.Error, UnicodeDecodeError):  # its message may cut a character
        raise PipelineError(f"the body is not valid JSON: {_reason(text)}", _NONE_STORED) from None


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise PipelineError("the body is not text in UTF-8", _NONE_STORED) from None


def _reason(text: str) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return "it cannot be parsed"
