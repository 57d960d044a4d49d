"""The command `send`: records of a file or a pipe, to a topic of the log.

A failed append leaves the log as it was, and the appends before it are kept. So `send` knows exactly how many records
of its input are in the log, and says how to send the rest and nothing twice.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from millrace.cli.options import LOG, LogPath, TopicName, plain_mistakes
from millrace.eventlog.topics import Log, existing_log
from millrace.eventlog.trouble import UncertainError
from millrace.model.errors import ConflictError, MachineError, MillraceError, PipelineError
from millrace.running.totals import many
from millrace.sources.collect import Chunk, chunks, first_misfit, keys_of


def send(
    topic: TopicName,
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="A file of JSON lines or CSV; - reads stdin.")] = "-",
    format: Annotated[
        str | None,
        typer.Option(help="The input format: json or csv. Default: csv if FILE ends with .csv.", metavar="FORMAT"),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The field whose value assigns a record to a partition.", metavar="FIELD")
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(
            help="The name of an idempotent producer: the same command again appends only the missing records.",
            metavar="NAME",
        ),
    ] = None,
    skip: Annotated[
        int, typer.Option(help="The number of records at the start of the input to leave out.", min=0, metavar="N")
    ] = 0,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Also send lines that are not JSON objects; they become dead letters.")
    ] = False,
    log: LogPath = LOG,
) -> None:
    """Append records to a topic of the log: the JSON objects of a file, one on each line, or the rows of a CSV file.

    Records that are reported as sent are on the disk. A line that is not a JSON object ends the command with an error
    that names the line. Whenever the command stops early, it says how many records were sent, and how to send the rest.

    Examples: [bold]millrace send plays plays.json[/bold], [bold]tail -F app.log | millrace send logs[/bold]
    """
    with plain_mistakes():
        opened = Log(log) if create else existing_log(log, topic)
        if create and topic not in {each.name for each in opened.topics()}:
            opened.create(topic)
        opened.topic(topic)
        kind = format or ("csv" if file.endswith(".csv") else "json")
        # The number of an append is how many records there are up to its end, however they were read.
        named = None if producer is None else f"{producer} of {file if file == '-' else Path(file).resolve()}"
        done = 0 if named is None else opened.last(topic, named) or 0
        start, seen, began = max(done, skip), 0, time.monotonic()
        with _bar(file) as bar:
            task = bar.add_task(f"to {topic}", total=Path(file).stat().st_size if Path(file).is_file() else None)
            read = chunks(file, kind)
            while (chunk := _next(read, Progressed(start, seen, named))) is not None:
                wrong = None if unchecked else first_misfit(chunk.values)
                values = chunk.values if wrong is None else chunk.values.slice(0, wrong)
                new = values.slice(max(0, start - seen))
                at, seen = seen + len(values) - len(new), seen + len(values)
                if len(new):
                    _append(opened, topic, new, key, Progressed(start, at, named), seen)
                bar.update(task, advance=chunk.size)
                if wrong is not None:
                    raise PipelineError(_misfit(file, chunk, wrong), Progressed(start, seen, named).mend_line())
        if skip > seen:
            raise PipelineError(f"--skip {skip}: the input has only {many(seen, 'record')}")
        spent = time.monotonic() - began
        sent, before = max(0, seen - start), f"; {done:,} were there" if done else ""
        rate = f"{sent / max(spent, 0.001):,.0f} a second{before}"
        typer.echo(f"sent {many(sent, 'record')} to {topic}, {rate}", err=True)


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a command has come when it stops, counted in records of the input."""

    start: int
    """Where it began: the records before were skipped, or sent by an earlier command of the same producer."""
    at: int
    """The next record to send."""
    producer: str | None

    @property
    def sent(self) -> str:
        """How many records this command has sent."""
        count = max(0, self.at - self.start)
        return f"{many(count, 'record')} {'was' if count == 1 else 'were'} sent"

    @property
    def again(self) -> str:
        """How to send the rest."""
        if self.producer is not None or not self.at:
            return "run the same command again" + (", which adds only the rest" if self.at else "")
        return f"run the same command with --skip {max(self.at, self.start)}, which sends only the rest"

    def mend_line(self) -> str:
        """The advice after a line that is no record."""
        return (
            f"{self.sent} before it. Mend the line, or add --unchecked, with which pipelines set it aside as a dead "
            f"letter; then {self.again}"
        )

    def after(self, error: MillraceError, unsure: int) -> MillraceError:
        """The error of an append or a read, with advice to send the rest. `unsure` records may be kept or not."""
        if unsure and isinstance(error, UncertainError) and self.producer is None:
            advice = (
                f"{self.sent}, and perhaps {many(unsure, 'record')} more: look at the end of the topic, then run the "
                f"same command with --skip {self.at + unsure} if they are there, and with --skip {self.at} if not"
            )
            return MachineError(error.problem, advice, error.place)
        parts = [self.sent, "mend that" if isinstance(error, MachineError) else error.advice]
        parts += [] if isinstance(error, ConflictError) else [self.again]
        return type(error)(error.problem, "; ".join(filter(None, parts)), error.place)


def _append(log: Log, topic: str, values: pa.Array, key: str | None, before: Progressed, end: int) -> None:
    """Append records of the input up to `end`. If that fails, the error says what was sent before them."""
    keys = None if key is None else keys_of(values, key)
    sequence = None if before.producer is None else end
    try:
        log.append(topic, values, keys, producer=before.producer, sequence=sequence)
    except MillraceError as error:
        raise before.after(error, end - before.at) from None


def _next(read: Iterator[Chunk], before: Progressed) -> Chunk | None:
    """What to send next; if it cannot be read, the error says what was sent before it."""
    try:
        return next(read, None)
    except MillraceError as error:
        raise (before.after(error, 0) if before.at else error) from None


def _bar(file: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=(console := Console(stderr=True)), disable=not console.is_terminal or file == "-",
    )  # fmt: skip


def _misfit(file: str, chunk: Chunk, place: int) -> str:
    text = chunk.values[place].as_py()
    shown = "it is not text in UTF-8" if text is None else f"it is not a JSON object: {text.strip()!r:.80}"
    return f"line {chunk.lines[place]}" + (f" of {file}" if file != "-" else "") + f": {shown}"
