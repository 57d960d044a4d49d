"""Compile: from a pipeline to its plan."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.edge.fused import Fused
from millrace.formats.sql import CannotFuseError
from millrace.model.errors import Place, refuse
from millrace.model.graph import computed_by, inputs_of
from millrace.model.pipeline import FileSink, Pipeline, Sink, TableSink
from millrace.model.query import Query
from millrace.model.stream import Derived, JoinStream, Source, Stream, derived_in, own_sources, reads_changes, sources
from millrace.model.window import Global
from millrace.plan.dedup import DedupSplit, has_dedup, split_at_dedup
from millrace.plan.plan import (
    Edge,
    FusedEdge,
    NativeEdge,
    OutputKind,
    Plan,
    PlannedOutput,
    PlannedSource,
    Stage,
)
from millrace.plan.stages import NOT_FUSED, from_source, inner_id, over_changes, stage_input


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
    """The stages of outputs, each after those that it reads; one that several of them read is there once."""
    made: dict[str, Stage] = {}
    read = list(_all_read(outputs.values()))

    def add(id: str, of: Query | Stream) -> Stage:
        if id not in made:
            above = [(root, add(id_of(each), each)) for root in inputs_of(of) for each in (computed_by(root),)]
            is_read = of in read
            if isinstance(of, JoinStream):
                stage = join_of(id, of, above, is_read, fuse)
            elif above:
                stage = with_own_edges(over_changes(id, of, above, is_read, fuse))
            else:
                stage = stage_of(id, of, fuse, is_read)
            made[id] = replace(stage, is_output=id in outputs)
        return made[id]

    def id_of(computed: Query | JoinStream) -> str:
        return next((id for id, of in outputs.items() if of == computed), None) or inner_id(computed)

    for id, of in outputs.items():
        add(id, of)
    return tuple(made.values())


def _all_read(outputs: Iterable[Query | Stream]) -> Iterator[Query | JoinStream]:
    """All queries and joins whose changes other stages read."""
    for of in outputs:
        for root in inputs_of(of):
            yield computed_by(root)
            yield from _all_read([computed_by(root)])


def join_of(id: str, join: JoinStream, read: Sequence[tuple[Derived, Stage]], is_read: bool, fuse: bool) -> Stage:
    """The stage of a join of streams: each side reads sources, or other stages."""
    edges: list[tuple[str, Edge]] = []
    inputs = []
    for number, side in enumerate(join.sides):
        inputs += [stage_input(stage.id, side, root, number, fuse) for root, stage in read if root in derived_in(side)]
        for source in own_sources(side):
            edge = _edge(from_source(side, source), source, None, None)
            if isinstance(edge, NativeEdge) and (has_dedup(side) or reads_changes(side)):
                problem = f"an edge of a join of streams must be fused here, and this one is not: {edge.reason}"
                raise refuse(problem, join.place, "write it in another way, or do it after the join")
            edges.append((source_id(source), edge))
    level = 1 + max((stage.level for _, stage in read), default=-1)
    return Stage(id, join, None, tuple(dict(edges).items()), None, tuple(inputs), level, is_read)


def with_own_edges(stage: Stage) -> Stage:
    """A stage that reads the answers of others, with edges to the sources that it reads beside them, in a union."""
    edges: list[tuple[str, Edge]] = []
    for source in own_sources(stage.stream):
        edge = _edge(from_source(stage.of, source), source, None, why_lifted(stage.of, stage.is_read))
        if isinstance(edge, NativeEdge):
            problem = f"the rows of a source in a union with answers need a fused edge, and it is not: {edge.reason}"
            raise refuse(problem, stage.of.place, "write it in another way")
        edges.append((source_id(source), edge))
    return replace(stage, edges=tuple(edges))


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
    reason = unsplit if fuse else NOT_FUSED
    lifts = why_lifted(of, is_read)
    edges = tuple(
        (source_id(source), NativeEdge(reason) if reason is not None else _edge(of, source, dedup, lifts))
        for source in sources(stream)
    )
    return Stage(id, stream, query, edges, dedup, is_read=is_read)


def why_lifted(of: Query | Stream, is_read: bool) -> str | None:
    """Why SQL does not aggregate the rows of a query although it could; None if it does.

    The answer of a window that is no span of time has the time of an element, if another stage reads it.
    """
    if isinstance(of, Query) and of.reads_retractions:
        return "they are added to changes"
    times = is_read and isinstance(of, Query) and isinstance(of.windowing, Global)
    return f"an answer of {of.windowing} has the time of its last element" if times else None  # type: ignore[union-attr]


def _outputs(pipeline: Pipeline) -> Iterator[tuple[PlannedOutput, Query | Stream, Place]]:
    for name, query in pipeline.views.items():
        yield PlannedOutput(view_id(name), OutputKind.VIEW, name, view_id(name)), query, query.place
    for each in pipeline.sinks:
        id = sink_id(each.sink)
        yield PlannedOutput(id, OutputKind.SINK, str(each.sink), id, each.sink), each.of, each.place


def _edge(of: Query | Stream, source: Source, dedup: DedupSplit | None, lifts: str | None) -> Edge:
    try:
        if dedup is not None:
            before = Fused(dedup.above, source, ordered=True, logged=dedup.needs_log_times)
            after = Fused(dedup.below, dedup.source, lifts=lifts)
            return FusedEdge((*before.statements, *after.statements), after.lifts)
        fused = Fused(of, source, lifts=lifts)
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
