"""A shard: the state of some keys of every stage, advanced by the messages of a micro-batch.

Streams and batches run the same code. A stream's state lives in Spark's state store as blobs; workers cache it, and one
small read validates the cached version before reuse. A batch starts from nothing and keeps only the last answers.
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.model.arrow import arrow_schema
from millrace.model.clock import after_step
from millrace.model.duration import BEGINNING_OF_TIME
from millrace.model.graph import join_watermark, least
from millrace.model.joining import LEFT, RIGHT
from millrace.model.trigger import Watermark, may_finish
from millrace.model.watermark import Estimator, Progress, Seen, combine, follows_clock, next_idle
from millrace.panes import blobs
from millrace.panes.advance import PaneState
from millrace.panes.blobs import Changes, StoredState, from_bytes, to_bytes
from millrace.panes.grouping import identify
from millrace.panes.joining import Joining, JoinState
from millrace.panes.sides import AT
from millrace.panes.store import RowStore, stack
from millrace.plan.plan import Stage
from millrace.sources.bundle import Times, together
from millrace.spark.answers import schema_of
from millrace.spark.changing import ChangesEdge, ChangesTaken
from millrace.spark.crash import reach
from millrace.spark.deduplicating import Deduplicating
from millrace.spark.envelope import reported
from millrace.spark.job import Job, PackedJob
from millrace.spark.messages import DEAD, DEAD_LETTERS, NO_STAGE, PANES, PARTIALS, ROWS, STATUS, Message, TaskReport
from millrace.spark.progress import ShardStatus
from millrace.spark.task import panes_of
from millrace.spark.unanswered import letters_of

_TIME = "time"
_SHARDS_CACHED = 64
"""The number of shards that a worker caches."""


@dataclass(frozen=True, slots=True, eq=False)
class StageState:
    """The state of one stage in a shard, between two micro-batches."""

    kept: StoredState
    progress: tuple[Progress, ...]


class StateStore(Protocol):
    """Stores the state of a shard's stages between micro-batches."""

    def read(self, stage: str, kind: type[PaneState | JoinState]) -> StageState | None:
        """The state of this kind after the last micro-batch; None if there was none."""

    def write(self, stage: str, state: StageState, changes: Changes) -> None:
        """Store the state, of which these blobs changed."""


