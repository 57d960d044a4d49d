"""The command `millrace` and its subcommands."""

from collections.abc import Callable
from typing import Annotated

import typer

from millrace import __version__
from millrace.cli import (
    backups,
    cluster,
    dead,
    kafka,
    log,
    pipelines,
    project,
    repair,
    send,
    serving,
    tokens,
    trial,
    views,
    watch,
)
from millrace.cli.options import EXIT_CODES_HELP

app = typer.Typer(
    name="millrace",
    help="Process streams of records in Python, on Spark.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


_PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Begin": {"demo": project.demo, "init": project.init, "try": trial.try_},
    "Records": {"send": send.send, "tail": log.tail},
    "Pipelines": {
        "run": pipelines.run,
        "status": pipelines.status,
        "replay": pipelines.replay,
        "repair": repair.repair,
        "savepoint": pipelines.savepoint,
        "backup": backups.backup,
        "restore": backups.restore,
        "explain": pipelines.explain,
        "check": pipelines.check,
        "bench": pipelines.bench,
    },
    "Answers": {"query": views.query, "watch": watch.watch, "serve": serving.serve},
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_panel)(_command)
app.add_typer(log.topics, name="topics", rich_help_panel="Records")
app.add_typer(kafka.kafka, name="kafka", rich_help_panel="Records")
app.add_typer(cluster.cluster, name="cluster", rich_help_panel="Pipelines")
app.add_typer(dead.dead, name="dead", rich_help_panel="Pipelines")
app.add_typer(views.views, name="views", rich_help_panel="Answers")
app.add_typer(tokens.tokens, name="tokens", rich_help_panel="Answers")
