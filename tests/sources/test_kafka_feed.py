"""Topics of Kafka by position: exact offsets, and errors for what is gone or is another topic."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers import Kafka
from millrace import kafka
from millrace.model.errors import ConflictError, MachineError, NotFoundError, PipelineError
from millrace.model.stream import Source
from millrace.sources.kafka import KafkaFeed, lags_of
from millrace.sources.kafka_cluster import opened, remember


def feed(source: Source, folder: Path, group: str | None = None) -> KafkaFeed:
    return KafkaFeed(source, folder / "journal", 1.0, lambda: 0.0, group)


def plays(kafka_: Kafka, topic: str, **more: Any) -> Source:
    return kafka(kafka_.url(topic), "n BIGINT", **more)


def values(feed: KafkaFeed, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    texts = [split.read().texts for split in feed.splits(start, end)]
    return [text for each in texts if each is not None for text in each.to_pylist()]


def numbers(first: int, end: int) -> list[str]:
    return [json.dumps({"n": n}) for n in range(first, end)]


def test_records_between_two_positions_are_the_same_each_time(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic(2)
    kafka_.send(topic, numbers(0, 3))
    kafka_.send(topic, numbers(3, 5), partition=1)
    one = feed(plays(kafka_, topic), tmp_path)
    start = one.start()
    end = one.latest(start)
    kafka_.send(topic, numbers(5, 9))
    again = feed(plays(kafka_, topic), tmp_path)
    assert again.start() == start
    assert values(one, start, end) == values(again, start, end) == numbers(0, 5)
    assert values(again, end, again.latest(end)) == numbers(5, 9)
    assert again.latest(again.end()) == again.end()


def test_the_first_position_is_kept(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    kafka_.send(topic, numbers(0, 2))
    latest = plays(kafka_, topic, start="latest")
    start = feed(latest, tmp_path).start()
    kafka_.send(topic, numbers(2, 4))
    assert feed(latest, tmp_path).start() == start
    assert values(feed(latest, tmp_path), start, feed(latest, tmp_path).end()) == numbers(2, 4)


def test_a_stream_starts_at_a_time(kafka_: Kafka, tmp_path: Path) -> None:
    topic, noon = kafka_.topic(2), datetime(2026, 1, 1, 12, tzinfo=UTC)
    for minute in range(4):
        kafka_.send(topic, numbers(minute, minute + 1), timestamp=int(noon.timestamp() + 60 * minute) * 1000)
    one = feed(plays(kafka_, topic, start=noon.replace(minute=2)), tmp_path)
    assert values(one, one.start(), one.end()) == numbers(2, 4)
    assert one.start()[topic]["at"] == [2, 0]


def test_new_partitions_are_read_from_their_first_record(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    kafka_.send(topic, numbers(0, 2))
    one = feed(plays(kafka_, topic, start="latest"), tmp_path)
    start = one.start()
    kafka_.grow(topic, 3)
    later = feed(plays(kafka_, topic, start="latest"), tmp_path)
    assert later.latest(start) == start  # an empty partition is nothing to do
    kafka_.send(topic, numbers(2, 4), partition=2)
    end = later.latest(start)
    assert end[topic]["at"] == [2, 0, 2]
    assert values(later, start, end) == numbers(2, 4)


def test_topics_of_a_pattern_are_found_while_it_runs(kafka_: Kafka, tmp_path: Path) -> None:
    kafka_.topic(name="north-1")
    kafka_.send("north-1", numbers(0, 1))
    one = feed(kafka(kafka_.url("^north-"), "n BIGINT"), tmp_path)
    start = one.start()
    kafka_.topic(name="north-2")
    kafka_.topic(name="south-1")
    for topic in ("north-2", "south-1"):
        kafka_.send(topic, numbers(1, 2))
    again = feed(kafka(kafka_.url("^north-"), "n BIGINT"), tmp_path)
    end = again.latest(start)
    assert sorted(end) == ["north-1", "north-2"]
    assert values(again, start, end) == numbers(0, 2)


def test_several_topics(kafka_: Kafka, tmp_path: Path) -> None:
    one, two = kafka_.topic(), kafka_.topic()
    kafka_.send(one, numbers(0, 1))
    kafka_.send(two, numbers(1, 3))
    both = feed(kafka(kafka_.url(f"{one},{two}"), "n BIGINT"), tmp_path)
    assert sorted(values(both, both.start(), both.end())) == numbers(0, 3)


def test_a_topic_that_was_made_again_is_refused(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    kafka_.send(topic, numbers(0, 2))
    one = feed(plays(kafka_, topic), tmp_path)
    start, end = one.start(), one.latest(one.start())
    splits = one.splits(start, end)
    kafka_.delete(topic)
    with pytest.raises(ConflictError, match="deleted"):
        feed(plays(kafka_, topic), tmp_path).latest(end)
    kafka_.topic(name=topic)
    kafka_.send(topic, numbers(7, 9))
    again = feed(plays(kafka_, topic), tmp_path)
    with pytest.raises(ConflictError, match=r"made again.*millrace replay"):
        again.latest(end)
    with pytest.raises(ConflictError, match="made again"):
        again.splits(start, end)
    with pytest.raises(ConflictError, match="made again"):  # also if it was replaced after it was planned
        splits[0].read()


def test_records_that_retention_removed_are_refused(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    kafka_.send(topic, numbers(0, 6))
    one = feed(plays(kafka_, topic), tmp_path)
    start, end = one.start(), one.latest(one.start())
    splits = one.splits(start, end)
    kafka_.forget(topic, before=4)
    for refused in (lambda: feed(plays(kafka_, topic), tmp_path).latest(start), lambda: one.splits(start, end)):
        with pytest.raises(ConflictError, match=r"from offset 0 on are gone.*retention.*millrace replay"):
            refused()
    with pytest.raises(ConflictError, match="retention"):  # also if they went after the plan
        splits[0].read()
    assert feed(plays(kafka_, topic), tmp_path).latest(end) == end  # what was read may go


def test_only_committed_transactions_are_read(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    kafka_.send(topic, numbers(0, 2), transaction="one")
    kafka_.send(topic, numbers(50, 60), transaction="two", commit=False)
    kafka_.send(topic, numbers(2, 4), transaction="three")
    kafka_.send(topic, numbers(60, 70), transaction="four", commit=False)
    one = feed(plays(kafka_, topic), tmp_path)
    assert values(one, one.start(), one.end()) == numbers(0, 4)
    everything = feed(plays(kafka_, topic, options={"isolation.level": "read_uncommitted"}), tmp_path)
    assert len(values(everything, everything.start(), everything.end())) == 24


def test_parts_of_a_record_are_columns(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    kafka_.send(topic, ['{"n": 1}'], key=b"ann", headers={"from": b"web", "bad": b"\xff"}, timestamp=1_700_000_000_123)
    kafka_.send(topic, ['{"n": 2}'], timestamp=1_700_000_000_124)
    parts = {
        "k": "key",
        "sent": "timestamp",
        "t": "topic",
        "p": "partition",
        "o": "offset",
        "h": "headers",
        "f": "header from",
    }
    one = feed(plays(kafka_, topic, metadata=parts), tmp_path)
    (split,) = one.splits(one.start(), one.end())
    found = split.read().metadata
    assert found is not None
    first, second = found.to_pylist()
    assert (first["k"], first["p"], first["o"], first["t"]) == ("ann", 0, 0, topic)
    assert first["sent"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert (first["f"], second["f"]) == ("web", None)
    assert dict(first["h"]) == {"from": "web", "bad": None}
    assert (second["k"], second["h"], second["o"]) == (None, [], 1)


def test_the_lags_of_a_group(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic(2)
    source = plays(kafka_, topic)
    kafka_.send(topic, numbers(0, 5))
    one = feed(source, tmp_path, "charts")
    assert lags_of([source], "charts-of-nobody") == {}
    end = one.latest(one.start())
    kafka_.send(topic, numbers(5, 8), partition=1)
    one.latest(end)
    kafka_.until(lambda: lags_of([source], "charts") == {topic: 3})


def test_offsets_without_records_do_not_move_the_end(kafka_: Kafka) -> None:
    topic = kafka_.topic()
    kafka_.send(topic, numbers(0, 3), transaction=f"{topic} a", commit=False)  # and its end at offset 3
    kafka_.send(topic, numbers(4, 9), transaction=f"{topic} b")
    cluster = opened(remember(plays(kafka_, topic)))
    assert cluster.read(topic, 0, 0, 6).offsets.tolist() == [4, 5]
    assert cluster.read(topic, 0, 0, 4).offsets.tolist() == []


@settings(max_examples=8)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), min_size=1, max_size=4), st.data())
def test_any_span_of_offsets_gives_its_committed_records(
    kafka_: Kafka, transactions: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """A transaction writes its records and one more offset, which is no record."""
    topic = kafka_.topic()
    kept: dict[int, str] = {}
    offset = 0
    for number, (commit, many) in enumerate(transactions):
        sent = numbers(offset, offset + many)
        kafka_.send(topic, sent, transaction=f"{topic} {number}", commit=commit)
        kept |= dict(zip(range(offset, offset + many), sent, strict=True)) if commit else {}
        offset += many + 1
    first = data.draw(st.integers(0, offset - 1))
    last = data.draw(st.integers(first + 1, offset))
    records = opened(remember(plays(kafka_, topic))).read(topic, 0, first, last)
    assert records.offsets.tolist() == [at for at in kept if first <= at < last]
    assert [value.decode() for value in records.values.to_pylist()] == [
        text for at, text in kept.items() if first <= at < last
    ]


def test_a_topic_that_is_not_there(kafka_: Kafka, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no topic 'nowhere'"):
        feed(plays(kafka_, "nowhere"), tmp_path).start()


def test_a_broker_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.sources.kafka_cluster._SECONDS", 0.5)
    with pytest.raises(MachineError, match=r"Kafka at 127.0.0.1:1 cannot be used"):
        feed(kafka("kafka://127.0.0.1:1/plays", "n BIGINT"), tmp_path).start()


def test_errors_about_properties_hide_their_values(kafka_: Kafka, tmp_path: Path) -> None:
    for options in (
        {"security.protocol": "ssl", "ssl.key.pem": "hunter2"},
        {"security.protocol": "hunter2"},
        {"no.such.thing": "hunter2"},
    ):
        with pytest.raises(PipelineError, match="refuses its properties") as refused:
            feed(plays(kafka_, "plays", options=options), tmp_path)
        assert "hunter2" not in str(refused.value)


def test_a_file_of_properties(kafka_: Kafka, tmp_path: Path) -> None:
    topic, file = kafka_.topic(), tmp_path / "client.properties"
    kafka_.send(topic, numbers(0, 2), transaction="aborted", commit=False)
    file.write_text("# read all\nisolation.level = read_uncommitted\n")
    one = feed(plays(kafka_, topic, properties=str(file)), tmp_path)
    assert values(one, one.start(), one.end()) == numbers(0, 2)
    file.write_text("group.id=mine\n")
    with pytest.raises(PipelineError, match=r"'group.id' cannot be set"):
        feed(plays(kafka_, kafka_.topic(), properties=str(file)), tmp_path)
