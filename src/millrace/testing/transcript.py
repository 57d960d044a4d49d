"""Parses transcripts: a YAML document becomes a query and the steps that drive it.

docs/transcripts.md describes the format.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import yaml

from millrace.model.duration import BEGINNING_OF_TIME, END_OF_TIME, SECOND, to_datetime
from millrace.model.errors import PipelineError, refuse, refuse_unknown, unreadable
from millrace.model.inputs import memory
from millrace.model.pane import Mode, Timing
from millrace.model.query import Query
from millrace.model.schema import Schema, parse_schema
from millrace.model.stream import Stream
from millrace.model.window import CountWindow, Global
from millrace.testing.notation import parse_aggregate, parse_policy, parse_trigger, parse_window

_KEYS = ("name", "window", "trigger", "mode", "lateness", "aggregate", "watermarks", "idle", "steps", "error")
_STEPS = ("input", "watermark", "clock", "expect", "dropped", "watermark_is")
_ELEMENT = ("k", "v", "at", "closes")
FURTHEST = 60_000_000_000
"""The maximum distance of a time from 1970 in seconds: about 1,900 years."""
PANE = ("k", "window", "diff", "timing", "index", "last")
"""The attributes of a pane beside its aggregates."""


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys. The key `on` of a join is a text; YAML 1.1 takes it for true."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:bool" and key.value == "on":
                key.tag = "tag:yaml.org,2002:str"
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


_Loader.add_implicit_resolver(  # YAML 1.1, and so PyYAML, takes 1e9 for a text; YAML 1.2 does not
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True, slots=True)
class InputStep:
    """A bundle arrives."""

    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class WatermarkStep:
    """Event time advances."""

    at: int


@dataclass(frozen=True, slots=True)
class ClockStep:
    """Processing time advances."""

    at: int


@dataclass(frozen=True, slots=True)
class Expect:
    """The expected panes since the last such step, each given by some of its attributes."""

    panes: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """The expected number of dropped elements since the start."""

    count: int


@dataclass(frozen=True, slots=True)
class WatermarkIs:
    """The expected watermark by the query's own policy."""

    at: int


Step: TypeAlias = InputStep | WatermarkStep | ClockStep | Expect | Dropped | WatermarkIs


@dataclass(frozen=True, slots=True)
class Transcript:
    """A query and its steps: input, time and expectations."""

    query: Query
    steps: tuple[Step, ...]
    derived: bool
    """Whether the query's policy derives the watermark from the events after each step."""


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document that is not parsed as a transcript yet."""

    file: str
    line: int
    content: Any
    step_lines: tuple[int, ...] = ()

    def step_line(self, step: int) -> int:
        """The line of a step, counted from 1."""
        return self.step_lines[step - 1] if 0 < step <= len(self.step_lines) else self.line

    @property
    def name(self) -> str:
        """The name of the document, or its line."""
        given = self.content.get("name") if isinstance(self.content, Mapping) else None
        text = " ".join(str(given).split()) if given is not None else f"transcript at line {self.line}"
        return text.encode("utf-8", "backslashreplace").decode()

    @property
    def error(self) -> str | None:
        """The regular expression of the message with which the document must fail; None if it must pass."""
        given = self.content.get("error") if isinstance(self.content, Mapping) else None
        return None if given is None else str(given)


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of a file. Raises MillraceError if it is not readable YAML."""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        loader.name = str(path)
        while loader.check_node():
            node = loader.get_node()
            content = loader.construct_document(node)
            if node is not None and content is not None:
                yield Document(str(path), node.start_mark.line + 1, content, _step_lines(node))
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise PipelineError(f"{path} is not text in UTF-8") from None
    except yaml.YAMLError as error:
        raise PipelineError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except (ValueError, ArithmeticError, RecursionError, LookupError) as error:
        # PyYAML does not catch Python's errors for invalid dates and numbers, or for too deep nesting.
        raise PipelineError(f"{path} is not valid YAML: {error}") from None


def _step_lines(document: yaml.Node) -> tuple[int, ...]:
    for key, value in document.value if isinstance(document, yaml.MappingNode) else ():
        if key.value == "steps" and isinstance(value, yaml.SequenceNode):
            return tuple(step.start_mark.line + 1 for step in value.value)
    return ()


