"""Renders the figures of the demo: a table for a terminal, a line for a pipe. Pure."""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from millrace.demo.listeners import SPEED
from millrace.demo.tally import HOURS, TOP, Cell, Tally, Track
from millrace.model.duration import SECOND, to_datetime
from millrace.model.pane import Timing

COLOURS = {Timing.EARLY: "yellow", Timing.ON_TIME: "green", Timing.LATE: "magenta"}
_MEANING = (
    (Timing.EARLY, "hour still open"),
    (Timing.ON_TIME, "watermark has passed"),
    (Timing.LATE, "corrected since"),
)
_NUMBER, _NAME, _CELL, _CORRECTED = 2, 13, 12, 9
"""The widths of the columns except the bar; they are fixed, so that nothing moves."""
_GAP = 2
_SHORTEST_BAR, _LONGEST_BAR = 8, 40
_AROUND = 8
"""The number of lines besides the tracks."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Screen:
    """The size and abilities of the terminal."""

    width: int
    height: int
    blocks: bool = True
    """Whether it can show Unicode block elements."""

    @property
    def tracks(self) -> int:
        """How many tracks fit."""
        return max(1, min(TOP, self.height - _AROUND - 1))

    @property
    def hours(self) -> int:
        """How many hours fit beside the shortest bar."""
        return max(1, min(HOURS, (self.width - self._fixed - _SHORTEST_BAR) // (_CELL + _GAP)))

    @property
    def bar(self) -> int:
        """The width of the bar."""
        return max(1, min(_LONGEST_BAR, self.width - self._fixed - self.hours * (_CELL + _GAP)))

    @property
    def _fixed(self) -> int:
        return _NUMBER + _NAME + _CORRECTED + 3 * _GAP


def table(tally: Tally, clock: int | None, status: str, screen: Screen) -> RenderableType:
    """The table. Its height is constant, and no line is wider than the screen."""
    return Group(
        _between("[bold]Millrace demo[/bold]: plays of music by track and hour, on Spark", status, screen),
        _header(_time(tally, clock)),
        _header(_counts(tally)),
        Text(),
        _tracks(tally, screen),
        Text(),
        _legend(),
        _line(_latest(tally)),
    )


def line(tally: Tally, clock: int | None, seconds: float) -> str:
    """The figures in one line."""
    facts = [f"{name} {value}" if name else value for name, value in (*_time(tally, clock), *_counts(tally))]
    newest = [(track.name, track.cells[-1]) for track in tally.chart.tracks[:1] if track.cells[-1] is not None]
    facts += [f"{tally.chart.hours[-1]} {name} {cell.plays} {cell.mark}" for name, cell in newest if cell]
    return f"{seconds:5.1f} s  {'; '.join(facts)}"


def _time(tally: Tally, clock: int | None) -> list[tuple[str, str]]:
    if clock is None or tally.watermark is None:
        return [("clock", "not started" if clock is None else _moment(clock)), ("watermark", "unknown")]
    behind = max(0, clock - tally.watermark) // (60 * SECOND)
    return [
        ("clock", _moment(clock)),
        ("watermark", f"{_moment(tally.watermark)} ({behind} min behind)"),
        ("", f"{tally.rate:,.0f} plays/s"),
    ]


def _counts(tally: Tally) -> list[tuple[str, str]]:
    late = tally.answers[Timing.LATE]
    return [
        ("plays", f"{tally.rows:,}"),
        ("answers", f"{sum(tally.answers.values()):,}"),
        ("corrections", f"{tally.corrections:,} ({late:,} late)"),
    ]


def _moment(instant: int) -> str:
    return f"{to_datetime(instant):%H:%M}"


def _header(facts: list[tuple[str, str]]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, value in facts:
        text.append("   " if text else "")
        text.append(f"{name} " if name else "", style="dim")
        text.append(value, style="bold")
    return text


def _between(left: str, right: str, screen: Screen) -> Text:
    """Two texts, aligned left and right on one line; the left one is truncated if they do not fit."""
    text = Text.from_markup(left)
    text.truncate(max(0, screen.width - len(right) - _GAP), overflow="ellipsis", pad=True)
    text.append(" " * _GAP + right, style="dim")
    text.no_wrap, text.overflow = True, "crop"
    return text


def _tracks(tally: Tally, screen: Screen) -> Table:
    hours = tally.chart.hours[-screen.hours :]
    shown = tally.chart.tracks[: screen.tracks]
    most = max((track.plays for track in shown), default=0)
    grid = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    grid.add_column("#", width=_NUMBER, justify="right", no_wrap=True)
    grid.add_column("track", width=_NAME, no_wrap=True)
    for hour in (*hours, *[""] * (screen.hours - len(hours))):
        grid.add_column(hour, width=_CELL, no_wrap=True)
    grid.add_column("corrected", width=_CORRECTED, justify="right", no_wrap=True)
    grid.add_column("plays" if screen.bar < 20 else "plays in these hours", width=screen.bar, no_wrap=True)
    for number in range(screen.tracks):
        if number >= len(shown):
            grid.add_row(str(number + 1), style="dim")
            continue
        track = shown[number]
        cells = [_cell(cell) for cell in track.cells[-screen.hours :]]
        cells += [Text()] * (screen.hours - len(cells))
        corrected = f"{track.corrected} x" if track.corrected else ""
        grid.add_row(str(number + 1), track.name, *cells, corrected, _bar(track, most, screen))
    return grid


def _cell(cell: Cell | None) -> Text:
    return Text() if cell is None else Text(f"{cell.plays:>4} {cell.mark}", style=COLOURS[cell.mark])


def _bar(track: Track, most: int, screen: Screen) -> Text:
    """A bar proportional to the plays, with a segment for each hour in the colour of its mark."""
    text, plays = Text(), 0
    cells = [cell for cell in track.cells if cell is not None]
    for cell in cells:
        plays += cell.plays
        whole, eighths = divmod(plays * screen.bar * 8 // max(most, 1), 8)
        text.append(("█" if screen.blocks else "#") * (whole - len(text)), style=COLOURS[cell.mark])
        if cell is cells[-1] and screen.blocks and eighths:
            text.append(_EIGHTHS[eighths], style=COLOURS[cell.mark])
    return text


def _legend() -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for mark, meaning in _MEANING:
        text.append("   " if text else "")
        text.append(str(mark), style=COLOURS[mark]).append(f": {meaning}")
    return text


def _latest(tally: Tally) -> str:
    latest = tally.latest
    if tally.first is None:
        return "The first micro-batch takes the longest; answers appear when it ends."
    if latest is None:
        return f"Simulated time runs at {SPEED // 60} minutes a second; some plays arrive hours late."
    plays = latest.after - latest.before
    came = "a play" if plays == 1 else f"{plays} plays"
    return f"{latest.track} at {latest.hour} was {latest.before:,}, is {latest.after:,}: {came} arrived late."


def _line(text: str) -> Text:
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")
