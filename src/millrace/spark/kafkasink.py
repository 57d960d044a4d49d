"""Topics of Kafka as sinks. They cannot be swapped: a replay appends to them again, or leaves them out."""

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.model.connectors import Commit, is_stored
from millrace.model.errors import ConflictError
from millrace.model.kafka_sink import KafkaSink, key_of
from millrace.model.plain import as_text, to_json
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.spark.answers import free_names, json_lines, schema_of
from millrace.spark.kafka_transactions import Record, Transactions
from millrace.spark.sent import Sent

_PREFIX = "millrace-"
"""Names of groups and of transactions begin so."""


class KafkaWriter:
    """A topic of Kafka, with a JSON record for each change of an answer.

    The commit is stored in the transaction of its records. Kafka forgets it if none follows for a week
    (`offsets.retention.minutes`), so `sent` has the last commit that was begun. Each generation has commits of its own,
    because its batches are counted from 0 again.
    """

    def __init__(
        self, sink: KafkaSink, id: str, of: Query | Stream, pipeline: str, sent: Sent, generation: int = 1
    ) -> None:
        """Connect when something is asked."""
        self._sink, self._pipeline, self._id, self._sent = sink, pipeline, id, sent
        names = schema_of(of).names
        self._key = key_of(of, sink)
        self._diff = free_names(of.schema.names, ["diff"])[0]
        rest = [name for name in names if name != self._diff]
        self._added = free_names(rest, ["sequence", "deleted"])
        of_pipeline = f"{_PREFIX}{pipeline}" if generation == 1 else f"{_PREFIX}{pipeline}@{generation}"
        self._transactions = Transactions(sink, f"{of_pipeline}-{sink.topic}")
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
        if is_stored(self._last, commit, str(self._sink)):
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
            if once and is_stored(begun, commit, str(self._sink)):
                raise self._forgotten(commit)
            self._last = begun

    def replace(self, answers: pa.Table) -> None:
        """Append the answers in one transaction: records of a topic are never replaced."""
        name = f"{_PREFIX}{self._pipeline}@batch-{self._sink.topic}"
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

    def _records(self, answers: pa.Table) -> Iterator[Record]:
        keys = key_texts(answers, self._key, whole=self._sink.changelog)
        if self._sink.changelog:
            kept = pa.array(sorted(dict(zip(keys, range(len(keys)), strict=True)).values()), pa.int64())
            answers, keys = answers.take(kept), [keys[place] for place in kept.to_pylist()]
            answers = self._changes(answers)
        values = json_lines(answers)
        headers = self._headers(answers)
        times = self._times(answers)
        return map(Record, values, keys, headers, times)

    def _changes(self, answers: pa.Table) -> pa.Table:
        """The latest rows, with a sequence that grows through the whole topic, and whether they are deleted."""
        first = self._transactions.offsets()
        sequence = pa.array(range(first, first + len(answers)), pa.int64())
        deleted = pc.less(answers[self._diff], 0)
        columns = answers.drop_columns([self._diff])
        for name, column in zip(self._added, (sequence, deleted), strict=True):
            columns = columns.append_column(name, column)
        return columns

    def _headers(self, answers: pa.Table) -> list[tuple[tuple[str, str], ...]]:
        """The headers of each row; a NULL is left out."""
        if not self._sink.headers:
            return [()] * len(answers)
        texts = [[(name, each) for each in _texts(answers[column])] for name, column in self._sink.headers]
        rows = zip(*texts, strict=True)
        return [tuple((name, text) for name, text in row if text is not None) for row in rows]

    def _times(self, answers: pa.Table) -> list[int | None]:
        if self._sink.timestamp is None:
            return [None] * len(answers)
        moments = answers[self._sink.timestamp].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        return [None if each is None else each // 1000 for each in moments.to_pylist()]


def key_texts(answers: pa.Table, names: Sequence[str], whole: bool = False) -> list[str | None]:
    """The key of each row: none, the text of one column, or a JSON object of several; of one, too, if `whole`."""
    if not names and not whole:
        return [None] * len(answers)
    if len(names) == 1 and not whole:
        return _texts(answers[names[0]])
    columns = {name: _equal(answers[name]) for name in names}
    if not columns:
        return ["{}"] * len(answers)
    return [to_json(row) for row in pa.table(columns).to_pylist()]


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """The values as text: a text is itself, a moment as in JSON without quotes, others as in JSON."""
    return [each if each is None or isinstance(each, str) else _text(each) for each in _equal(column).to_pylist()]


def _text(value: object) -> str:
    text = to_json(value)
    return as_text(value) if text.startswith('"') and not isinstance(value, float) else text.strip('"')


def _equal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that are equal as keys, as equal values: -0.0 is 0.0."""
    return pc.add(column, pa.scalar(0.0, column.type)) if types.is_floating(column.type) else column
