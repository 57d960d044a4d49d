"""Card payments that look wrong: many in a few minutes, from two countries at once, or for a lot of money.

Shows sliding windows for each card, and a function that is called with new answers. A query answers for every card;
what is an alert is decided where answers are read, in SQL or in a function. From the root of the repository:

    millrace send payments examples/data/payments.json --create
    millrace run examples/fraud_spotting.py --until-caught-up
    cat .millrace/alerts/*

Then the rest, and payments of terminals that were offline. One of them is more than two hours old, and lateness="1h"
allows for less: it is dropped, and counted as too late in what is shown of the run.

    millrace send payments examples/data/payments_late.json
    millrace run examples/fraud_spotting.py --until-caught-up
    millrace query "SELECT card, min(window_start) AS since, max(payments) AS payments, max(total) / 100.0 AS total
        FROM card_use WHERE payments >= 5 OR json_array_length(countries) > 1 OR total > 100000 GROUP BY card"
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace import Pipeline, agg, log, on, to_function, window

payments = log("payments", schema="card STRING, cents BIGINT, country STRING, at TIMESTAMP")

use = (
    payments.event_time("at", delay="10s")
    .group_by("card")
    .window(window.sliding("10m", every="2m"), lateness="1h")
    .trigger(on.watermark(early=on.each(), late=on.each()))
    .accumulating()  # what was seen does not become less, so no alert is ever taken back
    .aggregate(payments=agg.count(), countries=agg.collect_set("country"), total=agg.sum("cents"))
)


def alert(rows: list[Mapping[str, Any]], batch: int) -> None:
    """Write a file for each micro-batch; one that is run again after a crash writes the same file again."""
    wrong = [row for row in rows if row["payments"] >= 5 or len(row["countries"]) > 1 or row["total"] > 100000]
    folder = Path(".millrace/alerts")
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, default=str) + "\n" for row in wrong)
    (folder / f"{batch:09}.json").write_text(text, encoding="utf-8")


fraud = Pipeline("fraud", views={"card_use": use}, sinks=[use.to(to_function(alert))])
