import xml.etree.ElementTree as ElementTree

from millrace import Pipeline, agg, files, log, memory, on, percentile, table, to_files, to_function, to_topic, window
from millrace.model.trigger import Trigger

plays = log("plays", schema="user STRING, track STRING, ms BIGINT, at TIMESTAMP")
more = files("archive", schema="user STRING, track STRING, ms BIGINT, at TIMESTAMP", format="parquet")
tracks = table("tracks", "track STRING, title STRING", path="tracks.csv")
both = (
    plays.union(more)
    .where("ms >= 30000")
    .with_columns(seconds="ms / 1000")
    .join(tracks, on="track", how="left")
    .event_time("at", watermark=percentile(0.99), idle="1m")
    .dedup("user", "at", within="10m")
)
hourly = (
    both.group_by("title")
    .window(window.fixed("1h"), lateness="1d")
    .trigger(on.watermark(early=on.every("10s"), late=on.each()))
    .retracting()
    .aggregate(plays=agg.count(), seconds=agg.sum("seconds"))
)


def keep(rows: object, batch: int) -> None:
    """Takes no notice."""


charts = Pipeline(
    "charts",
    views={"hourly": hourly},
    sinks=[
        hourly.to(to_files("out")),
        plays.select("user", t="upper(track)").to(to_topic("users")),
        plays.to(to_function(keep)),
    ],
)

TEXT = """\
pipeline charts

  side 1
    source      log plays (user STRING, track STRING, ms BIGINT, at TIMESTAMP)
  side 2
    source      files archive (user STRING, track STRING, ms BIGINT, at TIMESTAMP)
  union       2 streams
  where       ms >= 30000
  with        ms / 1000 AS seconds
  join        left with tracks on track
  event time  at, percentile(0.99), idle after 1m
  dedup       user, at within 10m
  group by    title
  window      fixed(1h), lateness 1d
  trigger     watermark(early=every(10s), late=each())
  panes       retracting
  aggregate   plays = count(), seconds = sum(seconds)
  edge        fused up to the dedup, which runs in one shard
  view        hourly (title STRING, window_start TIMESTAMP, window_end TIMESTAMP, plays BIGINT, seconds DOUBLE)
"""


def test_the_flow_as_text() -> None:
    text = charts.explain()
    assert text.startswith(TEXT)
    fused = "  edge        fused up to the dedup, which runs in one shard\n"
    assert f"  same as     view hourly\n{fused}  sink        parquet files in out\n" in text
    native = "  edge        native: upper of STRING may differ between DuckDB and Spark\n"
    assert f"  select      user, upper(track) AS t\n{native}  sink        topic users\n" in text
    assert text.endswith("sink        function keep")


def test_a_query_alone_and_a_pipeline_in_print() -> None:
    assert str(charts) == charts.explain()
    assert hourly.explain().splitlines()[-1] == "aggregate   plays = count(), seconds = sum(seconds)"


def test_a_trigger_that_drops_what_comes_later_says_so() -> None:
    source = memory("m", "a INT, at TIMESTAMP").event_time("at", delay="1s").window(window.fixed("1h"), lateness="1h")
    finishing: list[Trigger] = [
        on.watermark(early=on.each()),
        on.elements(3),
        on.until(on.each(), on.watermark()),
        on.all_of(on.elements(3), on.after("1m")),
    ]
    lasting: list[Trigger] = [on.default(), on.watermark(late=on.each()), on.any_of(on.each(), on.every("1m"))]
    for trigger in (*finishing, *lasting):
        text = source.trigger(trigger).retracting().aggregate(n=agg.count()).explain()
        assert ("later elements of its window are dropped" in text) == (trigger in finishing)


def test_how_far_events_may_be_ahead_is_shown_unless_it_is_a_day() -> None:
    source = memory("m", "at TIMESTAMP")
    for ahead, said in (("24h", "\n"), ("1h", ", ahead by 1h\n"), (None, ", ahead by any time\n")):
        windowed = source.event_time("at", delay="0s", ahead=ahead).window(window.fixed("1h"))
        assert f"at, delay(0s){said}" in windowed.aggregate(n=agg.count()).explain()


def test_a_notebook_gets_a_picture() -> None:
    svg = charts._repr_svg_()
    root = ElementTree.fromstring(svg)
    said = " ".join(root.itertext())
    for word in ("charts", "source", "ms >= 30000", "left with tracks on track", "hourly"):
        assert word in said
    boxes = root.findall(".//{http://www.w3.org/2000/svg}rect")
    corners = {(box.get("x"), box.get("y")) for box in boxes}
    assert len(corners) == len(boxes), "two boxes lie on each other"


def test_equal_pipelines_are_equal_wherever_they_were_written() -> None:
    def build() -> Pipeline:
        stream = memory("m", "a INT, at TIMESTAMP").where("a > 1").event_time("at", delay="1s")
        return Pipeline("p", {"v": stream.window(window.session("1m")).aggregate(n=agg.count())})

    one = build()
    other = build()
    assert one == other
    assert one != Pipeline("q", one.views)
    assert [source.name for source in charts.sources] == ["plays", "archive"]
