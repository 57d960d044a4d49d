"""Prints a trial: the answers of each output as they come, and the rows of each view at the end."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.cli.shown import text_of, wide_enough
from millrace.model.duration import to_datetime
from millrace.model.plain import to_json
from millrace.model.query import Query
from millrace.running.totals import many
from millrace.testing.answers import END, PANE_COLUMNS, START, Answer
from millrace.testing.trial import Trial, TrialBatch
from millrace.views.shape import free_names

_LETTERS = 5
"""How many dead letters are printed."""
_STYLES = {"+1": "green", "-1": "red", "early": "cyan", "on-time": "green", "late": "yellow"}


def print_json(trial: Trial) -> None:
    """Print a line for each answer, each dead letter, and each row of a view at the end."""
    for batch in trial.batches:
        about = {"batch": batch.number, "clock": to_datetime(batch.clock)}
        for output, answers in batch.outputs.items():
            for answer in answers:
                typer.echo(to_json({"output": output, **about, "answer": answer}))
        for letter in batch.dead_letters:
            told = {"source": letter.source, "output": letter.output, "row": letter.row, "reason": letter.reason}
            typer.echo(to_json({"dead_letter": told, **about}))
    for view in trial.pipeline.views:
        for row in trial.answers.view(view):
            typer.echo(to_json({"view": view, "row": row}))


def print_tables(trial: Trial) -> None:
    """Print two tables for each view, and one for each sink; then what was not computed."""
    console = wide_enough()
    for output in trial.outputs:
        rows = [_row(trial, batch, output, answer) for batch in trial.batches for answer in batch.outputs[output]]
        _print_table(console, f"{output}: answers as they come", rows)
        if output in trial.pipeline.views:
            held = [_with_window(row) for row in trial.answers.view(output)]
            _print_table(console, f"{output}: the view at the end", held)
        if dropped := trial.answers.dropped[output]:
            console.print(Text(f"{output}: {many(dropped, 'record')} came too late for every window\n", "yellow"))
    _print_letters(console, trial)


def _print_letters(console: Console, trial: Trial) -> None:
    letters = trial.answers.dead_letters
    if letters:
        console.print(Text(f"{many(len(letters), 'dead letter')}:", "yellow"))
    for letter in letters[:_LETTERS]:
        row = letter.row if isinstance(letter.row, str) else to_json(letter.row)
        console.print(Text(f"  {letter.source or letter.output}: {letter.reason}: {row.strip()}"))
    if len(letters) > _LETTERS:
        console.print(Text("  ...; --format json prints all of them"))


def _row(trial: Trial, batch: TrialBatch, output: str, answer: Answer) -> dict[str, Any]:
    """An answer as a row of a table: the micro-batch and its clock, the columns, and for a pane its diff and timing."""
    about = {"batch": "end" if batch.number is None else str(batch.number), "clock": to_datetime(batch.clock)}
    of = trial.of(output)
    if not isinstance(of, Query):
        return {**about, **answer}
    names = free_names(of.schema.names, PANE_COLUMNS)
    columns = {name: value for name, value in answer.items() if name not in names}
    return {**about, **_with_window(columns), "diff": f"{answer[names[0]]:+}", "timing": answer[names[1]]}


def _with_window(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with both bounds of its window in one column; without it, if the window is global."""
    if START not in row:
        return dict(row)
    bounds = (row[START], row[END])
    window = {} if bounds == (None, None) else {"window": bounds}
    columns: dict[str, Any] = {}
    for name, value in row.items():
        columns |= window if name == START else {} if name == END else {name: value}
    return columns


def _print_table(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    days = _days(rows)
    about = ": none\n" if not rows else f", on {days.pop()} in UTC" if len(days) == 1 else ""
    console.print(Text(f"{title}{about}", "bold"))
    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in rows[0]:
        numbers = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(name, justify="right" if numbers or name in ("batch", "diff") else "left", overflow="fold")
    written = _writing(rows)
    for row in rows:
        table.add_row(*(_cell(name, value, written) for name, value in row.items()))
    with console.capture() as printed:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in printed.get().splitlines()), color=console.is_terminal)


def _cell(name: str, value: Any, written: Callable[[datetime], str]) -> Text:
    if isinstance(value, datetime):
        return Text(written(value))
    if isinstance(value, tuple):  # a window; values of columns are never tuples
        start, end = value
        return Text(_span(start, end, written))
    return Text(text_of(value), style=_STYLES.get(value, "") if name in ("diff", "timing") else "")


def _span(start: Any, end: Any, written: Callable[[datetime], str]) -> str:
    if not isinstance(start, datetime):  # a window over a number of elements
        return f"{start} to {end}"
    return f"{written(start)} to {_hours(end) if start.date() == end.date() else written(end)}"


def _days(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    values = [value for row in rows for value in row.values()]
    values += [bound for value in values if isinstance(value, tuple) for bound in value]
    return {f"{value:%Y-%m-%d}" for value in values if isinstance(value, datetime)}


def _writing(rows: Sequence[Mapping[str, Any]]) -> Callable[[datetime], str]:
    """How times are written in a table: without the day if they are all of one day."""
    return _hours if len(_days(rows)) == 1 else lambda at: f"{at:%Y-%m-%d} {_hours(at)}"


def _hours(at: datetime) -> str:
    return f"{at:%H:%M}" if not (at.second or at.microsecond) else f"{at:%H:%M:%S.%f}".removesuffix(".000000")
