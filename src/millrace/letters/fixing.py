"""Corrects the values of dead letters: by SQL expressions over the fields of a record, or by a new text.

A field has the type of its JSON value: a whole number is BIGINT, another number DOUBLE, a nested value its text. A
field that the record lacks is NULL. A corrected value is stored only if it fits the schema of its source.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot

from millrace.edge.decode import JsonDecoder
from millrace.eventlog.intercept import Add
from millrace.formats.duck import asked
from millrace.formats.fields import edit, scan
from millrace.letters.box import LetterBox
from millrace.letters.letter import Chosen, Letter, LetterSource, State
from millrace.model.errors import MillraceError, PipelineError
from millrace.model.evaluate import RowError, evaluate
from millrace.model.expression import Expression, parse_expression
from millrace.model.plain import to_json
from millrace.model.schema import DIALECT, Column, Schema

_BIGGEST = 2**63


@dataclass(frozen=True, slots=True)
class Fixed:
    """The outcome of a correction."""

    fixed: int
    """How many letters have a corrected value now."""
    failed: Mapping[int, str]
    """The letters that have none, by number, with the reasons."""


def fix(box: LetterBox, chosen: Chosen, assignments: Mapping[str, str]) -> Fixed:
    """Set fields of the chosen letters to the values of SQL expressions, and store those that then fit.

    Letters that were sent already are left out. Raises PipelineError if no letter fits.
    """
    if not assignments:
        raise PipelineError("there is nothing to set", 'name a field and an expression: at="timestamp_millis(ts)"')
    return _fix(box, chosen, lambda letter, source: assigned(letter.text, assignments, source))


def fix_texts(box: LetterBox, texts: Mapping[int, str]) -> Fixed:
    """Replace the values of letters, by number, and store those that fit. Raises PipelineError if none does."""
    return _fix(box, Chosen(tuple(texts)), lambda letter, _: texts[letter.number]) if texts else Fixed(0, {})


def _fix(box: LetterBox, chosen: Chosen, new: Callable[[Letter, LetterSource], str]) -> Fixed:
    letters = [letter for letter in box.letters(chosen) if letter.state is not State.RESENT]
    sources = box.sources()
    fixed: dict[int, str] = {}
    failed: dict[int, str] = {}
    for letter in letters:
        about = letter.rejected
        try:
            if about.offset is None:
                raise PipelineError(f"it is not a record but a value of {about.output}")
            fixed[letter.number] = new(letter, sources[about.source])
        except (MillraceError, RowError) as error:
            failed[letter.number] = error.problem if isinstance(error, MillraceError) else str(error)
    for name, source in sources.items():
        own = {letter.number: fixed[letter.number] for letter in letters
               if letter.number in fixed and letter.rejected.source == name}  # fmt: skip
        for number, reason in misfits(source, own).items():
            failed[number] = reason
            del fixed[number]
    if not letters:
        raise PipelineError("there is no dead letter to fix")
    if not fixed:
        number, reason = min(failed.items())
        advice = "nothing was changed: correct the expression, or edit the records"
        raise PipelineError(f"dead letter {number} does not fit: {reason}", advice)
    box.fix(fixed)
    return Fixed(len(fixed), dict(sorted(failed.items())))


def misfits(source: LetterSource, texts: Mapping[int, str | None]) -> dict[int, str]:
    """The texts that do not fit a source, by number, with the reasons."""
    if not texts:
        return {}
    numbers = list(texts)
    _, found = JsonDecoder(source.schema, strict=source.is_strict).decode(pa.array(texts.values(), pa.string()))
    return {numbers[misfit.row]: misfit.reason for misfit in found}


def assigned(text: str | None, assignments: Mapping[str, str], source: LetterSource) -> str:
    """A record with fields set to the values of expressions; all other bytes stay as they are written.

    Expressions see the record as it was before. Raises PipelineError or RowError if an expression has no value.
    """
    row, types = _fields(_object(text), source)
    values = {name: _value(sql, types, row) for name, sql in assignments.items()}
    found = scan(pa.array([text], pa.binary()))
    edits = Add(tuple((name, to_json(each)) for name, each in values.items())).edits(found)
    made: str = edit(found, edits).cast(pa.string())[0].as_py()
    return made


def _object(text: str | None) -> dict[str, Any]:
    """The fields of a record; of several with one name the first counts, as for pipelines."""
    with suppress(ValueError, RecursionError):
        record = json.loads(text or "", object_pairs_hook=lambda pairs: dict(reversed(pairs)))
        if isinstance(record, dict):
            return record
    raise PipelineError("it is not a JSON object, so it has no fields")


def _fields(record: Mapping[str, Any], source: LetterSource) -> tuple[dict[str, Any], tuple[Column, ...]]:
    """The fields of a record with the types of their values, and the columns that it lacks as NULL."""
    row: dict[str, Any] = {}
    columns: dict[str, Column] = {}
    for name, value in {**dict.fromkeys(source.types), **record}.items():
        if not name or name.startswith("__") or name.lower() in {each.lower() for each in columns}:
            continue
        type, row[name] = _typed(value)
        columns[name] = Column(name, source.types.get(name, "STRING") if value is None else type)
    return row, tuple(columns.values())


def _typed(value: Any) -> tuple[str, Any]:
    match value:
        case bool():
            return "BOOLEAN", value
        case int() if -_BIGGEST <= value < _BIGGEST:
            return "BIGINT", value
        case int():
            return "STRING", str(value)
        case float():
            return "DOUBLE", value
        case list() | dict():
            return "STRING", to_json(value)
    return "STRING", value


@lru_cache(256)
def _parsed(sql: str, columns: tuple[Column, ...]) -> Expression:
    return parse_expression(sql, Schema(columns))


def _value(sql: str, columns: tuple[Column, ...], row: Mapping[str, Any]) -> Any:
    """The value of an expression. What the model does not define is left to DuckDB: the result is there to look at."""
    expression = _parsed(sql, columns)
    if expression.node is not None:
        return evaluate(expression, row)
    (written,) = sqlglot.transpile(sql, read=DIALECT, write="duckdb")
    given = pa.table({name: pa.array([row[name]]) for name in expression.columns} or {"none": [None]})
    try:
        return asked(f"SELECT {written} AS value FROM given", {"given": given})["value"][0].as_py()
    except duckdb.Error as error:
        raise RowError(f"{sql} has no value: {str(error).splitlines()[0]}") from None
