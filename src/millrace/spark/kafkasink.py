"""Topics of Kafka as sinks. They cannot be swapped: a replay appends to them again, or leaves them out."""

import json
from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from millrace.model.connectors import Commit, is_stored
from millrace.model.errors import ConflictError
from millrace.model.kafka_sink import KafkaSink
from millrace.spark.kafka_transactions import Record, Transactions
from millrace.spark.sent import Sent

_PREFIX = "millrace-"
"""Names of groups and of transactions begin so."""


class Records(Protocol):
    """Makes records of what is written."""

    @property
    def mark(self) -> str:
        """What tells the commits of these records from those of a sink to the same topic; empty for a sink."""

    def of(self, answers: pa.Table, ends: Callable[[], int]) -> Iterator[Record]:
        """The records of some rows. `ends` is the sum of the ends of all partitions."""


class KafkaWriter:
    """A topic of Kafka, with a record for each change of an answer.

    The commit is stored in the transaction of its records. Kafka forgets it if none follows for a week
    (`offsets.retention.minutes`), so `sent` has the last commit that was begun. Each generation has commits of its own,
    because its batches are counted from 0 again.
    """

    def __init__(
        self, sink: KafkaSink, id: str, records: Records, pipeline: str, sent: Sent, generation: int = 1,
        gaps: bool = False,
    ) -> None:  # fmt: skip
        """Connect when something is asked. With `gaps`, a commit need not follow its predecessor."""
        self._sink, self._pipeline, self._id, self._sent = sink, pipeline, id, sent
        self._records_of, self._gaps = records, gaps
        self._transactions = Transactions(sink, _name(pipeline, sink.topic, records.mark, generation))
        self._last: Commit | None = None
        """While the producer is open: then nobody else can have written."""
        self._topic_id = ""

    def last(self) -> Commit | None:
        """The last commit to the topic; if Kafka has forgotten it, the last one that was begun."""
        if self._transactions.is_open:
            return self._last
        is_known, last = self._read()
        return last if is_known else self._begun()

    def _read(self) -> tuple[bool, Commit | None]:
        """Whether Kafka knows of commits to this topic; and the last one, None if there was none yet."""
        self._topic_id = self._transactions.topic_id()
        found = self._transactions.last()
        if found is None:
            return False, None
        batch, text = found
        try:
            checkpoint, digest, topic_id = json.loads(text)
        except ValueError:
            raise ConflictError(
                f"the consumer group {self._transactions.name!r} was written by another program",
                f"give the pipeline another name: groups that begin with {_PREFIX} are Millrace's",
            ) from None
        if topic_id != self._topic_id:  # the topic was made again
            return False, None
        return True, Commit(self._pipeline, checkpoint, batch, digest) if checkpoint else None

    def _begun(self) -> Commit | None:
        return self._sent.last(f"{self._id} {self._topic_id}")

    def lost(self) -> None:
        """Nothing: which records retention has removed is Kafka's matter."""

    def write(self, answers: pa.Table, commit: Commit, once: bool) -> None:
        """Write the answers and the commit in one transaction, the commit alone if there are none."""
        if not self._transactions.is_open:
            self._open(commit, once)
        if self._is_stored(self._last, commit):
            if not once and len(answers):
                self._transactions.write(self._records(answers), None)
            return
        self._sent.note(f"{self._id} {self._topic_id}", commit)
        text = json.dumps([commit.checkpoint, commit.digest, self._topic_id])
        self._transactions.write(self._records(answers), commit.batch, text)
        self._last = commit

    def _open(self, commit: Commit, once: bool) -> None:
        """Start to write, and find the last commit. The first time, Kafka is told that there is none yet.

        So if Kafka knows nothing later on, it has forgotten it. Then the last commit that was begun was made, if the
        checkpoint has gone on to the next batch. If that batch is repeated, nobody knows.
        """
        self._transactions.open()
        is_known, self._last = self._read()
        begun = self._begun()
        if not is_known and begun is None:
            self._transactions.write((), 0, json.dumps(["", "", self._topic_id]))
        elif not is_known:
            if once and self._is_stored(begun, commit):
                raise self._forgotten(commit)
            self._last = begun

    def _is_stored(self, last: Commit | None, commit: Commit) -> bool:
        """Whether a commit is stored. Raises ConflictError if it does not follow the last one and there are no gaps."""
        if self._gaps and last is not None and (last.checkpoint != commit.checkpoint or last.batch < commit.batch):
            return False
        return is_stored(last, commit, str(self._sink))

    def _records(self, answers: pa.Table) -> Iterator[Record]:
        return self._records_of.of(answers, self._transactions.offsets)

    def replace(self, answers: pa.Table) -> None:
        """Append the answers in one transaction: records of a topic are never replaced."""
        name = _name(self._pipeline, self._sink.topic, f"{self._records_of.mark}batch", 1)
        if len(answers):
            Transactions(self._sink, name).write(self._records(answers), None)

    def newest(self) -> int:
        """The newest generation that has written to the topic."""
        head, end = f"{_PREFIX}{self._pipeline}", f"-{self._sink.topic}"
        names = [name for name in self._transactions.groups(head) if name.endswith(end)]
        marks = [name.removeprefix(head).removesuffix(end) for name in names]
        numbers = [int(mark[1:]) for mark in marks if mark.startswith("@") and mark[1:].isdecimal()]
        return max([*numbers, *(1 for mark in marks if mark == "")], default=0)

    def serve(self) -> None:
        """Nothing: records are in place when they are written."""

    def _forgotten(self, commit: Commit) -> ConflictError:
        return ConflictError(
            f"{self._sink} may have the rows of batch {commit.batch}: its transaction was begun, and Kafka has "
            "forgotten whether it was committed",
            "look into the topic; to write them, perhaps twice, run once with --guarantee at-least-once",
        )


def _name(pipeline: str, topic: str, mark: str, generation: int) -> str:
    """The name of a consumer group and of transactions."""
    mark += "" if generation == 1 else str(generation)
    return f"{_PREFIX}{pipeline}-{topic}" if not mark else f"{_PREFIX}{pipeline}@{mark}-{topic}"
