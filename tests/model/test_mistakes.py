"""Every mistake a person makes when building a pipeline gets a message, at their file and line."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from millrace import (
    Pipeline,
    PipelineError,
    agg,
    files,
    layers,
    log,
    memory,
    on,
    percentile,
    punctuated,
    table,
    to_files,
    to_function,
    to_topic,
    window,
)

plays = log("plays", schema="user STRING, track STRING, ms BIGINT, at TIMESTAMP, closes BIGINT, tags ARRAY<STRING>")
timed = plays.event_time("at", delay="10s")
hourly = timed.group_by("track").window(window.fixed("1h"))
tracks = table("tracks", "track STRING, title STRING", rows=[{"track": "t", "title": "T"}])
joined = agg.fold("ms", 0, lambda total, ms: total + ms)
anything: Any = object()

MISTAKES: list[tuple[str, Callable[[], Any], str]] = [
    ("unknown column in where", lambda: plays.where("mss > 3"), "unknown column 'mss'; did you mean 'ms'?"),
    ("unknown column in select", lambda: plays.select("trak"), "unknown column 'trak'; did you mean 'track'?"),
    ("unknown column in group_by", lambda: plays.group_by("artist"), "unknown column 'artist'"),
    ("unknown column in an aggregate", lambda: hourly.aggregate(x=agg.sum("m")), "unknown column 'm'"),
    ("unknown event time", lambda: plays.event_time("att", delay="1s"), "unknown column 'att'; did you mean 'at'?"),
    ("late records of no kind", lambda: timed.window(window.fixed("1h"), late="kept"), "late= is 'drop' or 'keep'"),
    ("late records of all time", lambda: timed.window(window.all_time(), late="keep"), "no event is too late for glob"),
    ("late records of counts", lambda: timed.window(window.count(3), late="keep"), "no event is too late for count(3)"),
    (
        "late records of a trigger that finishes",
        lambda: (
            timed.window(window.fixed("1h"), late="keep")
            .trigger(on.watermark(early=on.each()))
            .retracting()
            .aggregate(n=agg.count())
        ),
        "give on.watermark(...) a late=",
    ),
    ("where without a condition", lambda: plays.where("ms + 1"), "needs a condition, but this is BIGINT"),
    ("sql that does not parse", lambda: plays.where("ms >"), "expression 'ms >' does not parse"),
    ("an expression that is no text", lambda: plays.where(anything), "must be a string of SQL"),
    ("an aggregate in a row", lambda: plays.where("sum(ms) > 3"), "pass it to .aggregate(...)"),
    ("a window function", lambda: plays.with_columns(n="row_number() OVER ()"), "use only columns of the same row"),
    ("a sub-query", lambda: plays.where("ms IN (SELECT 1)"), "join a table instead"),
    ("a star", lambda: plays.with_columns(n="*"), "name the columns that you need"),
    ("the wall clock", lambda: plays.where("at < current_timestamp()"), "use the event time instead"),
    ("chance", lambda: plays.where("rand() < 0.5"), "different on every replay"),
    ("an alias", lambda: plays.select(x="ms AS y"), "names its result; write y='ms'"),
    ("nothing selected", lambda: plays.select(), "at least one column"),
    ("a column selected twice", lambda: plays.select("ms", ms="ms + 1"), "selected twice"),
    (
        "event time selected away",
        lambda: timed.select("ms"),
        "select() drops or changes column 'at', which the event time needs",
    ),
    (
        "event time changed",
        lambda: timed.select("ms", at="at + INTERVAL 1 HOUR"),
        "select() drops or changes column 'at', which the event time needs",
    ),
    (
        "event time replaced",
        lambda: timed.with_columns(at="at"),
        "with_columns() cannot replace column 'at', which the event time needs",
    ),
    ("no columns added", lambda: plays.with_columns(), "at least one column"),
    ("missing event time", lambda: plays.window(window.fixed("1h")), "call .event_time(column, delay=...)"),
    ("event time that is no time", lambda: plays.event_time("ms", delay="1s"), "timestamp_millis(ms)"),
    (
        "event time that is text",
        lambda: plays.event_time("user", delay="1s"),
        "declare it as TIMESTAMP in the schema of the source",
    ),
    ("operator without a value", lambda: plays.where("ms >> > 3"), "does not parse: an operand is missing"),
    ("event time twice", lambda: timed.event_time("at", delay="1s"), "has an event time already"),
    ("event time without a delay", lambda: plays.event_time("at"), "needs either delay= or watermark="),
    (
        "event time with two policies",
        lambda: plays.event_time("at", delay="1s", watermark=percentile(0.9)),
        "needs either delay= or watermark=",
    ),
    ("a policy that is none", lambda: plays.event_time("at", watermark=anything), "takes percentile(...)"),
    (
        "punctuation that is no time",
        lambda: plays.event_time("at", watermark=punctuated("closes")),
        "needs a TIMESTAMP",
    ),
    ("a limit that is none", lambda: plays.event_time("at", delay="1s", ahead="soon"), "ahead= of event_time()"),
    ("punctuation that is no name", lambda: punctuated(anything), "the name of a column"),
    ("a share that is none", lambda: percentile(99), "above 0 and at most 1"),
    (
        "first without event time",
        lambda: plays.window(window.all_time()).aggregate(x=agg.first("ms")),
        "needs an event time",
    ),
    ("dedup by nothing", lambda: plays.dedup(), "the columns that identify a row"),
    ("dedup by a time that is missing", lambda: plays.dedup("user", within="1h"), "needs an event time"),
    ("union with nothing", lambda: plays.union(), "needs another stream"),
    ("union with something else", lambda: plays.union(anything), "takes streams"),
    (
        "union of other columns",
        lambda: plays.union(memory("m", "a INT")),
        "the streams of union() have different columns",
    ),
    ("union of other times", lambda: timed.union(plays), "different event time columns"),
    ("join with something else", lambda: plays.join(anything, on="track"), "takes a table"),
    ("join of an unknown kind", lambda: plays.join(tracks, on="track", how="outer"), "unknown kind of join 'outer'"),
    ("join on an unknown column", lambda: plays.join(tracks, on="user"), "unknown column 'user'"),
    ("join on nothing", lambda: plays.join(tracks, on=[]), "needs on="),
    (
        "a start that is none",
        lambda: log("plays", "k STRING", start="noon"),
        "start= must be 'earliest', 'latest' or a datetime",
    ),
    ("layers of one kind", lambda: layers(batch=plays, speed=plays), "takes batch=files(...) and speed=log(...)"),
    (
        "layers of two schemas",
        lambda: layers(batch=files("a", "k STRING", "parquet"), speed=log("plays", "v BIGINT")),
        "the sources of layers() have different columns",
    ),
    (
        "an archive of JSON",
        lambda: layers(batch=files("a", "k STRING"), speed=log("plays", "k STRING")),
        "must be Parquet",
    ),
    ("a table of nothing", lambda: table("t", "k STRING"), "needs exactly one of rows="),
    ("join as of text", lambda: timed.join(tracks, on="track", as_of="title"), "needs a TIMESTAMP"),
    ("join as of no time", lambda: plays.join(tracks, on="track", as_of="x"), "needs an event time"),
    (
        "join of other types",
        lambda: plays.join(table("t", "ms STRING", rows=[{"ms": "1"}]), on="ms"),
        "it is BIGINT in the stream, but STRING in table 't'",
    ),
    (
        "join with a clash",
        lambda: plays.join(table("t", "track STRING, ms BIGINT", rows=[{"track": "t"}]), on="track"),
        "both sides of the join have a column 'ms'",
    ),
    ("a table without rows", lambda: table("t", "a INT"), "needs exactly one of rows=, with at least one row, path="),
    ("a table with other columns", lambda: table("t", "a INT", rows=[{"b": 1}]), "unknown column 'b'"),
    ("group_by twice", lambda: plays.group_by("user").group_by("track"), "called already"),
    ("group_by nothing", lambda: plays.group_by(), "at least one column"),
    ("group_by a column twice", lambda: plays.group_by("user", "user"), "names a column twice"),
    ("window that is none", lambda: timed.window(anything), "takes windows such as window.fixed('1h')"),
    ("window twice", lambda: hourly.window(window.fixed("2h")), "called already"),
    (
        "a count window has no lateness",
        lambda: plays.window(window.count(3), lateness="1h"),
        "a count window has no lateness",
    ),
    ("a duration that does not parse", lambda: window.fixed("1 fortnight"), "does not parse"),
    ("a duration without a unit", lambda: window.fixed(anything), "has no unit"),
    ("a duration of nothing", lambda: window.session("0s"), "must be longer than 0"),
    ("a negative duration", lambda: on.after(timedelta(seconds=-1)), "must not be negative"),
    ("windows with gaps", lambda: window.sliding("5m", every="10m"), "leave gaps"),
    ("a count that is none", lambda: window.count(0), "at least 1"),
    ("an unknown unit", lambda: window.calendar("decade"), "unknown calendar unit 'decade'"),
    ("an unknown zone", lambda: window.calendar("day", zone="Europe/Atlantis"), "unknown time zone"),
    ("windows by no function", lambda: window.custom(anything), "takes a function"),
    ("trigger that is none", lambda: hourly.trigger(anything), "takes a trigger such as"),
    ("trigger twice", lambda: hourly.trigger(on.each()).trigger(on.each()), "combine triggers"),
    ("trigger of none", lambda: on.any_of(), "at least one trigger"),
    ("trigger within a trigger that is none", lambda: on.watermark(early=anything), "early= of watermark()"),
    ("elements of none", lambda: on.elements(0), "at least 1"),
    ("two modes", lambda: hourly.retracting().discarding(), "panes cannot be discarding: they are retracting already"),
    (
        "a trigger without a mode",
        lambda: hourly.trigger(on.each()).aggregate(n=agg.count()),
        "the mode of its panes is not set",
    ),
    ("no window", lambda: plays.group_by("user").aggregate(n=agg.count()), "the query has no window"),
    ("no aggregate", lambda: hourly.aggregate(), "at least one aggregate"),
    ("an aggregate that is none", lambda: hourly.aggregate(n=anything), "takes an aggregate such as agg.count()"),
    (
        "an aggregate named as a key",
        lambda: hourly.aggregate(track=agg.count()),
        "the result has a column 'track' already",
    ),
    (
        "an aggregate named as the window",
        lambda: hourly.aggregate(window_end=agg.count()),
        "the result has a column 'window_end' already",
    ),
    ("a sum of text", lambda: hourly.aggregate(x=agg.sum("user")), "needs numbers, but user is STRING"),
    ("a count of no condition", lambda: hourly.aggregate(x=agg.count_if("ms")), "needs a condition"),
    ("an aggregate of nothing", lambda: agg.sum(""), "the name of a column or an SQL expression"),
    ("top_k of none", lambda: agg.top_k("ms", 0), "at least 1"),
    ("a quantile that is none", lambda: agg.approx_quantile("ms", 50), "from 0 to 1"),
    ("a fold by no function", lambda: agg.fold("ms", 0, anything), "must be a function"),
    (
        "an aggregate that cannot merge, in a session",
        lambda: timed.window(window.session("30m")).aggregate(x=joined),
        "cannot be merged",
    ),
    (
        "an unknown function",
        lambda: plays.where("lenght(user) > 3"),
        "unknown function 'lenght'; did you mean 'length'?",
    ),
    ("two statements", lambda: plays.where("ms > 3; drop table x"), "must be exactly one expression"),
    (
        "a number compared with words",
        lambda: plays.where("ms > 'abc'"),
        "compares BIGINT with 'abc', which is not BIGINT",
    ),
    ("a time compared with words", lambda: plays.where("at > 'noon'"), "compares TIMESTAMP with 'noon'"),
    ("and as in C", lambda: plays.where("ms = 3 && ms > 1"), "write AND"),
    ("an expression where a name belongs", lambda: plays.group_by("upper(user)"), "compute it first"),
    ("a list of names", lambda: plays.group_by(["user"]), "pass each name as an argument of its own"),  # type: ignore[arg-type]
    ("an aggregate without a name", lambda: hourly.aggregate(agg.count()), "needs a name; write aggregate(n=count())"),
    ("a column without a name", lambda: plays.with_columns("ms + 1"), "needs a name; write with_columns(x='ms + 1')"),
    ("python's own max", lambda: hourly.aggregate(x=max("ms")), "takes an aggregate such as agg.count()"),  # type: ignore[arg-type]
    ("a call that was forgotten", lambda: hourly.aggregate(x=agg.count), "did you forget the parentheses?"),  # type: ignore[arg-type]
    ("views in a list", lambda: Pipeline("p", [hourly.aggregate(n=agg.count())]), "must map names to queries"),  # type: ignore[arg-type]
    ("a count where a window belongs", lambda: timed.window(agg.count(10)), "window.count(10)"),  # type: ignore[arg-type]
    ("hours of a calendar", lambda: window.calendar("hour"), "use window.fixed('1h')"),
    ("a schema that does not parse", lambda: log("t", "user, ms"), "does not parse"),
    ("a schema of an unknown type", lambda: log("t", "ms LUNG"), "does not parse"),
    ("a schema of nothing", lambda: log("t", ""), "a schema must be text such as"),
    ("a column twice", lambda: log("t", "ms INT, MS INT"), "the schema has two columns 'MS'"),
    ("a topic without a name", lambda: log("", "ms INT"), "the name of a topic must be a string that is not empty"),
    ("an unknown file format", lambda: files("in", "ms INT", format="xls"), "unknown file format 'xls'"),
    ("an unknown file format to write", lambda: to_files("out", format="xls"), "unknown file format 'xls'"),
    ("a sink that is none", lambda: plays.to(anything), "takes a sink"),
    ("a function that is none", lambda: to_function(anything), "takes a function"),
    ("a pipeline of nothing", lambda: Pipeline("p"), "has no views and no sinks"),
    ("a pipeline with a strange name", lambda: Pipeline("my pipeline"), "letters, digits and _"),
    (
        "a view with a strange name",
        lambda: Pipeline("p", {"a-b": hourly.aggregate(n=agg.count())}),
        "letters, digits and _",
    ),
    ("a view of something else", lambda: Pipeline("p", {"v": anything}), "must be a query"),
    ("a sink of something else", lambda: Pipeline("p", sinks=[anything]), "takes the results of query.to(sink)"),
    (
        "a topic with two schemas",
        lambda: Pipeline("p", sinks=[plays.to(to_topic("a")), log("plays", "ms INT").to(to_topic("b"))]),
        "column 'ms' of log 'plays' is declared twice: as (ms BIGINT)",
    ),
    (
        "a topic with two strict schemas",
        lambda: Pipeline("p", sinks=[log("t", each, strict=True).to(to_topic(each[0])) for each in ("a INT", "b INT")]),
        "is read with two strict schemas",
    ),
    (
        "a topic with two beginnings",
        lambda: Pipeline("p", sinks=[log("t", "a INT", at).to(to_topic(at)) for at in ("earliest", "latest")]),
        "is read with different options",
    ),
    (
        "a topic with a column that is NOT NULL in one schema",
        lambda: Pipeline("p", sinks=[log("t", each).to(to_topic(each[0])) for each in ("a INT NOT NULL", "b INT")]),
        "column 'a' is NOT NULL in one and missing in the other",
    ),
]


@pytest.mark.parametrize(("make", "says"), [mistake[1:] for mistake in MISTAKES], ids=[name for name, *_ in MISTAKES])
def test_mistake(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(PipelineError) as caught:
        make()
    assert says in caught.value.message
    assert str(caught.value).startswith("test_mistakes.py:")
    assert "; " not in caught.value.problem.replace("ms > 3; drop table x", ""), "advice is a field of its own"


def test_an_unknown_name_has_the_one_that_was_meant_as_advice() -> None:
    with pytest.raises(PipelineError) as caught:
        plays.where("mss > 0")
    assert caught.value.problem == "unknown column 'mss'"
    assert str(caught.value.advice).startswith("did you mean 'ms'? (known: user, ")
    with pytest.raises(PipelineError) as caught:
        plays.where("no_such_column_at_all > 0")
    assert caught.value.problem.startswith("unknown column 'no_such_column_at_all' (known: user, ")
    assert caught.value.advice is None


def test_the_line_is_the_user_s() -> None:
    with pytest.raises(PipelineError) as caught:
        (
            plays.where("ms > 0")
            .where("mss > 0")
            .where("ms > 0")
        )  # fmt: skip
    line = test_the_line_is_the_user_s.__code__.co_firstlineno
    assert caught.value.place is not None
    assert caught.value.place.line == line + 4


def test_an_incomplete_view_is_named_where_it_was_begun() -> None:
    begun = timed.group_by("track")
    with pytest.raises(PipelineError, match=r"call .aggregate") as caught:
        Pipeline("p", {"v": begun})  # type: ignore[dict-item]
    assert caught.value.place == begun.place


def test_a_plain_stream_is_no_view() -> None:
    with pytest.raises(PipelineError, match="is a stream without an aggregate"):
        Pipeline("p", {"v": plays})


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: plays.withColumn("s", "ms / 1000"), "a stream has no withColumn(); use with_columns()"),  # type: ignore[attr-defined]
        (lambda: plays.mapInPandas(len), "a stream has no mapInPandas(); use map(..., over='pandas')"),  # type: ignore[attr-defined]
        (lambda: plays.groupBy("user"), "use group_by()"),  # type: ignore[attr-defined]
        (lambda: plays.wher("ms > 3"), "did you mean 'where'?"),  # type: ignore[attr-defined]
        (lambda: plays.group_by("user").event_time("at"), "has no event_time(); call it before .group_by()"),  # type: ignore[attr-defined]
        (lambda: hourly.agregate(), "did you mean 'aggregate'?"),  # type: ignore[attr-defined]
        (lambda: hourly.aggregate(n=agg.count()).dedup("n"), "a query has no dedup(); call it before .aggregate()"),  # type: ignore[attr-defined]
        (lambda: hourly.aggregate(n=agg.count()).explian(), "did you mean 'explain'?"),  # type: ignore[attr-defined]
    ],
)
def test_a_method_by_another_name_is_pointed_out(ask: Callable[[], Any], says: str) -> None:
    with pytest.raises(AttributeError) as caught:
        ask()
    assert says in str(caught.value)


def test_completion_offers_what_there_is_and_nothing_else() -> None:
    assert "every" in dir(on)
    assert "refuse" not in dir(on)
    assert dir(window) == ["all_time", "calendar", "count", "custom", "fixed", "session", "sliding"]


def test_durations_may_be_written_in_words() -> None:
    assert window.fixed("10 seconds") == window.fixed("10s")
    assert window.fixed("1 hour 30 min") == window.fixed("90m")
