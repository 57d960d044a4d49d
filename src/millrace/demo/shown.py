"""The display of the demo while it runs: a live table on a terminal, otherwise a line every few seconds."""

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console, RenderableType
from rich.live import Live

from millrace.demo.charts import VIEW
from millrace.demo.picture import Screen, line, table
from millrace.demo.tally import HOURS, Chart, Tally, chart_of
from millrace.spark.progress import BatchProgress
from millrace.views.store import Store

BETWEEN_LINES = 3.0
"""The minimum number of seconds between two lines."""
_NO_ANSWERS = 180.0
"""How many seconds the demo waits for the first answers."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """For how many seconds the demo shows answers; the start of Spark does not count."""

    seconds: float

    def is_over(self, elapsed: float, first: float | None) -> bool:
        """Whether the ending must begin, if the first answers came at `first`; both in seconds since the start."""
        return elapsed >= (_NO_ANSWERS if first is None else first + self.seconds)

    def status(self, phase: str | None, elapsed: float, first: float | None) -> str:
        """The phase and its time: since the first answers while answers are shown, otherwise since the start."""
        if phase is not None or first is None:
            return f"{phase}, {elapsed:.0f} s"
        of = f" of {self.seconds:.0f}" if self.seconds < math.inf else ""
        return f"live, {elapsed - first:.0f}{of} s"


class DemoDisplay:
    """Updates the figures of the demo and shows them."""

    def __init__(
        self,
        console: Console,
        store: Store,
        schedule: Schedule,
        listeners_clock: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._store, self._schedule = console, store, schedule
        self._listeners_clock, self._clock = listeners_clock, clock
        self._began = clock()
        self._phase: str | None = "starting Spark"
        self._terminal = console
        self._live: Live | None = None
        self._printed, self._printed_batches = -BETWEEN_LINES, 0
        self.tally = Tally()

    def __enter__(self) -> "DemoDisplay":
        if self._console.is_terminal:
            # File descriptor 1 is redirected to Spark's log while Spark starts; the table needs a copy of the terminal.
            self._terminal = Console(file=os.fdopen(os.dup(1), "w", encoding=self._console.encoding))
            self._live = Live(console=self._terminal, refresh_per_second=4, get_renderable=self._picture)
            self._live.start(refresh=True)
        else:
            self._print("Made-up plays of music are counted by track and hour; starting Spark")
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._phase = "ended"
            with suppress(OSError):  # the terminal may have been closed
                self._live.stop()
                self._terminal.file.close()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    @property
    def is_over(self) -> bool:
        """Whether the ending must begin."""
        return self._schedule.is_over(self.elapsed, self.tally.first)

    def enter(self, phase: str, meaning: str | None = None) -> None:
        """Begin a phase other than the counting: the table shows `phase`; without a table, `meaning` is printed."""
        self._phase = phase
        if self._live is None and meaning is not None:
            self._print(f"{self.elapsed:5.1f} s  {meaning}")

    def batch(self, progress: BatchProgress, answers: Mapping[str, pa.Table]) -> None:
        """Update the figures after a micro-batch. Spark calls this in another thread."""
        name = f"view {VIEW}"
        before = self.tally
        self.tally = before.after(
            progress.rows, progress.parts[name].watermark, answers[name], _chart(self._store), self.elapsed
        )
        if before.first is None and self.tally.first is not None:
            self._phase = None

    def tick(self) -> None:
        """Print a line if one is due and a micro-batch has ended since the last one."""
        tally, elapsed = self.tally, self.elapsed
        if self._live is not None or tally.first is None or tally.batches == self._printed_batches:
            return
        if elapsed - self._printed >= BETWEEN_LINES:
            self._printed, self._printed_batches = elapsed, tally.batches
            self._print(line(tally, self._listeners_clock(), elapsed))

    def _picture(self) -> RenderableType:
        console, status = self._terminal, self._schedule.status(self._phase, self.elapsed, self.tally.first)
        screen = Screen(console.width, console.height, not console.options.ascii_only)
        return table(self.tally, self._listeners_clock(), status, screen)

    def _print(self, text: str) -> None:
        self._console.out(text, highlight=False)
        self._console.file.flush()


def _chart(store: Store) -> Chart:
    found = store.query(
        f'SELECT substr(window_start, 12, 5), track, plays, timing, "index" FROM '
        f"(SELECT *, dense_rank() OVER (ORDER BY window_start DESC) AS age FROM {VIEW}) "
        f"WHERE age <= {HOURS} ORDER BY window_start"
    )
    return chart_of(found.rows)
