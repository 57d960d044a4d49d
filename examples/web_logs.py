"""The error rate and the slowest requests of a web site by minute, from the lines of its access log.

Shows a Python function that parses lines, a line that it rejects, and a quantile. From the root of the repository:

    millrace send access examples/data/access.json --create
    millrace run examples/web_logs.py --until-caught-up
    millrace query "SELECT page, window_start, requests, round(100 * error_rate, 1) AS errors, p95, timing
        FROM pages ORDER BY window_start, page"

One line was cut off. It is a dead letter, with the place in this file where parsing it failed:

    millrace dead list web

Then the rest, with lines of a server that was slow to ship its log: minutes that were over are corrected.

    millrace send access examples/data/access_late.json
    millrace run examples/web_logs.py --until-caught-up
"""

import re
from datetime import datetime
from typing import Any

from millrace import Pipeline, agg, log, on, window

LINE = re.compile(
    r'\S+ - - \[(?P<at>.+?)\] "(?P<method>\S+) (?P<path>\S+) \S+" (?P<status>\d+) \d+ (?P<seconds>[\d.]+)'
)


def parsed(record: dict[str, Any]) -> dict[str, Any]:
    """The fields of a line in the combined format of nginx, with the request time at its end."""
    found = LINE.fullmatch(record["line"])
    if found is None:
        raise ValueError("it is no line of an access log")
    return {
        "page": found["path"].partition("?")[0],
        "failed": int(found["status"]) >= 500,
        "ms": round(1000 * float(found["seconds"])),
        "at": datetime.strptime(found["at"], "%d/%b/%Y:%H:%M:%S %z"),
    }


requests = log("access", schema="line STRING").map(parsed, "page STRING, failed BOOLEAN, ms BIGINT, at TIMESTAMP")

pages = (
    requests.event_time("at", delay="10s")
    .group_by("page")
    .window(window.fixed("1m"), lateness="1h")
    .trigger(on.watermark(early=on.each(), late=on.each()))
    .retracting()
    .aggregate(
        requests=agg.count(),
        error_rate=agg.mean("CASE WHEN failed THEN 1.0D ELSE 0.0D END"),
        p95=agg.approx_quantile("ms", 0.95),
    )
)

web = Pipeline("web", views={"pages": pages})
