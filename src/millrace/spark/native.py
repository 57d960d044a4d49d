"""The native edge: a stream as a Spark plan, and its rows as partials.

The row-wise part of a query runs as an ordinary Spark plan; each task then aggregates its rows into (key, slice) and
sends them to the shards of their keys. This is the edge of every query that cannot be fused.

Beside the user's columns, rows carry a few of our own. A row with a `__control` is not an element: it brings the clock,
or a record that did not decode, past every filter. After the event time is known, a filter marks rows instead
of dropping them, because they still tell the time.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from millrace.edge.fused import how
from millrace.edge.tables import columns_of
from millrace.log.bundle import Times, together
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.errors import refuse
from millrace.model.query import Query
from millrace.model.stream import (
    Dedup,
    EventTime,
    Join,
    Select,
    Source,
    Stream,
    Union,
    Where,
    WithColumns,
    event_times,
    find_event_time,
    parents,
    sources,
)
from millrace.model.watermark import Percentile, Punctuated, Seen
from millrace.model.window import Custom
from millrace.panes.advance import Panes
from millrace.panes.blobs import to_bytes
from millrace.spark.edge import by_shard, lifted
from millrace.spark.messages import (
    DEAD,
    DEAD_LETTERS,
    NO_PART,
    PARTIALS,
    ROWS,
    TO_SHARD,
    Message,
    Told,
    to_batch,
)
from millrace.spark.plan import Packed, Part, Plan

ORIGIN, OFFSET, CONTROL = "__origin", "__offset", "__control"
CARRIED = f"`{ORIGIN}` STRING, `{OFFSET}` BIGINT, `{CONTROL}` STRING"
"""What rows of a source carry beside their columns."""
_LEFT_OUT, _NODE, _TIME, _CLOSED, _MATCHED = "__left_out", "__node", "__time", "__closed", "__matched"
_VERSIONS, _ROW = "__versions", "__row"


def messages_of(spark: SparkSession, packed: Packed, number: int, frames: Mapping[str, DataFrame]) -> DataFrame:
    """What the shards are to know of an output, from the frames of its sources by name."""
    part = packed.plan.parts[number]
    rows = _frame(spark, packed.plan, part.stream, part, frames)
    carried = [_column(name) for name in (ORIGIN, OFFSET, CONTROL)]
    marks = [_LEFT_OUT, _NODE, _TIME, _CLOSED]
    kinds = dict(zip(marks, ("boolean", "int", "bigint", "bigint"), strict=True))
    for name in marks:
        if name not in rows.columns:  # the stream has no event time, or nothing after it leaves rows out
            rows = rows.withColumn(name, f.lit(None).cast(kinds[name]))
    columns = [*carried, *map(_column, marks), *_computed(part, rows)]
    return rows.select(*columns).mapInArrow(_sending(packed, number), TO_SHARD)


def _computed(part: Part, rows: DataFrame) -> list[Column]:
    """What `lift` takes; for a plain stream, its columns."""
    if not isinstance(part.of, Query):
        return [_column(name) for name in part.of.schema.names]
    query = part.of
    event_time = find_event_time(query.stream)
    at = f.lit(0).cast("bigint") if event_time is None else _column(_TIME)
    columns = [at.alias("at")]
    columns += [_column(name).alias(key) for name, key in zip(query.keys, query.key_columns, strict=True)]
    for n, computed in enumerate(query.computed):
        columns += [_guarded(rows, sql.sql).alias(f"a{n}_{place}") for place, sql in enumerate(computed.arguments)]
    if isinstance(query.windowing, Custom):
        columns += [_column(name).alias(f"row_{name}") for name in query.stream.schema.names]
    return columns


def _frame(spark: SparkSession, plan: Plan, stream: Stream, part: Part, frames: Mapping[str, DataFrame]) -> DataFrame:
    """A stream as a Spark plan over the frames of its sources, by name."""
    if isinstance(stream, Source):
        return frames[stream.name]
    first, *more = [_frame(spark, plan, parent, part, frames) for parent in parents(stream)]
    hidden = [_column(name) for name in first.columns if name.startswith("__")]
    match stream:
        case Union():
            for other in more:
                first = first.unionByName(other, allowMissingColumns=True)
            return first
        case Where(condition=condition):
            return _keeping(first, _guarded(first, condition.sql), stream.parent)
        case Select(columns=columns):
            return first.select(*(_guarded(first, sql.sql).alias(name) for name, sql in columns), *hidden)
        case WithColumns(columns=columns):
            return first.withColumns({name: _guarded(first, expression.sql) for name, expression in columns})
        case Join(table=table, on=on, how=how, as_of=as_of):
            # Natively, a table is what it was when the stream was started.
            lookup = plan.lookups.get(table.name)
            held = columns_of(table, stream.place) if lookup is None else lookup.read()
            if as_of is None:
                small = spark.createDataFrame(held).withColumn(_MATCHED, f.lit(True))
                joined = first.join(f.broadcast(small), list(on), "left")
            else:
                numbered = held.append_column(_ROW, pa.array(np.arange(len(held))))
                joined = _as_of(stream, first, spark.createDataFrame(numbered), as_of)
            if how == "inner":
                joined = _keeping(joined, _column(_MATCHED).isNotNull(), stream.parent)
            return joined.select(*map(_column, stream.schema.names), *hidden, *_new_marks(joined, first))
        case EventTime(column=column, estimator=estimator):
            node = [id(each) for each in event_times(part.stream)].index(id(stream))
            policy = estimator.policy
            closed = f.unix_micros(_column(policy.column)) if isinstance(policy, Punctuated) else f.lit(None)
            times = {_NODE: f.lit(node), _TIME: f.unix_micros(_column(column)), _CLOSED: closed.cast("bigint")}
            return first.withColumns(times)
        case Dedup():
            raise refuse(f"dedup() needs an edge that is fused, and this one is {_why(part)}", stream.place)
    raise TypeError(f"{type(stream).__name__} is not a kind of stream")


def _why(part: Part) -> str:
    ways = [how(part.of, source) for source in sources(part.stream)]
    return next((way for way in ways if way.startswith("native")), "told not to be")


def _as_of(join: Join, rows: DataFrame, small: DataFrame, since: str) -> DataFrame:
    """Rows with what held at their event time: the rows of a key are one list by time, of which each takes one."""
    event_time = find_event_time(join)
    assert event_time is not None
    added = [name for name in join.table.schema.names if name not in join.on]
    versions = f.struct(_column(since).alias("__at"), _column(_ROW), *map(_column, added))
    listed = small.where(_column(since).isNotNull()).groupBy(*map(_column, join.on))
    lists = listed.agg(f.sort_array(f.collect_list(versions)).alias(_VERSIONS))
    joined = rows.join(f.broadcast(lists), list(join.on), "left")
    at = _column(event_time.column)
    held = f.filter(_column(_VERSIONS), lambda version: version["__at"] <= at)
    chosen = joined.withColumn(_VERSIONS, f.try_element_at(held, f.lit(-1)))
    found = {name: _column(_VERSIONS)[name] for name in added}
    matched = f.when(_column(_VERSIONS).isNotNull(), f.lit(True))
    return chosen.withColumns({**found, _MATCHED: matched})


def _keeping(rows: DataFrame, condition: Column, above: Stream) -> DataFrame:
    """The rows for which a condition holds; where they have told the time already, the others are only marked."""
    holds = f.coalesce(condition, f.lit(False))
    if find_event_time(above) is None:
        return rows.where(holds | _column(CONTROL).isNotNull())
    before = _column(_LEFT_OUT) if _LEFT_OUT in rows.columns else f.lit(False)
    return rows.withColumn(_LEFT_OUT, f.coalesce(before, f.lit(False)) | ~holds)


def _guarded(rows: DataFrame, sql: str) -> Column:
    """An expression of the user's, not computed for rows that are no elements: it might fail on them."""
    element = _column(CONTROL).isNull()
    if _LEFT_OUT in rows.columns:
        element &= ~f.coalesce(_column(_LEFT_OUT), f.lit(False))
    return f.when(element, f.expr(sql))


