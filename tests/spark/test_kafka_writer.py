"""Transactions to a real Kafka: which rows readers see, how often, and what becomes of writers that die."""

import gc
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers import Kafka, running
from millrace import (
    ConflictError,
    CustomSink,
    MachineError,
    NotFoundError,
    Pipeline,
    PipelineError,
    agg,
    memory,
    on,
    to_kafka,
    window,
)  # fmt: skip
from millrace.model.connectors import Commit
from millrace.model.query import Query
from millrace.spark import kafka_transactions
from millrace.spark.kafka_records import AnswerRecords, key_texts
from millrace.spark.kafkasink import KafkaWriter
from millrace.spark.sent import Sent
from millrace.spark.writers import Delivery, Guarantee
from millrace.testing.contracts import check_sink

EVENTS = memory("events", "k STRING, v BIGINT, at TIMESTAMP").event_time("at", delay="0s")
WINDOWED = EVENTS.group_by("k").window(window.all_time()).trigger(on.each())
TOTALS = WINDOWED.retracting().aggregate(total=agg.sum("v"))


def rows(*totals: int, key: str = "a", diffs: list[int] | None = None) -> pa.Table:
    many = len(totals)
    return pa.table({
        "k": [key] * many, "window_start": pa.nulls(many), "window_end": pa.nulls(many), "total": totals,
        "diff": pa.array(diffs or [1] * many, pa.int32()), "timing": ["early"] * many, "index": [0] * many,
        "last": [False] * many,
    })  # fmt: skip


def writer(
    kafka_: Kafka, topic: str, folder: Path, generation: int = 1, of: Query = TOTALS, pipeline: str = "p", **more: Any
) -> KafkaWriter:
    sent = Sent.beside(folder / "checkpoint")
    sink = to_kafka(kafka_.url(topic), **more)
    return KafkaWriter(sink, f"sink kafka {topic}", AnswerRecords(sink, of), pipeline, sent, generation)


def commit(batch: int, digest: str | None = None) -> Commit:
    return Commit("p", "here", batch, f"digest {batch}" if digest is None else digest)


def totals(kafka_: Kafka, topic: str, committed: bool = True) -> list[int]:
    return [json.loads(each.value() or b"")["total"] for each in kafka_.messages(topic, committed)]


