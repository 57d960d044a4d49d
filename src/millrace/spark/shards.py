"""A shard: the state of some keys of every stage, advanced by the messages of a micro-batch.

Streams and batches run the same code. A stream's state lives in Spark's state store as blobs; workers cache it, and one
small read validates the cached version before reuse. A batch starts from nothing and keeps only the last answers.
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.panes import blobs
from millrace.panes.advance import PaneState
from millrace.panes.blobs import Changes, to_bytes
from millrace.panes.joining import JoinState
from millrace.sources.bundle import Times
from millrace.spark.changing import ChangesEdge, ChangesTaken
from millrace.spark.crash import reach
from millrace.spark.envelope import reported
from millrace.spark.handed import TIME, blobs_for, progress_blob, progress_of
from millrace.spark.job import Job, PackedJob
from millrace.spark.join_shard import JoinShard
from millrace.spark.messages import CHANGES, DEAD, DEAD_LETTERS, NO_STAGE, PARTIALS, STATUS, Message, TaskReport
from millrace.spark.progress import ShardStatus
from millrace.spark.stage_shard import Advanced, StageShard, StageState

_SHARDS_CACHED = 64
"""The number of shards that a worker caches."""


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
            for place, read in enumerate(stage.reads):
                if numbers[read.stage] in self._stages:
                    self._edges.setdefault(numbers[read.stage], []).append(ChangesEdge(number, stage, place))

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
            stored = before.kept if before is not None and before.is_stored else None
            kept, changes = blobs.write(stored, after.state, uuid.uuid4().hex)
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
            # A batch gives the rows of the last answers of a query, but aggregates all of them.
            is_last = edge.is_stateless and self._last_only and isinstance(self._stages[number], StageShard)
            read = after.said if is_last else after.changes
            mark = {number: (after.figures.watermark, after.is_idle)}
            report = TaskReport(Times(after.before, after.figures.now), marks=mark, side=edge.side)
            if edge.is_native:
                payload = None if read is None else to_bytes(read)
                yield Message(shard, edge.number, edge.place, CHANGES, report.to_json(), payload)
                continue
            taken = ChangesTaken() if read is None else edge.take(read, self._last_only)
            letters += taken.letters
            is_local = edge.stage.level == self._level
            yield from edge.messages(shard, number, taken, report, self._shards, is_local)


class BlobStore:
    """State as blobs in a Spark map state, with this worker's cache."""

    def __init__(self, blobs: Any, cached: dict[str, StageState], folder: str | None = None, shard: int = 0) -> None:
        """`blobs` maps names to bytes; `cached` is the worker's cache of the shard, by stage.

        `folder` is the checkpoint, in which state may have been handed over to this shard.
        """
        self._blobs, self._cached, self._shard = blobs, cached, shard
        self._folder = None if folder is None else Path(folder)

    def read(self, stage: str, kind: type[PaneState | JoinState]) -> StageState | None:
        """The state of a stage; from the cache, if the store holds the same version."""

        def fetch(name: str) -> bytes | None:
            found = self._blobs.getValue((f"{stage}/{name}",))
            return None if found is None else bytes(found[0])

        cached = self._cached.get(stage)
        kept = blobs.read_as(kind, fetch, None if cached is None else cached.kept)
        if kept is None:
            return self._handed_over(stage, kind)
        if cached is not None and kept is cached.kept:
            return cached
        return StageState(kept, progress_of(fetch(TIME)))

    def _handed_over(self, stage: str, kind: type[PaneState | JoinState]) -> StageState | None:
        """The state that another number of shards has left to this one; it is not in the store yet."""
        handed = {} if self._folder is None else blobs_for(self._folder, stage, self._shard)
        kept = blobs.read_as(kind, handed.get)
        return None if kept is None else StageState(kept, progress_of(handed.get(TIME)), is_stored=False)

    def write(self, stage: str, state: StageState, changes: Changes) -> None:
        """Store the blobs that changed, and cache the state."""
        for name, data in {**changes.put, TIME: progress_blob(state.progress)}.items():
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
    store = BlobStore(stored, _cached(run, level, shard), packed.job.folder, shard)
    for made in _shard_of(packed, level).advance(messages, store):
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
