"""How a pipeline would run: its flow, and for each output whether its edge is fused, and why if not."""

from millrace.edge.fused import how
from millrace.model.explain import as_text
from millrace.model.pipeline import Pipeline
from millrace.model.query import Query
from millrace.model.stream import Stream, sources


def explain(pipeline: Pipeline) -> str:
    """The flow as text, with how the edge of each output runs."""
    return as_text(pipeline, _edge)


def _edge(of: Query | Stream) -> str:
    read = sources(of.stream if isinstance(of, Query) else of)
    ways = {source.name: how(of, source) for source in read}
    native = {name: way for name, way in ways.items() if way.startswith("native")}
    if native:  # one source that cannot be fused takes the others with it
        return ", ".join(native.values())
    return ", ".join(dict.fromkeys(ways.values()))
