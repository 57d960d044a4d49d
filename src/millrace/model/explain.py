"""The flow of a pipeline as text, and as a picture for notebooks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from millrace.model.duration import format_duration
from millrace.model.operators import operator_of
from millrace.model.query import Query
from millrace.model.stream import AnswerStream, JoinStream, Source, Stream, parents
from millrace.model.trigger import may_finish

if TYPE_CHECKING:
    from millrace.model.pipeline import Pipeline


_FINISHES = "; after it finishes, later elements of its window are dropped"
_AT_THE_END = "; all of time ends with the input, so it answers in a batch, and a stream is refused"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the flow, with its inputs."""

    verb: str
    detail: str
    inputs: tuple["Step", ...] = ()
    source: str | None = None
    """The name of the source, if it is one."""
    sides: tuple[str, ...] = ()
    """The names of its inputs, if they have names."""


def steps(pipeline: "Pipeline") -> tuple[Step, ...]:
    """The last step of each view and sink, with all its inputs."""
    last = [Step("view", f"{name} ({of.schema})", (_of(of, ()),)) for name, of in pipeline.views.items()]
    last += [Step("sink", str(output.sink), (_of(output.of, ()),)) for output in pipeline.sinks]
    return tuple(last)


Named: TypeAlias = Sequence[tuple[Query | Stream, str]]
"""The names of queries and joins that are shown on their own; where another one reads them, the name is enough."""


def flow_as_text(of: Query | Stream, named: Named | None = None) -> str:
    """The flow of a query or a stream, source first; the sides of a union or a join are indented."""
    return "\n".join(_lines(_of(of, named or (), is_first=True), ""))


def _lines(step: Step, indent: str) -> Iterator[str]:
    if len(step.inputs) == 1:
        yield from _lines(step.inputs[0], indent)
    else:
        names = step.sides or tuple(f"side {number}" for number in range(1, len(step.inputs) + 1))
        for name, before in zip(names, step.inputs, strict=True):
            yield f"{indent}{name}"
            yield from _lines(before, indent + "  ")
    yield f"{indent}{step.verb:<11} {step.detail}"


def _of(node: Stream | Query, named: Named, is_first: bool = False) -> Step:
    """The last step of a node; `is_first` if it is the node that is shown, whose own name says nothing."""
    computed = node.query if isinstance(node, AnswerStream) else node
    name = next((name for known, name in named if known == computed), None)
    if isinstance(computed, Query | JoinStream) and name is not None and not is_first:
        return Step("reads", name)
    if isinstance(computed, Query):
        return _of_query(computed, named)
    operator = operator_of(computed)
    if isinstance(computed, JoinStream):
        sides = tuple(_of(side, named) for side in computed.sides)
        return Step(operator.verb, operator.detail, sides, sides=("left", "right"))
    source = computed.name if isinstance(computed, Source) else None
    return Step(operator.verb, operator.detail, tuple(_of(each, named) for each in parents(computed)), source)


def _of_query(query: Query, named: Named) -> Step:
    step = _of(query.stream, named)
    lateness = f", lateness {format_duration(query.lateness)}" if query.lateness else ""
    lateness += "; what is later becomes a dead letter" if query.keeps_late else ""
    steps = [
        ("group by", ", ".join(query.keys)),
        ("window", f"{query.windowing}{lateness}"),
        ("trigger", f"{query.when}{_about(query)}"),
        ("panes", str(query.mode)),
        ("aggregate", ", ".join(f"{name} = {aggregate}" for name, aggregate in query.aggregates.items())),
    ]
    for verb, detail in steps:
        if detail:
            step = Step(verb, detail, (step,))
    return step


def _about(query: Query) -> str:
    if query.needs_an_end:
        return _AT_THE_END
    return _FINISHES if may_finish(query.when) else ""


# The picture has boxes in columns, one column for each path from a source, joined by lines.

_WIDTH, _HEIGHT, _GAP = 300, 44, 22
_COLOURS = {"source": "#dbeafe", "view": "#dcfce7", "sink": "#dcfce7", "aggregate": "#fef9c3"}


@dataclass(frozen=True, slots=True)
class _Box:
    step: Step
    x: float
    y: float


def as_svg(pipeline: "Pipeline") -> str:
    """The flow from top to bottom as a self-contained SVG picture."""
    boxes: dict[Step, _Box] = {}
    lines: list[tuple[_Box, _Box]] = []
    column = 0
    for step in steps(pipeline):
        column += _place(step, column, boxes, lines)
    width = column * (_WIDTH + _GAP) + _GAP
    height = max(box.y for box in boxes.values()) + _HEIGHT + _GAP
    drawn = [_line(upper, lower) for upper, lower in lines] + [_box(box) for box in boxes.values()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        f"<title>{escape(pipeline.name)}</title>{''.join(drawn)}</svg>"
    )


def _place(step: Step, column: int, boxes: dict[Step, _Box], lines: list[tuple[_Box, _Box]]) -> int:
    """Lay out a step below its inputs, starting at this column. Returns the number of columns used.

    A step that several views or sinks share is drawn once.
    """
    if step in boxes:
        return 0
    taken = 0
    for before in step.inputs:
        taken += _place(before, column + taken, boxes, lines)
    above = [boxes[before] for before in step.inputs]
    taken = max(taken, 1)
    x = _GAP + (column + (taken - 1) / 2) * (_WIDTH + _GAP)
    y = max((box.y + _HEIGHT for box in above), default=0) + _GAP
    boxes[step] = _Box(step, x, y)
    lines.extend((upper, boxes[step]) for upper in above)
    return taken


def _box(box: _Box) -> str:
    colour = _COLOURS.get(box.step.verb, "#f3f4f6")
    detail = box.step.detail if len(box.step.detail) <= 44 else box.step.detail[:42] + "…"
    return (
        f"<g><title>{escape(box.step.detail)}</title>"
        f'<rect x="{box.x}" y="{box.y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{colour}" stroke="#6b7280"/>'
        f'<text x="{box.x + 10}" y="{box.y + 18}" font-weight="bold" fill="#111827">{escape(box.step.verb)}</text>'
        f'<text x="{box.x + 10}" y="{box.y + 35}" fill="#374151">{escape(detail)}</text></g>'
    )


def _line(upper: _Box, lower: _Box) -> str:
    start, end = upper.x + _WIDTH / 2, lower.x + _WIDTH / 2
    return f'<path d="M{start},{upper.y + _HEIGHT} L{end},{lower.y}" stroke="#6b7280" fill="none"/>'