class NoState:
    """The store of a batch, which has no state before or after it."""

    def read(self, stage: str, kind: type[PaneState | JoinState]) -> StageState | None:
        """No state."""
        return None

    def write(self, stage: str, state: StageState, changes: Changes) -> None:
        """Store nothing."""


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The times and sizes of a stage of a shard after a micro-batch."""

    watermark: int
    now: int
    groups: int
    """The number of open (key, window) groups, or of rows that a join keeps."""
    bytes: int
    dropped: int


@dataclass(frozen=True, slots=True, eq=False)
class Advanced:
    """A stage of a shard after a micro-batch."""

    state: PaneState | JoinState
    figures: StageFigures
    progress: tuple[Progress, ...]
    said: pa.Table | None
    """Its panes, or the rows of a plain stream; None if there are none."""
    letters: list[dict[str, Any]]
    errors: int
    """Answers without a value, since the start."""
    due: int | None
    """The next instant of processing time at which the stage may answer without input; None if there is none."""
    elements: int
    """The elements of the micro-batch, with those that were too late."""
    late: int
    """The elements of the micro-batch that were too late; 0 if others are dropped with them."""
    changes: pa.Table | None = None
    """All its panes, for the stages that read them; None if there are none."""
    before: int = 0
    """The clock before the micro-batch."""
    is_idle: bool = False
    """Whether all its sources are idle."""


class StageShard:
    """One stage in one shard, ready to be advanced by messages."""

    keeps = PaneState

    def __init__(self, number: int, stage: Stage, last_only: bool) -> None:
        """Prepare its panes. With `last_only`, it answers with the last pane of each key and window, as batches do."""
        self.number, self.id, self._stage, self._last_only = number, stage.id, stage, last_only
        self.says = ROWS if stage.query is None else PANES
        self.is_output = stage.is_output
        self._dedup = None if stage.dedup is None else Deduplicating(stage.id, stage.dedup)
        self._panes = panes_of(stage)
        self._estimators = stage.estimators()
        trigger = None if stage.query is None else stage.query.trigger
        self._drops_late_only = trigger is None or isinstance(trigger, Watermark) or not may_finish(trigger)
        """Whether elements are dropped only because they are too late, not because the trigger has finished."""

    def advance(self, before: StageState | None, messages: Sequence[Message]) -> Advanced:
        """Advance the stage by the messages of all tasks, or of all shards of the stages that it reads."""
        reports = [TaskReport.from_json(message.report or "") for message in messages]
        times = together([each.times for each in reports])
        state = PaneState(now=times.before) if before is None else before.kept.state
        assert isinstance(state, PaneState)
        progress = tuple(Progress(active=times.before) for _ in self._estimators) if before is None else before.progress
        sent = [from_bytes(message.payload) for message in messages if message.payload is not None]
        seen = [sum((each.seen[n] for each in reports if n in each.seen), Seen()) for n in range(len(self._estimators))]
        letters: list[dict[str, Any]] = []
        if self._dedup is not None:
            passed = self._dedup.take(state, sent)
            state, sent, letters = passed.state, passed.tables, passed.letters
            seen = [passed.seen] if passed.seen is not None and self._estimators else seen
        now = after_step(state.now, times.now if times.goes_back else max(state.now, times.now))
        if now < state.now:
            progress = tuple(each.moved_back(state.now - now) for each in progress)
        observed = zip(self._estimators, progress, seen, strict=True)
        progress = tuple(estimator.observe(so_far, bundle, now) for estimator, so_far, bundle in observed)
        watermark = state.watermark if times.watermark is None else times.watermark
        marks = {stage: mark for each in reports for stage, mark in each.marks.items()}
        if marks:
            watermark = least(list(marks.values()))
        elif times.watermark is None and self._estimators:
            watermark = combine(list(zip(self._estimators, progress, strict=True)), now)
        elements, dropped = 0, state.dropped
        if self._panes is None:
            state, tables = replace(state, watermark=max(state.watermark, watermark), now=now), sent
        else:
            elements = sum(pc.sum(table["elements"]).as_py() or 0 for table in sent)
            state, tables = self._panes.advance(state, stack(sent) if sent else None, watermark, now)
        said = [table for table in tables if len(table)]
        changes = stack(said) if said and self._stage.is_read else None
        sources = list(zip(self._estimators, progress, strict=True))
        is_idle = all(mark[1] for mark in marks.values()) if marks else follows_clock(sources, now)
        unanswered, errors = letters_of(self._stage, state.failed), state.errors
        if self._last_only:
            said = [_last(stack(said), self._panes.keys)] if said and self._panes is not None else said
            unanswered = list({letter["value"]: letter for letter in unanswered}.values())
            errors = len(unanswered)
        due = self._due(state, sources)
        late = state.dropped - dropped if self._drops_late_only else 0
        answer = stack(said) if said else None
        letters += unanswered
        figures = StageFigures(
            state.watermark,
            state.now,
            len(state.groups),
            _size(state.groups, state.arrivals, state.seen),
            state.dropped,
        )
        return Advanced(
            state, figures, progress, answer, letters, errors, due, elements, late, changes, times.before, is_idle
        )

    def _due(self, state: PaneState, sources: Sequence[tuple[Estimator, Progress]]) -> int | None:
        if self._panes is None or self._last_only:
            return None
        found = [next_idle(sources, state.now), self._panes.due(state, follows_clock(sources, state.now))]
        return min((instant for instant in found if instant is not None), default=None)


def _last(said: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """The last pane of each key and window; a retraction is no answer."""
    same = identify([said[name].combine_chunks() for name in (*keys, "start", "end")], len(said))
    last = said.take(pa.array(same.lasts))
    return last.filter(pc.greater(last["diff"], 0))


class JoinShard:
    """A join of streams in one shard, ready to be advanced by messages."""

    keeps = JoinState
    says = ROWS

    def __init__(self, number: int, stage: Stage) -> None:
        """Prepare its engine."""
        assert stage.join is not None
        self.number, self.id, self.is_output, self._is_read = number, stage.id, stage.is_output, stage.is_read
        self._joining, self._spec = Joining(stage.join.spec), stage.join.spec
        self._estimators = [stage.estimators(side) for side in (LEFT, RIGHT)]
        self._schema = arrow_schema(schema_of(stage.of))

    def advance(self, before: StageState | None, messages: Sequence[Message]) -> Advanced:
        """Advance the join by the messages of all tasks, and of all shards of the stages that it reads."""
        reports = [TaskReport.from_json(message.report or "") for message in messages]
        times = together([each.times for each in reports])
        state = JoinState(now=times.before) if before is None else before.kept.state
        assert isinstance(state, JoinState)
        every = [*self._estimators[LEFT], *self._estimators[RIGHT]]
        progress = tuple(Progress(active=times.before) for _ in every) if before is None else before.progress
        now = after_step(state.now, times.now if times.goes_back else max(state.now, times.now))
        if now < state.now:
            progress = tuple(each.moved_back(state.now - now) for each in progress)
        seen = [sum((each.seen[n] for each in reports if n in each.seen), Seen()) for n in range(len(every))]
        observed = zip(every, progress, seen, strict=True)
        progress = tuple(estimator.observe(so_far, bundle, now) for estimator, so_far, bundle in observed)
        sources = list(zip(every, progress, strict=True))
        split = len(self._estimators[LEFT])
        given = sources[:split], sources[split:]
        sides = [self._time(side, state, reports, given[side], times, now) for side in (LEFT, RIGHT)]
        tables: tuple[list[pa.Table], list[pa.Table]] = [], []
        for report, message in zip(reports, messages, strict=True):
            if message.payload is not None:
                tables[report.side].append(from_bytes(message.payload))
        left, right = (pa.concat_tables(each).combine_chunks() if each else None for each in tables)
        after, said = self._joining.advance(state, left, right, (sides[LEFT][0], sides[RIGHT][0]))
        after = replace(after, now=now)
        idle = sides[LEFT][1], sides[RIGHT][1]
        kept = len(after.left) + len(after.right)
        watermark, dropped = join_watermark(self._spec, after.watermarks, idle), sum(after.dropped)
        figures = StageFigures(watermark, now, kept, _size(after.left, after.right), dropped)
        elements = sum(len(table) for side in tables for table in side)
        rows = said.drop_columns([AT]).rename_columns(self._schema.names).cast(self._schema) if len(said) else None
        changes = said if len(said) and self._is_read else None
        return Advanced(
            after, figures, progress, rows, [], 0, next_idle(sources, now), elements, dropped - sum(state.dropped),
            changes, times.before, all(idle),
        )  # fmt: skip

    def _time(
        self, side: int, state: JoinState, reports: Sequence[TaskReport],
        sources: Sequence[tuple[Estimator, Progress]], times: Times, now: int,
    ) -> tuple[int, bool]:  # fmt: skip
        """The watermark of a side, and whether it is idle; it then stays where it was, rule 15 of stages."""
        marks = {stage: mark for each in reports if each.side == side for stage, mark in each.marks.items()}
        if marks:
            is_idle, mark = all(idle for _, idle in marks.values()), least(list(marks.values()))
        elif times.sides is not None:
            is_idle, mark = False, times.sides[side]
        elif times.watermark is not None:
            is_idle, mark = False, times.watermark
        else:
            is_idle, mark = follows_clock(sources, now), combine(sources, now) if sources else BEGINNING_OF_TIME
        return (state.watermarks[side] if is_idle else mark), is_idle


class Shard:
    """The stages of one level of a job, for the keys of one shard."""

    def __init__(self, job: Job, level: int = 0, last_only: bool = False) -> None:
        """Prepare the stages that have state."""
        self._shards, self._level, self._last_only = job.shards, level, last_only
        self._stages: dict[int, StageShard | JoinShard] = {
            number: StageShard(number, stage, last_only) if stage.join is None else JoinShard(number, stage)
            for number, stage in enumerate(job.stages)
            if stage.is_stateful and stage.level == level
        }
        numbers = {stage.id: number for number, stage in enumerate(job.stages)}
        self._edges: dict[int, list[ChangesEdge]] = {}
        """The edges to the stages that read a stage, by its number."""
        for number, stage in enumerate(job.stages):
            for read in stage.reads:
                if numbers[read.stage] in self._stages:
                    self._edges.setdefault(numbers[read.stage], []).append(ChangesEdge(number, stage, read))

    def advance(self, messages: Iterable[Message], store: StateStore) -> Iterator[Message]:
        """Advance all stages by the messages of a micro-batch.

        Rows of plain streams, dead letters and what other levels have said or read pass through.
        """
        by_stage: dict[int, list[Message]] = {}
        for message in sorted(messages, key=lambda each: each.sequence):
            if message.kind == PARTIALS and message.stage in self._stages:
                by_stage.setdefault(message.stage, []).append(message)
            else:
                yield message
        for number in self._stages:  # each after those that it reads
            sent = by_stage.get(number)
            if sent is None:
                continue
            began = time.process_time()
            stage = self._stages[number]
            before = store.read(stage.id, stage.keeps)
            reach("state read")
            after = stage.advance(before, sent)
            kept, changes = blobs.write(None if before is None else before.kept, after.state, uuid.uuid4().hex)
            store.write(stage.id, StageState(kept, after.progress), changes)
            reach("state written")
            shard = sent[0].shard
            now = after.figures.now
            back = 0 if before is None else max(0, before.kept.state.now - now)
            if stage.is_output and after.said is not None and len(after.said):
                yield Message(shard, number, 0, stage.says, payload=to_bytes(after.said))
            letters = list(after.letters)
            for made in self._passed_on(shard, number, after, letters):
                if made.kind == PARTIALS and made.stage in self._stages:
                    by_stage.setdefault(made.stage, []).append(made)
                else:
                    yield made
            if letters:
                yield Message(shard, NO_STAGE, 0, DEAD, payload=to_bytes(pa.Table.from_pylist(letters, DEAD_LETTERS)))
            figures = after.figures
            status = ShardStatus(
                number, figures.watermark, now, figures.groups, figures.bytes, figures.dropped,
                time.process_time() - began, after.errors, back, after.due, after.elements, after.late,
            )  # fmt: skip
            yield Message(shard, number, 0, STATUS, json.dumps(asdict(status)))

    def _passed_on(self, shard: int, number: int, after: Advanced, letters: list[dict[str, Any]]) -> Iterator[Message]:
        """What a stage sends to those that read its answers; the dead letters of these are added."""
        for edge in self._edges.get(number, ()):
            # A batch gives the rows of the last answers, but aggregates all of them.
            read = after.said if edge.is_stateless and self._last_only else after.changes
            taken = ChangesTaken() if read is None else edge.take(read, self._last_only)
            letters += taken.letters
            mark = {number: (after.figures.watermark, after.is_idle)}
            report = TaskReport(Times(after.before, after.figures.now), marks=mark, side=edge.side)
            is_local = edge.stage.level == self._level
            yield from edge.messages(shard, number, taken, report, self._shards, is_local)


class BlobStore:
    """State as blobs in a Spark map state, with this worker's cache."""

    def __init__(self, blobs: Any, cached: dict[str, StageState]) -> None:
        """`blobs` maps names to bytes; `cached` is the worker's cache of the shard, by stage."""
        self._blobs, self._cached = blobs, cached

    def read(self, stage: str, kind: type[PaneState | JoinState]) -> StageState | None:
        """The state of a stage; from the cache, if the store holds the same version."""

        def fetch(name: str) -> bytes | None:
            found = self._blobs.getValue((f"{stage}/{name}",))
            return None if found is None else bytes(found[0])

        cached = self._cached.get(stage)
        kept = blobs.read_as(kind, fetch, None if cached is None else cached.kept)
        if kept is None:
            return None
        if cached is not None and kept is cached.kept:
            return cached
        times = json.loads(fetch(_TIME) or b"[]")
        lags = [{**each, "lags": tuple(map(tuple, each["lags"]))} for each in times]
        return StageState(kept, tuple(Progress(**each) for each in lags))

    def write(self, stage: str, state: StageState, changes: Changes) -> None:
        """Store the blobs that changed, and cache the state."""
        times = json.dumps([asdict(each) for each in state.progress]).encode()
        for name, data in {**changes.put, _TIME: times}.items():
            self._blobs.updateValue((f"{stage}/{name}",), (data,))
        for name in changes.remove:
            self._blobs.removeKey((f"{stage}/{name}",))
        self._cached[stage] = state


