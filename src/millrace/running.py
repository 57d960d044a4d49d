"""Running a pipeline from a file, as the command line does it, with what a person wants to see of it."""

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from millrace.model.duration import SECOND, format_duration, to_datetime
from millrace.model.errors import ModelError, unknown
from millrace.model.pipeline import Pipeline
from millrace.spark.outputs import check_sources
from millrace.spark.progress import BatchProgress
from millrace.spark.writers import parse_guarantee


def load(file: Path, name: str | None = None) -> Pipeline:
    """The pipeline in a Python file; of several, the one of that name."""
    if not file.is_file():
        raise ModelError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    if spec is None or spec.loader is None:
        raise ModelError(f"{file} is not a Python file")
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    # Spark's workers import what the file imports from beside it.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    found = {value.name: value for value in vars(module).values() if isinstance(value, Pipeline)}
    if not found:
        raise ModelError(f"{file} holds no pipeline; make one: charts = Pipeline('charts', views={{...}})")
    if name is None and len(found) > 1:
        raise ModelError(f"{file} holds several pipelines; choose one with --pipeline: {', '.join(found)}")
    if name is not None and name not in found:
        raise ModelError(unknown("pipeline", name, tuple(found)))
    return found[name] if name is not None else next(iter(found.values()))


class Shown:
    """What is shown of a run: a table that changes on a terminal, else a line a micro-batch, or JSON lines."""

    def __init__(self, console: Console, pipeline: Pipeline, as_json: bool) -> None:
        """Start with nothing to show."""
        self._console, self._pipeline, self._as_json = console, pipeline, as_json
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal and not as_json else None
        self.batches = self.rows = self.answers = self.dead = 0
        self._began = time.monotonic()

    def __enter__(self) -> "Shown":
        if self._live is not None:
            self._live.__enter__()
            self._live.update(f"[bold]{self._pipeline.name}[/bold]: starting Spark, then waiting for the first rows")
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def batch(self, progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        """Show a micro-batch."""
        self.batches += 1
        self.rows += progress.rows
        self.answers += sum(map(len, answers.values()))
        self.dead += progress.dead_letters
        if self._as_json:
            self._console.out(progress.to_json(), highlight=False)
        elif self._live is not None:
            self._live.update(self._table(progress))
        elif progress.rows or any(map(len, answers.values())):
            self._console.out(self._line(progress), highlight=False)

    def summary(self) -> str:
        """All in all."""
        spent = time.monotonic() - self._began
        dead = f", {self.dead:,} dead letters" if self.dead else ""
        return f"{self.rows:,} rows in {self.batches:,} micro-batches, {self.answers:,} answers{dead}, {spent:.1f} s"

    def _line(self, progress: BatchProgress) -> str:
        parts = [
            f"{name.partition(' ')[2]}: {part.answers:,} answers, watermark {_when(part.watermark)}"
            for name, part in progress.parts.items()
        ]
        dead = f", {progress.dead_letters:,} dead letters" if progress.dead_letters else ""
        rate = f"{progress.rows:,} rows, {progress.rows_per_second:,.0f} rows/s{dead}"
        return f"batch {progress.batch}: {rate}; {'; '.join(parts)}"

    def _table(self, progress: BatchProgress) -> Table:
        phases = ", ".join(f"{name} {spent:.2f} s" for name, spent in progress.phases.items())
        table = Table(title=f"{self._pipeline.name}, batch {progress.batch}: {self.summary()}", caption=phases)
        for heading in ("output", "watermark", "behind", "open windows", "state", "too late", "answers"):
            table.add_column(heading, justify="left" if heading == "output" else "right")
        for name, part in progress.parts.items():
            lag = "" if part.lag is None else format_duration(max(0, part.lag // SECOND * SECOND))
            table.add_row(
                name, _when(part.watermark), lag, f"{part.groups:,}", f"{part.bytes / 1e6:.1f} MB",
                f"{part.dropped:,}", f"{part.answers:,}",
            )  # fmt: skip
        return table


def run_stream(console: Console, pipeline: Pipeline, checkpoint: Path, as_json: bool, **options: object) -> str:
    """Run in micro-batches, until it ends or is told to; what was done, in a line."""
    from millrace.spark import session, stream

    check_sources(pipeline, {})  # a mistake is better known before Spark is started than after
    parse_guarantee(str(options["guarantee"]))
    with Shown(console, pipeline, as_json) as shown:
        master = str(options.pop("master"))
        spark = session.start(f"millrace {pipeline.name}", master, checkpoint / "spark.log")
        run = stream.start(spark, pipeline, checkpoint, on_batch=shown.batch, **options)  # type: ignore[arg-type]
        told: list[int] = []

        def end(number: int, frame: FrameType | None) -> None:
            told.append(number)

        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while not told and not run.wait(1):
                pass
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            run.stop()
            session.stop(spark)
    return f"{'stopped' if told else 'caught up'}: {shown.summary()}"


def run_batch(console: Console, pipeline: Pipeline, checkpoint: Path, **options: object) -> str:
    """Run once over all there is; what was done, in a line."""
    from millrace.spark import batch, session

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    began = time.monotonic()
    with bar:
        task = bar.add_task("starting Spark", total=None)
        check_sources(pipeline, {})
        spark = session.start(f"millrace {pipeline.name}", str(options.pop("master")), checkpoint / "spark.log")
        bar.update(task, description=f"reading for {pipeline.name}")
        store = options.pop("store") or checkpoint / "views.db"
        found = batch.run(
            spark, pipeline, str(store), dead_letters=checkpoint / "dead_letters",
            on_tasks=lambda done, total: bar.update(task, completed=done, total=total or None), **options,  # type: ignore[arg-type]
        )  # fmt: skip
        session.stop(spark)
        bar.update(task, description="done")
    progress = found.progress(0, {})
    spent = time.monotonic() - began
    dead = f", {progress.dead_letters:,} dead letters" if progress.dead_letters else ""
    return f"done: {progress.rows:,} rows, {sum(map(len, found.answers.values())):,} answers{dead}, {spent:.1f} s"


def _when(watermark: int | None) -> str:
    if watermark is None:
        return "unknown"
    try:
        return f"{to_datetime(watermark):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError):
        return "the end"
