"""Commands about the log: send, tail, topics."""

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from millrace.cli.options import LOG, LogPath, TopicName, plain_mistakes
from millrace.cli.shown import show
from millrace.eventlog.intercept import Interceptor, add, drop, keep, rename
from millrace.eventlog.topics import Log
from millrace.model.duration import format_duration, to_instant
from millrace.model.errors import MillraceError, PipelineError
from millrace.running.totals import many
from millrace.sources.collect import Chunk, chunks, first_misfit, keys_of

topics = typer.Typer(no_args_is_help=False, help="List the topics of the log; create, change and remove topics.")


def send(
    topic: TopicName,
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="A file of JSON lines or CSV; - reads stdin.")] = "-",
    format: Annotated[
        str | None,
        typer.Option(help="The input format: json or csv. Default: csv if FILE ends with .csv.", metavar="FORMAT"),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The field whose value assigns a record to a partition.", metavar="FIELD"),
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(
            help="The name of an idempotent producer: the same command again appends only the missing records.",
            metavar="NAME",
        ),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False,
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="Also send lines that are not JSON objects; they become dead letters."),
    ] = False,
    log: LogPath = LOG,
) -> None:
    """Append records to a topic of the log: the JSON objects of a file, one on each line, or the rows of a CSV file.

    Records that are reported as sent are on the disk. A line that is not a JSON object ends the command with an error
    that names the line.

    Examples: [bold]millrace send plays plays.json[/bold], [bold]tail -F app.log | millrace send logs[/bold]
    """
    with plain_mistakes():
        opened = Log(log)
        if create and topic not in {each.name for each in opened.topics()}:
            opened.create(topic)
        opened.topic(topic)
        kind = format or ("csv" if file.endswith(".csv") else "json")
        # The number of an append is how many records there are up to its end, however they were read.
        named = None if producer is None else f"{producer} of {file if file == '-' else Path(file).resolve()}"
        done = 0 if named is None else opened.last(topic, named) or 0
        seen, began = 0, time.monotonic()
        with _bar(file) as bar:
            task = bar.add_task(f"to {topic}", total=Path(file).stat().st_size if Path(file).is_file() else None)
            read = chunks(file, kind)
            while (chunk := _next(read, seen, named)) is not None:
                wrong = None if unchecked else first_misfit(chunk.values)
                values = chunk.values if wrong is None else chunk.values.slice(0, wrong)
                new = values.slice(max(0, done - seen))
                seen += len(values)
                if len(new):
                    keys = None if key is None else keys_of(new, key)
                    opened.append(topic, new, keys, producer=named, sequence=None if named is None else seen)
                bar.update(task, advance=chunk.size)
                if wrong is not None:
                    raise _misfit(file, chunk, wrong, _sent(seen, named))
        spent = time.monotonic() - began
        sent, before = max(0, seen - done), f"; {done:,} were sent before" if done else ""
        rate = f"{sent / max(spent, 0.001):,.0f} a second{before}"
        typer.echo(f"sent {many(sent, 'record')} to {topic}, {rate}", err=True)


def tail(
    topic: TopicName,
    last: Annotated[int, typer.Option("-n", "--last", help="The number of newest records to print first.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new records too, until Ctrl-C.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="The first record to print: earliest, latest, an offset or a time.", metavar="START"
        ),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Print each record as JSON with its key, partition, offset, time and headers."),
    ] = False,
    log: LogPath = LOG,
) -> None:
    """Print the records of a topic, one on each line.

    Example: [bold]millrace tail plays -f[/bold]
    """
    with plain_mistakes():
        opened = Log(log)
        at = _begin(opened, topic, start, last)
        try:
            while True:
                ends = opened.ends(topic)
                _print(_between(opened, topic, at, ends), whole, last if start is None else None)
                at, start = ends, "there"
                if not follow:
                    return
                while opened.ends(topic) == at:
                    time.sleep(0.2)
        except (KeyboardInterrupt, BrokenPipeError):
            sys.stderr.close()  # otherwise Python prints that the pipe was closed


