"""Arguments that several commands share, and how they say what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from millrace.model.errors import Kind, MillraceError
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


EXIT_CODES = {
    Kind.UNKNOWN: 1,
    Kind.MISTAKE: 2,
    Kind.NOT_FOUND: 3,
    Kind.MACHINE: 4,
    Kind.CORRUPT: 5,
    Kind.CONFLICT: 6,
}
EXIT_CODES_TOLD = (
    "Exit codes: 0 done; 1 a difference, or a failure without an explanation; 2 a mistake in a pipeline or an option; "
    "3 not found; 4 trouble of the machine, such as a full disk; 5 damaged data; 6 a conflict with what is there."
)


@contextmanager
def plain_mistakes() -> Iterator[None]:
    """Say what is wrong in one message, without a stack, and end with the exit code of its class."""
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except MillraceError as error:
        raise _told(error) from None
    except Exception as error:
        from millrace.spark.failure import plain_error  # which imports Spark

        plain = plain_error(error)
        if isinstance(plain, MillraceError):
            raise _told(plain) from None
        raise


def _told(error: MillraceError) -> typer.Exit:
    # A mistake in an option has no line of the user's; what called us then is the parser of the command line.
    ours = error.place is None or Path(error.place.file).is_relative_to(Path(typer.__file__).parents[1])
    typer.echo(error.message if ours else str(error), err=True)
    return typer.Exit(EXIT_CODES[error.kind])
