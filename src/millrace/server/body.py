"""Decodes the body of a request into records: one JSON object, an array of them, or JSON lines."""

import json

import duckdb
import pyarrow as pa

from millrace.formats.duck import asked
from millrace.formats.texts import SPACES
from millrace.model.errors import PipelineError
from millrace.sources.collect import first_misfit
from millrace.sources.files import lines

LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines", "text/plain")
_NONE_STORED = "no record was stored: correct the body, and send it again"


def records_of(body: bytes, content_type: str) -> pa.Array:
    """The records of a body, each the text of a JSON object. Refuses the whole body if it holds anything else."""
    if content_type.partition(";")[0].strip().lower() in LINES:
        values = lines("body", body).texts
        assert values is not None
    else:
        values = _members(_text(body))
    wrong = first_misfit(values)
    if wrong is not None:
        raise PipelineError(f"record {wrong + 1} of the body is not a JSON object", _NONE_STORED)
    return values


def _members(text: str) -> pa.Array:
    if not text.lstrip(SPACES).startswith("["):
        return pa.array([text.strip(SPACES)], pa.string())
    try:
        return asked("SELECT unnest(json_extract(?, '$[*]'))::VARCHAR AS value", {}, [text])["value"].combine_chunks()
    except duckdb.Error:
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
