"""What a pipeline may hold in real-time mode: an allow-list of what Spark computes there with Millrace's meaning.

Spark's real-time mode has no Python in its path, one stateful operator in a query, and the update mode only. So a view
is Kafka, a Spark plan of rows, one windowed aggregation that answers at each element, and Kafka again. Everything else
is refused before Spark starts, with the line, the reason and what to do.
"""

from collections.abc import Iterator
from typing import assert_never

from millrace.model.aggregate import Aggregate, Count, CountIf, First, Last, Max, Mean, Min, Sum
from millrace.model.errors import PipelineError, Place, refuse
from millrace.model.kafka import HEADER, KIND, PROPERTIES
from millrace.model.kafka_sink import KafkaSink
from millrace.model.pane import Mode
from millrace.model.pipeline import Output, Pipeline
from millrace.model.query import Computed, Query
from millrace.model.schema import is_integer
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
    reads_changes,
)
from millrace.model.trigger import Trigger, each
from millrace.model.watermark import BoundedDelay, Percentile, Policy, Punctuated
from millrace.model.window import Calendar, CountWindow, Custom, Fixed, Global, Session, Sliding, Windowing

MICRO_BATCH = "use --mode micro-batch"
"""The alternative that everything has."""
ISOLATION = "isolation.level"
_READ = ("STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "DOUBLE", "DATE", "TIMESTAMP")
"""The types of columns that Spark reads from JSON as Millrace does."""
_EXACT = ("STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "TIMESTAMP")
"""The types of keys, of least and greatest values, and of rows in a topic."""
_PARTS = ("key", "topic", "partition", "offset", "timestamp")


def check_real_time(pipeline: Pipeline, guarantee: str = "exactly-once") -> None:
    """Refuse what real-time mode does not run."""
    for name, of in pipeline.views.items():
        if not isinstance(of, Query):
            raise _no(f"view {name!r} of answers with conditions or computed columns", of.place)
        _check_query(of)
    for output in pipeline.sinks:
        _check_sink(output, guarantee)


def _no(what: str, place: Place, advice: str | None = None) -> PipelineError:
    return refuse(
        f"{what} does not run in real-time mode", place, f"{advice}; or {MICRO_BATCH}" if advice else MICRO_BATCH
    )


def _check_query(query: Query) -> None:
    _check_window(query.windowing, query.place)
    _check_trigger(query.when, query.place)
    match query.mode:
        case Mode.ACCUMULATING | Mode.RETRACTING:
            pass
        case Mode.DISCARDING:
            raise _no("discarding()", query.place, "call .accumulating() or .retracting()")
        case never:
            assert_never(never)
    if query.keeps_late:
        raise _no("late='keep'", query.place, "leave late= out")
    for name in query.keys:
        kind = query.stream.schema.type_of(name)
        if kind not in _EXACT:
            raise _no(f"group_by({name!r}) of type {kind}", query.place)
    for computed in query.computed:
        _check_aggregate(computed, query.place)
    _check_stream(query.stream)
    _check_each_once(query.stream)


def _check_window(windowing: Windowing, place: Place) -> None:
    match windowing:
        case Fixed() | Sliding() | Global():
            pass
        case Session() | CountWindow() | Calendar() | Custom():
            raise _no(str(windowing), place, "use window.fixed(), window.sliding() or window.all_time()")
        case never:
            assert_never(never)


def _check_trigger(when: Trigger, place: Place) -> None:
    if when != each():
        raise _no(f"the trigger {when}", place, "call .trigger(on.each())")


def _check_aggregate(computed: Computed, place: Place) -> None:
    if not is_supported(computed.aggregate, [argument.type for argument in computed.arguments]):
        of = ", ".join(argument.type for argument in computed.arguments)
        raise _no(f"{computed.name}={computed.aggregate}{f' over {of}' if of else ''}", place)


def is_supported(aggregate: Aggregate, types: list[str]) -> bool:
    """Whether Spark computes an aggregate over arguments of these types with the same meaning.

    Sums and means of floats are not: Millrace's are exact, and do not depend on the order of the rows.
    """
    kind = type(aggregate)
    if kind in (Count, CountIf):
        return True
    if kind in (Sum, Mean):
        return is_integer(types[0])
    if kind in (Min, Max, First, Last):
        return types[0] in _EXACT
    return False


def _check_stream(stream: Stream) -> None:
    match node_of(stream):
        case Source() as source:
            _check_source(source)
        case (Where() | Select() | WithColumns()) as step:
            _check_stream(step.parent)
        case Union(parents=parents):
            for parent in parents:
                _check_stream(parent)
        case Join(parent=parent, table=table, as_of=as_of, place=place):
            if as_of is not None:
                raise _no("join(as_of=)", place)
            if table.view is not None:
                raise _no(f"a join with the view {table.view!r}", place, "join a table of rows or a file")
            _check_stream(parent)
        case EventTime(parent=parent, estimator=estimator, place=place):
            _check_policy(estimator.policy, place)
            if estimator.idle is not None:
                raise _no("event_time(idle=)", place, "leave idle= out")
            _check_stream(parent)
        case Dedup(place=place):
            raise _no("dedup()", place, "let the producer leave duplicates out")
        case (Map() | Filter() | Explode()) as step:
            raise _no("a function in Python" if not isinstance(step, Explode) else "explode()", step.place)
        case (AnswerStream() | AnswerTime()) as derived:
            raise _no("a query over the answers of another", derived.place)
        case JoinStream(place=place):
            raise _no("a join of streams", place, "join a table")
        case never:
            assert_never(never)


def _check_policy(policy: Policy, place: Place) -> None:
    match policy:
        case BoundedDelay():
            pass
        case Percentile() | Punctuated():
            raise _no(f"the watermark {policy}", place, "use event_time(column, delay=...)")
        case never:
            assert_never(never)


def _check_source(source: Source) -> None:
    if source.kind != KIND:
        raise _no(f"a source of kind {source.kind}", source.place, "read a topic of Kafka: kafka(...)")
    if source.name.startswith("^"):
        raise _no("a pattern of topics", source.place, "name the topics")
    for name in (PROPERTIES, *(name for name, _ in source.secrets if name != ISOLATION)):
        if name != PROPERTIES or PROPERTIES in dict(source.options):
            what = "properties=" if name == PROPERTIES else f"the property {name!r}"
            raise _no(f"a source with {what}, which Spark's own client does not know,", source.place)
    for part in source.metadata.values():
        if part not in _PARTS:
            raise _no("a column of headers" if part.startswith((HEADER, "headers")) else part, source.place)
    for column in source.value_schema:
        if column.type not in _READ:
            raise _no(f"column {column.name!r} of type {column.type}", source.place)


def _check_each_once(stream: Stream) -> None:
    seen: set[str] = set()
    for source in leaves(stream):
        if source.name in seen:
            raise _no(f"a union that reads {source.name} twice", stream.place)
        seen.add(source.name)


def leaves(stream: Stream) -> Iterator[Source]:
    """The sources of a stream that real-time mode runs, as often as it reads them."""
    match node_of(stream):
        case Source() as source:
            yield source
        case Union(parents=parents):
            for parent in parents:
                yield from leaves(parent)
        case (
            Where() | Select() | WithColumns() | Join() | EventTime() | Map() | Filter() | Explode() | Dedup()
        ) as step:
            yield from leaves(step.parent)
        case AnswerTime(parent=parent):
            yield from leaves(parent)
        case AnswerStream() | JoinStream():
            return
        case never:
            assert_never(never)


def _check_sink(output: Output, guarantee: str) -> None:
    of, sink, place = output.of, output.sink, output.place
    if isinstance(of, Query) or reads_changes(of):
        raise _no(f"a sink for the answers of a query ({sink})", place, "keep them in a view")
    if not isinstance(sink, KafkaSink):
        raise _no(f"the sink {sink}", place, "write to a topic of Kafka: to_kafka(...)")
    if sink.headers or sink.timestamp is not None:
        raise _no("to_kafka() with headers= or timestamp=", place, "leave them out")
    if sink.properties is not None or sink.secrets:
        raise _no("to_kafka() with options= or properties=, which Spark's own client does not know,", place)
    for name in sink.key or ():
        if len(sink.key or ()) > 1 or of.schema.type_of(name) != "STRING":
            raise _no("a key of to_kafka() other than one STRING column", place)
    for column in of.schema:
        if column.type not in _EXACT:
            raise _no(f"a sink of column {column.name!r} of type {column.type}", place, "cast it to STRING")
    _check_stream(of)
    _check_each_once(of)
    if guarantee != "at-least-once":
        raise refuse(
            f"{sink} cannot be written {guarantee} in real-time mode: Spark writes to Kafka without transactions",
            place,
            f"pass --guarantee at-least-once, by which a crash may write rows twice; or {MICRO_BATCH}",
        )
