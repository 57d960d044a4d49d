"""The figures of the demo: the counts of rows and answers so far, and the chart of the top tracks. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from millrace.model.pane import Timing

TOP, HOURS = 10, 3
"""The number of tracks and of latest hours in the chart."""
_RATE_OVER = 6.0
"""The number of seconds over which the rate is averaged."""
_HOLD = 3.0
"""The minimum number of seconds for which a correction is shown, so that it can be read."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The newest answer for a track and an hour."""

    plays: int
    mark: Timing
    corrected: int
    """How many answers it replaces."""


@dataclass(frozen=True, slots=True)
class Track:
    """A track in the chart."""

    name: str
    cells: tuple[Cell | None, ...]
    """One for each hour of the chart; None while there is no answer."""

    @property
    def plays(self) -> int:
        """Plays in all hours of the chart."""
        return sum(cell.plays for cell in self.cells if cell is not None)

    @property
    def corrected(self) -> int:
        """How often an answer in these hours was retracted and replaced."""
        return sum(cell.corrected for cell in self.cells if cell is not None)


@dataclass(frozen=True, slots=True)
class Chart:
    """The tracks with the most plays in the latest hours."""

    hours: tuple[str, ...] = ()
    """The oldest first, as HH:MM."""
    tracks: tuple[Track, ...] = ()
    """The one with the most plays first."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A late answer, and the one it replaced."""

    track: str
    hour: str
    before: int
    after: int
    at: float
    """When it came, on the clock of the demo in seconds."""


@dataclass(frozen=True, slots=True)
class Tally:
    """All figures after some micro-batches."""

    chart: Chart = Chart()
    batches: int = 0
    rows: int = 0
    watermark: int | None = None
    """In microseconds; None while it is unknown."""
    answers: Mapping[Timing, int] = field(default_factory=lambda: dict.fromkeys(Timing, 0))
    """The number of answers, by their mark."""
    corrections: int = 0
    """How many answers were retracted and replaced."""
    latest: Correction | None = None
    first: float | None = None
    """When the first answers came, on the clock of the demo in seconds."""
    samples: tuple[tuple[float, int], ...] = ()
    """The end times of the last micro-batches, each with the rows read until then."""

    @property
    def rate(self) -> float:
        """Rows a second, over the last seconds; 0 before the second micro-batch."""
        if len(self.samples) < 2:
            return 0.0
        (began, before), (ended, after) = self.samples[0], self.samples[-1]
        return (after - before) / (ended - began) if ended > began else 0.0

    def after(self, rows: int, watermark: int | None, panes: pa.Table, chart: Chart, now: float) -> "Tally":
        """The figures after one more micro-batch, which read `rows` rows and produced these panes."""
        answers, corrections = dict(self.answers), self.corrections
        for mark, diff in zip(panes["timing"].to_pylist(), panes["diff"].to_pylist(), strict=True):
            if diff > 0:
                answers[Timing(mark)] += 1
            else:
                corrections += 1
        read = self.rows + rows
        kept = [sample for sample in self.samples if sample[0] >= now - _RATE_OVER]
        held = self.latest is not None and now - self.latest.at < _HOLD
        return replace(
            self,
            chart=chart,
            batches=self.batches + 1,
            rows=read,
            watermark=watermark,
            answers=answers,
            corrections=corrections,
            latest=self.latest if held else late_correction(panes, now) or self.latest,
            first=now if self.first is None and len(panes) else self.first,
            samples=(*(kept or self.samples[-1:]), (now, read)),
        )


def late_correction(panes: pa.Table, now: float) -> Correction | None:
    """The late answer of a micro-batch that replaces another; of several, the one with the most plays."""
    before: dict[tuple[str, str], int] = {}
    late: dict[tuple[str, str], int] = {}
    for row in panes.to_pylist():
        key = (row["track"], f"{row['window_start']:%H:%M}")
        if row["diff"] < 0:
            before[key] = row["plays"]
        elif row["timing"] == Timing.LATE:
            late[key] = row["plays"]
    replaced = [Correction(*key, before[key], plays, now) for key, plays in late.items() if key in before]
    return max(replaced, key=lambda correction: correction.after, default=None)


def chart_of(rows: Iterable[tuple[str, str, int, str, int]]) -> Chart:
    """The chart from the rows of the latest hours: hour, track, plays, mark, and index of the pane.

    Rows must be sorted by hour, oldest first.
    """
    by_track: dict[str, dict[str, Cell]] = {}
    hours: dict[str, None] = {}
    for hour, track, plays, mark, pane in rows:
        hours[hour] = None
        by_track.setdefault(track, {})[hour] = Cell(plays, Timing(mark), pane)
    tracks = [Track(name, tuple(cells.get(hour) for hour in hours)) for name, cells in by_track.items()]
    return Chart(tuple(hours), tuple(sorted(tracks, key=lambda track: (-track.plays, track.name))[:TOP]))
