"""Arguments and options that several commands share, and the way in which commands report errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from millrace.model.errors import Kind, MillraceError, PipelineError
from millrace.model.plain import visible
from millrace.running.settings import Settings

DEFAULTS = Settings()
LOG = Path(DEFAULTS.log)
STORE = str(DEFAULTS.store)

PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="A Python file that defines a Pipeline.")]
PipelineName = Annotated[
    str | None,
    typer.Option("--pipeline", metavar="NAME", help="The name of the pipeline; required if FILE defines several."),
]
PipelineFiles = Annotated[list[Path], typer.Argument(metavar="FILE", help="Python files that define a Pipeline each.")]
PipelineNames = Annotated[
    list[str] | None,
    typer.Option(
        "--pipeline",
        metavar="NAME",
        help="The name of the pipeline; required if FILE defines several, and may be repeated.",
    ),
]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")]
LogPath = Annotated[
    Path, typer.Option("--log", metavar="FILE", help="The SQLite file of the log.", envvar="MILLRACE_LOG")
]
StoreUrl = Annotated[
    str,
    typer.Option(
        "--store", metavar="URL", envvar="MILLRACE_STORE",
        help="The store of the views: the path of an SQLite file, or postgresql://user@host/database.",
    ),
]  # fmt: skip
CheckpointFolder = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="FOLDER",
        help="The folder of the checkpoint: offsets, state and fingerprint. Default: .millrace/NAME of the pipeline.",
    ),
]
CheckpointsFolder = Annotated[Path, typer.Option("--folder", help="The folder of the checkpoints.", metavar="FOLDER")]
Master = Annotated[str, typer.Option(help="The master URL of the Spark to run on.", metavar="URL")]
LOCAL = DEFAULTS.master
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="NAME=VALUE", help="A setting of Spark, such as spark.executor.memory=4g; may be repeated."
    ),
]
Shared = Annotated[
    list[Path] | None,
    typer.Option(
        "--shared",
        metavar="FOLDER",
        help="A folder that all machines of the cluster have at the same path; may be repeated. Not needed for a "
        "master on this machine.",
    ),
]


EXIT_CODES = {
    Kind.UNKNOWN: 1,
    Kind.MISTAKE: 2,
    Kind.NOT_FOUND: 3,
    Kind.MACHINE: 4,
    Kind.CORRUPT: 5,
    Kind.CONFLICT: 6,
}
EXIT_CODES_HELP = (
    "Exit codes: 0 success; 1 a difference, or an unexplained failure; 2 a mistake in a pipeline or an option; "
    "3 not found; 4 a machine problem, such as a full disk; 5 damaged data; 6 a conflict with existing data."
)


def parsed_conf(given: list[str] | None) -> dict[str, str]:
    """The settings of Spark that options give."""
    pairs = [each.partition("=") for each in given or ()]
    for name, equals, _ in pairs:
        if not equals or not name.startswith("spark."):
            raise PipelineError(f"--conf takes a setting of Spark, such as spark.executor.memory=4g, not {name!r}")
    return {name: value for name, _, value in pairs}


def called(file: Path, pipeline: str | None) -> list[str]:
    """The arguments that name a pipeline in a command."""
    return [str(file)] if pipeline is None else [str(file), "--pipeline", pipeline]


@contextmanager
def plain_mistakes() -> Iterator[None]:
    """Print an error as one message without a stack trace, and exit with the code of its class."""
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except Exception as error:
        plain = _plain(error)
        if isinstance(plain, MillraceError):
            raise _reported(plain) from None
        raise


def exit_code(error: Exception) -> int:
    """The exit code for an error."""
    plain = _plain(error)
    return EXIT_CODES[plain.kind if isinstance(plain, MillraceError) else Kind.UNKNOWN]


def _plain(error: Exception) -> BaseException:
    if isinstance(error, MillraceError):
        return error
    from millrace.spark.failure import plain_error  # imports Spark

    return plain_error(error)


def _reported(error: MillraceError) -> typer.Exit:
    # A mistake in an option has no line of the user's code; its place is then a line of the option parser.
    ours = error.place is None or Path(error.place.file).is_relative_to(Path(typer.__file__).parents[1])
    typer.echo(visible(error.message if ours else str(error)), err=True)
    return typer.Exit(EXIT_CODES[error.kind])
