"""Arguments that several commands share, and how they say what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from millrace.model.errors import ModelError
from millrace.running.settings import Settings

DEFAULTS = Settings()
LOG = Path(DEFAULTS.log)
STORE = str(DEFAULTS.store)

PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="A Python file that holds a Pipeline.")]
PipelineName = Annotated[str | None, typer.Option("--pipeline", metavar="NAME", help="Which, if it holds several.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
LogPath = Annotated[Path, typer.Option("--log", metavar="FILE", help="The database of the log.", envvar="MILLRACE_LOG")]
StoreUrl = Annotated[
    str,
    typer.Option(
        "--store", metavar="URL", envvar="MILLRACE_STORE",
        help="Where views are kept: the path of an SQLite database, or postgresql://user@host/database.",
    ),
]  # fmt: skip
CheckpointFolder = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", metavar="FOLDER", help="What remembers how far it has come; .millrace/NAME if none is given."
    ),
]
Master = Annotated[str, typer.Option(help="The Spark to run on.", metavar="URL")]
LOCAL = DEFAULTS.master


@contextmanager
def plain_mistakes() -> Iterator[None]:
    """Say what is wrong, without a stack, and end with 2."""
    try:
        yield
    except ModelError as error:
        # A mistake in an option has no line of the user's; what called us then is the parser of the command line.
        ours = error.place is None or Path(error.place.file).is_relative_to(Path(typer.__file__).parents[1])
        typer.echo(error.message if ours else str(error), err=True)
        raise typer.Exit(2) from None
