"""Compile: from a pipeline to its plan."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.edge.fused import Fused
from millrace.formats.sql import CannotFuseError
from millrace.model.errors import Place, refuse
from millrace.model.pipeline import FileSink, Pipeline, Sink, TableSink
from millrace.model.query import Query, queries_of
from millrace.model.stream import (
    Derived,
    Explode,
    Join,
    Map,
    Select,
    Source,
    Stream,
    WithColumns,
    derived_in,
    parents,
    sources,
    with_derived,
)
from millrace.model.window import Global
from millrace.plan.dedup import DedupSplit, split_at_dedup
from millrace.plan.fingerprint import fingerprint_of
from millrace.plan.plan import (
    Edge,
    FusedEdge,
    NativeEdge,
    OutputKind,
    Plan,
    PlannedOutput,
    PlannedSource,
    Stage,
    StageInput,
)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What a plan depends on beside its pipeline."""

    shards: int = 1
    """How many parts the state of each stage has."""
    fuse: bool = True
    """Whether edges that can be fused are."""


def compile(pipeline: Pipeline, settings: PlanSettings = PlanSettings()) -> Plan:  # noqa: B008
    """Decide what runs. Refuses two outputs that cannot be told apart. Starts nothing and reads no data."""
    outputs: list[PlannedOutput] = []
    computed: dict[str, Query | Stream] = {}
    for output, of, place in _outputs(pipeline):
        if any(output.id == other.id or _is_same_target(output.sink, other.sink) for other in outputs):
            raise refuse(f"two outputs write to {output.sink}", place, "give each output a sink of its own")
        outputs.append(output)
        computed[output.stage] = of
    inputs = tuple(PlannedSource(source_id(source), source) for source in pipeline.sources)
    return Plan(pipeline.name, inputs, _stages(computed, settings.fuse), tuple(outputs), settings.shards)


def _stages(outputs: Mapping[str, Query | Stream], fuse: bool) -> tuple[Stage, ...]:
    """The stages of outputs, each after those that it reads; a query that several of them read is there once."""
    made: dict[str, Stage] = {}
    read = [query for of in outputs.values() for root in derived_in(_stream_of(of)) for query in queries_of(root.query)]

    def add(id: str, of: Query | Stream) -> Stage:
        if id not in made:
            above = [(root, add(id_of(root.query), root.query)) for root in derived_in(_stream_of(of))]
            is_read = of in read
            stage = over_changes(id, of, above, is_read) if above else stage_of(id, of, fuse, is_read)
            made[id] = replace(stage, is_output=id in outputs)
        return made[id]

    def id_of(query: Query) -> str:
        return next((id for id, of in outputs.items() if of == query), None) or inner_id(query)

    for id, of in outputs.items():
        add(id, of)
    return tuple(made.values())


def _stream_of(of: Query | Stream) -> Stream:
    return of.stream if isinstance(of, Query) else of


def inner_id(query: Query) -> str:
    """The id of a stage that only other stages read: the same for the same computation in a later run."""
    text = json.dumps(fingerprint_of(query), sort_keys=True)
    return f"query {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def over_changes(id: str, of: Query | Stream, read: Sequence[tuple[Derived, Stage]], is_read: bool = False) -> Stage:
    """A stage that reads the answers of others. Refuses expressions that shards cannot compute."""
    query, stream = (of, of.stream) if isinstance(of, Query) else (None, of)
    inputs = []
    for root, stage in read:
        try:
            inputs.append(StageInput(stage.id, root, changes_edge(of, root)[0].statements))
        except CannotFuseError as error:
            advice = "compute it before .aggregate(...), or write it in another way"
            raise refuse(f"answers are read in shards, which Spark does not reach: {error}", of.place, advice) from None
    level = max(stage.level for _, stage in read)
    if query is not None and not (len(read) == 1 and _stays(query, read[0][0])):
        level += 1
    return Stage(id, stream, query, (), None, tuple(inputs), level, is_read)


