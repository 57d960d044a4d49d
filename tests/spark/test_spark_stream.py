"""A pipeline on a real Spark stream says, micro-batch for micro-batch, what the reference says."""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from comparison import said
from disks import remount, small_disk
from documents import DOCUMENTS
from millrace import (
    ConflictError,
    MachineError,
    MillraceError,
    NotFoundError,
    Pipeline,
    agg,
    files,
    memory,
    on,
    table,
    to_files,
    to_function,
    to_table,
    window,
)
from millrace.letters.box import box_of
from millrace.model.duration import SECOND, to_datetime
from millrace.model.query import Query
from millrace.model.reference import Reference
from millrace.sources.memory import Happening, MemoryScript
from millrace.spark import stream
from millrace.spark.progress import BatchProgress
from millrace.testing.check import STREAM, check_all
from millrace.testing.stream import Said, StreamCase, drive
from millrace.views.store import open_store
from strategies import all_windows, deduped_streams, drawn, latenesses, micro_batches, modes, query, streams, triggers
from stream_run import run

pytestmark = pytest.mark.spark

EVENTS = memory("events", "k STRING, v BIGINT, at TIMESTAMP")
COUNTS = (
    EVENTS.event_time("at", delay="0s")
    .group_by("k")
    .window(window.fixed("10s"))
    .aggregate(n=agg.count(), total=agg.sum("v"))
)


def row(k: str, v: int, at: float) -> dict[str, Any]:
    return {"k": k, "v": v, "at": to_datetime(int(at * SECOND))}


def line(k: str, v: int, at: float) -> str:
    return json.dumps({"k": k, "v": v, "at": to_datetime(int(at * SECOND)).isoformat()}) + "\n"


def test_transcripts(spark: SparkSession) -> None:
    verdicts = list(check_all(DOCUMENTS, STREAM))
    assert [f"{verdict.document.name}: {verdict.failure}" for verdict in verdicts if not verdict.passed] == []


@pytest.mark.parametrize(
    ("fuse", "many", "rows"),
    [(True, 70, streams()), (False, 10, streams()), (True, 25, deduped_streams())],
    ids=["fused", "native", "deduped"],
)
def test_random_queries_say_what_the_reference_says(
    fuse: bool, many: int, rows: st.SearchStrategy[Any], spark: SparkSession
) -> None:
    parts = st.tuples(micro_batches(), all_windows, triggers, modes, latenesses, rows)
    cases = [StreamCase(query(*asked), happenings) for happenings, *asked in drawn(parts, many)]
    for case, found in zip(cases, drive(spark, cases, fuse), strict=True):
        assert not isinstance(found, Exception), (case, found)
        slow = Reference(case.query)
        for number, happening in enumerate(case.happenings):
            expected = slow.micro_batch(happening.rows, happening.now or 0)
            wrong = (number, case.query.explain(), case.happenings)
            assert said(found[number].panes) == said(expected), wrong
            assert (found[number].dropped, found[number].watermark) == (slow.dropped, slow.event_time), wrong


def test_json_files_are_read_once_also_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text(line("a", 1, 1) + "\n" + line("a", 2, 2))
    (folder / "_hidden").write_text("not for us")
    (folder / "0.json").write_text("")
    source = files(str(folder), "k STRING, v BIGINT, at TIMESTAMP")
    asked = source.event_time("at", delay="0s").group_by("k").window(window.fixed("10s")).aggregate(total=agg.sum("v"))
    pipeline = Pipeline("p", {"totals": asked})
    store = tmp_path / "views.db"
    (first,) = run(spark, pipeline, tmp_path, store=store)
    assert first[0].rows == 2
    (folder / "2.json").write_text(line("a", 4, 3) + line("b", 8, 20))
    (second,) = run(spark, pipeline, tmp_path, store=store)
    assert second[0].batch == 1
    assert [(each["k"], each["total"], each["timing"]) for each in second[1]["view totals"].to_pylist()] == [
        ("a", 7, "on-time")
    ]
    assert run(spark, pipeline, tmp_path, store=store) == []
    assert open_store(store).query("SELECT k, total, version FROM totals").rows == [("a", 7, 1)]


