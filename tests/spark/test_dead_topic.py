"""The topic of dead letters: each is there once, whatever batches came before."""

from pathlib import Path

import pyarrow as pa
import pytest

from brokers import Kafka
from millrace import ConflictError, to_kafka
from millrace.model.connectors import Commit
from millrace.spark.dead_records import dead_writer
from millrace.spark.kafkasink import KafkaWriter
from millrace.spark.messages import DEAD_LETTERS


def letters(*values: str) -> pa.Table:
    rows = [
        {"source": "plays", "origin": "/in/plays.json", "offset": 7, "problem": "p", "reason": "p: x", "value": value}
        for value in values
    ]
    return pa.Table.from_pylist(rows, DEAD_LETTERS)


def commit(batch: int, checkpoint: str = "here") -> Commit:
    return Commit("charts", checkpoint, batch, f"digest {batch}")


def values_of(kafka_: Kafka, topic: str) -> list[bytes | None]:
    return [each.value() for each in kafka_.messages(topic)]


def test_a_letter_is_sent_once_and_gaps_are_allowed(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()

    def writer() -> KafkaWriter:
        return dead_writer(to_kafka(kafka_.url(topic)), "charts", tmp_path / "checkpoint")

    writer().write(letters("a"), commit(5), True)
    writer().write(letters("a"), commit(5), True)
    assert values_of(kafka_, topic) == [b"a"]
    writer().write(letters("b"), commit(9), True)  # it was left out of the pipeline in between
    with pytest.raises(ConflictError, match="cannot follow"):  # an older copy of the checkpoint
        writer().write(letters("c"), commit(6), True)
    writer().write(letters("d"), commit(0, "another"), True)
    assert values_of(kafka_, topic) == [b"a", b"b", b"d"]
    (header, *_) = [dict(each.headers() or ()) for each in kafka_.messages(topic)]
    assert header["millrace.origin"] == b"/in/plays.json"
    assert "millrace.topic" not in header
