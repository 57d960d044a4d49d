"""Commands about dead letters: list, show, fix, resend, drop."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import LOG, LogPath, plain_mistakes
from millrace.cli.shown import AsJson, Format, for_output, show
from millrace.cli.shown import chosen as as_chosen
from millrace.eventlog.topics import Log
from millrace.letters.box import LetterBox, find_box
from millrace.letters.editing import edited, to_edit
from millrace.letters.fixing import Fixed, fix, fix_texts
from millrace.letters.letter import Chosen, State
from millrace.letters.resending import Topics, resend
from millrace.letters.tabular import letters_of, reasons_of
from millrace.model.errors import MachineError, NotFoundError, PipelineError
from millrace.model.pipeline import Pipeline as Loaded
from millrace.running.load import load
from millrace.running.totals import many

dead = typer.Typer(no_args_is_help=True, help="List, fix and send again the records that a pipeline has set aside.")
Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="The name of the pipeline.")]
Numbers = Annotated[
    list[int] | None, typer.Argument(metavar="LETTER", help="The numbers of letters. Default: all letters.")
]
Reason = Annotated[
    str | None, typer.Option(help="Only letters with this reason, as millrace dead list shows it.", metavar="REASON")
]
Folder = Annotated[Path, typer.Option(help="The folder of the checkpoints.", metavar="FOLDER")]
FOLDER = Path(".millrace")


@dead.command("list")
def list_(pipeline: Pipeline, format: Format = "table", json: AsJson = False, folder: Folder = FOLDER) -> None:
    """List the reasons of the dead letters, with their count, first and last time, and a hint.

    Example: [bold]millrace dead list charts[/bold]
    """
    with plain_mistakes():
        format = as_chosen(format, json)
        found = reasons_of(find_box(folder, pipeline))
        if not len(found) and format == "table":
            typer.echo(f"{pipeline} has no dead letters")
            return
        show(found.column_names, [tuple(row.values()) for row in found.to_pylist()], format)


@dead.command("show")
def show_(
    pipeline: Pipeline,
    letters: Numbers = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(help="The maximum number of letters.", min=1)] = 20,
    values: Annotated[
        bool, typer.Option("--values", help="Print only the records, the fixed ones as fixed, one on each line.")
    ] = False,
    format: Format = "table",
    json: AsJson = False,
    folder: Folder = FOLDER,
) -> None:
    """Show dead letters: the record, its source and offset, the reason and a hint.

    Example: [bold]millrace dead show charts --reason "ms is not BIGINT"[/bold]
    """
    with plain_mistakes():
        format = as_chosen(format, json)
        box, chosen = find_box(folder, pipeline), Chosen(tuple(letters or ()), reason)
        if values:
            for letter in box.letters(chosen):
                if letter.text is not None:
                    typer.echo(for_output(letter.text), color=True)
            return
        found = letters_of(box, chosen, limit)
        if not len(found) and format == "table":
            typer.echo(f"{pipeline} has no dead letters")
            return
        rows = found.to_pylist()
        if format == "table":
            used = [name for name in found.column_names if any(row[name] is not None for row in rows)]
            show(used, [[row[name] for name in used] for row in rows], format)
            left = len(box.letters(chosen)) - len(found)
            if left:
                typer.echo(f"{left:,} more: raise --limit", err=True)
        else:
            show(found.column_names, [tuple(row.values()) for row in rows], format)


@dead.command("fix")
def fix_(
    pipeline: Pipeline,
    letters: Numbers = None,
    reason: Reason = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=SQL",
            help="A field, and an SQL expression over the fields of the record. Several are computed at once.",
        ),
    ] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Edit the records with $EDITOR.")] = False,
    folder: Folder = FOLDER,
) -> None:  # fmt: skip
    """Correct the records of dead letters, by SQL or in an editor.

    A corrected record is stored beside the letter if it fits the schema of its source; millrace dead resend sends it.
    In an expression a field has the type of its JSON value, and a field that the record lacks is NULL.

    Example: [bold]millrace dead fix charts --set at="timestamp_millis(ts)"[/bold]
    """
    with plain_mistakes():
        if bool(set) == edit:
            raise PipelineError("give either --set or --edit", 'for example --set at="timestamp_millis(ts)"')
        box, chosen = find_box(folder, pipeline), Chosen(tuple(letters or ()), reason)
        done = _edit(box, chosen) if edit else fix(box, chosen, dict(_assignment(text) for text in set or ()))
        typer.echo(f"fixed {many(done.fixed, 'letter')}; send them: millrace dead resend {pipeline}", err=True)
        if done.failed:
            number, why = next(iter(done.failed.items()))
            typer.echo(f"{many(len(done.failed), 'letter')} not fixed; letter {number}: {why}", err=True)


@dead.command("resend")
def resend_(
    pipeline: Pipeline,
    letters: Numbers = None,
    reason: Reason = None,
    unchanged: Annotated[
        bool,
        typer.Option("--unchanged", help="Also send letters that were not fixed: the schema has changed since."),
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also send records that other outputs have read; they read them twice.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="The file of the pipeline, for records from Kafka: it has the address.", metavar="FILE"
        ),
    ] = None,
    log: LogPath = LOG,
    folder: Folder = FOLDER,
) -> None:
    """Append fixed records to their topics again, each exactly once. The letters are marked as resent.

    Example: [bold]millrace dead resend charts[/bold]
    """
    with plain_mistakes():
        box = find_box(folder, pipeline)
        topics = None if file is None else _kafka(load(file, pipeline), box)
        opened = Log(log) if log.exists() else None  # opening it would create one
        if opened is None and not any(source.kind == "kafka" for source in box.sources().values()):
            raise NotFoundError(f"there is no log {log}", "name it: --log FILE")
        sent = resend(box, opened, Chosen(tuple(letters or ()), reason), unchanged, anyway, topics)
        typer.echo(f"sent {many(sent, 'record')} again", err=True)


@dead.command("drop")
def drop_(
    pipeline: Pipeline,
    letters: Numbers = None,
    reason: Reason = None,
    all: Annotated[bool, typer.Option("--all", help="Drop all letters.")] = False,
    resent: Annotated[bool, typer.Option("--resent", help="Drop the letters that were sent again.")] = False,
    folder: Folder = FOLDER,
) -> None:
    """Delete dead letters for good. A replay that meets their records again does not list them.

    Example: [bold]millrace dead drop charts --reason "it is not a JSON object"[/bold]
    """
    with plain_mistakes():
        if not (letters or reason or all or resent):
            raise PipelineError("no letters are named", "name some, or drop all: --all")
        box, chosen = find_box(folder, pipeline), Chosen(tuple(letters or ()), reason)
        if resent:
            done = tuple(letter.number for letter in box.letters(chosen) if letter.state is State.RESENT)
            chosen = Chosen(done, reason)
        dropped = 0 if resent and not chosen.numbers else box.drop(chosen)
        typer.echo(f"dropped {many(dropped, 'letter')}", err=True)


def _kafka(pipeline: Loaded, box: LetterBox) -> Topics:
    from millrace.spark.kafka_resend import KafkaTopics  # its packages are optional

    return KafkaTopics(pipeline, box.id)


def _assignment(text: str) -> tuple[str, str]:
    name, sign, sql = text.partition("=")
    if not sign or not name.strip() or not sql.strip():
        raise PipelineError(f"--set takes FIELD=SQL, not {text!r}", 'for example --set at="timestamp_millis(ts)"')
    return name.strip(), sql.strip()


def _edit(box: LetterBox, chosen: Chosen) -> Fixed:
    letters = [letter for letter in box.letters(chosen) if letter.state is not State.RESENT]
    if not letters:
        raise PipelineError("there is no dead letter to fix")
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise PipelineError("there is no editor", "set EDITOR, for example EDITOR=nano")
    with tempfile.TemporaryDirectory(prefix="millrace-dead-") as folder:
        file = Path(folder, "letters.jsonl")
        file.write_text(to_edit(letters), encoding="utf-8")
        try:
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
        except OSError as error:
            raise MachineError(f"cannot start {editor}: {error.strerror}", "set EDITOR to another one") from None
        if code:
            raise MachineError(f"{editor} ended with {code}", "nothing was changed: try again")
        texts = edited(letters, file.read_text(encoding="utf-8"))
    if not texts:
        raise PipelineError("no record was changed")
    return fix_texts(box, texts)
