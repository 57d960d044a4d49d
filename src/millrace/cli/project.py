"""Commands for newcomers: demo, init."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.options import plain_mistakes
from millrace.demo import paper
from millrace.model.errors import ConflictError, MachineError, PipelineError

_PIPELINE = '''"""Plays of music, counted by track and hour."""

from millrace import Pipeline, agg, log, on, window

plays = log("plays", schema="user STRING, track STRING, ms BIGINT, at TIMESTAMP")

hourly = (
    plays.where("ms >= 30000")  # what: plays that were listened to
    .event_time("at", delay="10s")
    .group_by("track")
    .window(window.fixed("1h"), lateness="1d")  # where in event time
    .trigger(on.watermark(early=on.every("10s"), late=on.each()))  # when answers appear
    .retracting()  # how later answers correct earlier ones
    .aggregate(plays=agg.count(), listeners=agg.approx_distinct("user"))
)

{name} = Pipeline("{name}", views={{"hourly_plays": hourly}})
'''
_DATA = """{"user": "ann", "track": "Millstream", "ms": 215000, "at": "2026-01-01T12:00:05Z"}
{"user": "bob", "track": "Watershed", "ms": 187000, "at": "2026-01-01T12:10:00Z"}
{"user": "ann", "track": "Watershed", "ms": 12000, "at": "2026-01-01T12:20:00Z"}
{"user": "cal", "track": "Millstream", "ms": 215000, "at": "2026-01-01T12:59:59Z"}
{"user": "dee", "track": "Undertow", "ms": 95000, "at": "2026-01-01T13:05:00Z"}
{"user": "bob", "track": "Millstream", "ms": 215000, "at": "2026-01-01T12:30:00Z"}
"""
_README = """# {name}

{commands}

Without `--until-caught-up`, a run goes on until Ctrl-C. The log is in `.millrace/log.db`, the view in
`.millrace/views.db`.

The view shows the hour that starts at 12:00. The hour of `Undertow` is still open. Its trigger fires every 10 seconds,
so its first answer appears 10 seconds later, if a run is active then, or in the next run.

While `millrace run {name}.py` runs in one terminal, send more records and query the view in another.
`millrace explain {name}.py` shows the plan. After you change the pipeline, `millrace replay {name}.py` computes the
views again from the log.
"""

_COMMANDS = (
    ("millrace try {name}.py plays.json", "its answers, without Spark"),
    ("millrace topics create plays", "a topic of the log"),
    ("millrace send plays plays.json", "records in"),
    ("millrace run {name}.py --until-caught-up", "computed on Spark"),
    ('millrace query "SELECT * FROM hourly_plays"', "answers out"),
)
"""The first commands in a project, with what they do. A terminal of 80 columns shows each in a line."""


def _commands(name: str) -> str:
    written = [(command.format(name=name), about) for command, about in _COMMANDS]
    width = max(len(command) for command, _ in written)
    return "\n".join(f"    {command:<{width}}  # {about}" for command, about in written)


def demo(
    paper_: Annotated[
        bool, typer.Option("--paper", help="Show the worked example of the Dataflow paper instead; needs no Spark.")
    ] = False,
) -> None:
    """Run a demo: simulated plays of music are counted by track and hour as they arrive.

    It shows answers for 30 seconds after Spark has started, or until Ctrl-C. The environment variable DEMO_SECONDS sets
    another duration; inf means no end. The demo then compares the view with a batch over the same log, and exits with 1
    if they differ.
    """
    if paper_:
        paper.show(Console())
        return
    from millrace.demo import live

    with plain_mistakes():
        if not live.show(Console()):
            raise typer.Exit(1)


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the project, its folder and its pipeline.")],
) -> None:
    """Create a small project that works: a pipeline, some records, and a README with the commands to run it.

    Example: [bold]millrace init charts[/bold]
    """
    with plain_mistakes():
        if not name.isidentifier() or not name.isascii():
            raise PipelineError(f"the name of a project must consist of letters, digits and _, not {name!r}")
        folder = Path(name)
        if folder.exists():
            raise ConflictError(f"{folder} exists already", "choose another name")
        try:
            folder.mkdir()
            (folder / f"{name}.py").write_text(_PIPELINE.format(name=name), encoding="utf-8")
            (folder / "plays.json").write_text(_DATA, encoding="utf-8")
            (folder / "README.md").write_text(_README.format(name=name, commands=_commands(name)), encoding="utf-8")
        except OSError as error:
            raise MachineError(
                f"cannot create {folder}: {error.strerror}", "fix the cause, or change to another folder"
            ) from None
        typer.echo(f"created {folder}; try it:\n\n    cd {name}\n{_commands(name)}")
