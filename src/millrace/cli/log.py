"""Commands about the log: tail, topics."""

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import pyarrow as pa
import typer

from millrace.cli.options import LOG, LogPath, TopicName, plain_mistakes
from millrace.cli.shown import AsJson, Format, chosen, for_output, show
from millrace.eventlog.intercept import Interceptor, add, drop, keep, rename
from millrace.eventlog.topics import Log, existing_log
from millrace.model.duration import format_duration, to_datetime, to_instant
from millrace.model.errors import PipelineError
from millrace.model.plain import visible

topics = typer.Typer(no_args_is_help=False, help="List the topics of the log; create, change and remove topics.")


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
        opened = existing_log(log)
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
    format: Format = "table",
    as_json: AsJson = False,
    log: LogPath = LOG,
) -> None:
    """List the topics of the log, or create, change and remove topics.

    Example: [bold]millrace topics create plays --partitions 4 --max-age 7d[/bold]
    """
    if context.invoked_subcommand is not None:
        return
    with plain_mistakes():
        format = chosen(format, as_json)
        opened = existing_log(log)
        rows = [_described(opened, topic.name) for topic in opened.topics()]
        if not rows and format == "table":
            typer.echo("There are no topics yet; create one: millrace topics create NAME")
            return
        named = (
            "topic",
            "partitions",
            "records",
            "skipped",
            "MB",
            "last",
            "kept for",
            "kept up to",
            "interceptors",
            "behind",
        )
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
        existing_log(log).change(name, **{what: value for what, value in changes.items() if value is not None})
        typer.echo(f"changed topic {name}")


@topics.command("remove")
def remove_(name: TopicName, log: LogPath = LOG) -> None:
    """Remove a topic with all its records."""
    with plain_mistakes():
        existing_log(log).remove(name)
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
        existing_log(log).forget(pipeline)
        typer.echo(f"forgot {pipeline}")


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
            text = visible(_whole(record)) if whole else for_output(_text(record["value"]) or "")
            typer.echo(text, color=True)  # otherwise escape sequences are removed from what a program gets


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
    skipped = sum(gap.records for gap in log.gaps(name))
    newest = log.latest(name)
    behind = ", ".join(f"{reader} {lag:,}" for reader, lag in log.lag(name).items())
    return (
        name,
        topic.partitions,
        sum(ends) - sum(starts) - skipped,
        skipped or None,
        round(sum(held) / 1e6, 1),
        None if newest is None else to_datetime(newest).isoformat(timespec="seconds"),
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
