"""A script that was checked against its pipeline: names are known, records have the types of their source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.edge.tables import columns_of
from millrace.model.duration import to_datetime
from millrace.model.errors import Place, caller, refuse, refuse_unknown, unknown
from millrace.model.pipeline import Pipeline
from millrace.model.query import Query
from millrace.model.stream import Source, Stream, Table
from millrace.model.window import Row
from millrace.spark.snapshots import tables_of
from millrace.testing.records import Admitted, admit, contents_of
from millrace.testing.script import Arrival, Contents, Script, ScriptMark


@dataclass(frozen=True, slots=True)
class Checked:
    """A pipeline and a script for it."""

    pipeline: Pipeline
    script: Script
    outputs: Mapping[str, Query | Stream]
    """Views by name, then sinks by their text in `explain()`."""
    admitted: Mapping[int, Admitted]
    """The arriving records, by the number of the step."""
    tables: Mapping[str, Sequence[Row]]
    """The rows at the start of tables that are read from a file or a view."""
    contents: Mapping[int, Sequence[Row]]
    """The new rows of a table, by the number of the step that sets them."""


def check_script(pipeline: Pipeline, script: Script) -> Checked:
    """Check a script. Refuses names that the pipeline does not have, with the place of the step."""
    if all(isinstance(step, Contents) for step in script.steps):
        advice = "assign the script that a method returns: script = script.rows(...)"
        raise refuse("the script has no rows, watermarks or clock steps", advice=advice)
    sources, tables = _sources(pipeline), _tables(pipeline)
    arrivals: dict[str, dict[int, Arrival]] = {}
    contents: dict[int, Sequence[Row]] = {}
    for number, step in enumerate(script.steps):
        if isinstance(step, Arrival):
            if step.source not in sources:
                raise refuse_unknown("source", step.source, sources, step.place)
            arrivals.setdefault(step.source, {})[number] = step
        elif isinstance(step, Contents):
            contents[number] = contents_of(_table(pipeline, step, tables), step)
    admitted: dict[int, Admitted] = {}
    for name, steps in arrivals.items():
        admitted |= zip(steps, admit(sources[name], list(steps.values())), strict=True)
    return Checked(pipeline, script, _outputs(pipeline), admitted, _at_start(script, tables, contents), contents)


def check_mark(checked: Checked, step: ScriptMark, watermarks: Mapping[str, int]) -> None:
    """Refuse a watermark without effect, because every query is past it. `watermarks` are those of the outputs."""
    queries = [name for name, of in checked.outputs.items() if isinstance(of, Query) and of.timed_by is not None]
    least = min((watermarks[name] for name in queries), default=step.at)
    if step.at < least:
        raise refuse(
            f"watermark({to_datetime(step.at).isoformat()!r}) has no effect: by the event_time(...) of the pipeline "
            f"and the rows so far, the watermark is already at {to_datetime(least).isoformat()}",
            step.place,
        )


def stream_of(of: Query | Stream) -> Stream:
    """The stream that an output reads."""
    return of.stream if isinstance(of, Query) else of


def _sources(pipeline: Pipeline) -> dict[str, Source]:
    sources: dict[str, Source] = {}
    for source in pipeline.sources:
        if sources.setdefault(source.name, source) != source:
            raise refuse(
                f"the pipeline has two sources named {source.name!r}, of kinds {sources[source.name].kind} and "
                f"{source.kind}"
            )
    return sources


def _outputs(pipeline: Pipeline) -> dict[str, Query | Stream]:
    outputs: dict[str, Query | Stream] = dict(pipeline.views)
    for output in pipeline.sinks:
        name = str(output.sink)
        if name in outputs:
            raise refuse(f"two outputs write to {name}", output.place, "give each output a sink of its own")
        outputs[name] = output.of
    return outputs


def _tables(pipeline: Pipeline) -> dict[str, Table]:
    """The tables whose rows are not defined in the pipeline."""
    return tables_of(pipeline.streams)


def _table(pipeline: Pipeline, step: Contents, tables: Mapping[str, Table]) -> Table:
    if step.table not in tables:
        advice = "use a table with path= or view=, whose rows a script can set"
        raise refuse(unknown("table", step.table, tables), step.place, advice)
    return tables[step.table]


def _at_start(
    script: Script, tables: Mapping[str, Table], contents: Mapping[int, Sequence[Row]]
) -> dict[str, Sequence[Row]]:
    """The rows of tables before the first step that is not about a table: from the script, or else from their file."""
    held: dict[str, Sequence[Row]] = {}
    for number, step in enumerate(script.steps):
        if not isinstance(step, Contents):
            break
        held[step.table] = contents[number]
    place: Place = caller()
    for name, table in tables.items():
        if name not in held and table.path is None:
            raise refuse(
                f"the script does not set the rows of table {name!r}, which is read from view {table.view!r}",
                place,
                f"start the script with .table({name!r}, ...)",
            )
        if name not in held:
            held[name] = columns_of(table, place).to_pylist()
    return held
