"""User functions over values: `udf(parse, "BIGINT")("text")` is a value of a row, as an SQL expression is."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from millrace.model.errors import refuse, shown
from millrace.model.expression import RowSql
from millrace.model.schema import parse_schema
from millrace.model.version import check_version

RowValue: TypeAlias = "RowSql | UserCall"
"""A value of a row as users write it: a row expression, or a call of a function."""
_OF_ROWS = (100, 101)
"""PySpark's numbers for functions that take the values of one row, pickled or as Arrow."""


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function and the type of its result. Two are the same computation if their code or their version is equal."""

    function: Callable[..., Any]
    type: str
    version: str | None = None

    def __call__(self, *arguments: RowSql) -> "UserCall":
        """The value of the function for columns or SQL expressions of a row."""
        if not arguments:
            raise refuse(f"{self}() needs arguments, such as the name of a column")
        return UserCall(self, arguments)

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True, slots=True)
class UserCall:
    """A call of a function, for `where`, `select` and `with_columns`."""

    of: UserFunction
    arguments: tuple[RowSql, ...]

    def __str__(self) -> str:
        return f"{self.of}({', '.join(map(str, self.arguments))})"


def udf(function: Callable[..., Any], type: str | None = None, *, version: str | None = None) -> UserFunction:
    """Make a function usable where rows are computed: `with_columns(n=udf(count_words, "BIGINT")("text"))`.

    The function takes the values of its arguments for one row, of which any may be None, and returns a value of the
    type. A row for which it raises, or returns another value, becomes a dead letter. A function that was made with
    PySpark's `udf`, or registered in a session, brings its type. `version` is as for `agg.fold`.
    """
    if hasattr(function, "func") and hasattr(function, "evalType"):
        return _of_spark(function, type, version)
    if not callable(function):
        raise refuse(f"udf() takes a function, not {shown(function)}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise refuse(f"udf() takes a function that returns its result, which {function.__name__} does not")
    if type is None:
        raise refuse("udf() needs the type of the result", advice="such as udf(count_words, 'BIGINT')")
    (column,) = parse_schema({"result": type})
    return UserFunction(function, column.type, check_version(version))


def _of_spark(made: Any, type: str | None, version: str | None) -> UserFunction:
    """The function inside one of PySpark's."""
    if made.evalType not in _OF_ROWS:
        raise refuse(f"{made.func.__name__} takes many rows at once", advice="pass it to map(..., over='pandas')")
    if not made.deterministic:
        raise refuse(f"{made.func.__name__} is different on every replay", advice="compute it in the producer")
    return udf(made.func, type or made.returnType.simpleString(), version=version)
