"""Messages between the edge, the shards and the driver: rows of one schema, whatever the pipeline computes.

For each output that it reads for, an edge task sends every shard one message: the partials of that shard's keys, the
event times that the task saw, and the clock. So every shard sees the same times. Shards send panes and their status.
Rows of plain streams and dead letters pass through a shard unchanged. A stage that reads the answers of another gets
the same kind of message from each shard of that stage, with its watermark.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.model.watermark import Seen
from millrace.sources.arrived import Arrived, arrived_from_json
from millrace.sources.bundle import Times
from millrace.sources.looked import Looked

TO_SHARD = "shard INT, stage INT, sequence BIGINT, kind STRING, report STRING, payload BINARY"
FROM_SHARD = "shard INT, stage INT, sequence BIGINT, kind STRING, report STRING, payload BINARY"

PARTIALS, PANES, ROWS, DEAD, STATUS, CHANGES = "partials", "panes", "rows", "dead", "status", "changes"
NO_STAGE = -1
"""The stage of messages that belong to no stage: dead letters, counts."""

DEAD_LETTERS = pa.schema(
    [("source", pa.string()), ("origin", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
     ("output", pa.string()), ("problem", pa.string()), ("reason", pa.string()), ("hint", pa.string()),
     ("value", pa.string()), ("raw", pa.string())]
)  # fmt: skip
"""A record that was rejected: its source, origin, partition and offset, the reason, a hint and its text.

The output is the one that has no value for it; None if the record does not fit the schema, so that no output can read
it. `problem` is the reason without the values of the record. An answer that has no value has its output as the origin,
no offset, and the key and the window as the value; a row that fails after a dedup has no offset either. `raw` has the
bytes of the record in base 64, if the source has them and they are not those of the text.
"""

MESSAGE = pa.schema(
    [("shard", pa.int32()), ("stage", pa.int32()), ("sequence", pa.int64()), ("kind", pa.string()),
     ("report", pa.string()), ("payload", pa.binary())]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The report that a task sends to a shard with the partials."""

    times: Times
    seen: Mapping[int, Seen] = field(default_factory=dict)
    """The event times seen, by event time node of the output's stream."""
    arrived: Mapping[str, Arrived] = field(default_factory=dict)
    """The records read, by source; only one shard receives it."""
    spent: float = 0.0
    """The CPU seconds spent."""
    looked: Mapping[str, Looked] = field(default_factory=dict)
    """The fields of some of these records, by source."""
    marks: Mapping[int, tuple[int, bool]] = field(default_factory=dict)
    """From a stage to one that reads its answers: its watermark, and whether it is idle, by its number."""
    side: int = 0
    """The side of a join that the rows are of."""
    by_shape: Mapping[str, int] = field(default_factory=dict)
    """How many of the records were decoded by shape, by source."""

    def to_json(self) -> str:
        """The report as JSON."""
        seen = {node: [each.newest, each.closed, list(each.times.items())] for node, each in self.seen.items()}
        return json.dumps(
            {
                "times": [self.times.before, self.times.now, self.times.watermark, self.times.sides],
                "seen": seen,
                "arrived": {source: each.to_json() for source, each in self.arrived.items()},
                "spent": self.spent,
                "looked": {source: each.to_json() for source, each in self.looked.items()},
                "marks": {stage: list(mark) for stage, mark in self.marks.items()},
                "side": self.side,
                "by_shape": dict(self.by_shape),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "TaskReport":
        """The report from its JSON."""
        read = json.loads(text)
        seen = {int(node): Seen(newest, closed, dict(times)) for node, (newest, closed, times) in read["seen"].items()}
        looked = {source: Looked(**each) for source, each in read["looked"].items()}
        arrived = {source: arrived_from_json(each) for source, each in read["arrived"].items()}
        marks = {int(stage): (at, is_idle) for stage, (at, is_idle) in read["marks"].items()}
        before, now, watermark, sides = read["times"]
        times = Times(before, now, watermark, None if sides is None else (sides[0], sides[1]))
        return cls(times, seen, arrived, read["spent"], looked, marks, read["side"], read["by_shape"])


@dataclass(frozen=True, slots=True)
class Message:
    """A row that is sent to a shard, or by one."""

    shard: int
    stage: int
    sequence: int
    kind: str
    report: str | None = None
    payload: bytes | None = None


def to_batch(messages: Sequence[Message], labels: Sequence[int]) -> pa.RecordBatch:
    """Messages as a record batch for Spark; the label of a shard replaces its number."""
    columns = [[getattr(message, field.name) for message in messages] for field in MESSAGE]
    columns[0] = [labels[message.shard] for message in messages]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, MESSAGE, strict=True)], schema=MESSAGE
    )
