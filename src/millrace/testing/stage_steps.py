"""Parses transcripts with stages: a YAML document becomes a graph of stages and the steps that drive it.

docs/transcripts.md describes the format.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from millrace.model.errors import Place, refuse, refuse_unknown
from millrace.model.query import WINDOW_COLUMNS, Query
from millrace.model.stream import Source, Stream
from millrace.model.window import Row
from millrace.testing.elements import parse_elements, parse_sources, to_row, with_keys
from millrace.testing.notation import parse_policy
from millrace.testing.stages import StageText, Watermarks, build_stages, parse_stages, sources_of
from millrace.testing.transcript import PANE, Document, check_attributes, checked_content, instant, listed

T = TypeVar("T")

_KEYS = ("name", "stages", "sources", "watch", "watermarks", "idle", "steps", "error")
_BATCH = ("input", "source", "watermark", "clock")
_CHECKS = ("expect", "dropped", "watermark_is")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One step of all stages: input by source, then watermarks by source, then the clock."""

    rows: Mapping[str, tuple[Row, ...]]
    watermarks: Mapping[str, int]
    clock: int | None


@dataclass(frozen=True, slots=True)
class ExpectOfStages:
    """The expected panes or rows of stages since the last such step; a watched stage that is not named has none.

    Those of a stage that is not watched are not compared.
    """

    said: Mapping[str, tuple[Mapping[str, Any], ...]]


@dataclass(frozen=True, slots=True)
class DroppedByStages:
    """The expected numbers of dropped elements since the start, by stage."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WatermarksOfStages:
    """The expected watermarks, by stage."""

    at: Mapping[str, int]


StagesStep: TypeAlias = MicroBatch | ExpectOfStages | DroppedByStages | WatermarksOfStages


@dataclass(frozen=True, slots=True)
class StagesTranscript:
    """A graph of stages and its steps: input, time and expectations."""

    stages: Mapping[str, Query | Stream]
    """Each stage by its name: a query, or a stream of changes."""
    watched: tuple[str, ...]
    """The stages whose panes and rows are compared."""
    steps: tuple[StagesStep, ...]
    derived: bool
    """Whether the watermark follows from the events after each step."""


def has_stages(document: Document) -> bool:
    """Whether a document is a transcript of a graph of stages."""
    return isinstance(document.content, Mapping) and "stages" in document.content


def parse_stages_transcript(document: Document) -> StagesTranscript:
    """Parse a document. Raises MillraceError if it is invalid."""
    content = checked_content(document, _KEYS, ("stages", "steps"))
    texts = parse_stages(content["stages"])
    names = sources_of(texts)
    steps = {number: _given(step, number, names) for number, step in enumerate(content["steps"], 1)}
    joins = any(text.join is not None for text in texts.values())
    given = with_keys(steps, content.get("sources")) if joins else steps
    elements = {name: [each for step in given.values() for each in step.get(name, [])] for name in names}
    sources = parse_sources(names, content.get("sources"), elements)
    watermarks = Watermarks(parse_policy(content.get("watermarks", "delay(0s)")), content.get("idle"))
    stages = build_stages(texts, sources, watermarks, Place(document.file, document.line))
    watched = _watched(content, texts)
    derived = "watermarks" in content or "idle" in content
    rows = {
        number: {name: _rows(each, sources[name], texts, number) for name, each in step.items()}
        for number, step in given.items()
    }
    parsed = tuple(
        _step(step, number, rows[number], names, stages, watched) for number, step in enumerate(content["steps"], 1)
    )
    for number, step in enumerate(parsed, 1):
        if derived and isinstance(step, MicroBatch) and step.watermarks:
            raise refuse(f"step {number}: the watermark follows from the events, because of watermarks: or idle:")
    return StagesTranscript(stages, watched, parsed, derived)


def _watched(content: Mapping[str, Any], texts: Mapping[str, StageText]) -> tuple[str, ...]:
    """The stages that `watch:` names; else those that an `expect` names; else the only one that no other reads."""
    if "watch" in content:
        named = content["watch"] if isinstance(content["watch"], list) else [content["watch"]]
    else:
        expects = [step["expect"] for step in content["steps"] if isinstance(step, Mapping) and "expect" in step]
        named = list(dict.fromkeys(name for each in expects if isinstance(each, Mapping) for name in each))
        read = {name for text in texts.values() for name in text.inputs}
        ends = [name for name in texts if name not in read]
        named = named or (ends if len(ends) == 1 else [])
    for name in named:
        if name not in tuple(texts):
            raise refuse_unknown("stage", name, texts).about("watch" if "watch" in content else "expect")
    return tuple(dict.fromkeys(named))


def _given(step: object, number: int, sources: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The elements of a step by source."""
    if not isinstance(step, Mapping) or "input" not in step:
        return {}
    where, given = f"step {number}, input", step["input"]
    if isinstance(given, Mapping):
        if "source" in step:
            raise refuse(f"{where}: the input names its sources, so source: is left out")
        for name in given:
            if name not in sources:
                raise refuse_unknown("source", name, sources).about(where)
        return {name: parse_elements(elements, f"{where}, {name}") for name, elements in given.items()}
    name = step.get("source", sources[0] if len(sources) == 1 else None)
    if name is None:
        raise refuse(f"{where}: there are several sources", advice=f"write it like {{{sources[0]}: [...]}}")
    if name not in sources:
        raise refuse_unknown("source", name, sources).about(where)
    return {name: parse_elements(given, where)}


