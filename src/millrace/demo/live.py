"""The live demo: listeners append plays to a log, Spark counts them in micro-batches, and the top tracks are shown."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console

from millrace.demo.charts import TOPIC, VIEW, charts
from millrace.demo.listeners import Listeners
from millrace.demo.page import page
from millrace.demo.shown import DemoDisplay, Schedule
from millrace.demo.summary import Comparison, compare, summary
from millrace.eventlog.topics import Log
from millrace.model.errors import MachineError, PipelineError
from millrace.running.ending import told_to_end
from millrace.running.status import Report
from millrace.running.views import KeptViews
from millrace.spark import batch, session, stream
from millrace.spark.progress import BatchProgress
from millrace.views.store import Store, open_store

_SECONDS = 30.0
_PATIENCE = 60.0
"""How many seconds the view may take to catch up with the last plays."""


def seconds_of(text: str | None) -> float:
    """For how long the demo shows answers, from the text of DEMO_SECONDS; with `inf` until a signal ends it."""
    if not text:
        return _SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise PipelineError(f"DEMO_SECONDS must be a number of seconds above 0, or inf, not {text!r}")
    return seconds


def show(console: Console) -> bool:
    """Run the demo to its summary; returns whether the view equals a batch over the same log.

    The page is served meanwhile; its address is printed first. Answers are shown for DEMO_SECONDS, by default 30,
    counted from the first answers. SIGINT, SIGTERM and SIGHUP end the demo earlier; if there are no answers by then,
    nothing is compared and the result is True.
    """
    schedule = Schedule(seconds_of(os.environ.get("DEMO_SECONDS")))
    with TemporaryDirectory(prefix="millrace-demo-") as name, told_to_end() as told:
        folder = Path(name)
        log = Log(folder / "log.db")
        log.create(TOPIC)
        store = open_store(folder / "views.db")
        listeners = Listeners(log, TOPIC)
        shown = DemoDisplay(console, store, schedule, lambda: listeners.now)
        spark: SparkSession | None = None
        compared: Comparison | None = None
        try:
            with page(folder, log, store) as address:
                console.out(address, highlight=False)
                console.file.flush()
                with shown:
                    spark = session.start("millrace demo", "local[*]", folder / "spark.log")
                    if not told:
                        compared = _count(spark, log, store, listeners, shown, told, folder / charts.name)
            console.print(summary(shown.tally, compared, shown.elapsed), soft_wrap=True, highlight=False)
        finally:
            listeners.stop()
            if spark is not None:
                session.stop(spark)
        return compared is None or compared.is_same


def _count(
    spark: SparkSession,
    log: Log,
    store: Store,
    listeners: Listeners,
    shown: DemoDisplay,
    told: list[int],
    checkpoint: Path,
) -> Comparison | None:
    """Run the stream until its time is over, then compare; None if a signal ended it before the first answers."""
    shown.enter("warming up", "Spark has started; its first micro-batch takes the longest")
    listeners.start()
    report = Report(charts)

    def on_batch(progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        report.batch(checkpoint, progress)
        shown.batch(progress, answers)

    run = stream.start(spark, charts, checkpoint, views=KeptViews(store, charts), log=log.path, on_batch=on_batch)
    while not told and not shown.is_over and not run.wait(0.1):
        listeners.check()
        shown.tick()
    listeners.stop()
    if shown.tally.first is None:
        run.stop(patience=0)
        if told:
            return None
        problem = f"the pipeline produced no answers within {shown.elapsed:.0f} s"
        raise MachineError(problem, "try again when the machine is less busy")
    shown.enter("last plays", "the time is over: counting the last plays, then comparing with a batch")
    deadline = time.monotonic() + _PATIENCE
    while _counted(store) < listeners.counting and time.monotonic() < deadline and not run.wait(0.1):
        pass
    run.stop()
    shown.enter("checking")
    return compare(store, batch.collect(spark, charts, log=log.path).answers[f"view {VIEW}"])


def _counted(store: Store) -> int:
    ((counted,),) = store.query(f"SELECT coalesce(sum(plays), 0) FROM {VIEW}").rows
    return int(counted)
