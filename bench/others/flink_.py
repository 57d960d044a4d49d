"""The Yahoo benchmark in Flink SQL, from Python."""

import json
import sys
import time
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

folder, given = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
tables.get_config().set("parallelism.default", "2")
tables.get_config().set("table.local-time-zone", "UTC")
# Answers are sent when some have gathered, as Flink's own guide to tuning has it.
tables.get_config().set("table.exec.mini-batch.enabled", "true")
tables.get_config().set("table.exec.mini-batch.allow-latency", "1 s")
tables.get_config().set("table.exec.mini-batch.size", "5000")
small = Path(folder).parent / "ads.csv"
small.write_text("".join(f"{ad},{campaign}\n" for ad, campaign in given.items()))
tables.execute_sql(
    f"CREATE TABLE ads (ad_id STRING, campaign_id STRING) WITH ('connector' = 'filesystem', 'path' = 'file://{small}',"
    " 'format' = 'csv')"
)
# Files are read in no order, so that with less patience than all of them span much would be late.
tables.execute_sql(
    "CREATE TABLE events (ad_id STRING, event_type STRING, event_time TIMESTAMP_LTZ(3),"
    " WATERMARK FOR event_time AS event_time - INTERVAL '30' MINUTE)"
    f" WITH ('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'json',"
    " 'json.timestamp-format.standard' = 'ISO-8601')"
)
tables.execute_sql("CREATE TEMPORARY VIEW ad_views AS SELECT ad_id, event_time FROM events WHERE event_type = 'view'")
began = time.monotonic()
# Ads are counted in their windows and joined to campaigns after that: the other way round the join, which does not
# know that the small table is small, would keep every event. The counts are added up by Flink, as its client in Python
# takes longer to take each of them than Flink to count.
result = tables.execute_sql(
    "SELECT SUM(n) FROM (SELECT a.campaign_id, c.window_start, SUM(c.n) AS n FROM (SELECT ad_id, window_start, COUNT(*) AS n"
    " FROM TABLE(TUMBLE(TABLE ad_views, DESCRIPTOR(event_time), INTERVAL '10' SECOND)) GROUP BY ad_id, window_start,"
    " window_end) c JOIN ads a ON c.ad_id = a.ad_id GROUP BY a.campaign_id, c.window_start)"
)
views = 0
with result.collect() as rows:
    for row in rows:
        views = row[0]  # each corrects the one before it
print(json.dumps({"seconds": time.monotonic() - began, "views": views}))
