"""The native edge between two stages: answers pass through a Spark plan, after the level of shards that computed them.

A shard sends its answers as they are. The rows of the Spark plan are those answers; all messages pass through it as
control rows. So one plan without a branch runs between two levels: for two branches, Spark would compute a level twice.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millrace.edge.connection import ROW_NUMBER
from millrace.model.arrow import arrow_schema
from millrace.model.query import Query
from millrace.model.schema import backticked
from millrace.panes.blobs import from_bytes, to_bytes
from millrace.plan.stages import over_answers
from millrace.sources.bundle import LOGGED
from millrace.spark.changing import ChangesEdge, ChangesTaken
from millrace.spark.envelope import reported
from millrace.spark.job import Job, PackedJob
from millrace.spark.marks import BAD, CARRIED, CONTROL, LEFT_OUT, OFFSET, ORIGIN
from millrace.spark.messages import (
    CHANGES,
    DEAD,
    DEAD_LETTERS,
    FROM_SHARD,
    MESSAGE,
    NO_STAGE,
    Message,
    TaskReport,
    to_batch,
)
from millrace.spark.native import NativePlan


def through_spark(
    spark: SparkSession, packed: PackedJob, messages: DataFrame, level: int, last_only: bool = False
) -> DataFrame:
    """The messages that the shards of a level send, after the native edges over their answers.

    With `last_only`, the answers are those of a batch.
    """
    job = packed.job
    for number, stage in enumerate(job.stages):
        for place, read in enumerate(stage.reads):
            if read.native is not None and job.plan.stage(read.stage).level == level:
                messages = _through(spark, packed, messages, number, place, last_only)
    return messages


def _through(
    spark: SparkSession, packed: PackedJob, messages: DataFrame, number: int, place: int, last_only: bool
) -> DataFrame:
    stage = packed.job.stages[number]
    read = stage.reads[place]
    below, source = over_answers(stage.of if stage.join is None else stage.join.sides[read.side], read.root)
    query, stream = (below, below.stream) if isinstance(below, Query) else (None, below)
    columns = ", ".join(f"{backticked(column.name)} {column.type}" for column in source.schema)
    rows = messages.mapInArrow(_unpacking(packed, number, place), f"{columns}, {CARRIED}")
    plan = NativePlan(spark, packed.job, replace(stage, stream=stream, query=query, reads=()), {source.name: rows})
    return plan.rows().mapInArrow(_packing(packed, number, place, last_only), FROM_SHARD)


Mapped = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _unpacking(packed: PackedJob, number: int, place: int) -> Mapped:
    @reported
    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        edge = ChangesEdge(number, packed.job.stages[number], place)
        for batch in batches:
            for row in batch.select(MESSAGE.names).to_pylist():
                yield from as_rows(edge, Message(**row)).combine_chunks().to_batches()

    return unpack


def as_rows(edge: ChangesEdge, message: Message) -> pa.Table:
    """A message as a control row, and the answers in it, if they are for this edge."""
    names = edge.columns
    schema = pa.schema([*arrow_schema(names), *_HIDDEN])
    payload = None if message.payload is None else b64encode(message.payload).decode()
    control = pa.Table.from_pylist([{CONTROL: json.dumps(asdict(message) | {"payload": payload})}], schema)
    if not _is_for(edge, message) or message.payload is None:
        return control
    given = edge.given(edge.read(from_bytes(message.payload)))
    many = len(given)
    hidden = {
        ORIGIN: pa.array([str(message.shard)] * many, pa.string()),
        OFFSET: given[ROW_NUMBER].cast(pa.int64()),
        LOGGED: pa.array(np.zeros(many, np.int64)),
        CONTROL: pa.nulls(many, pa.string()),
    }
    columns = [*(given[name] for name in names.names), *hidden.values()]
    rows = pa.table(columns, names=schema.names).cast(schema)
    return pa.concat_tables([control, rows])


_HIDDEN = [pa.field(ORIGIN, pa.string()), pa.field(OFFSET, pa.int64()), pa.field(LOGGED, pa.int64()),
           pa.field(CONTROL, pa.string())]  # fmt: skip


def _is_for(edge: ChangesEdge, message: Message) -> bool:
    return (message.kind, message.stage, message.sequence) == (CHANGES, edge.number, edge.place)


def _packing(packed: PackedJob, number: int, place: int, last_only: bool) -> Mapped:
    @reported
    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        job = packed.job
        rows = [pa.Table.from_batches([batch]) for batch in batches]
        if rows:
            edge = ChangesEdge(number, job.stages[number], place)
            yield to_batch(list(as_messages(edge, job, pa.concat_tables(rows), last_only)), job.labels)

    return pack


def as_messages(edge: ChangesEdge, job: Job, rows: pa.Table, last_only: bool) -> Iterator[Message]:
    """The messages among the rows of a task. What the Spark plan made of answers is sent to the reading stage."""
    read = edge.stage.reads[edge.place].stage
    sequence = next(number for number, stage in enumerate(job.stages) if stage.id == read)
    is_control = rows[CONTROL].is_valid()
    made = rows.filter(pc.invert(is_control))
    letters: list[dict[str, Any]] = []
    for text in rows[CONTROL].filter(is_control).to_pylist():
        message = _message(json.loads(text))
        label = str(message.shard)
        message = replace(message, shard=job.labels.index(message.shard))
        if not _is_for(edge, message):
            yield message
            continue
        taken = ChangesTaken()
        if message.payload is not None:
            changes = edge.read(from_bytes(message.payload))
            own = made.filter(pc.equal(made[ORIGIN], label))
            bad = own.filter(own[BAD].is_valid())
            wrong = list(dict(zip(bad[OFFSET].to_pylist(), bad[BAD].to_pylist(), strict=True)).items())
            good = own.filter(pc.and_(own[BAD].is_null(), pc.invert(pc.fill_null(own[LEFT_OUT], False))))
            kept = good.select([name for name in good.column_names if not name.startswith("__")])
            taken = edge.finish(changes, kept.append_column(ROW_NUMBER, good[OFFSET]), wrong, last_only)
        letters += taken.letters
        report = TaskReport.from_json(message.report or "")
        yield from edge.messages(message.shard, sequence, taken, report, job.shards, is_local=False)
    if letters:
        yield Message(0, NO_STAGE, 0, DEAD, payload=to_bytes(pa.Table.from_pylist(letters, DEAD_LETTERS)))


def _message(content: dict[str, Any]) -> Message:
    payload = content.pop("payload")
    return Message(**content, payload=None if payload is None else b64decode(payload))
