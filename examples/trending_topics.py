"""Trending topics: hashtags of the last ten minutes, anew every five minutes.

Shows sliding windows, in which each hashtag counts twice here, the first of each window by SQL, and the same from a
sketch that stays small however many hashtags there are. From the root of the repository:

    millrace send hashtags examples/data/hashtags.json --create
    millrace run examples/trending_topics.py --until-caught-up
    millrace query "SELECT window_end, top FROM trending ORDER BY 1"

A query without a trigger answers when a window is over, and again for what comes late:

    millrace send hashtags examples/data/hashtags_late.json
    millrace run examples/trending_topics.py --until-caught-up
    millrace query "SELECT * FROM (SELECT window_end, tag, uses, people, timing, row_number() OVER
        (PARTITION BY window_end ORDER BY uses DESC, tag) AS place FROM tag_uses) WHERE place <= 3 ORDER BY 1, 6"
"""

from millrace import Pipeline, agg, log, window

hashtags = log("hashtags", schema="tag STRING, user STRING, at TIMESTAMP")
timed = hashtags.event_time("at", delay="30s")
last_ten_minutes = window.sliding("10m", every="5m")

uses = (
    timed.group_by("tag")
    .window(last_ten_minutes, lateness="1h")
    .aggregate(uses=agg.count(), people=agg.approx_distinct("user"))
)
trending = timed.window(last_ten_minutes, lateness="1h").aggregate(top=agg.approx_top_k("tag", 5))

topics = Pipeline("trending_topics", views={"tag_uses": uses, "trending": trending})
