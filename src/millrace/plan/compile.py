"""Compile: from a pipeline to its plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millrace.edge.fused import Fused
from millrace.formats.sql import CannotFuseError
from millrace.model.errors import Place, refuse
from millrace.model.pipeline import FileSink, Pipeline, Sink, TableSink
from millrace.model.query import Query
from millrace.model.stream import Source, Stream, sources
from millrace.plan.dedup import DedupSplit, split_at_dedup
from millrace.plan.plan import Edge, FusedEdge, NativeEdge, OutputKind, Plan, PlannedOutput, PlannedSource, Stage


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
    stages: list[Stage] = []
    for output, of, place in _outputs(pipeline):
        if any(output.id == other.id or _is_same_target(output.sink, other.sink) for other in outputs):
            raise refuse(f"two outputs write to {output.sink}", place, "give each output a sink of its own")
        outputs.append(output)
        stages.append(stage_of(output.stage, of, settings.fuse))
    inputs = tuple(PlannedSource(source_id(source), source) for source in pipeline.sources)
    return Plan(pipeline.name, inputs, tuple(stages), tuple(outputs), settings.shards)


def source_id(source: Source) -> str:
    """The id of a source: a pipeline reads each source with one schema only."""
    return f"{source.kind} {source.name}"


def view_id(name: str) -> str:
    """The id of a view, and of the stage that feeds it."""
    return f"{OutputKind.VIEW} {name}"


def sink_id(sink: Sink) -> str:
    """The id of a sink, and of the stage that feeds it."""
    return f"{OutputKind.SINK} {sink.id}"


def stage_of(id: str, of: Query | Stream, fuse: bool = True) -> Stage:
    """The stage that computes a query or a stream."""
    query, stream = (of, of.stream) if isinstance(of, Query) else (None, of)
    try:
        dedup, unsplit = split_at_dedup(of), None
    except CannotFuseError as error:
        dedup, unsplit = None, str(error)
    reason = unsplit if fuse else "fusing is switched off"
    edges = tuple(
        (source_id(source), NativeEdge(reason) if reason is not None else _edge(of, source, dedup))
        for source in sources(stream)
    )
    return Stage(id, stream, query, edges, dedup)


def _outputs(pipeline: Pipeline) -> Iterator[tuple[PlannedOutput, Query | Stream, Place]]:
    for name, query in pipeline.views.items():
        yield PlannedOutput(view_id(name), OutputKind.VIEW, name, view_id(name)), query, query.place
    for each in pipeline.sinks:
        id = sink_id(each.sink)
        yield PlannedOutput(id, OutputKind.SINK, str(each.sink), id, each.sink), each.of, each.place


def _edge(of: Query | Stream, source: Source, dedup: DedupSplit | None) -> Edge:
    try:
        if dedup is not None:
            before = Fused(dedup.above, source, ordered=True, logged=dedup.needs_log_times)
            after = Fused(dedup.below, dedup.source)
            return FusedEdge((*before.statements, *after.statements), after.lifts)
        fused = Fused(of, source)
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
