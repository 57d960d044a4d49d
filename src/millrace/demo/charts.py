"""The charts of the demo, as a user would write them."""

from millrace.model import trigger as on
from millrace.model.aggregate import count
from millrace.model.inputs import log
from millrace.model.pipeline import Pipeline
from millrace.model.sketch import approx_distinct
from millrace.model.window import fixed

TOPIC = "plays"
VIEW = "hourly_plays"

plays = log(TOPIC, schema="user STRING, track STRING, ms BIGINT, at TIMESTAMP")

hourly = (
    plays.where("ms >= 30000")  # what
    .event_time("at", delay="10s")
    .group_by("track")
    .window(fixed("1h"), lateness="1d")  # where in event time
    .trigger(on.watermark(early=on.every("2s"), late=on.each()))  # when
    .retracting()  # how
    .aggregate(plays=count(), listeners=approx_distinct("user"))
)

charts = Pipeline("charts", views={VIEW: hourly})
