"""The native edge: a stream as a Spark plan, and its rows as partials.

The row-wise part of a query runs as an ordinary Spark plan; each task then aggregates its rows into (key, slice)
partials and sends them to the shards of their keys. Every query that cannot be fused has this edge.

Rows carry hidden columns beside the user's columns. A row with a `__control` is not an element: it carries the clock,
and the records that did not decode, past every filter. Once event time is assigned, a filter marks rows instead of
dropping them, because they still advance the watermark. A row for which an expression has no value carries the reason
in `__bad` past every filter, and becomes a dead letter.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from millrace.edge.tables import columns_of
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.errors import refuse
from millrace.model.evaluate import no_value
from millrace.model.expression import Expression
from millrace.model.query import Query
from millrace.model.schema import backticked
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
    event_times,
    find_event_time,
    node_of,
)
from millrace.model.typed import is_fallible
from millrace.model.watermark import Percentile, Punctuated, Seen
from millrace.model.window import Custom
from millrace.panes.blobs import to_bytes
from millrace.panes.late import LateJudge
from millrace.plan.explain import edge_as_text
from millrace.plan.plan import Stage
from millrace.sources.arrived import Arrived, arrivals, arrived_from_json
from millrace.sources.bundle import LOGGED, Split, Times, together
from millrace.sources.looked import Looked, combined
from millrace.spark.applying import applied
from millrace.spark.envelope import reported
from millrace.spark.job import Job, PackedJob
from millrace.spark.marks import AGAIN, BAD, CLOSED, CONTROL, LEFT_OUT, MARKS, NODE, OFFSET, ORIGIN, TIME
from millrace.spark.messages import (
    DEAD,
    DEAD_LETTERS,
    NO_STAGE,
    PARTIALS,
    ROWS,
    TO_SHARD,
    Message,
    TaskReport,
    to_batch,
)
from millrace.spark.side_rows import by_key, side_rows
from millrace.spark.task import Letters, by_shard, lifted, panes_of, without
from millrace.spark.tried import tried

_MATCHED, _VERSIONS, _ROW = "__matched", "__versions", "__row"


def messages_of(spark: SparkSession, packed: PackedJob, number: int, frames: Mapping[str, DataFrame]) -> DataFrame:
    """The messages to the shards for one output, from the frames of its sources by name."""
    stage = packed.job.stages[number]
    sides = (
        NativePlan(spark, packed.job, of_side(stage, side), frames)
        .rows()
        .mapInArrow(_sending(packed, number, side), TO_SHARD)
        for side, _ in stage.own_streams
    )
    return reduce(DataFrame.union, sides)


def of_side(stage: Stage, side: int) -> Stage:
    """A join as the stage of the rows of one of its sides; any other stage as it is."""
    return stage if stage.join is None else replace(stage, stream=stage.join.sides[side])


class NativePlan:
    """Builds the Spark plan of an output."""

    def __init__(self, spark: SparkSession, job: Job, stage: Stage, frames: Mapping[str, DataFrame]) -> None:
        """`frames` are the rows of sources, by name."""
        self._spark, self._job, self._stage, self._frames = spark, job, stage, frames

    def rows(self) -> DataFrame:
        """The rows for `Sender`: the hidden columns and the inputs of `lift`; for a plain stream, its columns."""
        rows = self._frame(self._stage.stream)
        columns: list[Column] = []
        of = self._stage.query
        if of is not None:
            arguments = {
                f"a{n}_{place}": argument
                for n, computed in enumerate(of.computed)
                for place, argument in enumerate(computed.arguments)
            }
            rows, values = self._computed(rows, arguments)
            columns.append(_time_of(of).alias("at"))
            columns += [_column(name).alias(key) for name, key in zip(of.keys, of.key_columns, strict=True)]
            columns += [value.alias(name) for name, value in values.items()]
            if isinstance(of.windowing, Custom):
                columns += [_column(name).alias(f"row_{name}") for name in of.stream.schema.names]
        else:
            columns = [_column(name) for name in self._stage.stream.schema.names]
        for name, kind in MARKS.items():
            if name not in rows.columns:  # the stream has no event time, or no step marks rows
                rows = rows.withColumn(name, f.lit(None).cast(kind))
        return rows.select(*map(_column, (ORIGIN, OFFSET, LOGGED, CONTROL, *MARKS)), *columns)

    def _frame(self, stream: Stream) -> DataFrame:
        """A stream as a Spark plan over the frames of its sources."""
        match node_of(stream):
            case Source(name=name):
                return self._frames[name]
            case Union(parents=sides):
                first, *more = map(self._frame, sides)
                for other in more:
                    first = first.unionByName(other, allowMissingColumns=True)
                return first
            case Dedup(place=place):
                raise refuse(
                    f"dedup() needs an edge that is fused, and this one is {edge_as_text(self._job.plan, self._stage)}",
                    place,
                )
            case AnswerStream() | JoinStream():
                raise AssertionError("the answers of a query are read in shards, not by an edge")
            case AnswerTime(parent=parent):
                return self._frame(parent)
            case (Where() | Select() | WithColumns() | Join() | EventTime()) as step:
                return self._step(step, self._frame(step.parent))
            case (Map() | Filter() | Explode()) as step:
                above = self._frame(step.parent)
                return applied(step, above, _is_element(above))
            case never:
                assert_never(never)

    def _step(self, step: Where | Select | WithColumns | Join | EventTime, above: DataFrame) -> DataFrame:
        match step:
            case Where(condition=condition):
                rows, values = self._computed(above, {"holds": condition})
                return _keeping(rows, values["holds"], step.parent).drop("__t_holds")
            case Select(columns=columns):
                rows, values = self._computed(above, dict(columns))
                return rows.select(*(value.alias(name) for name, value in values.items()), *_hidden(rows))
            case WithColumns(columns=columns):
                rows, values = self._computed(above, dict(columns))
                return rows.withColumns(values).drop(*(f"__t_{name}" for name in values))
            case Join():
                return self._join(step, above)
            case EventTime(column=column, estimator=estimator):
                node = [id(each) for each in event_times(self._stage.stream)].index(id(step))
                policy = estimator.policy
                closed = f.unix_micros(_column(policy.column)) if isinstance(policy, Punctuated) else f.lit(None)
                times = {NODE: f.lit(node), TIME: f.unix_micros(_column(column)), CLOSED: closed.cast("bigint")}
                return above.withColumns({name: f.when(_is_good(above), value) for name, value in times.items()})
            case never:
                assert_never(never)

    def _computed(self, rows: DataFrame, expressions: Mapping[str, Expression]) -> tuple[DataFrame, dict[str, Column]]:
        """The columns of values, and the rows; a row that has no value for an expression is marked.

        Expressions are computed for elements only, because they might fail on other rows.
        """
        risky = {name: each for name, each in expressions.items() if each.node is None or is_fallible(each.node)}
        element = _is_element(rows)
        values = {name: f.when(element, f.expr(each.sql)) for name, each in expressions.items() if name not in risky}
        if risky:
            attempts = {f"__t_{name}": f.when(element, tried(self._spark, each.sql)) for name, each in risky.items()}
            rows = rows.withColumns(attempts)
            failed = [
                f.when(element & _column(f"__t_{name}").isNull(), f.lit(no_value(each.sql)))
                for name, each in risky.items()
            ]
            before = [_column(BAD)] if BAD in rows.columns else []
            rows = rows.withColumn(BAD, f.coalesce(*before, *failed))
        return rows, {name: _column(f"__t_{name}")["v"] if name in risky else values[name] for name in expressions}

    def _join(self, join: Join, rows: DataFrame) -> DataFrame:
        # A native edge reads a table once, when the stream is started.
        lookup = self._job.lookups.get(join.table.name)
        held = columns_of(join.table, join.place) if lookup is None else lookup.read()
        if join.as_of is None:
            small = self._spark.createDataFrame(held).withColumn(_MATCHED, f.lit(True))
            joined = rows.join(f.broadcast(small), list(join.on), "left")
        else:
            numbered = held.append_column(_ROW, pa.array(np.arange(len(held))))
            joined = _as_of(join, rows, self._spark.createDataFrame(numbered), join.as_of)
        if join.how == "inner":
            joined = _keeping(joined, _column(_MATCHED).isNotNull(), join.parent)
        return joined.select(*map(_column, join.schema.names), *_hidden(rows), *_new_marks(joined, rows))


def _time_of(query: Query) -> Column:
    """The event time of a row of a query, in microseconds; 0 if no column has it."""
    match find_event_time(query.stream):
        case None:
            return f.lit(0).cast("bigint")
        case AnswerTime(column=column):
            return f.unix_micros(_column(column))
        case EventTime():
            return _column(TIME)
        case never:
            assert_never(never)


def _hidden(rows: DataFrame) -> list[Column]:
    """The hidden columns, without those for attempted expressions, which serve one step only."""
    return [_column(name) for name in rows.columns if name.startswith("__") and not name.startswith("__t_")]


def _is_good(rows: DataFrame) -> Column:
    """Whether a row has a value for every expression so far."""
    return _column(BAD).isNull() if BAD in rows.columns else f.lit(True)


def _is_element(rows: DataFrame) -> Column:
    element = _column(CONTROL).isNull() & _is_good(rows)
    if TIME in rows.columns:  # a row without an event time is no element, but may still close an epoch
        element &= _column(TIME).isNotNull()
    return element & ~f.coalesce(_column(LEFT_OUT), f.lit(False)) if LEFT_OUT in rows.columns else element


def _as_of(join: Join, rows: DataFrame, small: DataFrame, since: str) -> DataFrame:
    """Rows with the version that held at their event time: each key has one list of versions, sorted by time."""
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
    """The rows for which a condition holds; once event time is assigned, the others are only marked."""
    holds = f.coalesce(condition, f.lit(False))
    if find_event_time(above) is None:
        return rows.where(holds | _column(CONTROL).isNotNull() | ~_is_good(rows))
    before = _column(LEFT_OUT) if LEFT_OUT in rows.columns else f.lit(False)
    return rows.withColumn(LEFT_OUT, f.coalesce(before, f.lit(False)) | (~holds & _is_good(rows)))


def _new_marks(joined: DataFrame, before: DataFrame) -> list[Column]:
    return [_column(LEFT_OUT)] if LEFT_OUT in joined.columns and LEFT_OUT not in before.columns else []


def _sending(
    packed: PackedJob, number: int, side: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    @reported
    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        job = packed.job
        sender = Sender(job.stages[number], side)
        for batch in batches:
            sender.add(pa.Table.from_batches([batch]))
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        yield to_batch(sender.messages(number, task, job.shards), job.labels)

    return send


class Sender:
    """Collects the partials, event times and dead letters of one task for one output."""

    def __init__(self, stage: Stage, side: int = 0) -> None:
        """Start empty. `side` is that of a join."""
        self._output, self._join, self._side = stage.id, stage.join, side
        self._nodes_before = len(stage.estimators(0)) if side else 0
        """How many nodes of event time the left side of a join has, if this is the right one."""
        stage = of_side(stage, side)
        self._judge: LateJudge | None = None
        """Finds the rows that are too late; None if they are not kept."""
        self._panes = panes_of(stage)
        self._nodes = event_times(stage.stream)
        self._made: list[pa.Table] = []
        self._seen: dict[int, Seen] = {}
        self._letters: list[dict[str, Any]] = []
        self._aside: dict[tuple[str, int], tuple[str, str | None, str | None]] = {}
        """The reasons of rows set aside, with hints and problems, by the origin and the offset of their records."""
        self._read: list[str] = []
        self._times: list[Times] = []
        self._arrived, self._looked = dict[str, Arrived](), dict[str, Looked]()
        self._spent = 0.0

    def add(self, rows: pa.Table) -> None:
        """Process some rows."""
        control = rows[CONTROL].is_valid()
        for text in rows[CONTROL].filter(control).to_pylist():
            self._heed(json.loads(text))
        rows = rows.filter(pc.invert(control))
        rows = rows.filter(pc.invert(self._timeless(rows)))
        first = pc.invert(pc.fill_null(rows[AGAIN], False))
        for node in range(len(self._nodes)):
            self._see(node, rows.filter(pc.and_(pc.equal(rows[NODE], node), first)))
        bad = rows[BAD].is_valid()
        for row in rows.filter(bad).select([ORIGIN, OFFSET, BAD]).to_pylist():
            self._set_aside(row, row[BAD])
        elements = rows.filter(pc.invert(pc.or_(bad, pc.fill_null(rows[LEFT_OUT], False))))
        if self._nodes:
            elements = elements.filter(elements[TIME].is_valid())
        made = elements.select([name for name in elements.column_names if not name.startswith("__")])
        if self._panes is not None:
            made, failed = lifted(self._panes, made)
            for row, reason in failed.items():
                self._set_aside({name: elements[name][row].as_py() for name in (ORIGIN, OFFSET)}, reason)
            if self._judge is not None and len(made):
                self._keep_late(self._judge, elements.take(pa.array(without(len(elements), failed))), made)
        if len(made):
            self._made.append(made)

    def _keep_late(self, judge: LateJudge, elements: pa.Table, made: pa.Table) -> None:
        """Make dead letters of the elements that are too late; the shards still count them, and drop them."""
        found = judge.of_elements(elements["at"].to_numpy(), made)
        for row, late in found.items():
            where = {name: elements[name][row].as_py() for name in (ORIGIN, OFFSET)}
            self._set_aside(where, late.reason, late.hint, late.problem)

    def messages(self, number: int, task: int, shards: int) -> list[Message]:
        """The messages to the shards; none if the task received no rows, not even the clock."""
        if not self._times:
            return []
        sequence = task << 32
        times = together(self._times)
        if self._join is not None:
            seen = {self._nodes_before + node: each for node, each in self._seen.items()}
            rows = [side_rows(self._join, self._side, rows) for rows in self._made]
            report = TaskReport(times, seen, side=self._side)
            sent = list(by_key(self._join.spec, number, sequence, rows, report, shards))
        elif self._panes is None:
            sent = [Message(0, number, sequence + n, ROWS, payload=to_bytes(rows)) for n, rows in enumerate(self._made)]
        else:
            sent = list(by_shard(self._panes, number, sequence, self._made, TaskReport(times, self._seen), shards))
        letters = [*self._letters, *self._rejected()]
        if letters:
            table = pa.Table.from_pylist(letters, DEAD_LETTERS)
            sent.append(Message(0, NO_STAGE, sequence, DEAD, payload=to_bytes(table)))
        counted = TaskReport(Times(0, 0), arrived=self._arrived, spent=self._spent, looked=self._looked)
        return [*sent, Message(0, NO_STAGE, sequence, PARTIALS, counted.to_json())]

    def _heed(self, control: dict[str, Any]) -> None:
        if "watermark" in control:
            assert self._panes is not None
            self._judge = LateJudge(self._panes.query, self._output, control["watermark"])
            return
        self._times.append(Times(*control["times"]))
        self._letters += control["letters"]
        self._read.append(control["read"])
        arrived = {source: arrived_from_json(each) for source, each in control["arrived"].items()}
        self._arrived = arrivals([self._arrived, arrived])
        self._spent += control["spent"]
        told = {source: Looked(**each) for source, each in control["looked"].items()}
        self._looked = combined([self._looked, told])

    def _timeless(self, rows: pa.Table) -> pa.ChunkedArray:
        """Which rows have no event time, or one that is too far ahead; they become dead letters."""
        found = pa.chunked_array([pa.array(np.zeros(len(rows), np.bool_))])
        for number, node in enumerate(self._nodes):
            own = pc.fill_null(pc.equal(rows[NODE], number), False)
            late = pc.and_(rows[TIME].is_null(), rows[CLOSED].is_null())
            if node.ahead is not None:
                for name in (TIME, CLOSED):
                    behind = pc.subtract(rows[name], node.ahead)
                    late = pc.or_(late, pc.fill_null(pc.greater(behind, rows[LOGGED]), False))
            found = pc.or_(found, pc.and_(own, late))
            for row in rows.filter(pc.and_(own, late)).select([ORIGIN, OFFSET, LOGGED, TIME, CLOSED]).to_pylist():
                at = (row[TIME], row[CLOSED])[: len(node.watched)]
                why = node.untimely(at, row[LOGGED])
                assert why is not None, "the filter above finds the same rows"
                self._set_aside(row, why.reason, why.hint, why.problem)
        return found

    def _see(self, node: int, rows: pa.Table) -> None:
        policy, times = self._nodes[node].estimator.policy, rows[TIME]
        closed = pc.max(rows[CLOSED]).as_py()
        known = times.drop_null().to_numpy()
        every: dict[int, int] = {}
        if isinstance(policy, Percentile):
            values, counts = np.unique(known, return_counts=True)
            every = dict(zip(values.tolist(), counts.tolist(), strict=True))
        newest = int(known.max()) if len(known) else BEGINNING_OF_TIME
        seen = Seen(newest, BEGINNING_OF_TIME if closed is None else closed, every)
        self._seen[node] = self._seen.get(node, Seen()) + seen

    def _set_aside(
        self, row: Mapping[str, Any], reason: str, hint: str | None = None, problem: str | None = None
    ) -> None:
        """Make a record a dead letter, once, however many rows it has become."""
        self._aside.setdefault((row[ORIGIN], row[OFFSET]), (reason, hint, problem))

    def _rejected(self) -> Iterator[dict[str, Any]]:
        """The dead letters of rows without a value. Spark's rows do not carry their records: they are read again."""
        left = dict(self._aside)
        for source, split in (each for packed in dict.fromkeys(self._read) for each in _unpacked(packed)):
            if not left:
                return
            bundle = split.read()
            letters = Letters(source, bundle, split, whole=bundle.rows)
            wanted = [offset for origin, offset in left if origin == bundle.origin]
            for place in np.flatnonzero(np.isin(bundle.offsets, wanted)).tolist():
                letters.add(place, self._output, *left.pop((bundle.origin, int(bundle.offsets[place]))))
            yield from letters.rows


def packed_splits(source: str, splits: Sequence[Split]) -> str:
    """The splits that a task reads of a source, as text, so that their records can be read again."""
    return b64encode(cloudpickle.dumps((source, splits))).decode()  # type: ignore[no-untyped-call]


def _unpacked(packed: str) -> list[tuple[str, Split]]:
    source, splits = cloudpickle.loads(b64decode(packed))
    return [(source, split) for split in splits]


def _column(name: str) -> Column:
    return f.col(backticked(name))