@topics.callback(invoke_without_command=True)
def list_(
    context: typer.Context,
    format: Annotated[str, typer.Option(help="The output format: table, json or csv.", metavar="FORMAT")] = "table",
    log: LogPath = LOG,
) -> None:
    """List the topics of the log, or create, change and remove topics.

    Example: [bold]millrace topics create plays --partitions 4 --max-age 7d[/bold]
    """
    if context.invoked_subcommand is not None:
        return
    with plain_mistakes():
        opened = Log(log)
        rows = [_described(opened, topic.name) for topic in opened.topics()]
        if not rows and format == "table":
            typer.echo("There are no topics yet; create one: millrace topics create NAME")
            return
        named = ("topic", "partitions", "records", "MB", "last", "kept for", "kept up to", "interceptors", "behind")
        used = [
            column
            for column in range(len(named))  # a table leaves out columns without values
            if format != "table" or any(row[column] not in (None, "") for row in rows)
        ]
        show([named[column] for column in used], [[row[column] for column in used] for row in rows], format)


Partitions = Annotated[int, typer.Option(help="The number of partitions; the key of a record chooses one.")]
MaxAge = Annotated[
    str | None,
    typer.Option(help="The retention of records by age, such as 7d. Default: no limit.", metavar="DURATION"),
]
MaxBytes = Annotated[
    int | None, typer.Option(help="The retention of records by size in bytes. Default: no limit.", metavar="BYTES")
]
Chain = Annotated[
    list[str] | None,
    typer.Option(
        "--intercept", metavar="STEP",
        help="An interceptor, which changes records before they are stored: add:region=eu, drop:ip, rename:ts=at, or "
        "keep:'ms >= 30000; ms BIGINT', a condition and the types of its fields. Several run in the given order.",
    ),
]  # fmt: skip


@topics.command("create")
def create_(
    name: TopicName,
    partitions: Partitions = 1,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    intercept: Chain = None,
    log: LogPath = LOG,
) -> None:
    """Create a topic."""
    with plain_mistakes():
        Log(log).create(name, partitions, max_age, max_bytes, [_step(text) for text in intercept or ()])
        typer.echo(f"created topic {name}")


@topics.command("change")
def change_(
    name: TopicName, max_age: MaxAge = None, max_bytes: MaxBytes = None, intercept: Chain = None, log: LogPath = LOG
) -> None:
    """Change the retention and the interceptors of a topic. Options that are left out keep their values."""
    with plain_mistakes():
        changes: dict[str, Any] = {"max_age": max_age, "max_bytes": max_bytes}
        if intercept is not None:
            changes["interceptors"] = [_step(text) for text in intercept if text]
        Log(log).change(name, **{what: value for what, value in changes.items() if value is not None})
        typer.echo(f"changed topic {name}")


@topics.command("remove")
def remove_(name: TopicName, log: LogPath = LOG) -> None:
    """Remove a topic with all its records."""
    with plain_mistakes():
        Log(log).remove(name)
        typer.echo(f"removed topic {name}")


@topics.command("forget")
def forget_(
    pipeline: Annotated[
        str,
        typer.Argument(metavar="PIPELINE", help="The name of the pipeline, as millrace topics shows it with its lag."),
    ],
    log: LogPath = LOG,
) -> None:
    """Remove the consumer group of a pipeline that no longer runs, so that its lag does not stop producers."""
    with plain_mistakes():
        Log(log).forget(pipeline)
        typer.echo(f"forgot {pipeline}")


def _bar(file: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=(console := Console(stderr=True)), disable=not console.is_terminal or file == "-",
    )  # fmt: skip


def _next(read: Iterator[Chunk], sent: int, producer: str | None) -> Chunk | None:
    """The next chunk; if it cannot be read, the error says how many records were sent before it."""
    try:
        return next(read, None)
    except MillraceError as error:
        advice = "; ".join(filter(None, (error.advice, _sent(sent, producer))))
        raise (type(error)(error.problem, advice, error.place) if sent else error) from None


def _misfit(file: str, chunk: Chunk, index: int, sent: str) -> PipelineError:
    text = chunk.values[index].as_py()
    problem = "is not text in UTF-8" if text is None else f"is not a JSON object: {text.strip()!r:.80}"
    where = f"line {chunk.lines[index]}" + (f" of {file}" if file != "-" else "")
    advice = "Correct the line, or use --unchecked to send it, so that it becomes a dead letter."
    return PipelineError(f"{where} {problem}", f"{sent}. {advice}")


