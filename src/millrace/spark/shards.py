"""A shard: the state of some keys of every output, advanced by the messages of a micro-batch.

Spark keeps the state as blobs in its own store and calls the shard once a micro-batch. What a shard held last stays in
the worker; if the store has the same writing of it, which one small read tells, nothing else is read.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millrace.edge.dedup import deduped
from millrace.model.query import Query
from millrace.model.stream import event_times
from millrace.model.watermark import Progress, Seen, combine
from millrace.panes import blobs
from millrace.panes.advance import Panes, State
from millrace.panes.blobs import Changes, Kept, from_bytes, to_bytes
from millrace.panes.store import stack
from millrace.sources.bundle import together
from millrace.spark.crash import reach
from millrace.spark.dedup import Deduplicating
from millrace.spark.envelope import reported
from millrace.spark.messages import (
    DEAD,
    DEAD_LETTERS,
    NO_PART,
    PANES,
    PARTIALS,
    ROWS,
    STATUS,
    Message,
    Told,
)
from millrace.spark.plan import Packed, Part, Plan
from millrace.spark.progress import ShardStatus
from millrace.spark.unanswered import letters_of

_TIME = "time"
_SHARDS_KEPT = 64
"""How many shards a worker keeps in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What a shard knows of one output."""

    kept: Kept
    progress: tuple[Progress, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Advanced:
    """An output of a shard after a micro-batch."""

    state: State
    progress: tuple[Progress, ...]
    said: pa.Table | None
    """Its panes, or the rows of a plain stream; None if there are none."""
    letters: list[dict[str, Any]]


class PartPanes:
    """One output of a plan that has state, made ready to be advanced by messages."""

    def __init__(self, number: int, part: Part) -> None:
        """Compile it."""
        self.number, self.name, self._part = number, part.name, part
        self.says = PANES if isinstance(part.of, Query) else ROWS
        parts = deduped(part.of)
        self._dedup = None if parts is None else Deduplicating(part.name, parts)
        self._panes = Panes(part.of) if isinstance(part.of, Query) else None
        self._nodes = [node.estimator for node in event_times(part.stream)]

    def advance(self, before: Held | None, messages: Sequence[Message]) -> Advanced:
        """Take in what tasks sent."""
        told = [Told.from_json(message.told or "") for message in messages]
        times = together([each.times for each in told])
        state = State(now=times.before) if before is None else before.kept.state
        progress = tuple(Progress(active=times.before) for _ in self._nodes) if before is None else before.progress
        sent = [from_bytes(message.payload) for message in messages if message.payload is not None]
        seen = [sum((each.seen[n] for each in told if n in each.seen), Seen()) for n in range(len(self._nodes))]
        letters: list[dict[str, Any]] = []
        if self._dedup is not None:
            passed = self._dedup.take(state, sent)
            state, sent, letters = passed.state, passed.tables, passed.letters
            seen = [passed.seen] if passed.seen is not None and self._nodes else seen
        nodes = zip(self._nodes, progress, seen, strict=True)
        now = max(state.now, times.now)
        progress = tuple(estimator.observe(so_far, bundle, now) for estimator, so_far, bundle in nodes)
        watermark = state.watermark if times.watermark is None else times.watermark
        if times.watermark is None and self._nodes:
            watermark = combine(list(zip(self._nodes, progress, strict=True)), times.now)
        if self._panes is None:
            state, tables = replace(state, watermark=max(state.watermark, watermark), now=now), sent
        else:
            state, tables = self._panes.advance(state, stack(sent) if sent else None, watermark, times.now)
        said = [table for table in tables if len(table)]
        letters = [*letters, *letters_of(self._part, state.failed)]
        return Advanced(state, progress, stack(said) if said else None, letters)


class Shard:
    """All queries of a plan, for the keys of one shard."""

    def __init__(self, plan: Plan) -> None:
        """Compile what has state."""
        self._parts = {
            number: PartPanes(number, part)
            for number, part in enumerate(plan.parts)
            if isinstance(part.of, Query) or deduped(part.of) is not None
        }

    def advance(
        self, messages: Iterable[Message], read: Callable[[str, Held | None], Held | None],
        write: Callable[[str, Changes], None], known: dict[str, Held],
    ) -> Iterator[Message]:  # fmt: skip
        """Take in the messages of a micro-batch. What does not concern the queries passes through."""
        by_part: dict[int, list[Message]] = {}
        for message in sorted(messages, key=lambda each: each.place):
            if message.kind == PARTIALS and message.part != NO_PART:
                by_part.setdefault(message.part, []).append(message)
            else:
                yield message
        for number, sent in by_part.items():
            began = time.process_time()
            part = self._parts[number]
            before = read(part.name, known.get(part.name))
            reach("state read")
            after = part.advance(before, sent)
            state = after.state
            kept, changes = blobs.write(None if before is None else before.kept, state, uuid.uuid4().hex)
            times = json.dumps([asdict(each) for each in after.progress]).encode()
            write(part.name, replace(changes, put={**changes.put, _TIME: times}))
            known[part.name] = Held(kept, after.progress)
            reach("state written")
            if after.said is not None:
                yield Message(sent[0].shard, number, 0, part.says, payload=to_bytes(after.said))
            if after.letters:
                letters = pa.Table.from_pylist(after.letters, DEAD_LETTERS)
                yield Message(sent[0].shard, NO_PART, 0, DEAD, payload=to_bytes(letters))
            status = ShardStatus(
                number, state.watermark, state.now, len(state.groups), _size(state), state.dropped,
                time.process_time() - began, state.errors,
            )  # fmt: skip
            yield Message(sent[0].shard, number, 0, STATUS, json.dumps(asdict(status)))


def processor(packed: Packed, run: str) -> StatefulProcessor:
    """Shards as Spark calls them. `run` tells checkpoints apart.

    One of the processes that this travels to only asks for the names of the state, so it imports Millrace when it
    is given a micro-batch.
    """
    data = packed.data

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._blobs = handle.getMapState("blobs", "name STRING", "data BINARY")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            from millrace.spark.plan import Packed
            from millrace.spark.shards import micro_batch

            yield from micro_batch(Packed(data), run, int(key[0]), rows, self._blobs)

        def close(self) -> None:
            pass

    return Processor()


@reported
def micro_batch(packed: Packed, run: str, shard: int, rows: Iterable[Row], kept: Any) -> Iterator[Row]:
    """What Spark asks of a shard, with its state as a map of blobs."""

    def read(part: str, known: Held | None) -> Held | None:
        def fetch(name: str) -> bytes | None:
            found = kept.getValue((f"{part}/{name}",))
            return None if found is None else bytes(found[0])

        state = blobs.read(fetch, None if known is None else known.kept)
        if state is None:
            return None
        if known is not None and state is known.kept:
            return known
        times = json.loads(fetch(_TIME) or b"[]")
        lags = [{**each, "lags": tuple(map(tuple, each["lags"]))} for each in times]
        return Held(state, tuple(Progress(**each) for each in lags))

    def write(part: str, changes: Changes) -> None:
        for name, data in changes.put.items():
            kept.updateValue((f"{part}/{name}",), (data,))
        for name in changes.remove:
            kept.removeKey((f"{part}/{name}",))

    messages = [Message(shard, row.part, row.place, row.kind, row.told, row.payload) for row in rows]
    for made in _shard_of(packed).advance(messages, read, write, _known(run, shard)):
        payload = None if made.payload is None else bytes(made.payload)
        yield Row(shard=shard, part=made.part, place=made.place, kind=made.kind, told=made.told, payload=payload)


@lru_cache(8)
def _shard_of(packed: Packed) -> Shard:
    return Shard(packed.plan)


@lru_cache(_SHARDS_KEPT)
def _known(run: str, shard: int) -> dict[str, Held]:
    """What this worker holds of a shard, by output."""
    return {}


def _size(state: State) -> int:
    return sum(
        segment.rows.nbytes for store in (state.groups, state.arrivals, state.seen) for segment in store.segments
    )
