"""Commands about views: query, views."""

from contextlib import closing
from typing import Annotated, Any

import typer

from millrace.cli.options import STORE, StoreUrl, plain_mistakes
from millrace.cli.shown import AsJson, Format, chosen, show
from millrace.views.store import open_store

views = typer.Typer(no_args_is_help=False, help="List the views of the store, or drop those of a pipeline.")


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT statement over views.")],
    format: Format = "table",
    json: AsJson = False,
    seconds: Annotated[float, typer.Option(help="The time limit of the query, in seconds.")] = 10.0,
    store: StoreUrl = STORE,
) -> None:
    """Query the views, read-only, in the SQL dialect of the store.

    Example: [bold]millrace query "SELECT track, plays FROM hourly_plays ORDER BY plays DESC LIMIT 10"[/bold]
    """
    with plain_mistakes():
        format = chosen(format, json)
        with closing(open_store(store)) as opened:
            result = opened.query(sql, seconds)
        show(result.columns, result.rows, format)


@views.callback(invoke_without_command=True)
def list_(context: typer.Context, format: Format = "table", json: AsJson = False, store: StoreUrl = STORE) -> None:
    """List the views with their pipeline, rows, version, generation and columns, or drop those of a pipeline.

    A view with an entry in the column "records since" was added with --from-here, and has missed the records before.
    """
    if context.invoked_subcommand is not None:
        return
    with plain_mistakes(), closing(open_store(store)) as opened:
        format = chosen(format, json)
        rows: list[tuple[Any, ...]] = [
            (
                view.name,
                view.pipeline,
                view.rows,
                view.version,
                view.generation,
                view.records_since,
                ", ".join(f"{column.name} {column.type}" for column in view.columns),
            )
            for view in opened.views()
        ]
        if not rows and format == "table":
            typer.echo("There are no views yet; run a pipeline that has views: millrace run FILE")
            return
        show(("view", "pipeline", "rows", "version", "generation", "records since", "columns"), rows, format)


@views.command("drop")
def drop_(
    pipeline: Annotated[
        str, typer.Argument(metavar="PIPELINE", help="The name of the pipeline, as millrace views lists it.")
    ],
    store: StoreUrl = STORE,
) -> None:
    """Drop all views of a pipeline. Its next run computes them again, from the start of its sources."""
    with plain_mistakes():
        with closing(open_store(store)) as opened:
            opened.drop(pipeline)
        typer.echo(f"dropped the views of {pipeline}")