def test_rows_that_come_again_are_left_out_also_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    once = EVENTS.dedup("k", "v")
    pipeline = Pipeline(
        "p",
        {
            "counts": once.window(window.all_time())
            .trigger(on.each())
            .accumulating()
            .aggregate(n=agg.count(), most=agg.sum("10 / v"))
        },
        [once.to(to_files(str(tmp_path / "out"), "json"))],
    )
    first = [row("a", 1, 1), row("a", 1, 2), row("b", 5, 3), row("z", 0, 4)]
    script = {"events": MemoryScript([Happening(first), Happening([*first, row("b", 2, 9)])])}
    (before, after) = run(spark, pipeline, tmp_path, script)
    assert [batch[1]["view counts"]["n"].to_pylist() for batch in (before, after)] == [[2], [3]]
    assert (before[0].dead_letters, after[0].dead_letters) == (1, 0)
    more = MemoryScript([*script["events"].happenings, Happening([row("b", 2, 10), row("c", 1, 11)])])
    ((_, answers),) = run(spark, pipeline, tmp_path, {"events": more})
    assert answers["view counts"]["n"].to_pylist() == [4]
    texts = [path.read_text() for path in sorted((tmp_path / "out").glob("*.json"))]
    written = [json.loads(line)["k"] for text in texts for line in text.splitlines()]
    assert written == ["a", "b", "z", "b", "c"]


def test_a_limit_of_files_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.json").write_text(line("a", number, number))
    source = files(str(folder), "k STRING, v BIGINT, at TIMESTAMP", per_batch=1)
    found = run(spark, Pipeline("p", {"n": source.window(window.all_time()).aggregate(n=agg.count())}), tmp_path)
    assert [progress.rows for progress, _ in found] == [1, 1, 1]