def parse_transcript(document: Document) -> Transcript:
    """Parse a document. Raises MillraceError if it is invalid."""
    content = checked_content(document, _KEYS, ("window", "steps"))
    windowing = parse_window(content["window"])
    numbered = list(enumerate(content["steps"], 1))
    bundles = {n: _elements(step["input"], n) for n, step in numbered if isinstance(step, Mapping) and "input" in step}
    if not isinstance(windowing, CountWindow | Global):
        for number, bundle in bundles.items():
            if any(row["at"] is None and row["closes"] is None for row in bundle):
                raise refuse(f"step {number}: each element needs at:, its event time in seconds")
    rows = [row for bundle in bundles.values() for row in bundle]
    policy = parse_policy(content.get("watermarks", "delay(0s)"))
    stream = memory("input", _schema(rows)).event_time("at", watermark=policy, idle=content.get("idle"))
    query = parse_query(stream, ("k",), content)
    steps = tuple(_step(step, number, query, bundles.get(number, [])) for number, step in numbered)
    return Transcript(query, steps, derived="watermarks" in content or "idle" in content)


def checked_content(document: Document, known: tuple[str, ...], needed: tuple[str, ...]) -> Mapping[str, Any]:
    """The content of a document, whose keys are known. Its steps are a list, its `error:` is a regular expression."""
    content = document.content
    if not isinstance(content, Mapping):
        raise refuse(f"a transcript must be a mapping with window: and steps:, not {type(content).__name__}")
    for key in content:
        if key not in known:
            raise refuse_unknown("key", key, known)
    for key in needed:
        if key not in content:
            raise refuse(f"a transcript needs {key}:")
    if not isinstance(content["steps"], list):
        raise refuse(f"steps: must be a list, not {content['steps']!r}")
    if document.error is not None:
        try:
            re.compile(document.error)
        except (re.error, OverflowError, RecursionError) as error:
            raise refuse(f"error: {document.error!r:.80} is not a regular expression: {error}") from None
    return content


def parse_query(stream: Stream, keys: Sequence[str], content: Mapping[str, Any]) -> Query:
    """A query over a stream, from the keys window, trigger, mode, lateness and aggregate."""
    lateness = "0s" if content.get("lateness") == 0 else content.get("lateness", "0s")
    rows = stream.group_by(*keys) if keys else stream
    windowed = rows.window(parse_window(content["window"]), lateness)
    if "trigger" in content and "mode" not in content:
        raise refuse("a transcript with trigger: needs mode:", advice=f"set mode: to one of {', '.join(Mode)}")
    if "trigger" in content:
        windowed = windowed.trigger(parse_trigger(content["trigger"]))
    if "mode" in content:
        windowed = _in_mode(windowed, content["mode"])
    aggregates = content.get("aggregate", {"values": "collect(v)"})
    if not isinstance(aggregates, Mapping) or not aggregates:
        raise refuse(f"aggregate: must map names to aggregates, like {{total: sum(v)}}, not {aggregates!r}")
    for name in aggregates:
        if not isinstance(name, str):
            raise refuse(f"the name of an aggregate must be text, not {name!r}")
    return windowed.aggregate(**{str(name): parse_aggregate(text) for name, text in aggregates.items()})


def _in_mode(windowed: Any, mode: object) -> Any:
    if mode not in tuple(Mode):
        raise refuse_unknown("mode", mode, Mode)
    return getattr(windowed, str(mode))()


def _step(step: object, number: int, query: Query, bundle: list[dict[str, Any]]) -> Step:
    if not isinstance(step, Mapping) or len(step) != 1:
        raise refuse(f"step {number} must have exactly one of the keys {', '.join(_STEPS)}, but is {step!r}")
    ((kind, value),) = step.items()
    where = f"step {number}, {kind}"
    match kind:
        case "input":
            return InputStep(tuple(_row(row) for row in bundle))
        case "watermark":
            return WatermarkStep(instant(value, where))
        case "clock":
            return ClockStep(instant(value, where))
        case "expect":
            return Expect(tuple(_expected(pane, where, query) for pane in listed(value, where)))
        case "dropped":
            if not isinstance(value, int) or isinstance(value, bool):
                raise refuse(f"{where}: the value must be a number of elements, not {value!r}")
            return Dropped(value)
        case "watermark_is":
            return WatermarkIs(instant(value, where))
    raise refuse_unknown("step", kind, _STEPS).about(f"step {number}")


