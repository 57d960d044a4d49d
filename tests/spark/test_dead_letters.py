"""Dead letters of running pipelines: one for each record and output, whatever the edges; and those of replays."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from millrace import Pipeline, agg, files, log, memory, on, to_files, window
from millrace.eventlog.topics import Log
from millrace.letters.box import box_of
from millrace.letters.fixing import fix
from millrace.letters.letter import Chosen, Rejected
from millrace.letters.resending import resend
from millrace.model.query import Query
from millrace.model.stream import Stream
from millrace.plan.compile import compile
from millrace.running.replay import replay, roll_back
from millrace.running.run import run_batch, run_stream
from millrace.running.settings import Locations, StreamOptions
from millrace.sources.feed import Feed
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark.checkpoint import journal_of
from millrace.spark.letters import LetterWriter
from millrace.spark.messages import DEAD_LETTERS
from millrace.views.store import open_store
from stream_run import run

QUIET, ONCE = Console(quiet=True), StreamOptions(until_caught_up=True)
TIME = "2026-01-01T00:00:00Z"


def counted(source: Stream) -> Query:
    timed = source.event_time("at", delay="0s").window(window.all_time()).trigger(on.each()).accumulating()
    return timed.aggregate(n=agg.count())


@pytest.mark.spark
def test_fused_and_native_outputs_count_each_record_and_set_it_aside_once(spark: SparkSession, tmp_path: Path) -> None:
    opened = Log(tmp_path / "log.db")
    opened.create("events", partitions=2)
    for n in range(40):
        bad = {0: "no JSON", 1: '{"v": "x"}', 2: json.dumps({"v": 0, "at": TIME}), 3: '{"v": 1}'}
        opened.append("events", [bad.get(n % 8, json.dumps({"v": 5, "at": TIME}))], [str(n)])
    events = log("events", "k STRING, v BIGINT, at TIMESTAMP")
    native = events.with_columns(code="soundex(k)", share="100 div v")
    pipeline = Pipeline(
        "p",
        {"fused": counted(events), "also": counted(events.where("v > 1")), "native": counted(native)},
        sinks=[native.to(to_files(str(tmp_path / "out")))],
    )
    plan = compile(pipeline)
    assert (len(plan.fused), len(plan.native)) == (2, 2)
    batches = run(spark, pipeline, tmp_path, log=opened.path)
    letters = [letter.rejected for letter in box_of(tmp_path, "p").letters()]
    assert sum(progress.dead_letters for progress, _ in batches) == len(letters)
    assert sum(progress.rows for progress, _ in batches) == 40, "records count once, whatever the edges"
    assert {letter.source for letter in letters} == {"events"}
    stored: dict[tuple[int | None, int | None], str] = {
        (part, offset): value.decode()
        for part, end in enumerate(opened.ends("events"))
        for value, offset in zip(
            *opened.read("events", part, 0, end).select(["value", "offset"]).to_pydict().values(), strict=True
        )
    }
    for letter in letters:
        assert letter.value == stored[letter.partition, letter.offset]
        assert letter.origin == f"events/{letter.partition}"
    positions = [(letter.partition, letter.offset) for letter in letters if letter.output is None]
    assert len(positions) == len(set(positions)) == 10, "records that do not fit, once each"
    hints = {each.hint for each in letters if each.problem == "event time at is NULL"}
    assert hints == {'leave such rows out before event_time: where("at IS NOT NULL")'}
    failed = sorted(
        (letter.output, letter.problem.partition(" has no value")[0]) for letter in letters if letter.output
    )
    sink = next(stage.id for stage in plan.stages if stage.query is None)
    assert failed == sorted(
        [(view, "event time at is NULL") for view in ("view fused", "view native") for _ in range(5)]
        + [(output, "100 div v") for output in ("view native", sink) for _ in range(5)]
    ), "rows without a value, once for each output that has none"


@pytest.mark.spark
def test_a_row_that_fails_after_a_dedup_names_its_source_and_is_listed_in_each_micro_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = memory("events", "k STRING, v BIGINT")
    asked = events.dedup("k").with_columns(share="100 div v").group_by("k").window(window.all_time())
    pipeline = Pipeline("p", {"n": asked.trigger(on.each()).accumulating().aggregate(n=agg.count())})
    steps = [Happening([{"k": k, "v": 0}]) for k in ("a", "b", "a")]
    run(spark, pipeline, tmp_path, {"events": MemoryScript(steps)})
    letters = [letter.rejected for letter in box_of(tmp_path, "p").letters()]
    assert [(each.source, each.offset, each.output) for each in letters] == [("events", None, "view n")] * 2
    assert [json.loads(each.value or "")["k"] for each in letters] == ["a", "b"]


@pytest.fixture
def home(tmp_path: Path, one_spark: None, monkeypatch: pytest.MonkeyPatch) -> Locations:
    return Locations(tmp_path / "log.db", str(tmp_path / "views.db"), tmp_path / "charts")


def charts(type: str) -> Pipeline:
    plays = log("plays", f"ms {type}, at TIMESTAMP")
    return Pipeline("charts", {"n": counted(plays)})


def viewed(home: Locations) -> int:
    store = open_store(home.store)
    try:
        return int(store.query("SELECT n FROM n").rows[0][0])
    finally:
        store.close()


def dead(home: Locations) -> list[tuple[str | None, str]]:
    return [(letter.rejected.value, letter.state) for letter in box_of(home.checkpoint.parent, "charts").letters()]


@pytest.mark.spark
def test_letters_are_fixed_and_sent_once_and_a_replay_lists_those_it_cannot_read(home: Locations) -> None:
    opened, box = Log(home.log), box_of(home.checkpoint.parent, "charts")
    opened.create("plays")
    long, late, odd = '{"ms": 1, "at": 1700000000000}', json.dumps({"ms": "3 s", "at": TIME}), "no JSON"
    opened.append("plays", [json.dumps({"ms": 1, "at": TIME}), long, late, odd])
    assert "3 dead letters" in run_stream(QUIET, charts("BIGINT"), home, ONCE)
    assert (viewed(home), [value for value, _ in dead(home)]) == (1, [long, late, odd])
    assert fix(box, Chosen((1,)), {"at": "timestamp_millis(at)"}).fixed == 1
    assert resend(box, opened, Chosen()) == 1
    assert "dead letter" not in run_stream(QUIET, charts("BIGINT"), home, ONCE)
    assert viewed(home) == 2
    first = [letter.at for letter in box.letters()]
    replay(QUIET, charts("STRING"), home, ONCE)
    assert viewed(home) == 3, "the fixed one, and the one whose text is a value now"
    assert dead(home) == [(long, "resent"), (odd, "dead")]
    assert [letter.at for letter in box.letters()] == [first[0], first[2]]
    roll_back(charts("BIGINT"), home)
    assert dead(home) == [(long, "resent"), (late, "dead"), (odd, "dead")]
    run_batch(QUIET, charts("BIGINT"), home)
    assert dead(home) == [(long, "resent"), (late, "dead"), (odd, "dead")]


@pytest.mark.parametrize("is_view", [True, False])
def test_a_view_of_answers_has_not_read_the_record_that_the_stage_before_it_rejected(
    tmp_path: Path, is_view: bool
) -> None:
    opened = Log(tmp_path / "log.db")
    opened.create("plays")
    opened.append("plays", ["{}"])
    counts = counted(log("plays", "ms BIGINT, at TIMESTAMP"))
    plan = compile(Pipeline("charts", {"hits": counts.where("n > 1")} | ({"counts": counts} if is_view else {})))
    (reader,) = [stage for stage in plan.stages if stage.inputs]
    box = box_of(tmp_path, "charts")
    why = "event time at is NULL"
    letter = Rejected("plays", "plays/0", 0, 0, reader.label, why, why, None, "{}")
    writer = LetterWriter(box, plan, opened.path, "one")
    writer.write(pa.Table.from_pylist([asdict(letter)], DEAD_LETTERS))
    assert fix(box, Chosen(), {"at": f"'{TIME}'"}).fixed == 1
    assert resend(box, opened, Chosen()) == 1


def test_a_checkpoint_takes_over_letters_whose_records_it_does_not_read(tmp_path: Path) -> None:
    opened = Log(tmp_path / "log.db")
    opened.create("plays")
    opened.append("plays", ["{}"] * 5)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "there.json").touch()
    plays, more = log("plays", "ms BIGINT, at TIMESTAMP", start="latest"), files(str(tmp_path / "in"), "at TIMESTAMP")
    plan = compile(Pipeline("charts", {"n": counted(plays), "m": counted(more)}))
    folder = tmp_path / "charts@2"
    Feed(plan.sources[0].source, str(opened.path), journal_of(folder, "fused", "plays", "json"), 1, float).start()
    writer = LetterWriter(box_of(tmp_path, "charts"), plan, opened.path, "two", folder)
    uid, more_name = opened.uid_of("plays"), plan.sources[1].source.name
    of_topic = Rejected("plays", "plays/0", 0, 4, None, "p", "p", None, "x")
    of_file = Rejected(more_name, str(tmp_path / "in" / "gone.json"), None, 0, None, "p", "p", None, "x")
    unread = [
        (of_topic, uid, True),
        (replace(of_topic, offset=5), uid, False),
        (of_topic, "an earlier topic", True),
        (replace(of_topic, source="left"), uid, False),
        (replace(of_topic, offset=None), uid, False),
        (of_file, "", True),
        (replace(of_file, origin=str(tmp_path / "in" / "there.json")), "", False),
    ]
    for letter, topic, expected in unread:
        assert writer._is_unread(letter, topic) is expected, letter