def test_parquet_files_and_plain_streams(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"k": ["a", "b"], "v": pa.array([1, 2], pa.int32())}), folder / "1.parquet")
    source = files(str(folder), "k STRING, v BIGINT, more DOUBLE", format="parquet")
    sink = to_files(str(tmp_path / "out"))
    run(spark, Pipeline("p", sinks=[source.where("v > 1").to(sink)]), tmp_path)
    (written,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(written).to_pylist() == [{"k": "b", "v": 2, "more": None}]


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "native"])
def test_what_does_not_fit_is_a_dead_letter_with_its_offset(fuse: bool, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    good, bad = line("a", 1, 1), [b"no json\n", b'{"k": "a", "v": "x"}\n', b"\xff\n", b'{"k": "a", "v": 1}\n']
    (folder / "1.json").write_bytes(good.encode() + b"".join(bad) + good.encode())
    source = files(str(folder), "k STRING, v BIGINT, at TIMESTAMP")
    asked = source.event_time("at", delay="0s").window(window.fixed("10s")).trigger(on.each()).accumulating()
    ((progress, answers),) = run(spark, Pipeline("p", {"n": asked.aggregate(n=agg.count())}), tmp_path, fuse=fuse)
    assert answers["view n"]["n"].to_pylist() == [2]
    assert progress.dead_letters == 4
    letters = [letter.rejected for letter in box_of(tmp_path, "p").letters()]
    starts = [len(good) + sum(map(len, bad[:number])) for number in range(4)]
    assert [letter.offset for letter in letters] == starts
    assert {letter.origin for letter in letters} == {str(folder / "1.json")}
    assert [letter.value for letter in letters] == ["no json", '{"k": "a", "v": "x"}', None, '{"k": "a", "v": 1}']
    assert [letter.output for letter in letters] == [None, None, None, "view n"]
    assert [letter.problem for letter in letters] == [
        "it is not a JSON object", "v is not BIGINT", "it is not text in UTF-8", "event time at is NULL",
    ]  # fmt: skip


def test_a_row_without_a_value_is_set_aside_and_the_others_go_on(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row("a", number % 100, 1) for number in range(2_000)]
    asked = EVENTS.with_columns(x="100 / v").group_by("k").window(window.all_time()).trigger(on.each()).accumulating()
    pipeline = Pipeline("p", {"sums": asked.aggregate(n=agg.count(), total=agg.sum("x"))})
    ((progress, answers),) = run(spark, pipeline, tmp_path, {"events": MemoryScript([Happening(rows)])})
    assert progress.dead_letters == 20
    assert answers["view sums"]["n"].to_pylist() == [1_980]


def test_the_clock_fires_triggers_though_nothing_comes(spark: SparkSession, tmp_path: Path) -> None:
    """No script here: the rows come once, and the answer two seconds later, by the real clock."""
    asked = (
        EVENTS.group_by("k").window(window.all_time()).trigger(on.after("2s")).accumulating().aggregate(n=agg.count())
    )
    found: list[int] = []

    def listen(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        found.extend(answers["view n"]["n"].to_pylist())

    scripts = {"events": MemoryScript([Happening([row("a", 1, 1)])], timed=False)}
    started = stream.start(
        spark, Pipeline("p", {"n": asked}), tmp_path / "checkpoint", scripts=scripts, on_batch=listen
    )
    try:
        for _ in range(60):
            if found or started.wait(1):
                break
    finally:
        started.stop()
    assert found == [1]


def test_many_keys_over_many_batches_and_shards(spark: SparkSession, tmp_path: Path) -> None:
    happenings = [
        Happening([row(f"key {(number * 7) % 300}", number, number % 40) for number in range(start, start + 500)])
        for start in range(0, 3_000, 500)
    ]
    asked = (
        EVENTS.event_time("at", delay="5s")
        .group_by("k")
        .window(window.fixed("10s"), lateness="1h")
        .trigger(on.watermark(early=on.each(), late=on.each()))
        .retracting()
        .aggregate(n=agg.count(), total=agg.sum("v"), distinct=agg.approx_distinct("v"))
    )
    (found,) = drive(spark, [StreamCase(asked, happenings)])
    assert not isinstance(found, Exception)
    slow = Reference(asked)
    for happening, got in zip(happenings, found, strict=True):
        assert said(got.panes) == said(slow.micro_batch(happening.rows, 0))


def values(found: Sequence[Said]) -> list[list[Any]]:
    return [[pane.values for pane in each.panes] for each in found]


SCRIPT = {"events": MemoryScript([Happening([row("a", 1, 1)]), Happening([row("a", 2, 12)])])}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: EVENTS.event_time("at", delay="0s").group_by("k").window(window.fixed("20s")), "its window was"),
        (lambda: EVENTS.event_time("at", delay="0s").window(window.fixed("10s")), "its keys was"),
        (
            lambda: EVENTS.where("v > 1").event_time("at", delay="0s").group_by("k").window(window.fixed("10s")),
            "its stream",
        ),
        (
            lambda: (
                EVENTS.event_time("at", delay="0s")
                .group_by("k")
                .window(window.fixed("10s"))
                .trigger(on.each())
                .accumulating()
            ),
            "its trigger was",
        ),
    ],
)
def test_a_checkpoint_refuses_another_computation(change: Any, says: str, spark: SparkSession, tmp_path: Path) -> None:
    stream_only = Pipeline("p", {"counts": COUNTS})
    started = stream.start(spark, stream_only, tmp_path / "checkpoint", until_caught_up=True, scripts=SCRIPT)
    started.stop()
    changed = Pipeline("p", {"counts": change().aggregate(n=agg.count(), total=agg.sum("v"))})
    with pytest.raises(ConflictError, match=f"view counts cannot go on from checkpoint .*: {says}"):
        run(spark, changed, tmp_path, SCRIPT)
    with pytest.raises(ConflictError, match="is of pipeline 'p', not of 'q'; give this pipeline a checkpoint"):
        run(spark, Pipeline("q", {"counts": COUNTS}), tmp_path, SCRIPT)


def test_what_may_change_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    def asked(size: int, delay: str) -> Query:
        timed = EVENTS.event_time("at", delay=delay).group_by("k").window(window.fixed("10s"), lateness=f"{size}s")
        return timed.trigger(on.watermark(early=on.elements(size))).accumulating().aggregate(n=agg.count())

    run(
        spark,
        Pipeline("p", {"counts": asked(5, "0s")}),
        tmp_path,
        {"events": MemoryScript([Happening([row("a", 1, 1)])])},
    )
    views = {
        "counts": asked(2, "1s"),
        "all": EVENTS.window(window.all_time()).trigger(on.each()).accumulating().aggregate(n=agg.count()),
    }
    script = MemoryScript([Happening([row("a", 1, 1)]), Happening([row("a", 2, 2)])])
    ((_, answers),) = run(spark, Pipeline("p", views), tmp_path, {"events": script}, from_here=True)
    assert answers["view counts"]["n"].to_pylist() == [2]
    assert answers["view all"]["n"].to_pylist() == [1]