def _sent(count: int, producer: str | None) -> str:
    again = "again, it adds only what is missing" if producer else "without them: only a --producer is known again"
    what = f"{many(count, 'record')} before it {'was' if count == 1 else 'were'} sent"
    return f"{what}; send the file {again}" if count else what


def _begin(log: Log, topic: str, start: str | None, last: int) -> list[int]:
    starts, ends = log.starts(topic), log.ends(topic)
    match start:
        case None:
            return [max(first, end - last) for first, end in zip(starts, ends, strict=True)]
        case "earliest":
            return starts
        case "latest":
            return ends
    if start.isdigit():
        return [max(first, int(start)) for first in starts]
    try:
        return log.at_time(topic, to_instant(datetime.fromisoformat(start)))
    except ValueError:
        known = "earliest, latest, an offset or a time such as 2026-01-31T12:00Z"
        raise PipelineError(f"--from must be {known}, not {start!r}") from None


def _between(log: Log, topic: str, at: list[int], ends: list[int]) -> Iterator[pa.Table]:
    step = 10_000
    for partition, (first, end) in enumerate(zip(at, ends, strict=True)):
        for offset in range(first, end, step):
            records = log.read(topic, partition, offset, min(end, offset + step))
            yield records.append_column("partition", pa.array([partition] * len(records), pa.int32()))


def _print(tables: Iterator[pa.Table], whole: bool, last: int | None) -> None:
    if last is not None:  # the newest records of all partitions together, sorted by time
        partitions = [*tables]
        if not partitions:
            return
        order = [(name, "ascending") for name in ("timestamp", "partition", "offset")]
        merged = pa.concat_tables(partitions).sort_by(order)
        tables = iter([merged.slice(max(0, len(merged) - last))])
    for table in tables:
        for record in table.to_pylist():
            typer.echo(_whole(record) if whole else _text(record["value"]))


def _whole(record: dict[str, Any]) -> str:
    headers = {header["key"]: _text(header["value"]) for header in record["headers"] or ()}
    shown = {
        "partition": record["partition"],
        "offset": record["offset"],
        "time": record["timestamp"].isoformat(),
        "key": _text(record["key"]),
        "headers": headers,
        "value": _text(record["value"]),
    }
    return json.dumps(shown, ensure_ascii=False)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace").rstrip("\n")


def _described(log: Log, name: str) -> tuple[Any, ...]:
    topic = log.topic(name)
    starts, ends = log.starts(name), log.ends(name)
    held = [size for part, end in enumerate(ends) for _, _, size in log.sizes(name, part, starts[part], end)]
    last = [log.read(name, part, end - 1, end) for part, end in enumerate(ends) if end > starts[part]]
    newest = max((record["timestamp"][0].as_py() for record in last), default=None)
    behind = ", ".join(f"{reader} {many:,}" for reader, many in log.lag(name).items())
    return (
        name,
        topic.partitions,
        sum(ends) - sum(starts),
        round(sum(held) / 1e6, 1),
        None if newest is None else newest.isoformat(timespec="seconds"),
        None if topic.max_age is None else format_duration(topic.max_age),
        topic.max_bytes,
        "; ".join(map(str, topic.interceptors)),
        behind,
    )


def _step(text: str) -> Interceptor:
    kind, _, rest = text.partition(":")
    match kind:
        case "add":
            return add(**_pairs(rest))
        case "drop":
            return drop(*(name.strip() for name in rest.split(",")))
        case "rename":
            return rename(**_pairs(rest))
        case "keep" if ";" in rest:
            condition, _, schema = rest.rpartition(";")
            return keep(condition.strip(), schema.strip())
    known = "add:field=value, drop:field, rename:old=new or keep:'condition; schema'"
    raise PipelineError(f"--intercept must be {known}, not {text!r}")


def _pairs(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if any(not sign for _, sign, _ in pairs):
        raise PipelineError(f"--intercept takes pairs such as field=value, not {text!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}
