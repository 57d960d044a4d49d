"""All of time has no end in a stream: a query that would wait for it is refused, and the advice makes it answer."""

from pathlib import Path

import pytest

from millrace import Pipeline, PipelineError, agg, memory, on, to_topic, window
from millrace.model.trigger import Trigger, waits_for_the_end
from millrace.running.preflight import check_answers
from millrace.running.replay import replay
from millrace.running.settings import Settings
from millrace.testing import Script, run_script

EVERYTHING = memory("plays", "k STRING").window(window.all_time())
SILENT = EVERYTHING.aggregate(n=agg.count())
REFUSED = (
    f"{SILENT.place}: view total: window(all_time()) with the trigger default() answers at the end of the "
    "input, which a stream does not have; add .trigger(on.each()).retracting() before .aggregate(...), or run it as a "
    "batch: --mode batch"
)


def test_a_stream_that_would_never_answer_is_refused_before_spark_starts(tmp_path: Path) -> None:
    pipeline = Pipeline("p", {"total": SILENT})
    with pytest.raises(PipelineError) as error:
        pipeline.run(checkpoint=tmp_path / "p", log=tmp_path / "log.db", store=tmp_path / "views.db")
    assert str(error.value) == REFUSED
    settings = Settings(checkpoint=tmp_path / "p", log=tmp_path / "log.db", store=str(tmp_path / "views.db"))
    with pytest.raises(PipelineError, match="which a stream does not have"):
        replay(None, pipeline, settings.home("p"), settings.how)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PipelineError, match="topic totals: window"):
        check_answers(Pipeline("p", sinks=[SILENT.to(to_topic("totals"))]))


def test_with_the_trigger_of_the_advice_it_answers() -> None:
    heard = Pipeline("p", {"total": EVERYTHING.trigger(on.each()).retracting().aggregate(n=agg.count())})
    check_answers(heard)
    answers = run_script(heard, Script().rows("plays", {"k": "a"}).rows("plays", {"k": "b"}))
    assert [row["n"] for row in answers.view("total")] == [2]


def test_explain_says_that_it_answers_in_a_batch_only() -> None:
    assert "so it answers in a batch, and a stream is refused" in Pipeline("p", {"total": SILENT}).explain()
    assert (
        "a stream is refused"
        not in memory("m", "at TIMESTAMP")
        .event_time("at", delay="0s")
        .window(window.fixed("1h"))
        .aggregate(n=agg.count())
        .explain()
    )


WAITING = [
    on.never(), on.default(), on.watermark(late=on.each()), on.any_of(on.never(), on.watermark()),
    on.all_of(on.each(), on.never()), on.in_order(on.watermark(), on.each()), on.until(on.never(), on.watermark()),
    on.repeat(on.watermark(early=on.never())),
]  # fmt: skip
FIRING = [
    on.each(), on.after("1s"), on.every("1s"), on.watermark(early=on.each()), on.any_of(on.never(), on.elements(2)),
    on.all_of(on.each(), on.every("1s")), on.in_order(on.elements(1), on.never()), on.until(on.each(), on.never()),
    on.until(on.never(), on.after("1s")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("trigger", "waits"), [*((each, True) for each in WAITING), *((each, False) for each in FIRING)], ids=str
)
def test_triggers_that_wait_for_the_end_of_a_window_are_those_that_say_nothing_before(
    trigger: Trigger, waits: bool
) -> None:
    assert waits_for_the_end(trigger) == waits
    query = EVERYTHING.trigger(trigger).accumulating().aggregate(n=agg.count())
    steps = Script().rows("plays", {"k": "a"}).rows("plays", {"k": "a"}, {"k": "b"}).clock("10s")
    assert (run_script(Pipeline("p", {"total": query}), steps)["total"] == []) == waits
