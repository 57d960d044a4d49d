"""The outputs of a pipeline by name, and what writes each of them."""

from collections.abc import Mapping
from pathlib import Path

from millrace.log.files import folder_of
from millrace.log.script import Script
from millrace.model.errors import refuse
from millrace.model.pipeline import FileSink, Pipeline, Sink, TableSink
from millrace.spark.answers import schema_of
from millrace.spark.plan import Part
from millrace.spark.writers import TableWriter, Writer, writer_of


def parts_of(pipeline: Pipeline) -> dict[str, Part]:
    """The views and sinks of a pipeline, by name. Refuses two that cannot be told apart."""
    parts = {f"view {name}": Part(f"view {name}", query) for name, query in pipeline.views.items()}
    places: set[object] = set()
    for output in pipeline.sinks:
        name, place = f"sink {output.sink}", _place(output.sink)
        if name in parts or place in places:
            raise refuse(f"two outputs go to {output.sink}; send each to a place of its own", output.place)
        parts[name] = Part(name, output.of)
        places.add(place)
    return parts


def _place(sink: Sink) -> object:
    """Where a sink writes, however its path is written."""
    match sink:
        case FileSink(path):
            return Path(path).resolve()
        case TableSink(path, table):
            return Path(path).resolve(), table.lower()
    return sink


def writers_of(pipeline: Pipeline, store: Path) -> dict[str, Writer]:
    """What writes each output; the changes of views are tables of the store."""
    store.parent.mkdir(parents=True, exist_ok=True)
    writers: dict[str, Writer] = {
        f"view {name}": TableWriter(str(store), name, schema_of(query)) for name, query in pipeline.views.items()
    }
    for output in pipeline.sinks:
        writers[f"sink {output.sink}"] = writer_of(output.sink, schema_of(output.of))
    return writers


def check_sources(pipeline: Pipeline, scripts: Mapping[str, Script]) -> None:
    """Refuse, before anything is started, sources that cannot be read."""
    for source in pipeline.sources:
        if source.kind == "files":
            folder_of(source)
        elif source.kind != "memory":
            raise refuse(f"{source.kind} {source.name!r} cannot be read yet; use files(...)", source.place)
        elif source.name not in scripts:
            raise refuse(f"source {source.name!r} has no rows to read; give it a script", source.place)
