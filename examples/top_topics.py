"""The ten hashtags that are used most in each ten minutes, from the first record on.

Shows two stages: one query counts each hashtag, and another ranks the answers of the first. A count that grows takes
the count before it back, so the ranking never holds a hashtag twice. From the root of the repository:

    millrace send hashtags examples/data/hashtags.json --create
    millrace run examples/top_topics.py --until-caught-up
    millrace query "SELECT window_start, tags, uses, top, timing FROM top_topics ORDER BY 1"

Ten minutes that are not over have an `early` ranking. Records that come late correct one that was `on-time`:

    millrace send hashtags examples/data/hashtags_late.json
    millrace run examples/top_topics.py --until-caught-up
    millrace query "SELECT window_start, tags, uses, top, timing FROM top_topics ORDER BY 1"
    millrace query "SELECT tag, window_start, uses FROM popular_tags ORDER BY uses DESC LIMIT 5"

trending_topics.py has the same from a sketch, which is approximate and needs less memory.
"""

from millrace import Pipeline, agg, log, on, window

hashtags = log("hashtags", schema="tag STRING, user STRING, at TIMESTAMP")
ten_minutes = window.fixed("10m")
soon = on.watermark(early=on.each(), late=on.each())

uses = (
    hashtags.event_time("at", delay="30s")
    .group_by("tag")
    .window(ten_minutes, lateness="1h")
    .trigger(soon)
    .retracting()  # a new count takes the one before it back
    .aggregate(uses=agg.count())
)

ranking = (
    uses.window(ten_minutes, lateness="1h")  # an answer counts in the ten minutes that it is about
    .trigger(soon)
    .retracting()
    .aggregate(top=agg.top_k("tag", 10, by="uses"), tags=agg.count(), uses=agg.sum("uses"))
)

topics = Pipeline("top_topics", views={"top_topics": ranking, "popular_tags": uses.where("uses >= 10")})
