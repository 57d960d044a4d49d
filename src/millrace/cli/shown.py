"""Prints rows: as a table for people, as JSON lines or CSV for programs.

Values cannot command a terminal: their control characters are shown as escapes there. A program or a file gets CSV
and texts unchanged; in JSON an escape is the same value.
"""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.model.errors import PipelineError, unknown_option
from millrace.model.plain import to_json, visible
from millrace.running.narrow import width_of

FORMATS = ("table", "json", "csv")
Format = Annotated[str, typer.Option(help="The output format: table, json or csv.", metavar="FORMAT")]
_FOLDED = 24
"""Texts that are longer may take several lines of a cell."""
AsJson = Annotated[bool, typer.Option("--json", help="The same as --format json.")]


def chosen(format: str, as_json: bool) -> str:
    """The format that the options --format and --json name. Refuses two different ones."""
    if as_json and format not in ("table", "json"):
        raise PipelineError(f"--json and --format {format} name two formats", "leave one of them out")
    return "json" if as_json else format


def show(columns: Sequence[str], rows: Iterable[Sequence[Any]], format: str, title: str | None = None) -> None:
    """Print rows in one of the formats."""
    if format not in FORMATS:
        raise unknown_option("format", format, FORMATS)
    if format == "json":
        for row in rows:
            typer.echo(visible(to_json(dict(zip(columns, row, strict=True)))))
    elif format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(map(for_output, columns))
        writer.writerows([["" if value is None else for_output(_text(value)) for value in row] for row in rows])
    else:
        _table(columns, list(rows), title)


def for_output(text: str) -> str:
    """A text for stdout: unchanged for a program or a file, without control characters for a terminal."""
    return visible(text) if sys.stdout.isatty() else text


def _table(columns: Sequence[str], rows: list[Sequence[Any]], title: str | None) -> None:
    console = wide_enough()
    texts = {visible(name): [text_of(row[index]) for row in rows] for index, name in enumerate(columns)}
    if rows and width_of(texts, _FOLDED) > console.width:
        _records(console, texts, title)
        return
    console.print(table_of(columns, rows, title))


def table_of(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> Table:
    """Rows as a table for a terminal."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        numbers = all(isinstance(row[index], int | float | None) for row in rows)
        table.add_column(Text(visible(name)), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text_of(value)) for value in row))
    return table


def _records(console: Console, texts: Mapping[str, Sequence[str]], title: str | None) -> None:
    """Print each row as lines of names and values: no terminal is too narrow for that."""
    if title is not None:
        console.print(Text(title, style="italic"))
    for number, row in enumerate(zip(*texts.values(), strict=True)):
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in zip(texts, row, strict=True):
            table.add_row(Text(name), Text(text))
        console.print(*([""] if number else []), table, sep="\n")


def wide_enough() -> Console:
    """A console for tables: one that goes to a program or a file is not wrapped to the width of a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=10_000)


def text_of(value: Any) -> str:
    """A value in a cell of a table."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else visible(_text(value))


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if not isinstance(value, list | dict) else to_json(value)
