"""The reference pages of the documentation, written into a folder: the API and the command line.

API pages list the public names for mkdocstrings, which renders their docstrings as the site is built; the page of the
command line is rendered here, from the commands themselves.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.core import TyperGroup

import millrace
from millrace.cli import app


def _is_error(public: object) -> bool:
    return isinstance(public, type) and issubclass(public, Exception)


@dataclass(frozen=True, slots=True)
class ApiPage:
    """A page of the API: some names of `millrace`, and other objects that are reached through them."""

    file: str
    title: str
    introduction: str
    names: tuple[str, ...] = ()
    """Names of `millrace.__all__`; a module stands for all of its public names."""
    others: tuple[str, ...] = ()
    """Dotted paths."""


ERRORS = tuple(name for name in millrace.__all__ if _is_error(getattr(millrace, name)))
API = (
    ApiPage(
        "pipeline.md",
        "Pipelines, streams and queries",
        "A source is a `Stream`; `group_by` and `window` make it `Windowed`; `aggregate` makes that a `Query`; a "
        "`Pipeline` gives queries names and runs them together.",
        ("Pipeline", "explain", "udf"),
        ("millrace.model.stream.Stream", "millrace.model.query.Windowed", "millrace.model.query.Query"),
    ),
    ApiPage(
        "sources.md",
        "Sources, tables and watermarks",
        "Sources are the streams that a pipeline reads; tables are joined with them.",
        ("log", "kafka", "files", "layers", "memory", "table", "percentile", "punctuated"),
    ),
    ApiPage("window.md", "window", "", ("window",)),
    ApiPage("on.md", "on", "", ("on",)),
    ApiPage("agg.md", "agg", "", ("agg",)),
    ApiPage(
        "sinks.md",
        "Sinks and panes",
        "`query.to(sink)` and `stream.to(sink)` go into `Pipeline(sinks=[...])`.",
        ("to_files", "to_table", "to_topic", "to_kafka", "to_function", "Pane", "Timing", "Mode"),
    ),
    ApiPage(
        "custom.md",
        "Sources and sinks of your own",
        "`source(...)` reads from a `CustomSource`, and `to_sink(...)` writes to a `CustomSink`.",
        ("source", "CustomSource", "to_sink", "CustomSink", "Commit"),
    ),
    ApiPage(
        "run.md",
        "Running and reading",
        "`Pipeline.run(...)` returns a `Run`; `connect(...)` opens the views and the log to read and to send.",
        ("Run", "connect"),
        (
            "millrace.client.connection.Connection",
            "millrace.client.result.Result",
            "millrace.client.live_rows.LiveRows",
            "millrace.client.live_async.AsyncLiveRows",
            "millrace.client.live_result.Change",
        ),
    ),
    ApiPage("producer.md", "Producer", "A producer sends records to a topic from Python.", ("Producer",)),
    ApiPage("testing.md", "testing", "", (), ("millrace.testing",)),
    ApiPage("errors.md", "Errors", "What Millrace raises, and what each class means.", ERRORS),
)
CLI = "cli.md"


def pages() -> dict[str, str]:
    """Every page of the reference, by file name."""
    missing = set(millrace.__all__) - {name for page in API for name in page.names}
    if missing:
        raise SystemExit(f"tools/reference.py: no page of the API lists {', '.join(sorted(missing))}; add them to API")
    return {page.file: _api(page) for page in API} | {CLI: _cli()}


def _api(page: ApiPage) -> str:
    parts = [f"# {page.title}", page.introduction] if page.introduction else [f"# {page.title}"]
    for path in (*(f"millrace.{name}" for name in page.names), *page.others):
        parts += _entries(path)
    return "\n\n".join(parts) + "\n"


def _entries(path: str) -> Iterator[str]:
    """The directive of an object; for a module, its docstring and then those of its public names."""
    if path not in sys.modules:
        yield f"::: {path}"
        return
    yield f"::: {path}\n    options:\n      members: false\n      show_root_heading: false"
    for name in sys.modules[path].__all__:
        yield f"::: {path}.{name}"


def _cli() -> str:
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="millrace")
    parts = ["# Command line", _paragraphs(command.help), *_listed(context)]
    for each in _below(context):
        parts += [f"## {each.command_path}", _paragraphs(each.command.help), f"```text\n{_usage(each)}\n```"]
        parts += _parameters(each) + _listed(each)
    return "\n\n".join(part for part in parts if part) + "\n"


def _below(context: typer.Context) -> Iterator[typer.Context]:
    """The contexts of all commands below one, in order, groups before their commands."""
    if isinstance(context.command, TyperGroup):
        for name, command in sorted(context.command.commands.items()):
            below = typer.Context(command, context, info_name=name)
            yield below
            yield from _below(below)


def _usage(context: typer.Context) -> str:
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def _listed(context: typer.Context) -> list[str]:
    """A table of the commands of a group, each with a link to its section and the first line of its help."""
    if not isinstance(context.command, TyperGroup):
        return []
    rows = ["| command | |", "| --- | --- |"]
    for name, command in sorted(context.command.commands.items()):
        path = f"{context.command_path} {name}"
        first = _paragraphs(command.help).partition("\n")[0]
        rows.append(f"| [`{path}`](#{path.replace(' ', '-')}) | {_cell(first)} |")
    return ["\n".join(rows)]


def _parameters(context: typer.Context) -> list[str]:
    """A table of the arguments and options of a command."""
    rows = []
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            name, about = record
            rows.append(f"| {_code(name)} | {_cell(_paragraphs(about))} |")
    return ["\n".join(["| argument or option | |", "| --- | --- |", *rows])] if rows else []


def _paragraphs(text: str | None) -> str:
    """Help text as Markdown: bold is how typer marks a command that is to be typed."""
    marked = re.sub(r"\[bold\](.*?)\[/bold\]", r"`\1`", text or "", flags=re.DOTALL)
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in marked.split("\n\n")).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    return f"`{' '.join(text.split())}`".replace("|", "\\|")


def main(arguments: Sequence[str]) -> None:
    """Write the pages into the folder that is given, and remove those that are there no more."""
    if len(arguments) != 1:
        raise SystemExit("usage: python tools/reference.py FOLDER")
    folder, found = Path(arguments[0]), pages()
    folder.mkdir(parents=True, exist_ok=True)
    for stale in {path.name for path in folder.glob("*.md")} - set(found):
        (folder / stale).unlink()
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
