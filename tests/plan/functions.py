"""A pipeline with functions, whose plan is kept as a golden file."""

from typing import Any

from millrace import Pipeline, agg, log, to_topic, window

plays = log("plays", "user STRING, tracks STRING, ms BIGINT, at TIMESTAMP")


def split(row: dict[str, Any]) -> dict[str, Any]:
    """The tracks of one play as an array."""
    return {"user": row["user"], "track": row["tracks"].split(",")}


def is_long(row: dict[str, Any]) -> bool:
    """Whether a play counts."""
    return bool(row["ms"] >= 30_000)


tracks = (
    plays.event_time("at", delay="10s")
    .where("ms > 0")
    .filter(is_long, version="1")
    .map(split, "user STRING, track ARRAY<STRING>, at TIMESTAMP")
    .explode("track")
)
pipeline = Pipeline(
    "functions",
    {"hourly": tracks.group_by("track").window(window.fixed("1h")).aggregate(plays=agg.count())},
    [tracks.with_columns(track="upper(track)").to(to_topic("tracks"))],
)
