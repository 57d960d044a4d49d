"""The command watch: a live query on a terminal, or as JSON lines."""

import os
import sys
from collections.abc import Iterable
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from millrace.cli.options import STORE, StoreUrl, plain_mistakes
from millrace.cli.shown import table_of
from millrace.client.connection import Connection
from millrace.client.live_result import Change
from millrace.client.live_rows import LiveRows
from millrace.model.errors import PipelineError
from millrace.model.plain import to_json, visible


def watch(
    context: typer.Context,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT statement over one view.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print each change as a line of JSON, as also if stdout is no terminal.")
    ] = False,
    min_interval: Annotated[
        float, typer.Option(help="The least number of seconds between two changes.", min=0, metavar="SECONDS")
    ] = 0.0,
    up_to: Annotated[int | None, typer.Option(help="End with this version of the view.", metavar="VERSION")] = None,
    server: Annotated[
        str | None,
        typer.Option(
            help="The address of millrace serve; MILLRACE_TOKEN is its token. Default: the store itself.", metavar="URL"
        ),
    ] = None,
    store: StoreUrl = STORE,
) -> None:
    """Show the rows of a query as they change, until Ctrl-C.

    The query may have WHERE, ORDER BY, LIMIT and OFFSET, over one view. On a terminal the rows are a table that changes
    in place. Elsewhere each change is a line of JSON: its version, and the rows that were added, changed, removed and
    moved; the first line adds all rows.

    Example: [bold]millrace watch "SELECT track, plays FROM hourly_plays ORDER BY plays DESC LIMIT 10"[/bold]
    """
    with plain_mistakes():
        if server is not None and _is_given(context, "store"):
            raise PipelineError("--server and --store name two places", "leave one of them out")
        with (
            closing(_connected(server, store)) as db,
            db.live(sql, min_interval=min_interval, up_to=up_to) as rows,
        ):
            try:
                if json or not sys.stdout.isatty():
                    _print(rows)
                else:
                    _draw(rows)
            except (KeyboardInterrupt, BrokenPipeError):
                sys.stderr.close()  # otherwise Python prints that the pipe was closed


def _is_given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _connected(server: str | None, store: str) -> Connection:
    from millrace.client.connect import TOKEN
    from millrace.client.local import LocalConnection
    from millrace.client.remote import RemoteConnection
    from millrace.views.store import open_store

    return (
        LocalConnection(open_store(store), None) if server is None else RemoteConnection(server, os.environ.get(TOKEN))
    )


def _print(changes: Iterable[Change]) -> None:
    for change in changes:
        told: dict[str, Any] = {"version": change.version, "watermark": change.watermark}
        told |= {"added": change.added, "changed": change.changed, "removed": change.removed, "moved": change.moved}
        typer.echo(visible(to_json(told)))


def _draw(rows: LiveRows) -> None:
    """Draw the rows after each change. While the connection is lost, the last line says so."""
    with Live(console=Console(), get_renderable=lambda: _drawn(rows)) as drawn:
        for _ in rows:
            drawn.refresh()


def _drawn(rows: LiveRows) -> Group:
    found = rows.rows
    height = max(1, Console().height - 6)
    table = table_of(rows.columns, [list(row.values()) for row in found[:height]])
    more = f"; the first {height:,} are shown" if len(found) > height else ""
    state = "" if rows.state == "live" else f"; {rows.state}"
    watermark = "" if rows.watermark is None else f", watermark {rows.watermark}"
    return Group(table, Text(f"{len(found):,} rows, version {rows.version}{watermark}{more}{state}"))
