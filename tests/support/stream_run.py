"""A pipeline as a stream on the shared Spark session, from its start until it has caught up."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from millrace import Pipeline
from millrace.running.views import KeptViews
from millrace.sources.memory import MemoryScript
from millrace.spark import stream
from millrace.spark.progress import BatchProgress
from millrace.views.store import open_store


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    folder: Path,
    scripts: Mapping[str, MemoryScript] | None = None,
    **options: Any,
) -> list[tuple[BatchProgress, Mapping[str, pa.Table]]]:
    """Run a pipeline until it has caught up; what it said, a micro-batch at a time. Views go to `store`, if any."""
    batches: list[tuple[BatchProgress, Mapping[str, pa.Table]]] = []
    with ExitStack() as held:
        if "store" in options:
            store = held.enter_context(closing(open_store(options.pop("store"))))
            options["views"] = KeptViews(store, pipeline)
        started = stream.start(
            spark, pipeline, folder / "checkpoint", until_caught_up=True, scripts=scripts,
            on_batch=lambda progress, answers: batches.append((progress, answers)), **options,
        )  # fmt: skip
        held.callback(started.stop)
        started.wait()
    return batches