def _rows(
    elements: list[dict[str, Any]], source: Source, texts: Mapping[str, StageText], number: int
) -> tuple[Row, ...]:
    where = f"step {number}, input, {source.name}"
    rows = tuple(to_row(element, source, where) for element in elements)
    timed = all(text.names_event_time for text in texts.values() if source.name in text.inputs)
    if not timed and any(row["at"] is None and row.get("closes") is None for row in rows):
        raise refuse(f"step {number}: each element needs at:, its event time in seconds")
    return rows


def _step(
    step: object,
    number: int,
    rows: Mapping[str, tuple[Row, ...]],
    sources: Sequence[str],
    stages: Mapping[str, Query | Stream],
    watched: tuple[str, ...],
) -> StagesStep:
    if not isinstance(step, Mapping) or not step:
        raise refuse(f"step {number} must be a mapping with some of {', '.join((*_BATCH, *_CHECKS))}, not {step!r:.80}")
    for key in step:
        if key not in (*_BATCH, *_CHECKS):
            raise refuse_unknown("step", key, (*_BATCH, *_CHECKS)).about(f"step {number}")
    checks = [key for key in _CHECKS if key in step]
    if checks and len(step) > 1:
        raise refuse(f"step {number} has {checks[0]} and another key", advice=f"write {checks[0]} as a step of its own")
    if "source" in step and "input" not in step:
        raise refuse(f"step {number}: source: needs input:")
    where = f"step {number}, {checks[0] if checks else ''}"
    match checks:
        case ["expect"]:
            if step["expect"] == []:
                return ExpectOfStages({})
            known = _or_all(step["expect"], watched, stages)
            said = _by_stage(step["expect"], where, known, lambda each, at: tuple(listed(each, at)))
            return ExpectOfStages(
                {name: tuple(_expected(row, f"{where}, {name}", stages[name]) for row in said[name]) for name in said}
            )
        case ["dropped"]:
            return DroppedByStages(_by_stage(step["dropped"], where, _or_all(step["dropped"], watched, stages), _count))
        case ["watermark_is"]:
            known = _or_all(step["watermark_is"], watched, stages)
            return WatermarksOfStages(_by_stage(step["watermark_is"], where, known, instant))
    clock = instant(step["clock"], f"step {number}, clock") if "clock" in step else None
    return MicroBatch(rows, _watermarks(step, number, sources), clock)


def _or_all(given: object, watched: tuple[str, ...], stages: Mapping[str, Query | Stream]) -> tuple[str, ...]:
    """The stages that a check may name: all of them; a check that names none is about the watched one."""
    return tuple(stages) if isinstance(given, Mapping) else watched


def _watermarks(step: Mapping[str, Any], number: int, sources: Sequence[str]) -> dict[str, int]:
    where, given = f"step {number}, watermark", step.get("watermark", {})
    if not isinstance(given, Mapping):
        return dict.fromkeys(sources, instant(given, where))
    for name in given:
        if name not in sources:
            raise refuse_unknown("source", name, sources).about(where)
    return {name: instant(at, f"{where}, {name}") for name, at in given.items()}


def _by_stage(given: object, where: str, known: Sequence[str], parse: Callable[[Any, str], T]) -> dict[str, T]:
    """A check by stage. Without the names of stages it is about the only one."""
    if not isinstance(given, Mapping):
        if len(known) != 1:
            raise refuse(f"{where}: {len(known)} stages are watched", advice="name the stage, like {top: ...}")
        return {known[0]: parse(given, where)}
    for name in given:
        if name not in known:
            raise refuse_unknown("stage", name, known).about(where)
    return {name: parse(each, f"{where}, {name}") for name, each in given.items()}


def _count(given: object, where: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise refuse(f"{where}: the value must be a number of elements, not {given!r:.80}")
    return given


def _expected(given: object, where: str, of: Query | Stream) -> Mapping[str, Any]:
    """The attributes of a pane or of a row; a column hides the attribute that has the same name."""
    columns: tuple[str, ...] = (*of.keys, *of.aggregates) if isinstance(of, Query) else of.schema.names
    others: tuple[str, ...] = PANE[1:]
    if isinstance(of, Stream):
        windowed = all(column.name in of.schema for column in WINDOW_COLUMNS)
        others = ("window", "at", "diff") if windowed else ("at", "diff")
    if not isinstance(given, Mapping):
        raise refuse(f"{where}: a pane must be a mapping of attributes, like {{k: a, total: 7}}, not {given!r:.80}")
    for key in given:
        if key not in (*columns, *others):
            raise refuse_unknown("attribute", key, (*columns, *others)).about(where)
    expected = dict(given) if "diff" in columns else {"diff": 1, **given}
    check_attributes({key: value for key, value in expected.items() if key not in columns}, where)
    return expected
