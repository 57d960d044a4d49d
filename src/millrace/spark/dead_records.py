"""Dead letters as records of a Kafka topic: the bytes of the record, and headers that say why it was set aside."""

from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.model.kafka_sink import KafkaSink
from millrace.spark.kafka_transactions import Record
from millrace.spark.kafkasink import KafkaWriter
from millrace.spark.sent import Sent

_PREFIX = "millrace."
"""The names of the headers begin so."""


class DeadRecords:
    """Makes records of the dead letters of a pipeline."""

    mark = "dead"

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    def of(self, answers: pa.Table, ends: Callable[[], int]) -> Iterator[Record]:
        """The records of some dead letters."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        for letter in answers.to_pylist():
            yield Record(_value(letter), headers=tuple(self._headers(letter, at)))

    def _headers(self, letter: dict[str, Any], at: str) -> Iterator[tuple[str, str]]:
        topic, origin = None, letter["origin"]
        if letter["partition"] is not None:
            topic, origin = origin.rpartition("/")[0], None
        told = {
            "pipeline": self._pipeline, "reason": letter["reason"], "hint": letter["hint"], "output": letter["output"],
            "topic": topic, "origin": origin, "partition": letter["partition"], "offset": letter["offset"], "time": at,
        }  # fmt: skip
        yield from ((f"{_PREFIX}{name}", str(each)) for name, each in told.items() if each is not None)


def dead_writer(sink: KafkaSink, pipeline: str, checkpoint: Path | None, generation: int = 1) -> KafkaWriter:
    """Writes dead letters to a topic, each once. It may begin at any batch, also after some without it."""
    records, sent = DeadRecords(pipeline), Sent.beside(checkpoint)
    return KafkaWriter(sink, f"dead letters {sink.id}", records, pipeline, sent, generation, gaps=True)


def _value(letter: dict[str, Any]) -> bytes | None:
    """The bytes of the record; None if it has none."""
    if letter["raw"] is not None:
        return b64decode(letter["raw"])
    value: str | None = letter["value"]
    return None if value is None else value.encode()
