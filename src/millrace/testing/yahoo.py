"""The Yahoo streaming benchmark: ad events as JSON or Parquet, generated from a seed.

The query filters view events, joins each ad to its campaign, and counts by campaign and 10 s of event time. There are
100 campaigns of 10 ads; a third of the events are views; events are up to 5 s out of order, at ten thousand a second.
"""

from pathlib import Path

import duckdb

from millrace.model import trigger as on
from millrace.model.aggregate import count
from millrace.model.inputs import table
from millrace.model.query import Query
from millrace.model.stream import Stream, Table
from millrace.model.window import fixed

SCHEMA = (
    "user_id STRING, page_id STRING, ad_id STRING, ad_type STRING, event_type STRING, event_time TIMESTAMP, "
    "ip_address STRING"
)
ADS = [{"ad_id": f"ad-{n:04}-{n * 7919 % 9973:08x}", "campaign_id": f"campaign-{n // 10:03}"} for n in range(1_000)]


def write(folder: Path, format: str, count: int, rows: int, seed: int = 7) -> None:
    """Write `count` files of `rows` events each; the same seed gives the same events."""
    folder.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("CREATE TABLE ads (n BIGINT, ad_id VARCHAR)")
    connection.executemany("INSERT INTO ads VALUES (?, ?)", [(n, ad["ad_id"]) for n, ad in enumerate(ADS)])
    time = "make_timestamp(1767225600000000 + i * 100 - (hash(i, {seed}, 4) % 5000000)::BIGINT)"
    if format == "json":
        time = f"strftime({time}, '%Y-%m-%dT%H:%M:%S.%fZ')"
    for number in range(count):
        first = number * rows
        connection.execute(
            f"COPY (SELECT printf('%016x', hash(i, {seed}, 1)) AS user_id,"
            f" printf('%016x', hash(i, {seed}, 2)) AS page_id,"
            f" ad_id, ['banner', 'modal', 'sponsored', 'mail'][1 + (hash(i, {seed}, 5) % 4)::BIGINT] AS ad_type,"
            f" ['view', 'click', 'purchase'][1 + (hash(i, {seed}, 3) % 3)::BIGINT] AS event_type,"
            f" {time.format(seed=seed)} AS event_time, printf('10.0.%d.%d', i % 256, i % 199) AS ip_address"
            f" FROM range({first}, {first + rows}) r(i) JOIN ads ON n = (hash(i, {seed}, 6) % 1000)::BIGINT)"
            f" TO '{folder / f'{number:04}.{format}'}' (FORMAT {format.upper()})"
        )


def ads() -> Table:
    """The table of ads and their campaigns."""
    return table("ads", "ad_id STRING, campaign_id STRING", rows=ADS)


def query(events: Stream, mode: str = "on time") -> Query:
    """The benchmark as a user of Millrace writes it; with early answers if `mode` names a mode of panes."""
    windowed = (
        events.where("event_type = 'view'")
        .join(ads(), on="ad_id")
        .event_time("event_time", delay="10s")
        .group_by("campaign_id")
        .window(fixed("10s"))
    )
    if mode != "on time":
        early = windowed.trigger(on.watermark(early=on.each(), late=on.each()))
        windowed = early.retracting() if mode == "retracting" else early.accumulating()
    return windowed.aggregate(views=count())
