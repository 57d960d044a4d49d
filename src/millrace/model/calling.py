"""Calls of user functions among the columns of a stream: a step in Python that adds the value of each call.

The arguments are columns or are computed as columns first, and all that was added is left out again afterwards. All
other columns of a row pass unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from millrace.model.applied import values_of
from millrace.model.arrow import arrow_type
from millrace.model.errors import NoValueError, caller, refuse
from millrace.model.expression import RowSql, parse_expression
from millrace.model.fitting import holder
from millrace.model.function import Function, Over
from millrace.model.schema import UNKNOWN, Column, Schema, backticked
from millrace.model.stream import Map, Stream
from millrace.model.typed import ColumnOf
from millrace.model.udf import RowValue, UserCall, UserFunction


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A call over columns, and the name of the column that its value takes."""

    name: str
    of: UserFunction
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Calling:
    """Adds the values of calls to a table."""

    calls: tuple[NamedCall, ...]

    @property
    def __name__(self) -> str:
        return ", ".join(str(call.of) for call in self.calls)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The table with a column for each call. Raises what a function raises, and NoValueError for a misfit."""
        for call in self.calls:
            values = [values_of(rows[name]) for name in call.arguments]
            hold = holder(call.of.type)
            made = []
            for given in zip(*values, strict=True):
                returned = call.of.function(*given)
                try:
                    made.append(hold(returned))
                except NoValueError as error:
                    raise NoValueError(f"{call.of}() returned a value that does not fit: {error}") from None
            rows = rows.append_column(call.name, pa.array(made, arrow_type(call.of.type)))
        return rows


def with_calls(stream: Stream, columns: Mapping[str, RowValue]) -> tuple[Stream, dict[str, RowSql]]:
    """A stream that also has the values of the calls among some columns, and these columns as SQL over it."""
    calls: list[NamedCall] = []
    computed: dict[str, RowSql] = {}
    chosen: dict[str, RowSql] = {}
    for name, asked in columns.items():
        if not isinstance(asked, UserCall):
            chosen[name] = asked
            continue
        arguments = []
        for sql in asked.arguments:
            expression = parse_expression(sql, stream.schema)
            if isinstance(expression.node, ColumnOf) and expression.node.path == expression.columns:
                arguments.append(expression.columns[0])
            else:
                arguments.append(_free(f"argument_{len(computed)}", stream.schema))
                computed[arguments[-1]] = sql
        calls.append(NamedCall(_free(f"called_{len(calls)}", stream.schema), asked.of, tuple(arguments)))
        chosen[name] = backticked(calls[-1].name)
    above = stream.with_columns(**computed) if computed else stream
    for column in above.schema:
        if UNKNOWN in column.type:
            raise refuse(
                f"{calls[0].of}() cannot be called: the type of column {column.name!r} is not known before Spark runs",
                advice="call it before the column is computed, or leave the column out with select()",
            )
    schema = above.schema.with_columns(Column(call.name, call.of.type) for call in calls)
    return Map(above, Function(Calling(tuple(calls)), Over.ARROW), False, schema, caller()), chosen


def _free(name: str, schema: Schema) -> str:
    """A name that no column has."""
    while name.lower() in (known.lower() for known in schema.names):
        name += "_"
    return name
