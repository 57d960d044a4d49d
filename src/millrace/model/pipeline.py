"""Pipelines: named views, and sinks."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from millrace.model import explain
from millrace.model.connectors import CustomSink
from millrace.model.duration import Duration
from millrace.model.errors import Place, caller, refuse, refuse_unknown, shown
from millrace.model.kafka_sink import KafkaSink, check_dead_letters, check_kafka_sink
from millrace.model.query import Query, Windowed, streams_of
from millrace.model.refined import check_view_rows
from millrace.model.shared import shared_sources, with_shared
from millrace.model.stream import Source, Stream, reads_changes, sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.running.handle import Run

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class FileSink:
    """Files in a folder, a few for each micro-batch."""

    path: str
    format: str
    consumed: bool = False
    """Whether a consumer removes files, so that missing ones are no loss."""

    @property
    def id(self) -> str:
        """State and commits are stored under this id."""
        return f"files {self.path}"

    def __str__(self) -> str:
        return f"{self.format} files in {self.path}"


@dataclass(frozen=True, slots=True)
class TopicSink:
    """A topic of the log; panes carry their diff."""

    topic: str

    @property
    def id(self) -> str:
        """State and commits are stored under this id."""
        return f"topic {self.topic}"

    def __str__(self) -> str:
        return f"topic {self.topic}"


@dataclass(frozen=True, slots=True)
class TableSink:
    """A table of an SQLite database, to which every change of an answer is appended."""

    path: str
    table: str

    @property
    def id(self) -> str:
        """State and commits are stored under this id."""
        return f"table {self.path} {self.table}"

    def __str__(self) -> str:
        return f"table {self.table} in {self.path}"


@dataclass(frozen=True, slots=True)
class FunctionSink:
    """A user's function, called with the rows of each micro-batch and its id."""

    function: Callable[[list[Mapping[str, Any]], int], None]
    name: str

    @property
    def id(self) -> str:
        """State and commits are stored under this id."""
        return f"function {self.name}"

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class ObjectSink:
    """A user's `CustomSink`."""

    writer: CustomSink
    name: str

    @property
    def id(self) -> str:
        """State and commits are stored under this id."""
        return f"custom {self.name}"

    def __str__(self) -> str:
        return f"{type(self.writer).__name__} {self.name}"


Sink: TypeAlias = FileSink | KafkaSink | TableSink | TopicSink | FunctionSink | ObjectSink


