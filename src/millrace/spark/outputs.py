"""The outputs of a pipeline by id, and their writers."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from millrace.edge.decode import JsonDecoder
from millrace.eventlog.topics import existing_log
from millrace.model.errors import NotFoundError, Place, at_place, refuse
from millrace.model.kafka import KIND as KAFKA
from millrace.model.kafka_sink import KafkaSink
from millrace.model.pipeline import FileSink, Pipeline, TableSink, TopicSink
from millrace.model.registry import FORMAT, JSON, JSON_SCHEMA
from millrace.model.stream import Source
from millrace.plan.compile import sink_id, view_id
from millrace.sources.files import folder_of
from millrace.sources.memory import MemoryScript
from millrace.spark.sent import Sent
from millrace.spark.sinks import writer_of
from millrace.spark.snapshots import tables_of
from millrace.spark.writable import check_writable, check_writable_file
from millrace.spark.writers import Writer


def writers_of(
    pipeline: Pipeline, log: str | Path, checkpoint: Path | None, generation: int = 1, staged: bool = False
) -> dict[str, Writer]:
    """The writer of each sink, by id; `staged` writers fill a generation that is served later.

    `checkpoint` is that of the generation; None for a batch, which makes no commits.
    """
    path, name, sent = str(Path(log).absolute()), pipeline.name, Sent.beside(checkpoint)
    ids = {sink_id(each.sink): each for each in pipeline.sinks}
    return {id: writer_of(each.sink, id, each.of, path, name, sent, generation, staged) for id, each in ids.items()}


def dead_writer_of(pipeline: Pipeline, checkpoint: Path | None, generation: int = 1) -> Writer | None:
    """What writes the dead letters of a pipeline to a topic; None if they are not written to one."""
    if pipeline.dead_letters is None:
        return None
    from millrace.spark.dead_records import dead_writer  # its packages are optional

    return dead_writer(pipeline.dead_letters, pipeline.name, checkpoint, generation)


def of_views(pipeline: Pipeline, answers: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The answers of the views, by the name of the view."""
    return {name: answers[view_id(name)] for name in pipeline.views}


def check_places(pipeline: Pipeline, scripts: Mapping[str, MemoryScript], log: str | Path) -> None:
    """Refuse, before anything starts, sources that cannot be read and sinks that cannot be written to."""
    for output in pipeline.sinks:
        if isinstance(output.sink, FileSink):
            check_writable(Path(output.sink.path))
        if isinstance(output.sink, TableSink):
            check_writable_file(Path(output.sink.path))
        if isinstance(output.sink, TopicSink):
            with at_place(output.place):
                existing_log(log, output.sink.topic).topic(output.sink.topic)
        if isinstance(output.sink, KafkaSink):
            _check_topic(output.sink, pipeline.name, output.place)
    if pipeline.dead_letters is not None:
        _check_topic(pipeline.dead_letters, pipeline.name, pipeline.place)
    for table in tables_of(pipeline.streams).values():
        if table.path is not None and not Path(table.path).is_file():
            raise NotFoundError(
                f"table {table.name!r}: there is no file {table.path}", "check its path=", pipeline.place
            )
    for source in pipeline.sources:
        if is_json(source):
            with at_place(source.place):
                JsonDecoder(source.value_schema)
        if source.kind == "files":
            folder_of(source)
        elif source.kind == "log":
            with at_place(source.place):
                existing_log(log, source.name).topic(source.name)
        elif source.kind == KAFKA:
            from millrace.sources.kafka_cluster import opened, remember  # its packages are optional

            with at_place(source.place):
                opened(remember(source)).topics()
        elif source.reader is None and source.name not in scripts:
            raise refuse(f"source {source.name!r} has no rows to read; give it a script", source.place)


def is_json(source: Source) -> bool:
    """Whether the values of a source are JSON."""
    format = dict(source.options).get(FORMAT)
    if source.kind == KAFKA:
        return format in (None, JSON_SCHEMA)
    return source.kind == "log" or format == JSON


def _check_topic(sink: KafkaSink, pipeline: str, place: Place) -> None:
    from millrace.spark.kafka_transactions import Transactions  # its packages are optional

    with at_place(place):
        Transactions(sink, pipeline).topic_id()
