"""The plan of a pipeline: everything that is decided before it runs.

A plan is a value. `compile` decides it once; hosts, checkpoints and `explain` read it and decide nothing again.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from millrace.model.pipeline import Sink
from millrace.model.query import Query
from millrace.model.stream import Derived, JoinStream, Source, Stream, event_times, own_sources
from millrace.model.watermark import Estimator
from millrace.plan.dedup import DedupSplit


@dataclass(frozen=True, slots=True)
class FusedEdge:
    """Rows of a source become partial aggregates in DuckDB, inside the Spark task that reads them."""

    statements: tuple[str, ...]
    """The SQL that runs for each bundle, divided where a step runs in Python; with a dedup, before it and after it."""
    lifted: str | None = None
    """Why the statement stops before the aggregate, which Python then computes; None if it does not stop."""


@dataclass(frozen=True, slots=True)
class NativeEdge:
    """Rows of a source pass through a Spark plan; Python computes the partial aggregates after it."""

    reason: str


Edge: TypeAlias = FusedEdge | NativeEdge


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source of the plan."""

    id: str
    """Offsets are logged under this id."""
    source: Source


@dataclass(frozen=True, slots=True)
class StageInput:
    """Another stage whose answers a stage reads, as changes."""

    stage: str
    """The id of that stage."""
    root: Derived
    """What stands for its answers in the stream of the reading stage."""
    statements: tuple[str, ...]
    """The SQL that runs over its answers, in the shards that compute them; none if they pass through a Spark plan."""
    side: int = 0
    """The side that it is of, if the reading stage is a join."""
    native: str | None = None
    """Why its answers pass through a Spark plan, after the level of that stage; None if they do not."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One computation: it reads sources through their edges, or the answers of other stages."""

    id: str
    """State is stored under this id."""
    stream: Stream
    query: Query | None
    """The windowed aggregation; None if the rows of the stream are the answer."""
    edges: tuple[tuple[str, Edge], ...]
    """For each input, by its id, how its rows reach the shards."""
    dedup: DedupSplit | None = None
    """The stream split at its `dedup()`, if it has one and can be split."""
    reads: tuple[StageInput, ...] = ()
    """The stages whose answers it reads. It then reads no source, unless it is a join or has a union of both."""
    level: int = 0
    """How many times rows are sent from shard to shard before it runs; stages of one level run together."""
    is_read: bool = False
    """Whether other stages read its answers, which then need their event time."""
    is_output: bool = True
    """Whether its answers go to an output."""

    @property
    def of(self) -> Query | Stream:
        """What the stage computes."""
        return self.stream if self.query is None else self.query

    @property
    def label(self) -> str:
        """Its name for people: that of its output, or the line at which a query or a join was written."""
        kind = "query" if self.join is None else "join"
        return self.id if self.is_output else f"{kind} at {self.of.place}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The ids of the sources that it reads itself."""
        return tuple(id for id, _ in self.edges)

    @property
    def is_fused(self) -> bool:
        """Whether it reads sources, all by fused edges; one native edge makes the stage run natively."""
        return bool(self.edges) and all(isinstance(edge, FusedEdge) for _, edge in self.edges)

    @property
    def is_stateful(self) -> bool:
        """Whether its shards keep state: rows of a plain stream pass through."""
        return self.query is not None or self.dedup is not None or self.join is not None

    @property
    def join(self) -> JoinStream | None:
        """The join of streams that it computes; None if it computes none."""
        return self.stream if self.query is None and isinstance(self.stream, JoinStream) else None

    @property
    def own_streams(self) -> tuple[tuple[int, Stream], ...]:
        """The streams of rows of sources that it reads, each with its side; there are two in a join only."""
        if self.join is not None:
            return tuple((side, each) for side, each in enumerate(self.join.sides) if own_sources(each))
        return ((0, self.stream),) if own_sources(self.stream) else ()

    def estimators(self, side: int | None = None) -> tuple[Estimator, ...]:
        """The watermark policies of its sources; of one side, if it is given."""
        own = [stream for number, stream in self.own_streams if side in (None, number)]
        return tuple(node.estimator for stream in own for node in event_times(stream))


class OutputKind(StrEnum):
    """Where answers go."""

    VIEW = "view"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """A view or a sink, and the stage that feeds it."""

    id: str
    kind: OutputKind
    name: str
    stage: str
    sink: Sink | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled pipeline."""

    pipeline: str
    sources: tuple[PlannedSource, ...]
    stages: tuple[Stage, ...]
    """In an order in which each comes after the stages it reads."""
    outputs: tuple[PlannedOutput, ...]
    shards: int

    @property
    def fused(self) -> tuple[int, ...]:
        """The numbers of the stages whose edges are fused: one Spark source reads for all of them."""
        return tuple(number for number, stage in enumerate(self.stages) if stage.is_fused)

    @property
    def native(self) -> tuple[int, ...]:
        """The numbers of the other stages that read sources: each has Spark sources of its own."""
        return tuple(number for number, stage in enumerate(self.stages) if stage.edges and not stage.is_fused)

    @property
    def levels(self) -> int:
        """How many times rows are sent to shards in a micro-batch."""
        return 1 + max((stage.level for stage in self.stages), default=0)

    def stage(self, id: str) -> Stage:
        """The stage with this id."""
        return next(stage for stage in self.stages if stage.id == id)

    def sources_of(self, stage: Stage) -> tuple[str, ...]:
        """The ids of the sources that a stage reads, itself or through other stages."""
        found = [*stage.inputs, *(id for each in stage.reads for id in self.sources_of(self.stage(each.stage)))]
        return tuple(dict.fromkeys(found))

    def fingerprint(self) -> dict[str, Any]:
        """What must not change between two runs from one checkpoint, as JSON values."""
        from millrace.plan.fingerprint import fingerprint_of

        return {stage.id: fingerprint_of(stage.of) for stage in self.stages}
