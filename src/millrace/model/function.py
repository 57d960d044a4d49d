"""A user's function over the rows of a stream."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from millrace.model.errors import refuse, refuse_unknown, shown
from millrace.model.version import check_version


class Over(StrEnum):
    """What a function takes: one row as a dict, or many rows as an Arrow table or a pandas DataFrame."""

    ROWS = "rows"
    ARROW = "arrow"
    PANDAS = "pandas"


@dataclass(frozen=True, slots=True)
class Function:
    """A function and what it takes. Two functions are the same computation if their code or their version is equal."""

    call: Callable[[Any], Any]
    over: Over = Over.ROWS
    version: str | None = None

    def __str__(self) -> str:
        return getattr(self.call, "__name__", type(self.call).__name__)


def checked(method: str, call: Callable[[Any], Any], over: str, version: str | None) -> Function:
    """The function that was passed to a method of a stream; a wrong argument is refused."""
    if not callable(call):
        raise refuse(f"{method}() takes a function, not {shown(call)}")
    if over not in list(Over):
        raise refuse_unknown(f"over= of {method}()", over, list(Over))
    if inspect.iscoroutinefunction(call):
        raise refuse(f"{method}() takes a function that returns its result, not the coroutine {call.__name__}")
    if inspect.isgeneratorfunction(call) and method != "flat_map":
        raise refuse(f"{call.__name__} yields several results", advice="pass it to flat_map()")
    return Function(call, Over(over), check_version(version))
