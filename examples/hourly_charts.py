"""Charts: plays and listeners of each track by the hour, and the first ten tracks of each hour.

Shows early answers by the clock, late plays that correct an hour that is over, and a sketch that counts listeners.
From the root of the repository:

    millrace send plays examples/data/plays.json --create
    millrace run examples/hourly_charts.py --until-caught-up
    millrace query "SELECT window_start, track, plays, listeners FROM hourly_plays ORDER BY 1, 3 DESC"

Then the rest of the day, and plays of phones that were offline:

    millrace send plays examples/data/plays_late.json
    millrace run examples/hourly_charts.py --until-caught-up
    millrace query "SELECT window_start, top, longest, timing FROM top_tracks"

The hour that is not over answers every ten seconds, but only while the pipeline runs: leave out --until-caught-up.
"""

from millrace import Pipeline, agg, log, on, window

plays = log("plays", schema="user STRING, track STRING, ms BIGINT, at TIMESTAMP")
counted = plays.where("ms >= 30000").event_time("at", delay="10s")
when = on.watermark(early=on.every("10s"), late=on.each())

hourly = (
    counted.group_by("track")
    .window(window.fixed("1h"), lateness="1d")
    .trigger(when)
    .retracting()
    .aggregate(plays=agg.count(), listeners=agg.approx_distinct("user"))
)

top = (
    counted.window(window.fixed("1h"), lateness="1d")  # no group_by: over all tracks
    .trigger(when)
    .retracting()
    .aggregate(
        top=agg.approx_top_k("track", 10),  # the most frequent, with how often; exact up to 768 tracks
        longest=agg.top_k("track", 3, by="ms"),  # the tracks of the three longest plays
    )
)

charts = Pipeline("charts", views={"hourly_plays": hourly, "top_tracks": top})