def processor(packed: PackedJob, run: str, level: int) -> StatefulProcessor:
    """The processor that `transformWithState` calls for each shard of a level. `run` distinguishes checkpoints.

    Spark also sends this to a process that only asks for the names of the state, so Millrace is imported with the first
    micro-batch.
    """
    data = packed.data

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._blobs = handle.getMapState("blobs", "name STRING", "data BINARY")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            from millrace.spark.job import PackedJob
            from millrace.spark.shards import micro_batch

            yield from micro_batch(PackedJob(data), run, level, int(key[0]), rows, self._blobs)

        def close(self) -> None:
            pass

    return Processor()


@reported
def micro_batch(packed: PackedJob, run: str, level: int, label: int, rows: Iterable[Row], stored: Any) -> Iterator[Row]:
    """One micro-batch of one shard as Spark rows; `stored` is its state as a map of blobs."""
    labels = packed.job.labels
    shard = labels.index(label)
    messages = [Message(shard, row.stage, row.sequence, row.kind, row.report, row.payload) for row in rows]
    for made in _shard_of(packed, level).advance(messages, BlobStore(stored, _cached(run, level, shard))):
        payload = None if made.payload is None else bytes(made.payload)
        yield Row(
            shard=labels[made.shard], stage=made.stage, sequence=made.sequence, kind=made.kind, report=made.report,
            payload=payload,
        )  # fmt: skip


@lru_cache(16)
def _shard_of(packed: PackedJob, level: int) -> Shard:
    return Shard(packed.job, level)


@lru_cache(_SHARDS_CACHED)
def _cached(run: str, level: int, shard: int) -> dict[str, StageState]:
    """The cached state of a shard in this worker, by stage."""
    return {}


def _size(*stores: RowStore) -> int:
    return sum(segment.rows.nbytes for store in stores for segment in store.segments)