def test_a_row_is_a_record_with_the_keys_of_the_query(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic(3)
    writer(kafka_, topic, tmp_path).write(rows(1, 2, key="äöü"), commit(0), True)
    first, second = kafka_.messages(topic)
    assert first.key() == second.key() == "äöü".encode()
    assert json.loads(first.value() or b"") == {
        "k": "äöü", "window_start": None, "window_end": None, "total": 1, "diff": 1, "timing": "early", "index": 0,
        "last": False,
    }  # fmt: skip
    assert first.partition() == second.partition()


def test_keys_headers_and_timestamps_of_columns(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    hourly = EVENTS.group_by("k").window(window.fixed("1h")).aggregate(total=agg.sum("v"))
    chosen: dict[str, Any] = {"key": ("k", "total"), "headers": {"who": "k", "sum": "total"}, "timestamp": "window_end"}
    answers = rows(7)
    end = pa.array([3_600_000_000], pa.timestamp("us", "UTC"))
    answers = answers.set_column(2, "window_end", end)
    writer(kafka_, topic, tmp_path, of=hourly, **chosen).write(answers, commit(0), True)
    (found,) = kafka_.messages(topic)
    assert found.key() == b'{"k": "a", "total": 7}'
    assert found.headers() == [("who", b"a"), ("sum", b"7")]
    assert found.timestamp()[1] == 3_600_000


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_batches_that_are_run_again(kafka_: Kafka, guarantee: Guarantee, tmp_path: Path) -> None:
    topic = kafka_.topic(2)
    one = writer(kafka_, topic, tmp_path)
    for batch in (0, 1, 1, 2, 2, 3):
        if batch == 2:
            one = writer(kafka_, topic, tmp_path)  # after a crash
        delivery = Delivery("p", "here", guarantee, tmp_path / "begun")
        delivery.deliver(
            batch, f"digest {batch}", {"out": rows(batch)},
            [lambda answers, commit, once, to=one: to.write(answers["out"], commit, once)],  # type: ignore[misc]
        )  # fmt: skip
    twice = [1, 2] if guarantee is Guarantee.AT_LEAST_ONCE else []
    assert sorted(totals(kafka_, topic)) == sorted([0, 1, 2, 3, *twice])
    assert writer(kafka_, topic, tmp_path).last() == commit(3)


def test_a_batch_without_rows_is_a_commit(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    assert writer(kafka_, topic, tmp_path).last() is None
    writer(kafka_, topic, tmp_path).write(rows(), commit(0), True)
    assert writer(kafka_, topic, tmp_path).last() == commit(0)
    assert totals(kafka_, topic) == []


@pytest.mark.parametrize("other", [commit(0), commit(1, "another"), commit(3), Commit("p", "there", 2)])
def test_a_batch_that_does_not_follow_is_refused(kafka_: Kafka, other: Commit, tmp_path: Path) -> None:
    topic = kafka_.topic()
    one = writer(kafka_, topic, tmp_path)
    for batch in (0, 1):
        one.write(rows(batch), commit(batch), True)
    for each in (one, writer(kafka_, topic, tmp_path)):
        with pytest.raises(ConflictError, match="was last written by batch 1 of checkpoint here"):
            each.write(rows(7), other, True)
    assert totals(kafka_, topic) == [0, 1]


class Died(BaseException):
    """A process that was killed, as far as Kafka can tell: it sends nothing any more."""


def dies_at(writer: KafkaWriter) -> Callable[[str], None]:
    """A process that dies in the middle of a transaction with records."""

    def reach(point: str) -> None:
        if writer._begun() is not None:
            raise Died

    return reach


@pytest.mark.parametrize("batch", [0, 1])
def test_rows_of_a_transaction_that_was_not_committed_are_never_seen(
    kafka_: Kafka, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_.topic(2)
    dead, before = writer(kafka_, topic, tmp_path), list(range(batch))
    for number in before:
        dead.write(rows(number), commit(number), True)
    with monkeypatch.context() as patched:
        patched.setattr(kafka_transactions, "reach", dies_at(dead))
        with pytest.raises(Died):
            dead.write(rows(1, 2), commit(batch), True)
    assert totals(kafka_, topic) == before, "its transaction is open"
    assert sorted(totals(kafka_, topic, committed=False)) == [*before, 1, 2], "its rows are in the topic"
    again = writer(kafka_, topic, tmp_path)
    assert again.last() == (commit(batch - 1) if batch else None)
    again.write(rows(1, 2), commit(batch), True)
    assert sorted(totals(kafka_, topic)) == [*before, 1, 2]
    assert sorted(totals(kafka_, topic, committed=False)) == [*before, 1, 1, 2, 2]


def test_a_transaction_that_kafka_refuses_is_aborted(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic(max_message_bytes="200")
    one = writer(kafka_, topic, tmp_path)
    many = pa.concat_tables([rows(1), rows(2, key="long" * 100)])
    with pytest.raises(PipelineError, match=r"a row is larger than a record.*max.message.bytes"):
        one.write(many, commit(0), True)
    one.write(rows(5), commit(0), True)
    assert totals(kafka_, topic) == [5]


def test_a_writer_whose_place_was_taken_can_write_nothing(
    kafka_: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_.topic()
    old = writer(kafka_, topic, tmp_path)
    old.write(rows(0), commit(0), True)

    def taken_over(point: str) -> None:
        monkeypatch.undo()
        writer(kafka_, topic, tmp_path / "other").write(rows(1), commit(1), True)

    monkeypatch.setattr(kafka_transactions, "reach", taken_over)
    with pytest.raises(MachineError, match=r"another process writes to topic.*stop the other run"):
        old.write(rows(-1), commit(1, "another"), True)
    assert totals(kafka_, topic) == [0, 1]
    with pytest.raises(ConflictError, match="was last written by batch 1"):  # also if it tries again
        old.write(rows(-1), commit(1, "another"), True)
    assert totals(kafka_, topic) == [0, 1]


def test_a_commit_whose_answer_was_lost_is_found(
    kafka_: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is committed, but the writer does not learn it: it must not write the rows again."""
    topic = kafka_.topic()
    one = writer(kafka_, topic, tmp_path)
    one.write(rows(0), commit(0), True)

    class Deaf:
        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def commit_transaction(self, seconds: float) -> None:
            self._producer.commit_transaction(seconds)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    transactions = one._transactions
    transactions._producer = Deaf(transactions._producer)  # type: ignore[assignment]
    with pytest.raises(MachineError, match="cannot be used: _TIMED_OUT"):
        one.write(rows(1), commit(1), True)
    one.write(rows(1), commit(1), True)
    assert totals(kafka_, topic) == [0, 1]


def test_a_broker_that_dies_in_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is committed by the broker that takes its place, or repeated; the next ones go on."""
    with running() as own:
        topic = own.topic(2)
        one = writer(own, topic, tmp_path)
        one.write(rows(0), commit(0), True)

        def broker_dies(point: str) -> None:
            monkeypatch.undo()
            own.kill_and_start()

        monkeypatch.setattr(kafka_transactions, "reach", broker_dies)
        with suppress(MachineError):
            one.write(rows(1), commit(1), True)
        for batch in (1, 2):
            one.write(rows(batch), commit(batch), True)
        assert sorted(totals(own, topic)) == [0, 1, 2]
        assert writer(own, topic, tmp_path).last() == commit(2)


def test_a_commit_that_kafka_has_forgotten(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    writer(kafka_, topic, tmp_path).write(rows(0), commit(0), True)
    kafka_.forget_group(f"millrace-p-{topic}")
    assert writer(kafka_, topic, tmp_path).last() == commit(0)
    with pytest.raises(ConflictError, match=r"may have the rows of batch 0.*--guarantee at-least-once"):
        writer(kafka_, topic, tmp_path).write(rows(0), commit(0), True)
    writer(kafka_, topic, tmp_path).write(rows(1), commit(1), True)
    assert totals(kafka_, topic) == [0, 1]
    kafka_.forget_group(f"millrace-p-{topic}")
    writer(kafka_, topic, tmp_path).write(rows(1), commit(1), False)
    assert totals(kafka_, topic) == [0, 1, 1]


def test_a_topic_that_was_made_again_has_no_commit(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    writer(kafka_, topic, tmp_path).write(rows(0), commit(0), True)
    kafka_.delete(topic)
    kafka_.topic(name=topic)
    assert writer(kafka_, topic, tmp_path).last() is None


def test_each_generation_has_commits_of_its_own(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    for generation, newest in ((1, 0), (4, 1), (2, 4)):
        one = writer(kafka_, topic, tmp_path / str(generation), generation)
        assert one.newest() == newest
        one.write(rows(generation), Commit("p", f"checkpoint {generation}", 0), True)
    assert writer(kafka_, topic, tmp_path).newest() == 4
    other = kafka_.topic(name=f"7-{topic}")
    writer(kafka_, other, tmp_path).write(rows(1), commit(0), True)
    assert writer(kafka_, topic, tmp_path).newest() == 4
    assert writer(kafka_, topic, tmp_path, pipeline="p1").newest() == 0


def test_the_contract_of_sinks(kafka_: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written twice, and killed at each line of a transaction."""
    topic = kafka_.topic()

    def killer(line: int) -> Callable[[FrameType, str, Any], Any]:
        gc.freeze()  # the clients of the parent have no threads in a child, which must not end them
        passed = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal passed
            if frame.f_code is kafka_transactions.Transactions.write.__code__ and event == "line":
                passed += 1
                if passed == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        return trace

    monkeypatch.setattr("millrace.testing.contracts._killer", killer)
    monkeypatch.setattr(kafka_transactions, "_SETTLES", 0.1)

    class Adapted(CustomSink):
        def write(self, rows: pa.Table, commit: Commit) -> None:
            self._of(commit.checkpoint).write(rows, commit, True)

        def last(self, pipeline: str, checkpoint: str) -> Commit | None:
            found = self._of(checkpoint).last()
            return None if found is None else replace(found, pipeline=pipeline)

        def _of(self, checkpoint: str) -> KafkaWriter:
            return writer(kafka_, topic, tmp_path / checkpoint, pipeline=f"check_{checkpoint}")

    def stored() -> list[dict[str, Any]]:
        return [json.loads(each.value() or b"") for each in kafka_.messages(topic)]

    check_sink(Adapted, stored, rows(1))


def test_a_sink_that_cannot_be_used_is_one_line(kafka_: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match=r"there is no topic 'nowhere' at .*; create it"):
        writer(kafka_, "nowhere", tmp_path).last()
    for options in ({"security.protocol": "hunter2"}, {"no.such.thing": "hunter2"}):
        with pytest.raises(PipelineError, match="refuses its properties") as refused:
            writer(kafka_, "plays", tmp_path, options=options)
        assert "hunter2" not in str(refused.value)
    monkeypatch.setattr(kafka_transactions, "_SECONDS", 0.5)
    sink = to_kafka("kafka://127.0.0.1:1/plays")
    with pytest.raises(MachineError, match=r"Kafka at 127.0.0.1:1 cannot be used.*nothing was lost"):
        KafkaWriter(sink, "sink", AnswerRecords(sink, TOTALS), "p", Sent.beside(tmp_path / "c")).last()


def test_secrets_are_not_shown() -> None:
    sink = to_kafka("kafka://localhost:9092/plays", options={"sasl.password": "hunter2"})
    pipeline = Pipeline("p", sinks=[TOTALS.to(sink)])
    assert "hunter2" not in repr(pipeline) + str(sink) + sink.id + pipeline.explain()


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: to_kafka("kafka://localhost:9092/a,b"), "a sink writes to one topic"),
        (lambda: to_kafka("kafka://localhost:9092/^a"), "a sink writes to one topic"),
        (lambda: to_kafka("kafka://localhost:9092/a", options={"transactional.id": "x"}), "cannot be set"),
        (lambda: to_kafka("kafka://localhost:9092/a", key="k", changelog=True), "leave key= out"),
        (lambda: TOTALS.to(to_kafka("kafka://localhost:9092/a", key="none")), "none"),
        (lambda: TOTALS.to(to_kafka("kafka://localhost:9092/a", headers={"h": "none"})), "none"),
        (lambda: TOTALS.to(to_kafka("kafka://localhost:9092/a", timestamp="total")), "of type TIMESTAMP"),
        (lambda: EVENTS.to(to_kafka("kafka://localhost:9092/a", changelog=True)), "a changelog needs answers"),
        (
            lambda: (
                WINDOWED.discarding().aggregate(n=agg.count()).to(to_kafka("kafka://localhost:9092/a", changelog=True))
            ),
            "a changelog needs answers that replace each other",
        ),
        (
            lambda: (
                EVENTS.group_by("k")
                .window(window.session("1m"))
                .aggregate(n=agg.count())
                .to(to_kafka("kafka://localhost:9092/a", changelog=True))
            ),
            r"call \.retracting\(\)",
        ),
    ],
)
def test_mistakes_are_refused_when_a_pipeline_is_built(build: Callable[[], object], problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        build()


def test_keys_as_text() -> None:
    table = pa.table({"s": ["a", None], "n": [1, 2], "f": [-0.0, float("nan")], "b": [True, None]})
    assert key_texts(table, ()) == [None, None]
    assert key_texts(table, ("s",)) == ["a", None]
    assert key_texts(table, ("n",)) == ["1", "2"]
    assert key_texts(table, ("f",)) == ["0.0", "NaN"]
    assert key_texts(table, ("b",)) == ["true", None]
    assert key_texts(table, ("s", "n")) == ['{"s": "a", "n": 1}', '{"s": null, "n": 2}']
    assert key_texts(table, ("n",), whole=True) == ['{"n": 1}', '{"n": 2}']
    moment = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC"))})
    assert key_texts(moment, ("t",)) == ["1970-01-01T00:00:00+00:00"]


steps = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from([1, 1, -1])), max_size=6), max_size=4
)


@settings(max_examples=5)
@given(steps)
def test_a_compacted_changelog_holds_the_latest_rows(
    kafka_: Kafka, tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[str, int, int]]]
) -> None:
    """Also over restarts and generations: sequences grow, and what a reader keeps by key is the last row of each."""
    topic, folder = kafka_.topic(2, cleanup_policy="compact"), tmp_path_factory.mktemp("changelog")
    expected: dict[str, int | None] = {}
    for number, batch in enumerate(batches):
        one = writer(kafka_, topic, folder / str(number), generation=number + 1, changelog=True)
        answers = [rows(total, key=key, diffs=[diff]) for key, total, diff in batch]
        one.write(pa.concat_tables(answers) if answers else rows(), Commit("p", f"c{number}", 0), True)
        expected |= {key: total if diff > 0 else None for key, total, diff in batch}
    found: dict[str, dict[str, Any]] = {}
    sequences = []
    for message in kafka_.messages(topic):
        row = json.loads(message.value() or b"")
        assert json.loads(message.key() or b"") == {"k": row["k"]}
        sequences.append(row["sequence"])
        if row["sequence"] > found.get(row["k"], {"sequence": -1})["sequence"]:
            found[row["k"]] = row
    assert len(set(sequences)) == len(sequences)
    assert {key: None if row["deleted"] else row["total"] for key, row in found.items()} == expected
