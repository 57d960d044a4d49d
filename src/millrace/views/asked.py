"""SQL queries of users: what they may be, and what is said of those that fail."""

import re
from collections.abc import Iterable

from millrace.model.errors import MillraceError, PipelineError, unknown

_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*(\w*)", re.DOTALL)
_READS = ("SELECT", "WITH", "VALUES")


def check_query(sql: str) -> None:
    """Refuse what is not a query. The database sees to it that a query only reads, and that it is only one."""
    if "\0" in sql:
        raise PipelineError("a query has no NUL characters")
    found = _FIRST_WORD.match(sql)
    word = found.group(1).upper() if found else ""
    if word not in _READS:
        raise only_reads() if word else PipelineError("the query is empty; write one, such as SELECT * FROM a_view")


def only_reads() -> MillraceError:
    """That something else than a query was asked."""
    return PipelineError("only one query may be asked at a time, and only one that reads: SELECT, WITH or VALUES")


def too_slow(limit_seconds: float) -> MillraceError:
    """That a query takes too long."""
    return PipelineError(f"the query takes longer than {limit_seconds:g} s; ask for less, or give it more time")


def no_view(name: str, known: Iterable[str]) -> MillraceError:
    """That there is no such view."""
    return PipelineError(unknown("view", name, known))


def failed(said: object) -> MillraceError:
    """That the database does not understand."""
    return PipelineError(f"the query does not work: {str(said).strip()}")