def _elements(value: object, number: int) -> list[dict[str, Any]]:
    where = f"step {number}, input"
    elements = []
    for item in listed(value, where):
        given = {"v": item, "at": item} if isinstance(item, int | float) and not isinstance(item, bool) else item
        if not isinstance(given, Mapping):
            raise refuse(f"{where}: an element must be like {{k: a, v: 5, at: 3}} or a number, not {item!r}")
        for key in given:
            if key not in _ELEMENT:
                raise refuse_unknown("attribute", key, _ELEMENT).about(where)
        element = {**dict.fromkeys(_ELEMENT), **given}
        if "v" not in given:
            element["v"] = element["at"]
        for key in ("at", "closes"):
            if element[key] is not None and not abs(instant(element[key], f"{where}, {key}")) < FURTHEST * SECOND:
                raise refuse(f"{where}, {key}: the time of an element must be finite, not {element[key]}")
        elements.append(element)
    return elements


def _row(element: Mapping[str, Any]) -> dict[str, Any]:
    """An element as the row of a source: times as timestamps."""
    times = {key: None if element[key] is None else to_datetime(instant(element[key], key)) for key in ("at", "closes")}
    if times["at"] is None and times["closes"] is None:
        times["at"] = to_datetime(0)  # Count windows and global windows do not use event time.
    return {**element, **times}


def _schema(elements: list[dict[str, Any]]) -> Schema:
    types = {name: type_of(name, [element[name] for element in elements]) for name in ("k", "v")}
    return parse_schema({**types, "at": "TIMESTAMP", "closes": "TIMESTAMP"})


def type_of(name: str, values: list[Any]) -> str:
    """The type of the column that holds these values."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int}:
        if any(abs(value) >= 2**63 for value in values if value is not None):
            raise refuse(f"the values of {name} must fit into 64 bits")
        return "BIGINT"
    if kinds <= {int, float}:
        return "DOUBLE"
    if kinds == {str}:
        return "STRING"
    if kinds == {bool}:
        return "BOOLEAN"
    mixed = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise refuse(f"the values of {name} must be all numbers, all text or all booleans, not {mixed}")


def _expected(pane: object, where: str, query: Query) -> Mapping[str, Any]:
    known = (*PANE, *query.aggregates)
    if not isinstance(pane, Mapping):
        raise refuse(f"{where}: a pane must be a mapping of attributes, like {{k: a, total: 7}}, not {pane!r}")
    for key in pane:
        if key not in known:
            raise refuse_unknown("attribute", key, known).about(where)
    # An aggregate hides the attribute of panes that has the same name.
    expected = dict(pane) if "diff" in query.aggregates else {"diff": 1, **pane}
    check_attributes({key: value for key, value in expected.items() if key not in query.aggregates}, where)
    return expected


def check_attributes(given: Mapping[str, Any], where: str) -> None:
    """Refuse a value that an attribute of a pane can never have."""
    if given.get("diff", 1) not in (1, -1):
        raise refuse(f"{where}: diff must be +1 or -1, not {given['diff']!r}")
    if not isinstance(given.get("index", 0), int) or isinstance(given.get("index"), bool):
        raise refuse(f"{where}: index must be a whole number, not {given['index']!r:.40}")
    if not isinstance(given.get("last", True), bool):
        raise refuse(f"{where}: last must be true or false, not {given['last']!r:.40}")
    if given.get("timing", Timing.EARLY) not in tuple(Timing):
        raise refuse_unknown("timing", given["timing"], Timing).about(where)
    bounds = given.get("window", [0, 0])
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(is_number(bound) for bound in bounds):
        raise refuse(f"{where}: a window must be [start, end] in seconds, not {bounds!r}")


def listed(value: object, where: str) -> list[Any]:
    """A value that must be a list."""
    if not isinstance(value, list):
        raise refuse(f"{where}: the value must be a list, not {value!r}")
    return value


def instant(value: object, where: str) -> int:
    """A time in seconds as an instant."""
    if not is_number(value):
        raise refuse(f"{where}: the value must be a time in seconds, not {value!r}")
    if value in (math.inf, -math.inf):
        return END_OF_TIME if value == math.inf else BEGINNING_OF_TIME
    if not abs(value) < FURTHEST:
        raise refuse(f"{where}: {value!r:.40} seconds is outside the supported range of times")
    return math.floor(Decimal(str(value)) * SECOND)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number; a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
