"""The demo: the Dataflow paper's worked example, computed by the reference engine.

Ten values of one key arrive over four minutes, some out of order. Each figure of the paper is one query, with its own
window and trigger, over the same values.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.model import trigger as on
from millrace.model.aggregate import sum_
from millrace.model.duration import SECOND, to_datetime
from millrace.model.inputs import memory
from millrace.model.pane import Mode, Pane, Timing
from millrace.model.query import Query, Windowed
from millrace.model.reference import Reference
from millrace.model.window import Row, all_time, fixed, session

_MINUTE = 60 * SECOND
_NOON = 12 * 60 * _MINUTE


@dataclass(frozen=True, slots=True)
class Minute:
    """The values that arrive in one minute of processing time, and the watermark at its end in seconds past noon."""

    values: tuple[tuple[int, int], ...]
    """Each value with its event time in seconds past noon."""
    watermark: int


ARRIVALS = (
    Minute(((5, 30), (7, 130)), 0),
    Minute(((3, 230), (4, 235), (3, 270)), 120),
    Minute(((8, 180), (3, 370)), 370),
    Minute(((9, 80), (8, 410), (1, 450)), 480),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the paper: a query, and a function that feeds the values to it."""

    number: int
    windowed: Windowed
    play: Callable[[Query], Iterator[list[Pane]]]

    @property
    def query(self) -> Query:
        """The sum of the values, with the window, trigger and mode of the figure."""
        return self.windowed.aggregate(sum=sum_("v"))


def figures() -> tuple[Figure, ...]:
    """The figures of section 2.4, in order."""
    values = memory("values", "v BIGINT, at TIMESTAMP").event_time("at", delay="0s")
    fixed_, sessions = values.window(fixed("2m"), lateness="1h"), values.window(session("1m"))
    whole = values.window(all_time())
    early = on.in_order(on.until(on.every("1m"), on.watermark()), on.default())
    return (
        Figure(6, whole, _batch),
        Figure(7, whole.trigger(on.every("1m")).accumulating(), _by_minute),
        Figure(8, whole.trigger(on.every("1m")).discarding(), _by_minute),
        Figure(9, whole.trigger(on.repeat(on.elements(2))).discarding(), _one_by_one),
        Figure(10, fixed_, _batch),
        Figure(12, fixed_.trigger(on.default()).accumulating(), _with_watermark),
        Figure(14, sessions.trigger(early).retracting(), _by_minute),
    )


def show(console: Console) -> None:
    """Print the arriving values and the answers of each figure."""
    arrivals = Table(title="Ten values arrive over four minutes, some out of order", title_style="bold")
    arrivals.add_column("minute", justify="right")
    arrivals.add_column("value at event time")
    for number, minute in enumerate(ARRIVALS, 1):
        texts = [f"{value} at 12:{at // 60:02}:{at % 60:02}" for value, at in minute.values]
        arrivals.add_row(str(number), "   ".join(texts))
    answers = Table(title="What each figure of the Dataflow paper answers", title_style="bold")
    answers.add_column("figure", justify="right")
    answers.add_column("query, and below it the sums it answers")
    for figure in figures():
        query = figure.query
        how = "batch" if figure.play is _batch else f"{query.when}, {query.mode}"
        sums = [_written(panes, query.mode) for panes in figure.play(query) if panes]
        answers.add_row(
            str(figure.number),
            Text(f"{query.windowing}, {how}\n", style="dim") + Text(" | ").join(sums),
            end_section=True,
        )
    console.print(arrivals, "", answers)
    console.print(
        "[dim]From Akidau and others, The Dataflow Model, VLDB 2015, section 2.4; computed by the reference engine. "
        "A | separates minutes, in figure 9 elements.[/dim] [green]+[/green] marks an answer, "
        "[red]-[/red] a retraction, [yellow]late[/yellow] an answer that corrects an on-time one. "
        "The code is in src/millrace/demo/paper.py."
    )


def _rows(minute: Minute) -> list[Row]:
    return [{"v": value, "at": to_datetime(_NOON + at * SECOND)} for value, at in minute.values]


def _batch(query: Query) -> Iterator[list[Pane]]:
    engine = Reference(query)
    yield engine.input([row for minute in ARRIVALS for row in _rows(minute)]) + engine.end()


def _by_minute(query: Query) -> Iterator[list[Pane]]:
    engine = Reference(query)
    for number, minute in enumerate(ARRIVALS, 1):
        yield engine.input(_rows(minute)) + engine.clock(number * _MINUTE)


def _one_by_one(query: Query) -> Iterator[list[Pane]]:
    engine = Reference(query)
    for row in (row for minute in ARRIVALS for row in _rows(minute)):
        yield engine.input([row])


def _with_watermark(query: Query) -> Iterator[list[Pane]]:
    engine = Reference(query)
    for number, minute in enumerate(ARRIVALS, 1):
        panes = engine.input(_rows(minute))
        yield panes + engine.watermark(_NOON + minute.watermark * SECOND) + engine.clock(number * _MINUTE)


def _written(panes: list[Pane], mode: Mode) -> Text:
    return Text(" ").join(_sum(pane, mode) for pane in panes)


def _sum(pane: Pane, mode: Mode) -> Text:
    late = pane.timing is Timing.LATE
    sign = f"{'-' if pane.diff < 0 else '+'}" if mode is Mode.RETRACTING else ""
    colour = "red" if pane.diff < 0 else "yellow" if late else "green"
    return Text(f"{sign}{pane.values['sum']}{' (late)' if late else ''}", style=colour)
