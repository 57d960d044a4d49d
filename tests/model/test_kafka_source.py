"""What `kafka(...)` accepts, and what it refuses before anything is connected."""

from datetime import UTC, datetime
from typing import Any

import pytest

from millrace import Pipeline, PipelineError, agg, kafka, window
from millrace.model.stream import Source
from millrace.plan.compile import compile, source_id


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("localhost:9092/plays", "must begin with kafka://"),
        ("kafka://localhost/plays", "needs the host and the port"),
        ("kafka://ann:secret@localhost:9092/plays", "has no user"),
        ("kafka://localhost:9092/", "is no name of a Kafka topic"),
        ("kafka://localhost:9092/plays?group=x", "is no name of a Kafka topic"),
        ("kafka://localhost:9092/plays,plays", "names a topic twice"),
        ("kafka://localhost:9092/^plays(", "does not parse"),
    ],
)
def test_a_wrong_url_is_refused(url: str, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem) as refused:
        kafka(url, "n BIGINT")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"start": "first"}, "'earliest', 'latest' or a datetime"),
        ({"metadata": {"k": "ofset"}}, "did you mean 'offset'"),
        ({"metadata": {"n": "key"}}, "in the schema and in metadata="),
        ({"options": {"group.id": "x"}}, "'group.id' cannot be set"),
        ({"options": {"debug": "all"}}, "'debug' cannot be set"),
        ({"options": {"sasl.password": None}}, "'sasl.password' is not"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        kafka("kafka://localhost:9092/plays", "n BIGINT", **arguments)


def fingerprint(source: Source) -> Any:
    query = source.group_by("k").window(window.all_time()).aggregate(n=agg.count())
    return compile(Pipeline("p", views={"v": query})).fingerprint()


def test_what_a_checkpoint_depends_on() -> None:
    def of(url: str = "kafka://localhost:9092/plays", part: str = "key", **more: Any) -> Source:
        return kafka(url, "n BIGINT", metadata={"k": part}, **more)

    may_change = [
        of("kafka://other:9093,third:9094/plays"), of(options={"sasl.password": "x"}), of(properties="file"),
        of(start="latest"), of(start=datetime(2026, 1, 1, tzinfo=UTC)),
    ]  # fmt: skip
    assert all(fingerprint(each) == fingerprint(of()) for each in may_change)
    assert all(source_id(each) == "kafka plays" for each in may_change)
    assert fingerprint(of(part="topic")) != fingerprint(of())
    assert fingerprint(of("kafka://localhost:9092/skips")) != fingerprint(of())


def test_one_topic_cannot_be_read_with_two_passwords() -> None:
    sources = [kafka("kafka://localhost:9092/t", "n BIGINT", options={"sasl.password": each}) for each in "ab"]
    counted = [each.window(window.all_time()).aggregate(n=agg.count()) for each in sources]
    with pytest.raises(PipelineError, match="different options"):
        Pipeline("p", views={"one": counted[0], "two": counted[1]})
