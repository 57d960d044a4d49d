"""A pipeline as people read it: its flow as text, and as a picture for notebooks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from millrace.model.duration import format_duration
from millrace.model.operators import operator_of
from millrace.model.query import Query
from millrace.model.stream import Stream, parents
from millrace.model.trigger import may_finish

if TYPE_CHECKING:
    from millrace.model.pipeline import Pipeline


_FINISHES = "; once it has finished, what still comes for its window is dropped"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the flow and the steps before it."""

    verb: str
    detail: str
    inputs: tuple["Stage", ...] = ()


def stages(pipeline: "Pipeline") -> tuple[Stage, ...]:
    """The last stage of each view and sink, with all before it."""
    last = [Stage("view", f"{name} ({query.schema})", (_of(query),)) for name, query in pipeline.views.items()]
    last += [Stage("sink", str(output.sink), (_of(output.of),)) for output in pipeline.sinks]
    return tuple(last)


def as_text(pipeline: "Pipeline", notes: Callable[[Query | Stream], str] | None = None) -> str:
    """The flow, source first; the sides of a union are indented. `notes` says how the edge of an output runs."""
    lines = [f"pipeline {pipeline.name}"]
    shown: dict[Stage, str] = {}
    outputs = [*pipeline.views.values(), *(output.of for output in pipeline.sinks)]
    for stage, output in zip(stages(pipeline), outputs, strict=True):
        lines.append("")
        (before,) = stage.inputs
        if notes is not None:
            stage = Stage(stage.verb, stage.detail, (Stage("edge", notes(output), (before,)),))
        if before in shown:
            lines.append(f"  {'same as':<11} {shown[before]}")
            lines.append(f"  {stage.verb:<11} {stage.detail}")
        else:
            lines.extend(_lines(stage, "  "))
            shown[before] = f"{stage.verb} {stage.detail.partition(' (')[0]}"
    return "\n".join(lines)


def query_as_text(query: Query) -> str:
    """The flow of one query, source first."""
    return "\n".join(_lines(_of_query(query), ""))


def stream_as_text(stream: Stream) -> str:
    """The flow of one stream, source first."""
    return "\n".join(_lines(_of(stream), ""))


def _lines(stage: Stage, indent: str) -> Iterator[str]:
    if len(stage.inputs) == 1:
        yield from _lines(stage.inputs[0], indent)
    else:
        for number, before in enumerate(stage.inputs, 1):
            yield f"{indent}side {number}"
            yield from _lines(before, indent + "  ")
    yield f"{indent}{stage.verb:<11} {stage.detail}"


def _of(node: Stream | Query) -> Stage:
    if isinstance(node, Query):
        return _of_query(node)
    operator = operator_of(node)
    return Stage(operator.verb, operator.detail, tuple(map(_of, parents(node))))


def _of_query(query: Query) -> Stage:
    stage = _of(query.stream)
    lateness = f", lateness {format_duration(query.lateness)}" if query.lateness else ""
    steps = [
        ("group by", ", ".join(query.keys)),
        ("window", f"{query.windowing}{lateness}"),
        ("trigger", f"{query.trigger}{_FINISHES if may_finish(query.trigger) else ''}"),
        ("panes", str(query.mode)),
        ("aggregate", ", ".join(f"{name} = {aggregate}" for name, aggregate in query.aggregates.items())),
    ]
    for verb, detail in steps:
        if detail:
            stage = Stage(verb, detail, (stage,))
    return stage


# The picture: boxes in columns, one column for each path from a source, joined by lines.

_WIDTH, _HEIGHT, _GAP = 300, 44, 22
_COLOURS = {"source": "#dbeafe", "view": "#dcfce7", "sink": "#dcfce7", "aggregate": "#fef9c3"}


@dataclass(frozen=True, slots=True)
class _Box:
    stage: Stage
    x: float
    y: float


def as_svg(pipeline: "Pipeline") -> str:
    """The flow from top to bottom as a picture that needs nothing else to be shown."""
    boxes: dict[Stage, _Box] = {}
    lines: list[tuple[_Box, _Box]] = []
    column = 0
    for stage in stages(pipeline):
        column += _place(stage, column, boxes, lines)
    width = column * (_WIDTH + _GAP) + _GAP
    height = max(box.y for box in boxes.values()) + _HEIGHT + _GAP
    drawn = [_line(upper, lower) for upper, lower in lines] + [_box(box) for box in boxes.values()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        f"<title>{escape(pipeline.name)}</title>{''.join(drawn)}</svg>"
    )


def _place(stage: Stage, column: int, boxes: dict[Stage, _Box], lines: list[tuple[_Box, _Box]]) -> int:
    """Lay out a stage below its inputs, from this column on; how many columns that takes.

    What several views or sinks have in common is drawn once.
    """
    if stage in boxes:
        return 0
    taken = 0
    for before in stage.inputs:
        taken += _place(before, column + taken, boxes, lines)
    above = [boxes[before] for before in stage.inputs]
    taken = max(taken, 1)
    x = _GAP + (column + (taken - 1) / 2) * (_WIDTH + _GAP)
    y = max((box.y + _HEIGHT for box in above), default=0) + _GAP
    boxes[stage] = _Box(stage, x, y)
    lines.extend((upper, boxes[stage]) for upper in above)
    return taken


def _box(box: _Box) -> str:
    colour = _COLOURS.get(box.stage.verb, "#f3f4f6")
    detail = box.stage.detail if len(box.stage.detail) <= 44 else box.stage.detail[:42] + "…"
    return (
        f"<g><title>{escape(box.stage.detail)}</title>"
        f'<rect x="{box.x}" y="{box.y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{colour}" stroke="#6b7280"/>'
        f'<text x="{box.x + 10}" y="{box.y + 18}" font-weight="bold" fill="#111827">{escape(box.stage.verb)}</text>'
        f'<text x="{box.x + 10}" y="{box.y + 35}" fill="#374151">{escape(detail)}</text></g>'
    )


def _line(upper: _Box, lower: _Box) -> str:
    start, end = upper.x + _WIDTH / 2, lower.x + _WIDTH / 2
    return f'<path d="M{start},{upper.y + _HEIGHT} L{end},{lower.y}" stroke="#6b7280" fill="none"/>'
