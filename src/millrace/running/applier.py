"""Applies the changelogs of real-time mode to views: exactly once, in short commits.

A commit stores, beside the rows, the offsets up to which the changelogs were read: they are its digest. So after a
crash the applier goes on where the view is. Spark repeats records after a crash of its own, from its last checkpoint
on; a repeated record has a count of elements that the row of its cell has reached, and does nothing. The count, less
one, is the `index` of a row.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from millrace.model.aggregate import Aggregate, Count, First, Min, Sum
from millrace.model.connectors import Commit
from millrace.model.errors import NoValueError, PipelineError
from millrace.model.pane import Timing
from millrace.model.query import Query
from millrace.running.realtime_letters import Asides
from millrace.sources.changelog import Changelogs
from millrace.views.shape import ViewShape, kind_of

if TYPE_CHECKING:
    from confluent_kafka import Message

COALESCE = 0.002
"""The seconds for which further records are waited for, to be committed together."""
_IDLE = 0.05
_TRIM_EVERY = 60.0

Offsets = dict[tuple[str, int], int]


class Commits(Protocol):
    """What stores commits: a store of views or, if there are none, a file."""

    def commit(
        self, commit: Commit, answers: Mapping[str, pa.Table], once: bool, generation: int | None, newer: bool
    ) -> object:
        """Store a commit with its answers, as `Store.commit` does."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A commit of the applier."""

    batch: int
    records: int
    """The records of changelogs that it read."""
    answers: Mapping[str, pa.Table]
    dead: int
    """The dead letters that it is the first to list."""
    oldest: float
    """When the oldest of its records was written, in seconds since 1970."""
    newest: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class AppliedView:
    """A view that is filled from a changelog."""

    name: str
    query: Query
    shape: ViewShape

    @property
    def schema(self) -> pa.Schema:
        """The columns of its answers, as a store takes them."""
        *own, timing, index, last = self.shape.columns
        columns = [*own, self.shape.diff, timing, index, last]
        return pa.schema([(column.name, kind_of(column.type)) for column in columns])

    def table(self, cells: Mapping[bytes, tuple[int, bytes]]) -> pa.Table:
        """Cells as answers: by their keys, the counts of their elements and their partials, as a changelog has them."""
        keys = json.loads(b"[" + b",".join(cells) + b"]")
        given = json.loads(b"[" + b",".join(parts for _, parts in cells.values()) + b"]")
        columns = [[cell[f"k{number}"] for cell in keys] for number in range(len(self.query.keys))]
        columns += [[cell.get(end) for cell in keys] for end in ("start", "end")]
        for number, computed in enumerate(self.query.computed):
            partials = _partials(computed.aggregate, number, given)
            try:
                columns.append([computed.aggregate.result(each) for each in partials])
            except NoValueError as error:
                raise PipelineError(
                    f"view {self.name} has no answer: {error}",
                    "use --mode micro-batch, which goes on without such answers",
                ) from None
        many = len(cells)
        columns += [[1] * many, [str(Timing.EARLY)] * many]
        columns += [[count - 1 for count, _ in cells.values()], [False] * many]
        schema = self.schema
        arrays = [_array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)


def _partials(aggregate: Aggregate, number: int, given: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The partials of an aggregate, from what `spark.realtime` wrote. Times are microseconds, dates are days."""
    first, second = f"p{number}_0", f"p{number}_1"
    if isinstance(aggregate, Sum):
        return [(int(each[first]), each[second]) if each[second] else None for each in given]
    if isinstance(aggregate, First):
        return [None if each[first] is None else (each[first], each[second]) for each in given]
    assert isinstance(aggregate, Count | Min)
    return [each[first] for each in given]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, pa.int32()).cast(kind) if pa.types.is_date32(kind) else pa.array(values, kind)


def offsets_in(digest: str) -> Offsets:
    """The offsets that a commit stores."""
    return {(topic, number): offset for topic, own in json.loads(digest).items() for number, offset in enumerate(own)}


def digest_of(topics: Mapping[str, int], offsets: Offsets) -> str:
    """Offsets as the text that a commit stores; `topics` are with their numbers of partitions."""
    return json.dumps({name: [offsets.get((name, n), 0) for n in range(many)] for name, many in topics.items()})


class Applier:
    """Applies the changelogs of one pipeline. Runs in a thread of its own."""

    def __init__(
        self,
        changelogs: Changelogs,
        views: Mapping[str, AppliedView],
        topics: Mapping[str, int],
        asides: Asides,
        store: Commits,
        last: Commit,
        generation: int,
        on_commit: Callable[[Applied], None],
    ) -> None:
        """`views` are by the topic of their changelog; `topics` has the partitions of all topics that are read.

        `last` is the last commit that the store has: its offsets are where the applier goes on.
        """
        self._changelogs, self._views, self._topics, self._asides = changelogs, views, topics, asides
        self._store, self._last, self._generation, self._on_commit = store, last, generation, on_commit
        self._offsets = offsets_in(last.digest)
        self._trimmed = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millrace applier", daemon=True)
        self.error: Exception | None = None
        """The error that ended it."""

    def start(self) -> None:
        """Begin to apply."""
        self._changelogs.follow(self._topics, self._offsets)
        self._thread.start()

    def stop(self) -> None:
        """Apply what was taken, and end."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(30)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                taken = self._changelogs.take(_IDLE, COALESCE)
                if taken:
                    self._on_commit(self.apply(taken))
                if time.monotonic() - self._trimmed > _TRIM_EVERY:
                    self._trimmed = time.monotonic()
                    self._changelogs.trim(self._offsets)
        except Exception as error:
            self.error = error

    def apply(self, taken: "Sequence[Message]") -> Applied:
        """Commit records with the offsets after them."""
        cells: dict[str, dict[bytes, tuple[int, bytes]]] = {}
        aside: list[Message] = []
        offsets = dict(self._offsets)
        for message in taken:
            topic, key, value = str(message.topic()), message.key() or b"", message.value() or b""
            offsets[topic, message.partition() or 0] = (message.offset() or 0) + 1
            if topic not in self._views:
                aside.append(message)
                continue
            count, _, parts = _bytes(value).partition(b" ")
            of_view, known = cells.setdefault(topic, {}), int(count)
            if _bytes(key) not in of_view or of_view[_bytes(key)][0] < known:
                of_view[_bytes(key)] = known, parts
        answers = {self._views[topic].name: self._views[topic].table(own) for topic, own in cells.items()}
        batch = self._last.batch + 1
        dead = self._asides.keep(aside, self._last.checkpoint, batch) if aside else 0
        digest = digest_of(self._topics, offsets)
        commit = Commit(self._last.pipeline, self._last.checkpoint, batch, digest)
        self._store.commit(commit, answers, True, self._generation, newer=True)
        self._last, self._offsets = commit, offsets
        return Applied(batch, len(taken) - len(aside), answers, dead, min(each.timestamp()[1] for each in taken) / 1e3)


def _bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
