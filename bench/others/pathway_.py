"""The Yahoo benchmark in pathway: tables, a temporal window, reduced incrementally."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import pathway as pw

folder, given = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())


class Event(pw.Schema):
    ad_id: str
    event_type: str
    event_time: str


events = pw.io.jsonlines.read(folder, schema=Event, mode="static")
ads = pw.debug.table_from_rows(pw.schema_from_types(ad_id=str, campaign_id=str), list(given.items()))
views = events.filter(events.event_type == "view")
joined = views.join(ads, views.ad_id == ads.ad_id).select(
    ads.campaign_id, at=views.event_time.dt.strptime("%Y-%m-%dT%H:%M:%S.%fZ")
)
windows = joined.windowby(joined.at, window=pw.temporal.tumbling(timedelta(seconds=10)), instance=joined.campaign_id)
counted = windows.reduce(campaign=pw.this._pw_instance, start=pw.this._pw_window_start, views=pw.reducers.count())
total = 0


def on_change(key, row, time, is_addition):
    global total
    total += row["views"] if is_addition else -row["views"]


pw.io.subscribe(counted, on_change)
began = time.monotonic()
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
print(json.dumps({"seconds": time.monotonic() - began, "views": total}))
