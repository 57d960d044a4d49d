"""What travels between the edge, the shards and the driver: rows of a few columns, whatever is computed.

Edge tasks send, to every shard and for each output that they read for, one message: the partials of that shard's
keys, and beside them what the task saw of event time and where the clock is. So every shard sees the same times.
Shards send panes, and how they are. Rows of plain streams and dead letters pass through a shard unchanged.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.model.watermark import Seen
from millrace.sources.bundle import Times

TO_SHARD = "shard INT, stage INT, sequence BIGINT, kind STRING, report STRING, payload BINARY"
FROM_SHARD = "shard INT, stage INT, sequence BIGINT, kind STRING, report STRING, payload BINARY"

PARTIALS, PANES, ROWS, DEAD, STATUS = "partials", "panes", "rows", "dead", "status"
NO_STAGE = -1
"""The stage of messages that belong to none: dead letters, counts."""

DEAD_LETTERS = pa.schema(
    [("source", pa.string()), ("origin", pa.string()), ("offset", pa.int64()), ("reason", pa.string()),
     ("value", pa.string())]
)  # fmt: skip
"""A record that was not taken in: where it is, why, and what it says.

Or an answer that has no value: the output as the origin, why, and the key and the window as JSON.
"""

MESSAGE = pa.schema(
    [("shard", pa.int32()), ("stage", pa.int32()), ("sequence", pa.int64()), ("kind", pa.string()),
     ("report", pa.string()), ("payload", pa.binary())]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task tells a shard beside the partials."""

    times: Times
    seen: Mapping[int, Seen] = field(default_factory=dict)
    """By event time node of the output's stream."""
    rows: int = 0
    """How many records were read; only one shard is sent it."""
    spent: float = 0.0
    """How many seconds of a core that took."""

    def to_json(self) -> str:
        """As text."""
        seen = {node: [each.newest, each.closed, list(each.times.items())] for node, each in self.seen.items()}
        return json.dumps(
            {
                "times": [self.times.before, self.times.now, self.times.watermark],
                "seen": seen,
                "rows": self.rows,
                "spent": self.spent,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "TaskReport":
        """The same from its text."""
        read = json.loads(text)
        seen = {int(node): Seen(newest, closed, dict(times)) for node, (newest, closed, times) in read["seen"].items()}
        return cls(Times(*read["times"]), seen, read["rows"], read["spent"])


@dataclass(frozen=True, slots=True)
class Message:
    """A row on the way to a shard."""

    shard: int
    stage: int
    sequence: int
    kind: str
    report: str | None = None
    payload: bytes | None = None


def to_batch(messages: Sequence[Message], labels: Sequence[int]) -> pa.RecordBatch:
    """Messages as Spark takes them, each to the label of its shard."""
    columns = [[getattr(message, field.name) for message in messages] for field in MESSAGE]
    columns[0] = [labels[message.shard] for message in messages]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, MESSAGE, strict=True)], schema=MESSAGE
    )
