"""The command `send`: records of files or a pipe, to a topic of the log.

A failed append leaves the log as it was, and the appends before it are kept. So `send` knows exactly how many records
of its input are in the log, and says how to send the rest and nothing twice.
"""

import time
from collections.abc import Callable, Iterator, Sequence
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
from millrace.formats.compressed import plain_size
from millrace.formats.texts import SPACES
from millrace.model.errors import ConflictError, MachineError, MillraceError, PipelineError
from millrace.running.totals import many
from millrace.sources.collect import Chunk, chunks, files_of, first_misfit, format_of, keys_of


def send(
    topic: TopicName,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|FOLDER|-]...",
            help="Files of JSON lines or CSV, also compressed, and folders of such files; - reads stdin, which is the "
            "default.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="The input format: json or csv. Default: csv if FILE ends with .csv, or .csv.gz.", metavar="FORMAT"
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            help="The character between the columns of CSV, such as ';' or '\\t'. Default: comma, semicolon, tab or |, "
            "as the first row shows.",
            metavar="CHARACTER",
        ),
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
    """Append records to a topic of the log: the JSON objects of files, one on each line, or the rows of CSV files.

    Several files are sent one after the other; those of a folder by name. A file may be compressed with gzip, bzip2 or
    Zstandard. Records that are reported as sent are on the disk. A line that is not a JSON object ends the command with
    an error that names the line. Whenever the command stops early, it says how many records were sent, and how to send
    the rest.

    Examples: [bold]millrace send plays plays.json[/bold], [bold]millrace send plays january/ february/[/bold],
    [bold]tail -F app.log | millrace send logs[/bold]
    """
    with plain_mistakes():
        between = _delimiter(delimiter)
        opened = Log(log) if create else existing_log(log, topic)
        if create and topic not in {each.name for each in opened.topics()}:
            opened.create(topic)
        opened.topic(topic)
        inputs = files_of(files or ["-"])
        kinds = {file: format or format_of(file) for file in inputs}
        if between is not None and "csv" not in kinds.values():
            raise PipelineError("--delimiter has no effect, as no file is CSV", "leave it out, or add --format csv")
        began, sending = time.monotonic(), Sending(opened, topic, key, producer, skip, unchecked)
        sizes = [plain_size(file) for file in inputs]
        with _bar(inputs) as bar:
            task = bar.add_task(f"to {topic}", total=None if None in sizes else sum(filter(None, sizes)))
            for file in inputs:
                sending.file(file, kinds[file], between, lambda size: bar.update(task, advance=size))
        if skip > sending.seen:
            raise PipelineError(f"--skip {skip}: the input has only {many(sending.seen, 'record')}")
        spent = time.monotonic() - began
        of_files = f" of {many(len(inputs), 'file')}" if len(inputs) > 1 else ""
        there = f"; {sending.there:,} were there" if sending.there else ""
        rate = f"{sending.sent / max(spent, 0.001):,.0f} a second{there}"
        typer.echo(f"sent {many(sending.sent, 'record')}{of_files} to {topic}, {rate}", err=True)
        if sending.keyless:
            without = (
                f"{sending.keyless:,} of them {'has' if sending.keyless == 1 else 'have'} no value in field {key!r}"
            )
            typer.echo(f"warning: {without}, so that they have no key, and any partition may hold them", err=True)


class Sending:
    """Sends files to a topic, one after the other, and counts their records."""

    def __init__(self, log: Log, topic: str, key: str | None, producer: str | None, skip: int, unchecked: bool) -> None:
        """Start before the first file; `skip` records of all files together are left out."""
        self._log, self._topic, self._key, self._producer = log, topic, key, producer
        self._skip, self._unchecked = skip, unchecked
        self.seen = 0
        """The records of the input that were read."""
        self.sent = 0
        self.there = 0
        """The records that an earlier command of the same producer has sent."""
        self.keyless = 0
        """The records that were sent without a key, though a field for it was named."""

    def file(self, file: str, kind: str, delimiter: str | None, on_read: Callable[[int], None]) -> None:
        """Send the records of a file that are not skipped or there already; calls `on_read` with bytes read."""
        # The number of an append is how many records its file has up to its end, however they were read.
        named = (
            None if self._producer is None else f"{self._producer} of {file if file == '-' else Path(file).resolve()}"
        )
        done = 0 if named is None else self._log.last(self._topic, named) or 0
        before, seen = self.seen, 0
        start = max(done, self._skip - before)
        read = chunks(file, kind, delimiter)
        while (chunk := self._next(read)) is not None:
            wrong = None if self._unchecked else first_misfit(chunk.values)
            values = chunk.values if wrong is None else chunk.values.slice(0, wrong)
            new = values.slice(max(0, start - seen))
            seen += len(values)
            self.seen = before + seen - len(new)
            if len(new):
                self._append(new, named, seen)
            self.seen = before + seen
            on_read(chunk.size)
            if wrong is not None:
                raise PipelineError(_misfit(file, chunk, wrong), self._progressed().mend_line())
        self.there += min(done, seen)

    def _next(self, read: Iterator[Chunk]) -> Chunk | None:
        """What to send next; if it cannot be read, the error says what was sent before it."""
        try:
            return next(read, None)
        except MillraceError as error:
            raise (self._progressed().after(error, 0) if self.seen else error) from None

    def _append(self, values: pa.Array, producer: str | None, sequence: int) -> None:
        """Append records. If that fails, the error says what was sent before them."""
        keys = None if self._key is None else keys_of(values, self._key)
        number = None if producer is None else sequence
        try:
            self._log.append(self._topic, values, keys, producer=producer, sequence=number)
        except MillraceError as error:
            raise self._progressed().after(error, len(values)) from None
        self.sent += len(values)
        self.keyless += 0 if keys is None else keys.null_count

    def _progressed(self) -> "Progressed":
        return Progressed(self.sent, max(self.seen, self._skip), self._producer)


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a command has come when it stops, counted in records of the input."""

    count: int
    """The records that this command has sent."""
    at: int
    """The next record to send: the records before it were sent or skipped."""
    producer: str | None

    @property
    def sent(self) -> str:
        """How many records this command has sent."""
        return f"{many(self.count, 'record')} {'was' if self.count == 1 else 'were'} sent"

    @property
    def again(self) -> str:
        """How to send the rest."""
        if self.producer is not None or not self.at:
            return "run the same command again" + (", which adds only the rest" if self.at else "")
        return f"run the same command with --skip {self.at}, which sends only the rest"

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


def _delimiter(given: str | None) -> str | None:
    text = "\t" if given == "\\t" else given
    if text is not None and (len(text) != 1 or text in '"\r\n'):
        raise PipelineError(f"--delimiter must be one character, such as ';' or '\\t', not {given!r}")
    return text


def _bar(files: Sequence[str]) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=(console := Console(stderr=True)), disable=not console.is_terminal or "-" in files,
    )  # fmt: skip


def _misfit(file: str, chunk: Chunk, place: int) -> str:
    text = chunk.values[place].as_py()
    shown = "it is not text in UTF-8" if text is None else f"it is not a JSON object: {text.strip(SPACES)!r:.80}"
    return f"line {chunk.lines[place]}" + (f" of {file}" if file != "-" else "") + f": {shown}"
