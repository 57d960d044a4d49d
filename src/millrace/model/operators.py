"""The row operators: the static description of each kind of stream node.

To add an operator, add a node in `stream`, an entry here, its semantics in `rows`, its SQL in `edge.staged`, its Spark
plan in `spark.native` and its types in `spark.settled`. Each of these matches on `Node` and ends in `assert_never`. An
operator that runs in Python on every engine has its semantics in `applied` only.
"""

from dataclasses import dataclass
from typing import assert_never

from millrace.model.clock import DAY
from millrace.model.duration import format_duration
from millrace.model.expression import Expression
from millrace.model.stream import (
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


@dataclass(frozen=True, slots=True)
class Operator:
    """One step of a stream."""

    verb: str
    detail: str
    expressions: tuple[Expression, ...] = ()
    """The row expressions that it evaluates."""
    columns: frozenset[str] = frozenset()
    """The columns that it reads, including those of its expressions."""


def operator_of(stream: Stream) -> Operator:
    """The step that a node adds to its parents."""
    match node_of(stream):
        case Source(kind=kind, name=name, schema=schema) as source:
            return Operator("source", f"{kind} {name} ({schema}){', strict' if source.is_strict else ''}")
        case JoinStream(spec=spec):
            return Operator("join", f"{spec}", columns=frozenset())
        case AnswerStream(schema=schema):
            return Operator("answers", f"as changes ({schema})")
        case AnswerTime(column=column):
            return Operator("event time", column, columns=frozenset([column]))
        case Where(condition=condition):
            return _evaluating("where", str(condition), condition)
        case Select(columns=columns):
            chosen = (name if str(sql) == f"`{name}`" else f"{sql} AS {name}" for name, sql in columns)
            return _evaluating("select", ", ".join(chosen), *dict(columns).values())
        case WithColumns(columns=columns):
            added = ", ".join(f"{sql} AS {name}" for name, sql in columns)
            return _evaluating("with", added, *dict(columns).values())
        case Map(parent=parent, function=function, many=many, schema=schema):
            verb = "flat map" if many else "map"
            return Operator(verb, f"{function} to ({schema})", columns=frozenset(parent.schema.names))
        case Filter(parent=parent, function=function):
            return Operator("filter", str(function), columns=frozenset(parent.schema.names))
        case Explode(column=column, outer=outer):
            return Operator("explode", column + (", outer" if outer else ""), columns=frozenset([column]))
        case Dedup(by=by, within=within):
            horizon = f" within {format_duration(within)}" if within else ""
            return Operator("dedup", ", ".join(by) + horizon, columns=frozenset(by))
        case Union(parents=sides):
            return Operator("union", f"{len(sides)} streams")
        case Join(table=table, on=on, how=how, as_of=as_of):
            version = f" as of {as_of}" if as_of else ""
            return Operator("join", f"{how} with {table.name} on {', '.join(on)}{version}", columns=frozenset(on))
        case EventTime(column=column, estimator=estimator, ahead=ahead) as timed:
            idle = f", idle after {format_duration(estimator.idle)}" if estimator.idle else ""
            limit = "" if ahead == DAY else f", ahead by {'any time' if ahead is None else format_duration(ahead)}"
            detail = f"{column}, {estimator.policy}{idle}{limit}"
            return Operator("event time", detail, columns=frozenset(timed.watched))
        case never:
            assert_never(never)


def columns_read(stream: Stream) -> frozenset[str]:
    """The columns that a stream and all streams before it read."""
    return operator_of(stream).columns.union(*map(columns_read, parents(stream)))


def _evaluating(verb: str, detail: str, *expressions: Expression) -> Operator:
    return Operator(verb, detail, expressions, frozenset(name for each in expressions for name in each.columns))
