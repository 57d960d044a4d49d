"""Mistakes with stages and joins of streams: each message says what to do, at the user's file and line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace import Pipeline, PipelineError, agg, log, on, table, to_files, udf, window
from millrace.testing import batch

plays = log("plays", "user STRING, track STRING, ms BIGINT, at TIMESTAMP").event_time("at", delay="10s")
tracks = plays.group_by("track").window(window.fixed("1h"), lateness="1d")
corrected = tracks.trigger(on.watermark(early=on.each(), late=on.each()))
hourly = corrected.retracting().aggregate(plays=agg.count())
replaced = corrected.accumulating().aggregate(plays=agg.count())
once = tracks.trigger(on.watermark()).accumulating().aggregate(plays=agg.count())
hour = window.fixed("1h")

impressions = log("impressions", "ad STRING, campaign STRING, at TIMESTAMP")
clicks = log("clicks", "ad STRING, user STRING, at TIMESTAMP")
seen = impressions.event_time("at", delay="1m")
clicked = clicks.select("ad", "user", clicked_at="at").event_time("clicked_at", delay="1m")
pairs = seen.join(clicked, on="ad", within=("0s", "1h"))
titles = table("titles", "track STRING, title STRING", rows=[{"track": "a", "title": "A"}])
titles_file = table("titles", "track STRING, title STRING", path="titles.csv")
anything: Any = "1h"


def view(of: Any) -> Pipeline:
    return Pipeline("charts", views={"charts": of})


def sink(of: Any) -> Pipeline:
    return Pipeline("charts", sinks=[of.to(to_files("out"))])


def add(total: int, each: int) -> int:
    return total + each


def loud(text: str) -> str:
    return text.upper()


MISTAKES: list[tuple[str, Callable[[], Any], str]] = [
    (
        "an accumulating query aggregated",
        lambda: replaced.window(hour).aggregate(n=agg.count()),
        "test_stage_mistakes.py:16 replaces the one before it, and what reads them would count both; call .retract",
    ),
    (
        "an accumulating query joined",
        lambda: seen.join(replaced.select("track", ad="track"), on="ad", within=("0s", "1h")),
        "would count both; call .retracting() in that query",
    ),
    (
        "no event time on the left",
        lambda: impressions.join(clicked, on="ad", within=("0s", "1h")),
        "the left has none; call .event_time(column, delay=...) before it",
    ),
    (
        "no event time on the right",
        lambda: seen.join(clicks.select("ad", "user"), on="ad", within=("0s", "1h")),
        "the right has none; call .event_time(column, delay=...) before it",
    ),
    (
        "a column of both sides",
        lambda: seen.join(clicks.event_time("at", delay="1m"), on="ad", within=("0s", "1h")),
        "column 'at'; leave it out or rename it on one side with select()",
    ),
    (
        "windows of both sides",
        lambda: hourly.join(once.select("track", "window_start", n="plays"), on="track", within=("0s", "0s")),
        "both sides of the join have a column 'window_start'; leave it out or rename it on one side with select()",
    ),
    (
        "answers joined by windows",
        lambda: hourly.join(once.select("track", n="plays"), on="track", window=hour),
        "the join adds a column 'window_start'; leave it out or rename it",
    ),
    ("an unknown column after an aggregate", lambda: hourly.where("play > 1"), "did you mean 'plays'? (known: track, "),
    ("a column that was aggregated away", lambda: hourly.where("ms > 1"), "unknown column 'ms' (known: track, window_"),
    ("a sketch over corrections", lambda: hourly.window(hour).aggregate(n=agg.approx_distinct("track")), "exact aggre"),
    (
        "a fold over corrections",
        lambda: hourly.window(hour).aggregate(n=agg.fold("plays", 0, add, type="BIGINT")),
        "a function of yours has no inverse; use another aggregate, or let the query answer once",
    ),
    (
        "a minimum of what is new",
        lambda: hourly.window(hour).trigger(on.each()).discarding().aggregate(n=agg.min("plays")),
        "call .accumulating() or .retracting() instead",
    ),
    (
        "windows by number",
        lambda: hourly.window(window.count(3)).aggregate(n=agg.count()),
        "use windows of time, or let",
    ),
    (
        "a window as a key",
        lambda: hourly.group_by("window_start").window(hour).aggregate(n=agg.count()),
        "a column 'window_start' of its own; rename the key: with_columns(during='window_start').group_by('during')",
    ),
    (
        "a view without its key",
        lambda: view(hourly.select("plays")),
        "keep them: select('track', 'window_start', 'window_end', ...)",
    ),
    (
        "a view that changes its key",
        lambda: view(hourly.with_columns(track="substr(track, 1, 3)")),
        "changes column 'track', which tells its rows apart; give the computed column another name",
    ),
    ("a view of pairs", lambda: view(pairs), "whose rows have no key; aggregate them, or send them to a sink"),
    (
        "a view of answers in a table",
        lambda: view(hourly.join(titles, on="track")),
        "join the table before .aggregate(...), or in the SQL that reads the view",
    ),
    (
        "a table that may change",
        lambda: sink(hourly.join(titles_file, on="track")).explain(),
        "table 'titles' may change, and an answer that is taken back must find the same row; join it before .aggregate",
    ),
    ("bounds swapped", lambda: seen.join(clicked, on="ad", within=("1h", "0s")), "give the lesser bound first"),
    ("one bound", lambda: seen.join(clicked, on="ad", within=anything), "a pair of durations, such as ('0s', '1h')"),
    ("no bounds", lambda: seen.join(clicked, on="ad"), "give one of them: join(other, on='k', within=('0s', '1h'))"),
    ("a duration as a window", lambda: seen.join(clicked, on="ad", window=anything), "window.fixed('1h'), not '1h'"),
    (
        "a column of one side",
        lambda: seen.join(clicked, on="campaign", within=("0s", "1h")),
        "unknown column on the right of the join 'campaign' (known: ad, user, clicked_at)",
    ),
    (
        "columns of different types",
        lambda: seen.join(clicked.with_columns(campaign="1"), on=["ad", "campaign"], within=("0s", "1h")),
        'it is STRING on the left, but INT on the right; convert one of them: with_columns(campaign="CAST(campaign AS',
    ),
    (
        "rows without a partner of an inner join",
        lambda: seen.join(clicked, on="ad", within=("0s", "1h"), unmatched="early"),
        'leave it out, or use how="left"',
    ),
    (
        "sessions in a join",
        lambda: seen.join(clicked, on="ad", window=window.session("5m")),
        "sessions of the two sides have different bounds; use within=",
    ),
    ("bounds for a table", lambda: plays.join(titles, on="track", within=("0s", "1h")), "leave within= out"),
    ("dedup of answers", lambda: hourly.where("plays > 1").dedup("track"), "call dedup() on the streams that they rea"),
    ("dedup of pairs", lambda: pairs.dedup("ad"), "not the changes of a query or a join; call dedup() on the streams"),
    (
        "a watermark of answers",
        lambda: hourly.event_time("window_start", delay="1s"),
        "write event_time('window_start') ",
    ),
    (
        "a limit for answers",
        lambda: hourly.event_time("window_start", ahead="1h"),
        "write event_time('window_start') o",
    ),
    (
        "a text as event time",
        lambda: hourly.event_time("track"),
        "'track' is STRING; name a TIMESTAMP that is not after",
    ),
    (
        "answers and rows without an event time",
        lambda: hourly.select("track", at="window_start").union(log("likes", "track STRING, at TIMESTAMP")),
        "call .event_time(column, delay=...) on them before union()",
    ),
    (
        "an event time of answers and rows",
        lambda: (
            hourly.select("track", at="window_start", n="plays")
            .union(plays.select("track", "at", n="1L"))
            .event_time("at")
        ),
        "name it on the streams that union() takes",
    ),
    (
        "one query with two event times",
        lambda: hourly.event_time("window_start").union(hourly.event_time("window_end")),
        "use the same column on all sides",
    ),
    (
        "a single query of several",
        lambda: batch(hourly.window(hour).aggregate(n=agg.count()), []),
        "run_script(pipeline,",
    ),
    ("late rows of a join", lambda: seen.join(clicked, on="ad", within=("0s", "1h"), late="yes"), "late= is 'drop' or"),
    ("late rows of a table", lambda: plays.join(titles, on="track", late="keep"), "join(late=...) takes a stream"),
    ("late answers kept", lambda: hourly.window(hour, late="keep"), "leave late= out: late answers are counted"),
]


@pytest.mark.parametrize(("build", "says"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_the_message_says_what_to_do_at_the_line(build: Callable[[], Any], says: str) -> None:
    with pytest.raises(PipelineError) as error:
        build()
    assert says in str(error.value)
    assert error.value.place is not None
    assert Path(error.value.place.file) == Path(__file__)


MISPLACED = [
    ("having", "a query has no having(); use where()"),
    ("limit", "a query has no limit(); use agg.top_k(..., by=...) in a query that reads it"),
    ("dedup", "a query has no dedup(); call it before .aggregate()"),
    ("trigger", "a query has no trigger(); call it before .aggregate()"),
    ("retracting", "a query has no retracting(); call it before .aggregate()"),
    ("aggregate", "to aggregate its answers, call .window(...) first"),
]


@pytest.mark.parametrize(("name", "says"), MISPLACED)
def test_a_method_that_a_query_does_not_have(name: str, says: str) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(hourly, name)
    assert says in str(error.value)


def test_an_unknown_method_of_a_query_lists_methods_only() -> None:
    with pytest.raises(AttributeError, match="did you mean 'with_columns'") as error:
        hourly.with_colums(n="1")  # type: ignore[attr-defined]
    assert "where, window, with_columns)" in str(error.value)
    assert "takes_back" not in str(error.value)


ADVISED: list[tuple[str, Callable[[], Any]]] = [
    ("answer once, then a sketch", lambda: once.window(hour).aggregate(n=agg.approx_distinct("track"))),
    ("answer once, then numbers", lambda: once.window(window.count(3)).aggregate(n=agg.count())),
    (
        "the key renamed",
        lambda: hourly.with_columns(during="window_start").group_by("during").window(hour).aggregate(n=agg.count()),
    ),
    ("a function of the user's", lambda: view(hourly.with_columns(loud=udf(loud, "STRING")("track"))).explain()),
    ("a table of rows", lambda: sink(hourly.join(titles, on="track")).explain()),
    ("the key kept", lambda: view(hourly.select("track", "window_start", "window_end", twice="plays * 2"))),
]


@pytest.mark.parametrize("build", [case[1] for case in ADVISED], ids=[case[0] for case in ADVISED])
def test_what_messages_advise_can_be_built(build: Callable[[], Any]) -> None:
    assert build() is not None


def test_a_query_without_a_chosen_mode_takes_its_answers_back_when_it_is_read() -> None:
    counted = tracks.aggregate(plays=agg.count())
    assert "panes       accumulating" in view(counted).explain()
    ranked = counted.window(hour).aggregate(top=agg.top_k("track", 3, by="plays"))
    assert view(ranked).explain().count("panes       retracting") == 1
