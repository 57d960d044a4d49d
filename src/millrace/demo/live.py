"""The demo: listeners send plays to a log, the charts are computed in micro-batches, the top of the view is shown."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.demo.charts import TOPIC, VIEW, charts
from millrace.demo.listeners import Listeners
from millrace.eventlog.topics import Log
from millrace.running.ending import told_to_end
from millrace.running.views import KeptViews
from millrace.spark import batch, session, stream
from millrace.spark.progress import BatchProgress
from millrace.views.store import Store, open_store

_COLOURS = {"early": "yellow", "on-time": "green", "late": "magenta"}
_MEANING = (
    "[yellow]early[/yellow]: the hour is not over   [green]on-time[/green]: the watermark has passed it   "
    "[magenta]late[/magenta]: corrected after that"
)
_PATIENCE = 60
"""How many seconds the view may take to catch up with the last plays."""


def show(console: Console) -> bool:
    """Run until told to end, or for DEMO_SECONDS; whether the view was then what a batch computes from the same log."""
    began = time.monotonic()
    seconds = float(os.environ.get("DEMO_SECONDS") or "inf")
    with TemporaryDirectory(prefix="millrace-demo-") as name, told_to_end() as told:
        folder = Path(name)
        log = Log(folder / "log.db")
        log.create(TOPIC)
        store = open_store(folder / "views.db")
        shown = Shown(console, store, began)
        listeners = Listeners(log, TOPIC)
        listeners.start()
        console.print("Plays are being sent to a log; starting Spark to count them by track and hour.", style="dim")
        spark = session.start("millrace demo", "local[*]", folder / "spark.log")
        try:
            run = stream.start(
                spark, charts, folder / "checkpoint", views=KeptViews(store, charts), log=log.path,
                on_batch=shown.batch,
            )  # fmt: skip
            with shown:
                while not told and time.monotonic() - began < seconds and not run.wait(0.2):
                    _check(listeners)
            if told:
                console.print("Stopping.", style="dim")
            listeners.stop()
            _wait_for(store, listeners.counting)
            run.stop()
            found = batch.collect(spark, charts, log=log.path).answers[f"view {VIEW}"]
            return _summary(console, store, found, listeners, shown)
        finally:
            listeners.stop()
            session.stop(spark)


class Shown:
    """The top of the view: on a terminal a table that changes, else lines."""

    def __init__(self, console: Console, store: Store, began: float) -> None:
        """Nothing yet."""
        self._console, self._store, self._began = console, store, began
        self._live = Live(console=console, refresh_per_second=8) if console.is_terminal else None
        self.timings: dict[str, int] = dict.fromkeys(_COLOURS, 0)
        self.retracted = self.batches = self.rows = 0
        self.first: float | None = None

    def __enter__(self) -> "Shown":
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def batch(self, progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        """Show what a micro-batch has changed."""
        said = answers[f"view {VIEW}"]
        self.batches += 1
        self.rows += progress.rows
        for timing, diff in zip(said["timing"].to_pylist(), said["diff"].to_pylist(), strict=True):
            if diff > 0:
                self.timings[timing] += 1
            else:
                self.retracted += 1
        if not len(said):
            return
        if self.first is None:
            self.first = time.monotonic() - self._began
        changed = {(row["track"], row["window_start"].strftime("%H:%M")) for row in said.to_pylist()}
        rows = _top(self._store)
        if self._live is not None:
            self._live.update(Group(self._table(rows, changed, progress), Text.from_markup(_MEANING)))
        else:
            best = ", ".join(f"{row['track']} {row['plays']} {row['timing']}" for row in rows[:3])
            line = f"{time.monotonic() - self._began:5.1f} s, {progress.rows:,} plays: {len(said)} changes"
            self._console.out(f"{line}; top of {rows[0]['hour']}: {best}", highlight=False)

    def _table(self, rows: list[dict[str, Any]], changed: set[tuple[str, str]], progress: BatchProgress) -> Table:
        spent = time.monotonic() - self._began
        title = f"charts by the hour: {self.rows:,} plays after {spent:.0f} s, {progress.rows_per_second:,.0f} plays/s"
        corrected = f"{self.retracted:,} answers taken back and replaced, {self.timings['late']:,} of them late"
        table = Table(title=title, caption=corrected)
        for heading in ("hour", "track", "plays", "listeners", "answer", "pane"):
            table.add_column(heading, justify="right" if heading in ("plays", "listeners", "pane") else "left")
        hour = None
        for row in rows:
            if hour not in (None, row["hour"]):
                table.add_section()
            hour = row["hour"]
            style = "bold" if (row["track"], row["hour"]) in changed else ""
            answer = Text(row["timing"], style=_COLOURS[row["timing"]])
            table.add_row(
                row["hour"], row["track"], f"{row['plays']:,}", f"{row['listeners']:,}", answer, str(row["index"]),
                style=style,
            )  # fmt: skip
        return table


def _top(store: Store) -> list[dict[str, Any]]:
    """The first five tracks of each of the last four hours."""
    found = store.query(
        f'SELECT substr(window_start, 12, 5) AS hour, track, plays, listeners, timing, "index" FROM '
        f"(SELECT *, row_number() OVER (PARTITION BY window_start ORDER BY plays DESC, track) AS place, "
        f"dense_rank() OVER (ORDER BY window_start DESC) AS age FROM {VIEW}) "
        "WHERE place <= 4 AND age <= 4 ORDER BY window_start DESC, place"
    )
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def _wait_for(store: Store, plays: int) -> None:
    """Wait until the view has counted every play that counts."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        ((counted,),) = store.query(f"SELECT coalesce(sum(plays), 0) FROM {VIEW}").rows
        if counted >= plays:
            return
        time.sleep(0.2)


def _check(listeners: Listeners) -> None:
    if listeners.failure is not None:
        raise listeners.failure


def _summary(console: Console, store: Store, found: pa.Table, listeners: Listeners, shown: Shown) -> bool:
    held = store.query(f"SELECT track, window_start, plays, listeners FROM {VIEW}").rows
    computed = {(row["track"], row["window_start"].strftime("%Y-%m-%dT%H:%M"), row["plays"], row["listeners"])
                for row in found.to_pylist()}  # fmt: skip
    served = {(track, str(start)[:16].replace(" ", "T"), plays, listeners_) for track, start, plays, listeners_ in held}
    same = computed == served and len(held) == len(found)
    first = "never" if shown.first is None else f"{shown.first:.1f} s after the start"
    said = ", ".join(f"{many:,} {timing}" for timing, many in shown.timings.items())
    console.print()
    console.print(f"{listeners.sent:,} plays sent, {shown.rows:,} taken in by {shown.batches:,} micro-batches.")
    console.print(f"First answers {first}.")
    console.print(f"Answers: {said}; {shown.retracted:,} taken back.")
    if same:
        console.print(f"[green]The view equals a batch recomputation of the same log:[/green] {len(held):,} rows.")
    else:
        missing, extra = len(computed - served), len(served - computed)
        console.print(
            f"[red]The view differs from a batch recomputation of the same log:[/red] "
            f"{missing:,} rows missing, {extra:,} that should not be there."
        )
    return same
