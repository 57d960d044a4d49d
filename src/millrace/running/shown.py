"""The display of runs: on a terminal a live table, or a line for each of several; otherwise lines, or JSON lines."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import pyarrow as pa
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.model.duration import SECOND, format_duration
from millrace.model.plain import visible
from millrace.running.health import Health
from millrace.running.narrow import fitting
from millrace.running.table import instant
from millrace.running.totals import Totals, many
from millrace.running.waiting import Waiting
from millrace.spark.progress import BatchProgress, clock_notice

_LAST = 5
"""How many recent answers are shown for each output."""


class RunDisplays:
    """The displays of runs that share a terminal or a pipe."""

    def __init__(self, console: Console, as_json: bool, several: bool) -> None:
        """Start with nothing to show. Each of `several` runs has a line of the terminal, or its name in each line."""
        self._console, self.as_json, self.several = console, as_json, several
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal and not as_json else None
        self._shown: dict[str, RenderableType] = {}

    def of(self, name: str, behind: Callable[[], int | None]) -> "RunDisplay":
        """The display of a run. `behind` returns its lag in records, or None."""
        display = RunDisplay(self, name, behind)
        display.show("starting Spark, then waiting for the first rows")
        return display

    def __enter__(self) -> "RunDisplays":
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    @property
    def width(self) -> int:
        """The columns of the terminal."""
        return self._console.width

    @property
    def is_live(self) -> bool:
        """Whether what a run shows takes the place of what it showed before."""
        return self._live is not None

    def show(self, name: str, now: RenderableType) -> None:
        """Show a run on the terminal as it is now."""
        assert self._live is not None
        self._shown[name] = now
        self._live.update(Group(*self._shown.values()))

    def print(self, line: str) -> None:
        """Print a line, which stays."""
        self._console.out(line, highlight=False)


class RunDisplay:
    """The display of one run."""

    def __init__(self, all: RunDisplays, name: str, behind: Callable[[], int | None]) -> None:
        """Start with nothing to show."""
        self._all, self._name, self._behind = all, name, behind
        self._totals = Totals()
        self._began = time.monotonic()
        self._last: dict[str, pa.Table] = {}
        self._health = Health()
        self._warned: set[str] = set()
        """What the user was warned about, and still is."""

    def batch(self, progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        """Show a micro-batch."""
        self._totals = self._totals.after(progress)
        self._last |= {name: table.slice(max(0, len(table) - _LAST)) for name, table in answers.items() if len(table)}
        if self._all.as_json:
            self._all.print(json.dumps({"pipeline": self._name, **json.loads(progress.to_json())}))
            return
        notice = clock_notice(progress.clock_moved)
        if notice is not None:
            self._all.print(f"{self._name}: {notice}")
        self._warn(progress)
        if self._all.is_live and not self._all.several:
            self._all.show(self._name, Group(self._table(progress), *self._last_answers()))
        elif self._all.is_live:
            self.show(f"batch {progress.batch}: {progress.rows_per_second:,.0f} rows/s; {self.summary()}")
        elif progress.rows or any(map(len, answers.values())):
            self._all.print(f"{self._name}: {self._line(progress)}" if self._all.several else self._line(progress))

    def waits(self, waiting: Waiting | None) -> None:
        """Show what the run waits for; None if it runs again."""
        if self._all.as_json:
            about = None if waiting is None else asdict(waiting)
            self._all.print(json.dumps({"pipeline": self._name, "waiting": about}))
        else:
            self.show("running again" if waiting is None else str(waiting))

    def failed(self, error: Exception) -> None:
        """Show the error that ended one of several runs; that of a single run is the last thing that is printed."""
        if self._all.several and self._all.as_json:
            self._all.print(json.dumps({"pipeline": self._name, "failed": str(error)}))
        elif self._all.several:
            self.show(f"failed: {error}")

    def show(self, text: str) -> None:
        """Show the state of the run in a line."""
        line = f"{self._name}: {text}"
        if self._all.is_live:
            self._all.show(self._name, Text(line))
        elif not self._all.as_json:
            self._all.print(line)

    def _warn(self, progress: BatchProgress) -> None:
        """Print each warning when it begins to hold."""
        self._health = self._health.after(progress, time.monotonic())
        warnings = self._health.warnings()
        for about, sentence in warnings.items():
            if about not in self._warned:
                self._all.print(f"{self._name}: {sentence}")
        self._warned = {*warnings}

    def summary(self) -> str:
        """The counts of the run in a line."""
        return self._totals.summary(time.monotonic() - self._began)

    def _line(self, progress: BatchProgress) -> str:
        parts = [
            f"{name.partition(' ')[2]}: {many(part.answers, 'answer')}, watermark {instant(part.watermark)}"
            for name, part in progress.outputs.items()
        ]
        dead = f", {many(progress.dead_letters, 'dead letter')}" if progress.dead_letters else ""
        rate = f"{many(progress.rows, 'row')}, {progress.rows_per_second:,.0f} rows/s{dead}"
        return f"batch {progress.batch}: {rate}; {'; '.join(parts)}"

    def _table(self, progress: BatchProgress) -> Table:
        waiting = self._behind()
        # The lag was reported before this micro-batch, so its rows are subtracted.
        behind = None if waiting is None else max(0, waiting - progress.rows)
        title = f"{self._name}, batch {progress.batch}: {self.summary()}"
        rate = f"{progress.rows_per_second:,.0f} rows/s, {progress.seconds:.2f} s a batch"
        rate += "" if behind is None else f", {behind:,} records behind"
        phases = ", ".join(f"{name} {spent:.2f} s" for name, spent in progress.phases.items())
        parts = progress.outputs.values()
        columns = {
            "output": list(progress.outputs),
            "watermark": [instant(part.watermark) for part in parts],
            "behind": [_seconds(part.lag) for part in parts],
            "open windows": [f"{part.groups:,}" for part in parts],
            "state": [f"{part.bytes / 1e6:.1f} MB" for part in parts],
            "too late": [f"{part.dropped:,}" for part in parts],
            "errors": [f"{part.errors:,}" for part in parts],
            "answers": [f"{part.answers:,}" for part in parts],
        }
        unneeded = ["state", *([] if progress.errors else ["errors"]), "watermark"]
        table = Table(title=title, caption=f"{rate}\n{phases}")
        return _filled(table, fitting(columns, self._all.width, unneeded), "output")

    def _last_answers(self) -> list[Table]:
        tables = []
        for name, rows in self._last.items():
            columns = {visible(each): [_cell(value) for value in rows[each].to_pylist()] for each in rows.column_names}
            kept = fitting(columns, self._all.width, ("index", "last", "window_end"))
            tables.append(_filled(Table(title=f"last of {name}", title_justify="left"), kept, *kept))
        return tables


def _filled(table: Table, columns: Mapping[str, Sequence[str]], *to_the_left: str) -> Table:
    for heading in columns:
        table.add_column(Text(heading), justify="left" if heading in to_the_left else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _seconds(length: int | None) -> str:
    return "" if length is None else format_duration(max(0, length // SECOND * SECOND))


def _cell(value: object) -> str:
    return "" if value is None else visible(str(value).removesuffix("+00:00"))[:40]
