"""SQL queries of users: the check before they run, and the errors of those that fail."""

import re
from collections.abc import Iterable
from math import isfinite

from millrace.model.errors import MillraceError, PipelineError, not_found

_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*(\w*)", re.DOTALL)
_READS = ("SELECT", "WITH", "VALUES")


def check_query(sql: str) -> None:
    """Refuse text that is not a query. The database itself enforces a single, read-only statement."""
    if "\0" in sql:
        raise PipelineError("a query must not contain NUL characters")
    found = _FIRST_WORD.match(sql)
    word = found.group(1).upper() if found else ""
    if word not in _READS:
        raise only_reads() if word else PipelineError("the query is empty", "write one, such as SELECT * FROM a_view")


def check_seconds(seconds: float) -> None:
    """Refuse a time limit that is none."""
    if not isfinite(seconds) or seconds <= 0:
        raise PipelineError(f"the time limit of a query is a number of seconds above 0, not {seconds:g}")


def only_reads() -> MillraceError:
    """The error for anything but one read-only query."""
    return PipelineError("a query is one statement that only reads: SELECT, WITH or VALUES")


def too_slow(limit_seconds: float) -> MillraceError:
    """The error for a query that exceeds its time limit."""
    return PipelineError(f"the query takes longer than {limit_seconds:g} s", "select less, or raise the time limit")


def no_view(name: str, known: Iterable[str]) -> MillraceError:
    """The error for an unknown view."""
    return not_found("view", name, known, "millrace views lists the views")


def failed(said: object) -> MillraceError:
    """The error for a query that the database rejects."""
    return PipelineError(f"the query failed: {str(said).strip()}")
