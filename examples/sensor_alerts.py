"""Temperatures of two halls by the minute, and an alert soon after a sensor gets hot.

Shows a watermark that learns how late readings come, a source that falls silent, triggers by the clock, and alerts in
a topic. From the root of the repository:

    millrace topics create alerts
    millrace send hall_a examples/data/hall_a.json --create
    millrace send hall_b examples/data/hall_b.json --create
    millrace run examples/sensor_alerts.py

The views are in an SQLite file. For PostgreSQL, set MILLRACE_STORE=postgresql://user@host/database for all commands.

It runs until Ctrl-C. In another terminal, once there are alerts, send what comes later from hall A. Hall B stays
silent: after five seconds it is not waited for, and its minutes close with those of hall A. When both are silent, event
time goes on with the clock.

    millrace tail alerts
    millrace send hall_a examples/data/hall_a_late.json
    millrace query "SELECT sensor, window_start, highest, average, spread, timing FROM temperatures ORDER BY 1, 2"
"""

from millrace import Pipeline, agg, log, on, percentile, to_topic, window

SCHEMA = "sensor STRING, celsius DOUBLE, at TIMESTAMP"
halls = [
    log(topic, schema=SCHEMA).event_time("at", watermark=percentile(0.95, minimum="10s"), idle="5s")
    for topic in ("hall_a", "hall_b")
]
readings = halls[0].union(halls[1])

temperatures = (
    readings.group_by("sensor")
    .window(window.fixed("1m"), lateness="1h")
    .trigger(on.watermark(early=on.every("2s"), late=on.each()))
    .retracting()
    .aggregate(highest=agg.max("celsius"), average=agg.mean("celsius"), spread=agg.stddev("celsius"))
)

hot = (
    readings.where("celsius >= 60")  # a minute without such a reading says nothing
    .group_by("sensor")
    .window(window.fixed("1m"), lateness="1h")
    .trigger(on.repeat(on.after("2s")))  # not for each reading, but what came in two seconds together
    .discarding()  # an alert tells what is new since the last one
    .aggregate(readings=agg.count(), highest=agg.max("celsius"))
)

sensors = Pipeline("sensors", views={"temperatures": temperatures}, sinks=[hot.to(to_topic("alerts"))])
