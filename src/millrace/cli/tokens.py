"""Commands about the tokens of a server."""

from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import LOG, STORE, LogPath, StoreUrl, plain_mistakes
from millrace.cli.shown import AsJson, Format, chosen, show
from millrace.model.errors import NotFoundError, PipelineError, unknown_option
from millrace.server.tokens import FILE, create, load, revoke
from millrace.views.rights import Rights, Scope
from millrace.views.rowfilter import parse_filter
from millrace.views.store import open_store

tokens = typer.Typer(no_args_is_help=True, help="Create, list and revoke the tokens that clients of a server need.")


@tokens.command("create")
def create_(
    scope: Annotated[
        str,
        typer.Option(
            help="What the token is for: send records, read views (and, without --view, the status of everything), or "
            "admin for everything.",
            metavar="SCOPE",
        ),
    ],
    view: Annotated[
        list[str] | None,
        typer.Option(help="A view that may be read, and may be repeated. Default: all.", metavar="VIEW"),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="A topic that may be sent to, and may be repeated. Default: all.", metavar="TOPIC"),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(help="A condition over the columns of the views: only such rows may be read.", metavar="SQL"),
    ] = None,
    per_second: Annotated[int, typer.Option(help="The maximum number of requests a second.", min=1)] = 1_000,
    max_bytes: Annotated[int, typer.Option(help="The maximum size of a request in bytes.", min=1)] = 64 << 20,
    log: LogPath = LOG,
    store: StoreUrl = STORE,
) -> None:
    """Create a token and print it. It is printed once: only its hash is kept, in tokens.json beside the log.

    As soon as there is a token, a server on this log needs one for each request. A change acts within a second.

    Example: [bold]millrace tokens create --scope read --view hourly_plays --rows "country = 'NO'"[/bold]
    """
    with plain_mistakes():
        rights = _rights(scope, view, topic, rows)
        _check_columns(rights, store)
        made, secret = create(_file(log), rights, per_second, max_bytes, datetime.now(UTC))
        typer.echo(f"token {made.id}; clients send it in the header Authorization: Bearer TOKEN", err=True)
        typer.echo(secret)


@tokens.command("list")
def list_(format: Format = "table", json: AsJson = False, log: LogPath = LOG) -> None:
    """List the tokens: their ids and rights, not the tokens themselves."""
    with plain_mistakes():
        format = chosen(format, json)
        found = load(_file(log)) or ()
        if not found and format == "table":
            typer.echo("There are no tokens; create one: millrace tokens create --scope read")
            return
        rows = [
            (
                each.id,
                str(each.rights.scope),
                None if each.rights.views is None else ", ".join(sorted(each.rights.views)),
                None if each.rights.topics is None else ", ".join(sorted(each.rights.topics)),
                "; ".join(dict.fromkeys(condition for _, condition in each.rights.row_filters)) or None,
                each.per_second,
                each.max_bytes,
                each.created,
            )
            for each in found
        ]
        show(("token", "scope", "views", "topics", "rows", "per second", "max bytes", "created"), rows, format)


@tokens.command("revoke")
def revoke_(
    token: Annotated[str, typer.Argument(metavar="ID", help="The id of the token, as millrace tokens list shows it.")],
    log: LogPath = LOG,
) -> None:
    """Revoke a token. Servers refuse it within a second.

    Without any token left, a server still needs one; remove tokens.json beside the log to serve without tokens again.
    """
    with plain_mistakes():
        revoke(_file(log), token)
        typer.echo(f"revoked {token}")


def _file(log: Path) -> Path:
    return log.absolute().parent / FILE


def _rights(scope: str, views: list[str] | None, topics: list[str] | None, rows: str | None) -> Rights:
    if scope not in tuple(Scope):
        raise unknown_option("scope", scope, Scope)
    wanted = Scope(scope)
    if views and wanted is not Scope.READ:
        raise PipelineError(f"a token of scope {scope} has no --view", "leave it out, or use --scope read")
    if topics and wanted is not Scope.SEND:
        raise PipelineError(f"a token of scope {scope} has no --topic", "leave it out, or use --scope send")
    if rows is not None and not views:
        raise PipelineError("--rows is a condition over the columns of a view", "name the view with --view")
    if rows is not None:
        parse_filter(rows)
    return Rights(
        wanted,
        frozenset(views) if views else None,
        frozenset(topics) if topics else None,
        tuple((each, rows) for each in sorted(set(views or ()))) if rows is not None else (),
    )


def _check_columns(rights: Rights, store: str) -> None:
    """Refuse a row filter over columns that a view does not have, if the view exists already."""
    if not rights.row_filters:
        return
    with suppress(NotFoundError), closing(open_store(store)) as opened:
        columns = {view.name: view.columns.names for view in opened.views()}
        for view, condition in rights.row_filters:
            if view in columns:
                parse_filter(condition, columns[view])
