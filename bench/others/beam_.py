"""The Yahoo benchmark in Beam, on its direct runner."""

import glob
import json
import sys
import time
from datetime import datetime
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows, TimestampedValue

folder, ads = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
out = str(Path(folder).parent / "beam-out")


def timed(event):
    return TimestampedValue(ads[event["ad_id"]], datetime.fromisoformat(event["event_time"]).timestamp())


began = time.monotonic()
options = PipelineOptions(direct_num_workers=2, direct_running_mode="multi_processing")
with beam.Pipeline(options=options) as pipeline:
    _ = (
        pipeline
        | beam.io.ReadFromText(f"{folder}/*.json")
        | beam.Map(json.loads)
        | beam.Filter(lambda event: event["event_type"] == "view")
        | beam.Map(timed)
        | beam.WindowInto(FixedWindows(10))
        | beam.combiners.Count.PerElement()
        | beam.MapTuple(lambda campaign, count: str(count))
        | beam.io.WriteToText(out)
    )
spent = time.monotonic() - began
views = sum(int(line) for path in glob.glob(f"{out}*") for line in Path(path).read_text().split())
print(json.dumps({"seconds": spent, "views": views}))