def test_a_native_output_cannot_join_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, Pipeline("p", {"counts": COUNTS}), tmp_path, SCRIPT)
    native = EVENTS.where("upper(k) = 'A'").window(window.all_time()).aggregate(n=agg.count())
    with pytest.raises(ConflictError, match="view loud were added or removed, which a native edge"):
        run(spark, Pipeline("p", {"counts": COUNTS, "loud": native}), tmp_path, SCRIPT)


def test_names_that_are_also_ours(spark: SparkSession, tmp_path: Path) -> None:
    asked = EVENTS.group_by("k").window(window.all_time()).trigger(on.each()).accumulating()
    pipeline = Pipeline("p", {"counts": asked.aggregate(last=agg.count(), version=agg.sum("v"))})
    (first, _) = run(spark, pipeline, tmp_path, SCRIPT, store=tmp_path / "views.db")
    assert first[1]["view counts"].column_names[-5:] == ["version", "diff", "timing", "index", "pane_last"]
    rows = open_store(tmp_path / "views.db").query('SELECT "last", version, pane_last, pane_version FROM counts').rows
    assert rows == [(2, 3, 0, 2)]


def test_batches_of_another_checkpoint_are_not_taken_for_these(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("p", {"counts": COUNTS}, [COUNTS.to(to_files(str(tmp_path / "out"), "json"))])
    run(spark, pipeline, tmp_path / "first", SCRIPT, store=tmp_path / "store.db")
    with pytest.raises(ConflictError, match="was last written by batch 1 of checkpoint"):
        run(spark, pipeline, tmp_path / "second", SCRIPT, store=tmp_path / "store.db")
    assert open_store(tmp_path / "store.db").query("SELECT k, n FROM counts").rows == [("a", 1)]
    assert len(list((tmp_path / "out").glob("*.json"))) == 1


def test_a_view_that_left_is_not_let_back_in(spark: SparkSession, tmp_path: Path) -> None:
    everything = EVENTS.window(window.all_time()).trigger(on.each()).accumulating().aggregate(n=agg.count())
    run(spark, Pipeline("p", {"counts": COUNTS, "all": everything}), tmp_path, SCRIPT)
    run(spark, Pipeline("p", {"counts": COUNTS}), tmp_path, SCRIPT)
    with pytest.raises(ConflictError, match=r"view all was removed from checkpoint .*, and has missed the records"):
        run(spark, Pipeline("p", {"counts": COUNTS, "all": everything}), tmp_path, SCRIPT)


def test_a_checkpoint_is_for_one_run(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("p", {"counts": COUNTS})
    started = stream.start(spark, pipeline, tmp_path / "checkpoint", scripts=SCRIPT)
    try:
        with pytest.raises(MachineError, match="another run uses the checkpoint"):
            stream.start(spark, pipeline, tmp_path / "checkpoint", scripts=SCRIPT)
    finally:
        started.stop()


def test_cases_that_once_went_wrong(spark: SparkSession) -> None:
    timed = EVENTS.event_time("at", delay="1s")
    named = memory("odd", "slice STRING, key0 BIGINT, at TIMESTAMP").event_time("at", delay="1s")
    idle = (
        EVENTS.event_time("at", delay="1s", idle="5s")
        .group_by("k")
        .window(window.fixed("10s"))
        .aggregate(n=agg.count())
    )
    twice = timed.where("k = 'a'").union(timed.where("k = 'b'")).group_by("k").window(window.fixed("10s"))
    ones, twos = (table("t", "k STRING, x BIGINT", rows=[{"k": "a", "x": x}]) for x in (1, 100))
    both = EVENTS.join(ones, on="k").select("k", "at", y="x").join(twos, on="k").event_time("at", delay="1s")
    rows = [Happening([row("a", 1, 1), row("b", 2, 3)], SECOND), Happening([row("a", 3, 20)], 3600 * SECOND)]
    cases = [
        StreamCase(twice.aggregate(n=agg.count()), rows),
        StreamCase(idle, [*rows, Happening([row("a", 4, 21)], 3601 * SECOND), Happening((), 3700 * SECOND)]),
        StreamCase(both.window(window.fixed("10s")).aggregate(total=agg.sum("x + y")), rows),
        StreamCase(
            named.group_by("slice").window(window.fixed("10s")).aggregate(total=agg.sum("key0")),
            [
                Happening([{"slice": "a", "key0": 5, "at": to_datetime(SECOND)}]),
                Happening([{"slice": "b", "key0": 7, "at": to_datetime(30 * SECOND)}]),
            ],
        ),
    ]
    for case, found in zip(cases, drive(spark, cases), strict=True):
        assert not isinstance(found, Exception), found
        slow = Reference(case.query)
        for happening, got in zip(case.happenings, found, strict=False):
            assert said(got.panes) == said(slow.micro_batch(happening.rows, happening.now or 0)), case.query.explain()
            assert (got.dropped, got.watermark) == (slow.dropped, slow.event_time)


def test_sinks(spark: SparkSession, tmp_path: Path) -> None:
    calls: list[tuple[int, list[Any]]] = []
    pipeline = Pipeline(
        "p",
        sinks=[
            COUNTS.to(to_files(str(tmp_path / "json"), "json")),
            COUNTS.to(to_table(str(tmp_path / "out.db"), "counts")),
            COUNTS.to(to_function(lambda rows, batch: calls.append((batch, rows)))),
        ],
    )
    run(spark, pipeline, tmp_path, SCRIPT)
    (written,) = (tmp_path / "json").glob("*.json")
    told = json.loads(written.read_text())
    assert (told["k"], told["n"], told["window_end"]) == ("a", 1, "1970-01-01T00:00:10+00:00")
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        rows = database.execute("SELECT k, window_start, n, total, diff, timing, last, batch FROM counts").fetchall()
    assert rows == [("a", "1970-01-01T00:00:00+00:00", 1, 1, 1, "on-time", 1, 1)]
    ((batch, (answer,)),) = calls
    assert (batch, answer["k"], answer["n"]) == (1, "a", 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"guarantee": "twice"}, "unknown guarantee 'twice'"),
        ({"interval": "1s"}, "leave the interval out"),
        ({"scripts": {}}, "source 'events' has no rows to read"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(
    options: dict[str, Any], says: str, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(MillraceError, match=says):
        run(spark, Pipeline("p", {"counts": COUNTS}), tmp_path, **{"scripts": SCRIPT, **options})
    assert list(tmp_path.iterdir()) == []


def test_no_such_folder(spark: SparkSession, tmp_path: Path) -> None:
    source = files(str(tmp_path / "nowhere"), "k STRING")
    with pytest.raises(NotFoundError, match="nowhere does not exist; create the folder"):
        run(spark, Pipeline("p", {"n": source.window(window.all_time()).aggregate(n=agg.count())}), tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no parquet at all", r"1\.parquet cannot be read: .*; mend the file, or move it away"),
        (pa.table({"k": [1.5]}), r"1\.parquet: column k is double, which cannot be read as BIGINT; correct the schema"),
    ],
    ids=["unreadable", "another schema"],
)
def test_a_file_that_cannot_be_read_stops_the_pipeline_and_loses_nothing(
    content: Any, says: str, spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    bad = folder / "1.parquet"
    if isinstance(content, bytes):
        bad.write_bytes(content)
    else:
        pq.write_table(content, bad)
    source = files(str(folder), "k BIGINT", format="parquet")
    asked = source.window(window.all_time()).trigger(on.each()).accumulating().aggregate(total=agg.sum("k"))
    with pytest.raises(MillraceError, match=says):
        run(spark, Pipeline("p", {"sums": asked}), tmp_path)
    pq.write_table(pa.table({"k": [40, 2]}), bad)
    ((_, answers),) = run(spark, Pipeline("p", {"sums": asked}), tmp_path)
    assert answers["view sums"]["total"].to_pylist() == [42]


def test_a_function_that_fails_fails_the_run_and_is_called_again(spark: SparkSession, tmp_path: Path) -> None:
    calls: list[int] = []

    def fails_once(rows: list[Any], batch: int) -> None:
        calls.append(batch)
        if len(calls) == 1:
            raise ConnectionError("the other side is gone")

    pipeline = Pipeline("p", sinks=[COUNTS.to(to_function(fails_once))])
    with pytest.raises(ConnectionError, match="the other side is gone"):
        run(spark, pipeline, tmp_path, SCRIPT)
    run(spark, pipeline, tmp_path, SCRIPT)
    assert calls == [1, 1]


def held_by_its_sink(spark: SparkSession, folder: Path) -> tuple[stream.StreamRun, threading.Event, list[int]]:
    """A run whose first answers are held by a function until it is let go, and the batches that it was called with."""
    reached, go, calls = threading.Event(), threading.Event(), list[int]()

    def hold(rows: list[Any], batch: int) -> None:
        calls.append(batch)
        reached.set()
        assert go.wait(60)

    happenings = [Happening([row("a", 1, at)]) for at in (1, 12, 25, 37)]
    pipeline = Pipeline("p", sinks=[COUNTS.to(to_function(hold))])
    run = stream.start(
        spark, pipeline, folder / "checkpoint", scripts={"events": MemoryScript(happenings)}, guarantee="at-least-once"
    )
    assert reached.wait(60)
    return run, go, calls


def test_a_run_that_is_stopped_does_what_it_began_and_nothing_more(spark: SparkSession, tmp_path: Path) -> None:
    run, go, calls = held_by_its_sink(spark, tmp_path)
    stopping = threading.Thread(target=run.stop)
    stopping.start()
    while not run.is_stopped:
        assert stopping.is_alive()
    go.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert run.wait(1), "which is no failure"
    assert (tmp_path / "checkpoint" / "spark" / "commits" / "1").exists()
    assert calls == [1]
    run, go, again = held_by_its_sink(spark, tmp_path)
    go.set()
    run.stop()
    assert again[0] == 2, "it goes on where it was"


@pytest.mark.parametrize("interrupts", [True, False], ids=["interrupted", "the interrupt is lost"])
def test_a_micro_batch_that_does_not_end_is_cut_off_and_run_again(
    interrupts: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, go, _ = held_by_its_sink(spark, tmp_path)
    if not interrupts:
        monkeypatch.setattr(run.query, "stop", lambda: None)
    run.stop(patience=0.1)
    go.set()
    assert run.wait(60)
    assert not (tmp_path / "checkpoint" / "spark" / "commits" / "1").exists()
    run, go, calls = held_by_its_sink(spark, tmp_path)
    go.set()
    run.stop()
    assert calls[0] == 1


def test_count_windows_keep_the_order_of_arrival(spark: SparkSession, tmp_path: Path) -> None:
    happenings = [Happening([row("a", number, 1) for number in range(start, start + 5)]) for start in (0, 5, 10)]
    asked = EVENTS.group_by("k").window(window.count(4)).aggregate(total=agg.sum("v"))
    (found,) = drive(spark, [StreamCase(asked, happenings)])
    assert not isinstance(found, Exception)
    assert values(found) == [[{"total": 0 + 1 + 2 + 3}], [{"total": 4 + 5 + 6 + 7}], [{"total": 8 + 9 + 10 + 11}]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 KB."""
    with small_disk(tmp_path / "small", "300k") as folder:
        yield folder


def test_a_full_disk_stops_the_pipeline_and_loses_nothing(spark: SparkSession, tmp_path: Path, disk: Path) -> None:
    rows = [row(f"a key that is quite long, number {number}", number, 1) for number in range(5_000)]
    script = {"events": MemoryScript([Happening(rows), Happening([row("end", 1, 30)])])}
    pipeline = Pipeline("p", {"counts": COUNTS})
    with pytest.raises(MachineError, match=r"the disk is full: .*counts\.db; nothing was lost: make room"):
        run(spark, pipeline, tmp_path, script, store=disk / "counts.db")
    remount(disk, "size=100m")
    run(spark, pipeline, tmp_path, script, store=disk / "counts.db")
    held = open_store(disk / "counts.db").query("SELECT count(*), sum(total) FROM counts")
    assert held.rows == [(5_000, sum(range(5_000)))]