def changes_edge(of: Query | Stream, root: Derived) -> tuple[Fused, Query | Stream]:
    """The statements over the answers that `root` stands for, and the query or stream over them as rows of a source."""
    source = Source("answers", "answers", root.schema, place=root.place)
    stream = with_derived(_stream_of(of), lambda each: source if each == root else each)
    below: Query | Stream = replace(of, stream=stream) if isinstance(of, Query) else stream
    for join in _joins(stream):
        if not join.table.rows:
            raise CannotFuseError(f"table {join.table.name} may change; join it before .aggregate(...)")
    return Fused(below, source, {}, numbered=True, lifts="they are changes"), below


def _joins(stream: Stream) -> list[Join]:
    own = [stream] if isinstance(stream, Join) else []
    return own + [join for parent in parents(stream) for join in _joins(parent)]


def _stays(query: Query, root: Derived) -> bool:
    """Whether the rows of each group come from one shard: its keys contain those of the stage that it reads."""
    return set(root.query.keys) <= set(query.keys) and all(_is_kept(query.stream, root, key) for key in root.query.keys)


def _is_kept(stream: Stream, root: Derived, column: str) -> bool:
    """Whether a column of the answers passes unchanged."""
    if isinstance(stream, Select | WithColumns) and column in dict(stream.columns):
        expression = dict(stream.columns)[column]
        if expression.sql != f"`{column}`":
            return False
    if isinstance(stream, Map | Explode):
        return False
    return all(_is_kept(parent, root, column) for parent in parents(stream))


def source_id(source: Source) -> str:
    """The id of a source: a pipeline reads each source with one schema only."""
    return f"{source.kind} {source.name}"


def view_id(name: str) -> str:
    """The id of a view, and of the stage that feeds it."""
    return f"{OutputKind.VIEW} {name}"


def sink_id(sink: Sink) -> str:
    """The id of a sink, and of the stage that feeds it."""
    return f"{OutputKind.SINK} {sink.id}"


def stage_of(id: str, of: Query | Stream, fuse: bool = True, is_read: bool = False) -> Stage:
    """The stage that computes a query or a stream over sources; other stages may read its answers."""
    query, stream = (of, of.stream) if isinstance(of, Query) else (None, of)
    try:
        dedup, unsplit = split_at_dedup(of), None
    except CannotFuseError as error:
        dedup, unsplit = None, str(error)
    reason = unsplit if fuse else "fusing is switched off"
    edges = tuple(
        (source_id(source), NativeEdge(reason) if reason is not None else _edge(of, source, dedup, is_read))
        for source in sources(stream)
    )
    return Stage(id, stream, query, edges, dedup, is_read=is_read)


def why_lifted(of: Query | Stream, is_read: bool) -> str | None:
    """Why SQL does not aggregate the rows of a query although it could; None if it does.

    The answer of a window that is no span of time has the time of an element, if another stage reads it.
    """
    times = is_read and isinstance(of, Query) and isinstance(of.windowing, Global)
    return f"an answer of {of.windowing} has the time of its last element" if times else None  # type: ignore[union-attr]


def _outputs(pipeline: Pipeline) -> Iterator[tuple[PlannedOutput, Query | Stream, Place]]:
    for name, query in pipeline.views.items():
        yield PlannedOutput(view_id(name), OutputKind.VIEW, name, view_id(name)), query, query.place
    for each in pipeline.sinks:
        id = sink_id(each.sink)
        yield PlannedOutput(id, OutputKind.SINK, str(each.sink), id, each.sink), each.of, each.place


def _edge(of: Query | Stream, source: Source, dedup: DedupSplit | None, is_read: bool) -> Edge:
    try:
        if dedup is not None:
            before = Fused(dedup.above, source, ordered=True, logged=dedup.needs_log_times)
            after = Fused(dedup.below, dedup.source, lifts=why_lifted(dedup.below, is_read))
            return FusedEdge((*before.statements, *after.statements), after.lifts)
        fused = Fused(of, source, lifts=why_lifted(of, is_read))
    except CannotFuseError as error:
        return NativeEdge(str(error))
    return FusedEdge(fused.statements, fused.lifts)


def _is_same_target(one: Sink | None, other: Sink | None) -> bool:
    """Whether two sinks write to one place, however their paths are spelled."""
    match one, other:
        case FileSink(path), FileSink(second):
            return Path(path).resolve() == Path(second).resolve()
        case TableSink(path, table), TableSink(second, another):
            return (Path(path).resolve(), table.lower()) == (Path(second).resolve(), another.lower())
        case _:
            return False
