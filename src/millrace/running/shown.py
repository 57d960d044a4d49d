"""The display of a run: a live table on a terminal, otherwise a line per micro-batch, or JSON lines."""

import time
from collections.abc import Callable, Mapping

import pyarrow as pa
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.model.duration import SECOND, format_duration
from millrace.model.plain import visible
from millrace.running.health import Health
from millrace.running.table import instant
from millrace.running.totals import Totals, many
from millrace.spark.progress import BatchProgress, clock_notice

_LAST = 5
"""How many recent answers are shown for each output."""


class RunDisplay:
    """The display of one run."""

    def __init__(self, console: Console, name: str, as_json: bool, behind: Callable[[], int | None]) -> None:
        """Start with nothing to show. `behind` returns the lag in records, or None."""
        self._console, self._name, self._as_json, self._behind = console, name, as_json, behind
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal and not as_json else None
        self.totals = Totals()
        self._began = time.monotonic()
        self._last: dict[str, pa.Table] = {}
        self._health = Health()
        self._warned: set[str] = set()
        """What the user was warned about, and still is."""

    def __enter__(self) -> "RunDisplay":
        starting = "starting Spark, then waiting for the first rows"
        if self._live is not None:
            self._live.__enter__()
            self._live.update(f"[bold]{self._name}[/bold]: {starting}")
        elif not self._as_json:
            self._console.out(f"{self._name}: {starting}", highlight=False)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def batch(self, progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        """Show a micro-batch."""
        self.totals = self.totals.after(progress)
        self._last |= {name: table.slice(max(0, len(table) - _LAST)) for name, table in answers.items() if len(table)}
        notice = clock_notice(progress.clock_moved)
        if notice is not None and not self._as_json:
            self._console.out(f"{self._name}: {notice}", highlight=False)
        self._warn(progress)
        if self._as_json:
            self._console.out(progress.to_json(), highlight=False)
        elif self._live is not None:
            self._live.update(Group(self._table(progress), *self._last_answers()))
        elif progress.rows or any(map(len, answers.values())):
            self._console.out(self._line(progress), highlight=False)

    def _warn(self, progress: BatchProgress) -> None:
        """Print each warning when it begins to hold."""
        self._health = self._health.after(progress, time.monotonic())
        warnings = self._health.warnings()
        for about, sentence in warnings.items():
            if about not in self._warned and not self._as_json:
                self._console.out(f"{self._name}: {sentence}", highlight=False)
        self._warned = {*warnings}

    def summary(self) -> str:
        """The counts of the run in a line."""
        return self.totals.summary(time.monotonic() - self._began)

    def _line(self, progress: BatchProgress) -> str:
        parts = [
            f"{name.partition(' ')[2]}: {many(part.answers, 'answer')}, watermark {instant(part.watermark)}"
            for name, part in progress.parts.items()
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
        table = Table(title=title, caption=f"{rate}\n{phases}")
        for heading in ("output", "watermark", "behind", "open windows", "state", "too late", "errors", "answers"):
            table.add_column(heading, justify="left" if heading == "output" else "right")
        for name, part in progress.parts.items():
            lag = "" if part.lag is None else format_duration(max(0, part.lag // SECOND * SECOND))
            table.add_row(
                name, instant(part.watermark), lag, f"{part.groups:,}", f"{part.bytes / 1e6:.1f} MB",
                f"{part.dropped:,}", f"{part.errors:,}", f"{part.answers:,}",
            )  # fmt: skip
        return table

    def _last_answers(self) -> list[Table]:
        tables = []
        for name, rows in self._last.items():
            table = Table(title=f"last of {name}", title_justify="left")
            for heading in rows.column_names:
                table.add_column(Text(visible(heading)))
            for row in rows.to_pylist():
                table.add_row(*(_cell(value) for value in row.values()))
            tables.append(table)
        return tables


def _cell(value: object) -> Text:
    return Text("" if value is None else visible(str(value).removesuffix("+00:00"))[:40])
