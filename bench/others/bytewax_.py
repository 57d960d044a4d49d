"""The Yahoo benchmark in bytewax: a dataflow of operators, windows by event time."""

import json
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import bytewax.operators as op
from bytewax.connectors.files import DirSource
from bytewax.dataflow import Dataflow
from bytewax.operators.windowing import EventClock, TumblingWindower, count_window
from bytewax.testing import TestingSink, cluster_main

folder, ads = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
out: list = []
flow = Dataflow("yahoo")
lines = op.input("lines", flow, DirSource(folder))
events = op.map("decode", lines, json.loads)
views = op.filter("views", events, lambda event: event["event_type"] == "view")
joined = op.map("join", views, lambda event: (ads[event["ad_id"]], datetime.fromisoformat(event["event_time"])))
# All files are read at the same time, and each goes on where the one before it ends: with less patience than all of
# them span, what the later ones hold would make that of the earlier ones late.
clock = EventClock(lambda pair: pair[1], wait_for_system_duration=timedelta(minutes=30))
windower = TumblingWindower(length=timedelta(seconds=10), align_to=datetime(2026, 1, 1, tzinfo=timezone.utc))
counted = count_window("count", joined, clock, windower, lambda pair: pair[0])
op.output("out", counted.down, TestingSink(out))

began = time.monotonic()
cluster_main(flow, [], 0, worker_count_per_proc=2)
print(json.dumps({"seconds": time.monotonic() - began, "views": sum(count for _, (_, count) in out)}))
