"""Dead letters that are sent to the Kafka topics they are from: each once, also after a crash between two steps."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from brokers import Kafka
from millrace import ConflictError, Pipeline, PipelineError, agg, kafka, window
from millrace.cli import app
from millrace.letters.box import LetterBox, box_of
from millrace.letters.fixing import fix
from millrace.letters.letter import Chosen, LetterSource, Rejected, State
from millrace.letters.resending import resend
from millrace.model.schema import parse_schema
from millrace.spark.kafka_resend import KafkaTopics

ALL = Chosen()


def pipeline_over(kafka_: Kafka, names: str, **more: Any) -> Pipeline:
    query = kafka(kafka_.url(names), "n BIGINT", **more).window(window.all_time()).aggregate(n=agg.sum("n"))
    return Pipeline("charts", views={"total": query})


def box_with(folder: Path, source: str, topic: str, values: list[str]) -> LetterBox:
    """A box with a letter for each record of a topic, none of which fits."""
    box = box_of(folder, "charts")
    found = [
        Rejected(source, f"{topic}/0", 0, offset, None, "n is not BIGINT", "n is not BIGINT: 'x'", None, value)
        for offset, value in enumerate(values)
    ]
    sources = {source: LetterSource(source, "kafka", parse_schema("n BIGINT"), ("view total",))}
    box.put(found, sources, "c", 0, 1)
    box.serve("c", sources, lambda *_: False)
    return box


def values_of(kafka_: Kafka, topic: str) -> list[bytes | None]:
    return [each.value() for each in kafka_.messages(topic)]


def test_a_fixed_letter_is_sent_to_its_topic_once(kafka_: Kafka, tmp_path: Path) -> None:
    first, second = kafka_.topic(), kafka_.topic()
    for topic in (first, second):
        kafka_.send(topic, ['{"n": "x"}', '{"n": "y"}'], key=b"ann")
    names = f"{first},{second}"
    box_with(tmp_path, names, first, ['{"n": "x"}', '{"n": "y"}'])
    box = box_with(tmp_path, names, second, ['{"n": "x"}', '{"n": "y"}'])
    fix(box, ALL, {"n": "7"})
    topics = KafkaTopics(pipeline_over(kafka_, names), box.id)
    assert resend(box, None, ALL, kafka=topics) == 4
    for topic in (first, second):
        sent = kafka_.messages(topic)[2:]
        assert [(each.value(), each.key()) for each in sent] == [(b'{"n":7}', b"ann")] * 2
        assert sent[1].headers() == [("millrace-dead-letter", f"{topic}/0:1".encode())]
    assert {letter.state for letter in box.letters()} == {State.RESENT}
    assert resend(box, None, ALL, kafka=topics) == 0
    assert len(kafka_.messages(first)) == 4


@pytest.mark.parametrize("made", [False, True])
def test_a_crash_sends_no_letter_twice(
    kafka_: Kafka, tmp_path: Path, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before the transaction, or between the transaction and the mark in the box."""
    topic = kafka_.topic()
    kafka_.send(topic, ['{"n": "x"}'])
    box = box_with(tmp_path, topic, topic, ['{"n": "x"}'])
    fix(box, ALL, {"n": "7"})
    pipeline = pipeline_over(kafka_, topic)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LetterBox if made else KafkaTopics, "finish_sending" if made else "append", crash)
        with pytest.raises(KeyboardInterrupt):
            resend(box, None, ALL, kafka=KafkaTopics(pipeline, box.id))
    assert len(box.unfinished()) == 1
    assert resend(box, None, ALL, kafka=KafkaTopics(pipeline, box.id)) == 1
    assert values_of(kafka_, topic) == [b'{"n": "x"}', b'{"n":7}']
    assert [letter.state for letter in box.letters()] == [State.RESENT]


def test_an_append_that_kafka_has_forgotten_is_not_repeated(
    kafka_: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_.topic()
    box = box_with(tmp_path, topic, topic, ['{"n": "x"}'])
    fix(box, ALL, {"n": "7"})
    topics = KafkaTopics(pipeline_over(kafka_, topic), box.id)
    with monkeypatch.context() as patched:
        patched.setattr(LetterBox, "finish_sending", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            resend(box, None, ALL, kafka=topics)
    kafka_.forget_group(f"millrace-charts@resend{box.id}-{topic}")
    with pytest.raises(ConflictError, match="Kafka has forgotten whether dead letter 1 was sent again"):
        resend(box, None, ALL, kafka=KafkaTopics(pipeline_over(kafka_, topic), box.id))
    assert values_of(kafka_, topic) == [b'{"n":7}']


def test_what_cannot_be_sent(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    box = box_with(tmp_path, topic, topic, ['{"n": "x"}'])
    fix(box, ALL, {"n": "7"})
    with pytest.raises(PipelineError, match="only the pipeline has; name its file"):
        resend(box, None, ALL)
    avro = pipeline_over(kafka_, topic, format="avro", registry="http://127.0.0.1:1")
    for pipeline, problem in ((avro, "with format 'avro'"), (pipeline_over(kafka_, "other"), "does not read")):
        with pytest.raises(PipelineError, match=problem):
            resend(box, None, ALL, kafka=KafkaTopics(pipeline, box.id))
    assert values_of(kafka_, topic) == []


def test_the_command(kafka_: Kafka, tmp_path: Path) -> None:
    topic = kafka_.topic()
    box = box_with(tmp_path, topic, topic, ['{"n": "x"}'])
    fix(box, ALL, {"n": "7"})
    file = tmp_path / "charts.py"
    file.write_text(
        "from millrace import Pipeline, agg, kafka, window\n"
        f"numbers = kafka('{kafka_.url(topic)}', 'n BIGINT')\n"
        "total = numbers.window(window.all_time()).aggregate(n=agg.sum('n'))\n"
        "charts = Pipeline('charts', views={'total': total})\n"
    )
    command = ["dead", "resend", "charts", "--folder", str(tmp_path), "--log", str(tmp_path / "no.db")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code != 0
    assert "--file FILE" in refused.output
    done = CliRunner().invoke(app, [*command, "--file", str(file)])
    assert (done.exit_code, done.output) == (0, "sent 1 record again\n")
    assert values_of(kafka_, topic) == [b'{"n":7}']
