"""Click-through of ads: how many of those who saw an ad of a campaign clicked on it, minute by minute.

Shows a filter, a join with a small table in a CSV file, early answers, and answers that late records correct.
From the root of the repository:

    millrace send ads examples/data/ads.json --create
    millrace run examples/ad_impressions.py --until-caught-up
    millrace query "SELECT campaign, window_start, impressions, clicks, timing FROM click_through"

A minute that is not over is `early`, one that is over `on-time`. One record of the file has no number for an ad: it is
set aside, and millrace dead list ads says why. Then come the rest, and some that were held up:

    millrace send ads examples/data/ads_late.json
    millrace run examples/ad_impressions.py --until-caught-up
    millrace query "SELECT campaign, sum(clicks) * 100.0 / sum(impressions) AS percent FROM click_through GROUP BY 1"
    grep -h 'tea.*T12:00' .millrace/click_through_changes/*

The last command shows all that was said of tea at 12:00: an answer with diff -1 is taken back by the one after it.
"""

from pathlib import Path

from millrace import Pipeline, agg, log, on, table, to_files, window

events = log("ads", schema="ad BIGINT, kind STRING, bot BOOLEAN, at TIMESTAMP")
campaigns = table(
    "campaigns", schema="ad BIGINT, campaign STRING", path=str(Path(__file__).parent / "data" / "campaigns.csv")
)

click_through = (
    events.where("NOT bot")
    .join(campaigns, on="ad")  # an ad of no campaign is left out; how="left" would keep it
    .event_time("at", delay="5s")
    .group_by("campaign")
    .window(window.fixed("1m"), lateness="1h")
    .trigger(on.watermark(early=on.each(), late=on.each()))
    .retracting()
    .aggregate(impressions=agg.count_if("kind = 'impression'"), clicks=agg.count_if("kind = 'click'"))
)

ads = Pipeline(
    "ads",
    views={"click_through": click_through},
    sinks=[click_through.to(to_files(".millrace/click_through_changes", "json"))],
)
