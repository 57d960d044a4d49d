"""Resolves the types of a pipeline with Spark's analyzer.

While a pipeline is built, Millrace types expressions by its own implementation of Spark's rules; some stay unresolved.
This module asks Spark for the type of each expression, on a frame without rows. Where the types differ, Spark's type
holds, and Spark computes the expression: the edge is native.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType

from millrace.model.aggregate import check_types
from millrace.model.arrow import arrow_type
from millrace.model.errors import MillraceError, Place, at_place, refuse
from millrace.model.expression import Expression, parse_expression
from millrace.model.pipeline import Pipeline
from millrace.model.query import Query
from millrace.model.schema import UNKNOWN, Column, Schema, backticked, parse_schema
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
    exploded,
    node_of,
)


def settled(spark: SparkSession, pipeline: Pipeline) -> Pipeline:
    """The same pipeline with Spark's types. Refuses, at the user's line, an expression that Spark refuses."""
    asking = _Asking(spark)
    views = {name: asking.of(of) for name, of in pipeline.views.items()}
    for name, of in views.items():
        _check_view(name, pipeline.views[name], of)
    sinks = [replace(output, of=asking.of(output.of)) for output in pipeline.sinks]
    return replace(pipeline, views=views, sinks=sinks)


def is_settled(pipeline: Pipeline) -> bool:
    """Whether all columns of all outputs have a known type."""
    return all(UNKNOWN not in column.type for of in pipeline.outputs for column in of.schema)


class _Asking:
    """Rebuilds streams with Spark's types, each node once, so that shared nodes stay shared."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: dict[int, Stream] = {}

    def of(self, of: Query | Stream) -> Query | Stream:
        return self.query(of) if isinstance(of, Query) else self.stream(of)

    def query(self, query: Query) -> Query:
        stream = self.stream(query.stream)
        arguments = {
            f"a{n}_{place}": argument
            for n, computed in enumerate(query.computed)
            for place, argument in enumerate(computed.arguments)
        }
        typed = self._typed(stream.schema, arguments, query.place)
        computed = []
        for n, each in enumerate(query.computed):
            own = tuple(typed[f"a{n}_{place}"] for place in range(len(each.arguments)))
            types = [argument.type for argument in own]
            with at_place(query.place):
                check_types(each.aggregate, types)
            computed.append(replace(each, aggregate=each.aggregate.over(types), arguments=own))
        return replace(query, stream=stream, computed=tuple(computed))

    def stream(self, stream: Stream) -> Stream:
        if id(stream) not in self._known:
            self._known[id(stream)] = self._settled(stream)
        return self._known[id(stream)]

    def _settled(self, stream: Stream) -> Stream:
        match node_of(stream):
            case Source() as source:
                return source
            case AnswerStream(query=query) as answers:
                asked = self.query(query)
                return replace(answers, query=asked, schema=asked.schema)
            case JoinStream() as node:
                sides = [self.stream(side) for side in node.sides]
                with at_place(node.place):
                    spec = replace(node.spec, left=sides[0].schema, right=sides[1].schema)
                return replace(node, left=sides[0], right=sides[1], spec=spec, schema=spec.schema)
            case Union(parents=sides) as node:
                made = tuple(self.stream(side) for side in sides)
                if len({frozenset(side.schema.typed) for side in made}) > 1:
                    schemas = " and ".join(f"({side.schema})" for side in made)
                    raise refuse(f"union() needs the same columns on all sides, but they have {schemas}", node.place)
                return replace(node, parents=made, schema=made[0].schema)
            case Where(condition=condition) as node:
                parent = self.stream(node.parent)
                typed = self._typed(parent.schema, {"holds": condition}, node.place)["holds"]
                if typed.type != "BOOLEAN":
                    raise refuse(f"where({typed.sql!r}) needs a condition, but this is {typed.type}", node.place)
                return replace(node, parent=parent, condition=typed, schema=parent.schema)
            case Select(columns=columns) as node:
                parent = self.stream(node.parent)
                chosen = self._typed(parent.schema, dict(columns), node.place)
                schema = Schema(tuple(Column(name, each.type) for name, each in chosen.items()))
                return replace(node, parent=parent, columns=tuple(chosen.items()), schema=schema)
            case WithColumns(columns=columns) as node:
                parent = self.stream(node.parent)
                added = self._typed(parent.schema, dict(columns), node.place)
                schema = parent.schema.with_columns(Column(name, each.type) for name, each in added.items())
                return replace(node, parent=parent, columns=tuple(added.items()), schema=schema)
            case Join(table=table, on=on) as node:
                parent = self.stream(node.parent)
                for name in on:
                    left, right = parent.schema.type_of(name), table.schema.type_of(name)
                    if left != right:
                        raise refuse(
                            f"join on {name!r}: it is {left} in the stream, but {right} in table {table.name!r}",
                            node.place,
                        )
                schema = parent.schema.with_columns(column for column in table.schema if column.name not in on)
                return replace(node, parent=parent, schema=schema)
            case Map() as node:
                return replace(node, parent=self.stream(node.parent))
            case Explode(column=column) as node:
                parent = self.stream(node.parent)
                with at_place(node.place):
                    schema = exploded(parent.schema, column)
                if len(schema.names) != len(node.schema.names):
                    problem = f"{column!r} is a MAP, which was not known when explode({column!r}) was called"
                    raise refuse(problem, node.place, f"explode map_entries({column}) instead, an ARRAY of structs")
                return replace(node, parent=parent, schema=schema)
            case (Filter() | Dedup()) as node:
                parent = self.stream(node.parent)
                return replace(node, parent=parent, schema=parent.schema)
            case (EventTime(column=column) | AnswerTime(column=column)) as node:
                parent = self.stream(node.parent)
                kind = parent.schema.type_of(column)
                if kind != "TIMESTAMP":
                    raise refuse(f"event time needs a TIMESTAMP, but {column!r} is {kind}", node.place)
                return replace(node, parent=parent, schema=parent.schema)
            case never:
                assert_never(never)

    def _typed(self, schema: Schema, expressions: Mapping[str, Expression], place: Place) -> dict[str, Expression]:
        """Expressions over these columns with Spark's types."""
        with at_place(place):
            read = {name: parse_expression(each.sql, schema) for name, each in expressions.items()}
        asked = list(dict.fromkeys(each.sql for each in read.values() if each.sql.strip("`") not in schema))
        types = self._types(schema, asked, place)
        return {name: _with_type(each, types.get(each.sql, each.type)) for name, each in read.items()}

    def _types(self, schema: Schema, texts: Sequence[str], place: Place) -> dict[str, str]:
        if not texts:
            return {}
        columns = ", ".join(f"{backticked(column.name)} {column.type}" for column in schema)
        frame = self._spark.createDataFrame([], columns)
        try:
            kinds = _kinds(frame, texts)
        except (AnalysisException, ParseException):
            for text in texts:  # find the one that Spark refuses
                try:
                    _kinds(frame, [text])
                except (AnalysisException, ParseException) as error:
                    raise refuse(f"Spark refuses {text!r}: {str(error).splitlines()[0]}", place) from None
            raise
        return {text: _named(text, kind, place) for text, kind in zip(texts, kinds, strict=True)}


def _kinds(frame: DataFrame, texts: Sequence[str]) -> list[DataType]:
    return [field.dataType for field in frame.select(*map(f.expr, texts)).schema]


def _named(text: str, kind: DataType, place: Place) -> str:
    try:
        type = parse_schema(f"x {kind.simpleString()}").columns[0].type
        arrow_type(type)
        return type
    except MillraceError:
        message = f"{text!r} is {kind.simpleString()}, which Millrace does not keep; cast it to another type"
        raise refuse(message, place) from None


def _with_type(expression: Expression, type: str) -> Expression:
    if expression.type == type:
        return expression
    reason = expression.unresolved or f"{expression.sql} is {type} to Spark, not {expression.type}"
    return replace(expression, type=type, node=None, unresolved=reason)


def _check_view(name: str, built: Query | Stream, asked: Query | Stream) -> None:
    """Refuse a view if Spark's type of a column differs from the type that the view was opened with."""
    for before, now in zip(built.schema, asked.schema, strict=True):
        if before.type != now.type and UNKNOWN not in before.type:
            raise refuse(
                f"view {name}: {before.name} is {now.type} to Spark, not {before.type}; write the type you mean, "
                f"such as CAST(... AS {now.type})",
                built.place,
            )