@dataclass(frozen=True, slots=True)
class Output:
    """A stream or a query, and the sink it is written to."""

    of: Stream | Query
    sink: Sink
    place: Place = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Named views, and sinks, that run together. A pipeline is a value: building it starts nothing."""

    name: str
    views: Mapping[str, Query | Stream] = field(default_factory=dict)
    """Queries by name; also the answers of a query with conditions or computed columns."""
    sinks: Iterable[Output] = ()
    """The results of `query.to(sink)` and `stream.to(sink)`."""
    place: Place = field(default_factory=caller, compare=False, repr=False)
    dead_letters: KafkaSink | None = None
    """The topic of Kafka to which dead letters are sent as well, as `to_kafka(...)` names it."""

    def __post_init__(self) -> None:
        """Validate the pipeline."""
        _identifier(self.name, "pipeline")
        if not isinstance(self.views, Mapping):
            raise refuse(f"views= must map names to queries, like {{'hourly': query}}, not {shown(self.views)}")
        object.__setattr__(self, "views", dict(self.views))
        object.__setattr__(self, "sinks", tuple(self.sinks))
        if not self.views and not self.sinks:
            raise refuse(
                f"pipeline {self.name!r} has no views and no sinks",
                advice="pass views={'name': query} or sinks=[query.to(...)]",
            )
        for view, of in self.views.items():
            _identifier(view, "view")
            _check_view(view, of)
        for output in self.sinks:
            if not isinstance(output, Output):
                raise refuse(f"sinks= takes the results of query.to(sink) or stream.to(sink), not {shown(output)}")
        if self.dead_letters is not None:
            check_dead_letters(self.dead_letters, self.sources)
        if shared := shared_sources(self.sources):
            views = {name: with_shared(of, shared) for name, of in self.views.items()}
            sinks = tuple(replace(output, of=with_shared(output.of, shared)) for output in self.sinks)
            object.__setattr__(self, "views", views)
            object.__setattr__(self, "sinks", sinks)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source the pipeline reads, once."""
        return tuple(dict.fromkeys(source for stream in self.streams for source in sources(stream)))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The stream of each view and sink, and of the queries whose answers they read."""
        return tuple(stream for of in self.outputs for stream in streams_of(of))

    @property
    def outputs(self) -> tuple[Query | Stream, ...]:
        """What each view and each sink holds."""
        return (*self.views.values(), *(output.of for output in self.sinks))

    def explain(self, *, statements: bool = False) -> str:
        """The plan as text: the flow of each output and how it runs; with `statements`, also the SQL."""
        # The model does not depend on plans; this method is a shortcut for users.
        from millrace.plan.explain import explain as explained

        return explained(self, statements=statements)

    def run(
        self,
        *,
        mode: str = "micro-batch",
        layer: str = "speed",
        checkpoint: str | Path | None = None,
        log: str | Path = ".millrace/log.db",
        store: str | Path = ".millrace/views.db",
        guarantee: str = "exactly-once",
        interval: Duration | None = None,
        latency: Duration = "1s",
        until_caught_up: bool = False,
        retry: Duration | None = None,
        from_savepoint: str | Path | None = None,
        from_here: bool = False,
        shards: int | None = None,
        master: str = "local[*,4]",
        conf: Mapping[str, str] | None = None,
        shared: Sequence[str | Path] | None = None,
        jars: str | Path | None = None,
        spark: "SparkSession | None" = None,
    ) -> "Run":
        """Run the pipeline on Spark, in the background of this process; returns as soon as it has started.

        The arguments are the options of `millrace run`, with the same defaults. `spark` is a session to run on, which
        is not stopped; without it, all runs of the process share one session, which is stopped with the last run.
        A mistake in the pipeline or in a setting is raised here; `Run.wait` raises an error of the running pipeline.
        """
        # Only this method of the model depends on the layers that run it, because users call it on their pipeline.
        # It imports them here, because a pipeline must be built, tested and sent to workers without Spark.
        from millrace.running.settings import Settings
        from millrace.running.start import start

        settings = Settings(
            mode, layer, checkpoint, log, store, guarantee, interval, latency, until_caught_up, retry, from_savepoint,
            from_here, shards, master, conf, shared, jars,
        )  # fmt: skip
        return start(self, settings, spark)

    def __str__(self) -> str:
        return self.explain()

    def _repr_svg_(self) -> str:
        """The flow as a picture, which notebooks show."""
        return explain.as_svg(self)


def to_files(path: str, format: str = "parquet", *, consumed: bool = False) -> FileSink:
    """Write to files in a folder.

    A run refuses to go on if files that it wrote are missing or were cut, unless they are `consumed`: then a consumer
    may remove them.
    """
    if format not in ("parquet", "json"):
        raise refuse_unknown("file format", format, ("parquet", "json"))
    return FileSink(str(path), format, bool(consumed))


def to_table(path: str, table: str) -> TableSink:
    """Append to a table of an SQLite database, which is created if it does not exist."""
    return TableSink(str(path), _identifier(table, "table"))


def to_topic(topic: str) -> TopicSink:
    """Write to a topic of the log."""
    return TopicSink(topic)


def to_function(function: Callable[[list[Mapping[str, Any]], int], None], name: str | None = None) -> FunctionSink:
    """Call a function with the rows of each micro-batch and its id.

    The checkpoint identifies the sink by `name`, which defaults to the name of the function.
    """
    if not callable(function):
        raise refuse(f"to_function() takes a function of (rows, batch id), not {shown(function)}")
    return FunctionSink(function, name or str(getattr(function, "__name__", type(function).__name__)))


def to_sink(writer: CustomSink, name: str) -> ObjectSink:
    """Write to a sink of your own: `query.to(to_sink(Warehouse(url), "warehouse"))`.

    State and commits are stored under the name; keep it when the sink changes.
    """
    if not isinstance(writer, CustomSink):
        raise refuse(f"to_sink() takes an object of a class derived from millrace.CustomSink, not {shown(writer)}")
    return ObjectSink(writer, _identifier(name, "sink"))


def send(of: Stream | Query, sink: Sink) -> Output:
    """The implementation of `stream.to(sink)` and `query.to(sink)`."""
    if not isinstance(sink, Sink):
        raise refuse(f"to() takes a sink such as to_files('out') or to_topic('plays'), not {shown(sink)}")
    if isinstance(sink, KafkaSink):
        check_kafka_sink(of, sink)
    return Output(of, sink, caller())


def _check_view(view: str, of: object) -> None:
    if isinstance(of, Windowed):
        raise refuse(f"the query of view {view!r} is not complete", of.place, advice="call .aggregate(...) on it")
    if isinstance(of, Stream) and not reads_changes(of):
        problem = f"view {view!r} is a stream without an aggregate"
        raise refuse(problem, of.place, advice="call .aggregate(...), or send the stream to a sink")
    if isinstance(of, Stream):
        check_view_rows(view, of)
    elif not isinstance(of, Query):
        raise refuse(f"view {view!r} must be a query, not {shown(of)}")


def _identifier(name: object, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise refuse(f"the name of a {what} must consist of letters, digits and _, not {name!r}")
    return name
