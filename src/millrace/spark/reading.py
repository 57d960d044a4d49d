"""Reads the splits of a task: messages of the fused stages, or rows of one source for a native stage."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millrace.edge.records import RecordDecoder
from millrace.model.arrow import arrow_schema
from millrace.model.stream import Source
from millrace.sources.arrived import Arrived, arrived_in
from millrace.sources.bundle import LOGGED
from millrace.sources.looked import Looked
from millrace.spark.crash import reach
from millrace.spark.envelope import reported
from millrace.spark.marks import CONTROL, OFFSET, ORIGIN
from millrace.spark.messages import to_batch
from millrace.spark.native import packed_splits
from millrace.spark.source import Reads, Task
from millrace.spark.task import Letters, decoded, reader_of


@reported
def read(reads: Reads, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows or messages of a task, and nothing for a task without a clock."""
    assert isinstance(task, Task)
    if not task.times:
        return
    if reads.source is None:
        reader = reader_of(reads.packed, task.tables)
        messages = reader.messages(task.splits, task.times, task.number, task.now, task.watermarks)
        reach("bundle read")
        yield to_batch(messages, reads.packed.job.labels)
    else:
        yield from rows_of(reads.packed.job.sources[reads.source], task, reads.counts)


def rows_of(source: Source, task: Task, counts: bool = True) -> Iterator[pa.RecordBatch]:
    """The rows of a source, then a control row: the clock, the dead letters and, if it `counts`, the records read.

    If the output keeps late records, a control row with the watermark comes first.
    """
    began = time.process_time()
    schema = arrow_schema(source.schema)
    for name, kind in ((ORIGIN, pa.string()), (OFFSET, pa.int64()), (LOGGED, pa.int64()), (CONTROL, pa.string())):
        schema = schema.append(pa.field(name, kind))
    decoder = RecordDecoder(source)
    for watermark in task.watermarks.values():  # before the rows that it judges
        yield pa.RecordBatch.from_pylist([{CONTROL: json.dumps({"watermark": watermark})}], schema)
    letters: list[dict[str, Any]] = []
    arrived, looked = Arrived(), Looked()
    for _, split in task.splits:
        bundle = split.read()
        arrived += arrived_in(bundle)
        looked += decoder.look(bundle)
        aside = Letters(source.name, bundle, split)
        rows, places = decoded(decoder, aside)
        letters += aside.rows
        origins, logged = pa.array([bundle.origin] * len(rows)), bundle.log_times(task.now)[places]
        carried = [origins, pa.array(bundle.offsets[places]), pa.array(logged), pa.nulls(len(rows))]
        columns = [rows[name] for name in source.schema.names] + carried
        whole = pa.table(
            [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
        yield from whole.to_batches(max_chunksize=100_000)
    for times in task.times.values():
        told = [times.before, times.now, times.watermark]
        spent = time.process_time() - began
        control = {
            "times": told,
            "letters": letters,
            "arrived": {source.name: arrived.to_json()} if counts else {},
            "spent": spent,
            "looked": {source.name: looked.to_json()} if counts else {},
            "read": packed_splits(source.name, [split for _, split in task.splits]),
        }
        yield pa.RecordBatch.from_pylist([{CONTROL: json.dumps(control)}], schema)