def _new_marks(joined: DataFrame, before: DataFrame) -> list[Column]:
    return [_column(_LEFT_OUT)] if _LEFT_OUT in joined.columns and _LEFT_OUT not in before.columns else []


def _sending(packed: Packed, number: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan = packed.plan
        sender = Sender(plan.parts[number])
        for batch in batches:
            sender.add(pa.Table.from_batches([batch]))
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        yield to_batch(sender.messages(number, task, plan.shards), plan.labels)

    return send


class Sender:
    """What one task has for one output."""

    def __init__(self, part: Part) -> None:
        """Start with nothing."""
        self._part = part
        self._panes = Panes(part.of) if isinstance(part.of, Query) else None
        self._policies = [node.estimator.policy for node in event_times(part.stream)]
        self._columns = [node.column for node in event_times(part.stream)]
        self._made: list[pa.Table] = []
        self._seen: dict[int, Seen] = {}
        self._letters: list[dict[str, Any]] = []
        self._times: list[Times] = []
        self._rows, self._spent = 0, 0.0

    def add(self, rows: pa.Table) -> None:
        """Take in some rows."""
        control = rows[CONTROL].is_valid()
        for text in rows[CONTROL].filter(control).to_pylist():
            self._heed(json.loads(text))
        rows = rows.filter(pc.invert(control))
        for node in range(len(self._policies)):
            self._see(node, rows.filter(pc.equal(rows[_NODE], node)))
        elements = rows.filter(pc.invert(pc.fill_null(rows[_LEFT_OUT], False)))
        if self._policies:
            elements = elements.filter(elements[_TIME].is_valid())
        made = elements.select([name for name in elements.column_names if not name.startswith("__")])
        if self._panes is not None:
            made, failed = lifted(self._panes, made)
            for row, reason in failed.items():
                at = {"origin": elements[ORIGIN][row].as_py(), "offset": elements[OFFSET][row].as_py()}
                self._letters.append({"source": "", **at, "reason": reason, "value": None})
        if len(made):
            self._made.append(made)

    def messages(self, number: int, task: int, shards: int) -> list[Message]:
        """What the shards are to know; nothing if the task had nothing to read, not even the clock."""
        if not self._times:
            return []
        place = task << 32
        times = together(self._times)
        if self._panes is None:
            sent = [Message(0, number, place + n, ROWS, payload=to_bytes(rows)) for n, rows in enumerate(self._made)]
        else:
            sent = list(by_shard(self._panes, number, place, self._made, Told(times, self._seen), shards))
        if self._letters:
            table = pa.Table.from_pylist(self._letters, DEAD_LETTERS)
            sent.append(Message(0, NO_PART, place, DEAD, payload=to_bytes(table)))
        counted = Told(Times(0, 0), rows=self._rows, spent=self._spent)
        return [*sent, Message(0, NO_PART, place, PARTIALS, counted.to_json())]

    def _heed(self, control: dict[str, Any]) -> None:
        self._times.append(Times(*control["times"]))
        self._letters += control["letters"]
        self._rows += control["rows"]
        self._spent += control["spent"]

    def _see(self, node: int, rows: pa.Table) -> None:
        policy, times = self._policies[node], rows[_TIME]
        closed = pc.max(rows[_CLOSED]).as_py()
        known = times.drop_null().to_numpy()
        every: dict[int, int] = {}
        if isinstance(policy, Percentile):
            values, counts = np.unique(known, return_counts=True)
            every = dict(zip(values.tolist(), counts.tolist(), strict=True))
        newest = int(known.max()) if len(known) else BEGINNING_OF_TIME
        seen = Seen(newest, BEGINNING_OF_TIME if closed is None else closed, every)
        self._seen[node] = self._seen.get(node, Seen()) + seen
        timeless = rows.filter(pc.and_(times.is_null(), rows[_CLOSED].is_null()))
        for row in timeless.select([ORIGIN, OFFSET]).to_pylist():
            letter = {"source": "", "origin": row[ORIGIN], "offset": row[OFFSET], "value": None}
            self._letters.append({**letter, "reason": f"event time {self._columns[node]} is NULL"})


def _column(name: str) -> Column:
    return f.col(f"`{name}`")
