"""Sessions of users, with the plan that each had at the time.

Shows a join with a table that changes while the pipeline runs, as of the time of each page view, and sessions: page
views of a user that are less than half an hour apart. From the root of the repository:

    millrace send page_views examples/data/page_views.json --create
    cp examples/data/users.csv .millrace/users.csv
    millrace run examples/clickstream_enrichment.py --until-caught-up
    millrace query "SELECT user, window_start, pages, plan, plan_after FROM sessions ORDER BY 1, 2"

Then Ann begins to pay, and Bob stops. A page view that is late finds the plan of its own time, and where it falls
between two sessions, they become one:

    cat examples/data/users_later.csv >> .millrace/users.csv
    millrace send page_views examples/data/page_views_late.json
    millrace run examples/clickstream_enrichment.py --until-caught-up
    millrace query "SELECT user, window_start, pages, plan, plan_after FROM sessions WHERE plan <> plan_after"

A view of another pipeline can be such a table too: table(..., view="name").
"""

from pathlib import Path

from millrace import Pipeline, agg, log, on, table, window

views = log("page_views", schema="user STRING, page STRING, at TIMESTAMP")
users = table(
    "users",
    schema="user STRING, since TIMESTAMP, plan STRING",
    path=str(Path(".millrace/users.csv").absolute()),
)

sessions = (
    views.event_time("at", delay="1m")
    .join(users, on="user", how="left", as_of="since")
    .with_columns(plan="coalesce(plan, 'none')")  # visitors are in no table
    .group_by("user")
    .window(window.session("30m"), lateness="1d")
    .trigger(on.watermark(early=on.each(), late=on.each()))
    .retracting()
    .aggregate(pages=agg.count(), visited=agg.collect_set("page"), plan=agg.first("plan"), plan_after=agg.last("plan"))
)

clickstream = Pipeline("clickstream", views={"sessions": sessions})
