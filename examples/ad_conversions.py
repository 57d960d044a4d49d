"""Which part of the impressions of a campaign is clicked on within an hour, by the hour of the impression.

Shows a join of two streams, as in Google's Photon: each impression with its click, if there is one, and then an
aggregate over the result. From the root of the repository:

    millrace send impressions examples/data/impressions.json --create
    millrace send clicks examples/data/clicks.json --create
    millrace run examples/ad_conversions.py --until-caught-up
    millrace query "SELECT campaign, window_start, impressions, clicks, rate, timing FROM conversions ORDER BY 1, 2"

An impression counts at once, without a click. When its click comes, the impression without a click is taken back, and
the pair takes its place. Some clicks come late, some come before their impression, and most impressions have none:

    millrace send impressions examples/data/impressions_late.json
    millrace send clicks examples/data/clicks_late.json
    millrace run examples/ad_conversions.py --until-caught-up
    millrace query "SELECT campaign, window_start, impressions, clicks, rate, timing FROM conversions ORDER BY 1, 2"
    millrace query "SELECT campaign, sum(clicks) * 100.0 / sum(impressions) AS percent FROM conversions GROUP BY 1"
"""

from millrace import Pipeline, agg, log, on, window

impressions = log("impressions", schema="impression STRING, campaign STRING, at TIMESTAMP")
clicks = log("clicks", schema="impression STRING, at TIMESTAMP")

answered = impressions.event_time("at", delay="1m").join(
    # Both have a column `at`: the one of the clicks gets another name before it becomes the event time.
    clicks.select("impression", clicked_at="at").event_time("clicked_at", delay="1m"),
    on="impression",
    how="left",  # impressions without a click stay
    within=("0s", "1h"),  # a click comes up to an hour after its impression
    lateness="1h",  # and its record may be held up for another hour
    unmatched="early",
)

conversions = (
    answered.event_time("at")  # the hour of the impression; without it, a pair has the time of its click
    .group_by("campaign")
    .window(window.fixed("1h"), lateness="2h")  # a click corrects the hour of its impression
    .trigger(on.watermark(early=on.each(), late=on.each()))
    .retracting()
    .aggregate(impressions=agg.count(), clicks=agg.count("clicked_at"))
)

photon = Pipeline("conversions", views={"conversions": conversions.with_columns(rate="clicks / impressions")})
