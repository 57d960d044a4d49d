"""The command `try`: a pipeline over the records of small files, without Spark."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from millrace.cli.options import PipelineFile, PipelineName, plain_mistakes
from millrace.cli.shown import AsJson, chosen
from millrace.cli.tried import print_json, print_tables
from millrace.edge.tables import columns_of
from millrace.model.duration import parse_positive
from millrace.model.errors import PipelineError, unknown_option
from millrace.model.pipeline import Pipeline
from millrace.running.load import load
from millrace.running.totals import many
from millrace.spark.snapshots import tables_of
from millrace.testing.given import records_in
from millrace.testing.trial import Pace, try_out

FORMATS = ("table", "json")


def try_(
    file: PipelineFile,
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="A file of JSON lines, CSV or Parquet; - reads JSON lines from stdin."),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="NAME=DATA",
            help="The file of one source, or of a joined table; repeat it for each. Needed if there are several.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            help="The number of records of each source in a micro-batch. Default: one, or as many as give 100 "
            "micro-batches.",
            min=1,
            metavar="N",
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            help="The processing time between two micro-batches, such as 10s. Default: it follows the event time.",
            metavar="DURATION",
        ),
    ] = None,
    format: Annotated[str, typer.Option(help="The output format: table or json.", metavar="FORMAT")] = "table",
    json: AsJson = False,
    pipeline: PipelineName = None,
) -> None:
    """Try a pipeline on a small file: print its answers as they come, and the rows of its views at the end.

    Nothing is stored, sinks are not written to, and Spark is not started: the reference engine computes the answers in
    plain Python. Records arrive in the order of the file. Then the input ends, and all windows close.

    Example: [bold]millrace try charts.py plays.json --batch 1 --every 10s[/bold]
    """
    began = time.monotonic()
    with plain_mistakes():
        format = chosen(format, json)
        if format not in FORMATS:
            raise unknown_option("format", format, FORMATS)
        pace = Pace(batch, None if every is None else parse_positive(every, "--every"), time.time_ns() // 1000)
        loaded = load(file, pipeline)
        places = _places(loaded, data, given or ())
        records = {
            each.name: records_in(places[each.name], each.schema) for each in loaded.sources if each.name in places
        }
        trial = try_out(loaded, records, _tables(loaded, places), pace)
        if format == "json":
            print_json(trial)
        else:
            print_tables(trial)
        count, answers = sum(map(len, records.values())), sum(len(trial.answers[name]) for name in trial.outputs)
        batches = f"{many(count, 'record')} in {many(len(trial.batches) - 1, 'micro-batch')}"
        typer.echo(f"{batches}, {many(answers, 'answer')}, {time.monotonic() - began:.1f} s", err=True)


def _places(pipeline: Pipeline, data: str | None, given: Sequence[str]) -> dict[str, str]:
    """The file of each source and table that is named."""
    places: dict[str, str] = {}
    for text in given:
        name, sign, path = text.partition("=")
        if not sign or not name or not path:
            raise PipelineError(f"--from must be NAME=FILE, such as --from plays=plays.json, not {text!r}")
        places[name] = path
    if data is not None:
        left = [source.name for source in pipeline.sources if source.name not in places]
        if len(left) != 1:
            each = " ".join(f"--from {source.name}=FILE" for source in pipeline.sources)
            raise PipelineError(
                f"{data} could be for any of several sources, or for none", f"name a file for each: {each}"
            )
        places[left[0]] = data
    return places


def _tables(pipeline: Pipeline, places: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of the joined tables that are named; unknown names are refused later."""
    sources = {source.name for source in pipeline.sources}
    tables = tables_of(pipeline.streams)
    return {
        name: columns_of(replace(tables[name], path=path, view=None), pipeline.place).to_pylist()
        if name in tables
        else []
        for name, path in places.items()
        if name not in sources
    }
