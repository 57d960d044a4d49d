"""Parses the stages of a transcript: names, inputs and the fields of a query become queries and streams.

docs/transcripts.md describes the format.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.model.errors import MillraceError, Place, refuse, refuse_unknown
from millrace.model.query import Query
from millrace.model.stream import Source, Stream, reads_changes
from millrace.model.watermark import Policy
from millrace.testing.notation import parse_window
from millrace.testing.transcript import listed, parse_query

KEYS = ("group_by", "by", "keys")
"""The spellings of the key that names the columns to group by."""
ROWS = ("where", "select", "with_columns", "event_time")
"""The keys for steps that work row by row. A stage applies them in the order in which it gives them."""
WINDOWED = (*KEYS, "window", "trigger", "mode", "lateness", "aggregate")
JOIN = ("left", "right", "on", "how", "within", "window", "lateness", "unmatched")
_STAGE = ("name", "input", "join", *ROWS, *WINDOWED)


@dataclass(frozen=True, slots=True)
class StagedJoin:
    """The join of two inputs, with the values that the transcript gives."""

    left: str
    right: str
    on: tuple[str, ...]
    how: str
    within: tuple[Any, Any] | None
    window: Any
    lateness: Any
    unmatched: Any


@dataclass(frozen=True, slots=True)
class StageText:
    """A stage as the transcript gives it."""

    name: str
    inputs: tuple[str, ...]
    """The sources and stages that it reads; several are a union, or the two sides of its join."""
    join: StagedJoin | None
    content: Mapping[str, Any]

    @property
    def names_event_time(self) -> bool:
        """Whether it names its event time, so that elements of its sources need no `at`; the sides of a join do."""
        return "event_time" in self.content and self.join is None


@dataclass(frozen=True, slots=True)
class Watermarks:
    """How the watermark of every source follows from its events."""

    policy: Policy
    idle: Any


def parse_stages(given: object) -> dict[str, StageText]:
    """The stages of a document by name."""
    stages: dict[str, StageText] = {}
    for number, content in enumerate(listed(given, "stages"), 1):
        stage = _stage(content, f"stage {number}")
        if stage.name in stages:
            raise refuse(f"two stages have the name {stage.name!r}")
        stages[stage.name] = stage
    if not stages:
        raise refuse("stages: must have at least one stage")
    return stages


def sources_of(stages: Mapping[str, StageText]) -> list[str]:
    """The names of sources: the inputs that are no stages, in the order in which they are named."""
    return list(dict.fromkeys(name for stage in stages.values() for name in stage.inputs if name not in stages))


def build_stages(
    stages: Mapping[str, StageText], sources: Mapping[str, Source], watermarks: Watermarks, place: Place
) -> dict[str, Query | Stream]:
    """The queries and streams of stages. A query that another stage reads has the mode in which that one reads it."""
    built: dict[str, Query | Stream] = {}
    read: set[str] = set()
    path: list[str] = []

    def stage(name: str) -> Query | Stream:
        if name in path:
            raise refuse(f"stages read each other in a circle: {', '.join([*path[path.index(name) :], name])}")
        if name not in built:
            path.append(name)
            join = stages[name].join
            streams = [] if join is not None else [stream(each, stages[name]) for each in stages[name].inputs]
            try:
                if join is not None:
                    streams = sides_of(join)
                built[name] = _built(stages[name], streams, watermarks)
            except MillraceError as error:
                raise error.about(f"stage {name}") from None
            of = built[name]
            if isinstance(of, Query):  # messages name the place of a query
                built[name] = replace(of, place=place)
            path.pop()
        return built[name]

    def sides_of(join: StagedJoin) -> list[Stream]:
        """Both sides of a join. A column that both have gets the name of its side's input before its own."""
        left, right = (sources[each] if each in sources else stage(each) for each in (join.left, join.right))
        both = {*left.schema.names} & {*right.schema.names} - {*join.on}
        return [side(join.left, both), side(join.right, both)]

    def side(name: str, both: set[str]) -> Stream:
        def renamed(of: Stream) -> Stream:
            if not both:
                return of
            return of.select(**{f"{name}_{each}" if each in both else each: f"`{each}`" for each in of.schema.names})

        if name in sources:
            at = f"{name}_at" if "at" in both else "at"
            return renamed(sources[name]).event_time(at, watermark=watermarks.policy, idle=watermarks.idle)
        read.add(name)
        of = stage(name)
        return renamed(of.changes() if isinstance(of, Query) else of)

    def stream(name: str, reader: StageText) -> Stream:
        if name not in sources:
            read.add(name)
            of = stage(name)
            return of.changes() if isinstance(of, Query) else of
        if reader.names_event_time:
            return sources[name]
        return sources[name].event_time("at", watermark=watermarks.policy, idle=watermarks.idle)

    for name in stages:
        stage(name)
    return {name: _as_read(of) if name in read else of for name, of in built.items()}


def _as_read(of: Query | Stream) -> Query | Stream:
    return of.changes().query if isinstance(of, Query) else of


def _stage(content: object, where: str) -> StageText:
    if not isinstance(content, Mapping):
        raise refuse(f"{where} must be a mapping with name: and input:, not {content!r:.80}")
    if not isinstance(content.get("name"), str):
        raise refuse(f"{where} needs name:, a text")
    name = content["name"]
    for key in content:
        if key not in _STAGE:
            raise refuse_unknown("key", key, _STAGE).about(f"stage {name}")
    if ("input" in content) == ("join" in content):
        raise refuse(f"stage {name} needs either input: or join:")
    if "join" in content:
        join = _join(content["join"], f"stage {name}, join")
        return StageText(name, (join.left, join.right), join, content)
    inputs = _names(content["input"], f"stage {name}, input")
    if not inputs:
        raise refuse(f"stage {name} has no input")
    return StageText(name, inputs, None, content)


def _join(given: object, where: str) -> StagedJoin:
    if not isinstance(given, Mapping):
        raise refuse(f"{where}: the value must be a mapping with left:, right: and on:, not {given!r:.80}")
    content = {"on" if key is True else key: value for key, value in given.items()}  # YAML 1.1 reads `on` as true
    for key in content:
        if key not in JOIN:
            raise refuse_unknown("key", key, JOIN).about(where)
    for side in ("left", "right"):
        if not isinstance(content.get(side), str):
            raise refuse(f"{where} needs {side}:, the name of a source or of a stage")
    if "on" not in content:
        raise refuse(f"{where} needs on:, the columns that both sides share")
    if ("within" in content) == ("window" in content):
        raise refuse(f"{where} needs either within: or window:")
    within = content.get("within")
    if within is not None and (not isinstance(within, list) or len(within) != 2):
        raise refuse(f"{where}: within must be like [0s, 10s], not {within!r:.80}")
    return StagedJoin(
        content["left"],
        content["right"],
        _names(content["on"], f"{where}, on"),
        str(content.get("how", "inner")),
        None if within is None else (within[0], within[1]),
        content.get("window"),
        _lateness(content.get("lateness", "0s"), where),
        content.get("unmatched"),
    )


def _lateness(given: object, where: str) -> object:
    """The lateness of a join: that of both sides, or a list of two."""
    if not isinstance(given, Mapping):
        return given
    if {*given} != {"left", "right"}:
        raise refuse(f"{where}: lateness must be like 5s, [0s, 5s] or {{left: 0s, right: 5s}}, not {given!r:.80}")
    return [given["left"], given["right"]]


def _built(stage: StageText, streams: Sequence[Stream], watermarks: Watermarks) -> Query | Stream:
    first, *others = streams
    made = first.union(*others) if others and stage.join is None else first
    if stage.join is not None:
        made = _joined(stage.join, *streams)
    content = stage.content
    for key, value in content.items():
        if key in ROWS:
            made = _applied(made, key, value, watermarks)
    keys = _keys(stage, made)
    if "window" in content:
        if "aggregate" not in content and "v" not in made.schema:
            raise refuse("the stage needs aggregate:", advice="the default, collect(v), needs a column v")
        return parse_query(made, keys, content)
    alone = [key for key in WINDOWED if key in content]
    if alone:
        raise refuse(f"{alone[0]}: needs window:")
    return made


def _joined(join: StagedJoin, left: Stream, right: Stream) -> Stream:
    """The join of two streams."""
    windowing = None if join.window is None else parse_window(join.window)
    unmatched = "final" if join.unmatched is None else str(join.unmatched)
    late = tuple(join.lateness) if isinstance(join.lateness, list) else join.lateness
    return left.join(right, join.on, join.how, within=join.within, window=windowing, lateness=late, unmatched=unmatched)


def _applied(stream: Stream, key: str, value: Any, watermarks: Watermarks) -> Stream:
    match key, value:
        case "where", str():
            return stream.where(value)
        case "select", str() | list():
            return stream.select(*_names(value, "select"))
        case "select", Mapping():
            return stream.select(**_expressions(value, "select"))
        case "with_columns", Mapping():
            return stream.with_columns(**_expressions(value, "with_columns"))
        case "event_time", str():
            from_source = not reads_changes(stream)
            policy = {"watermark": watermarks.policy, "idle": watermarks.idle} if from_source else {}
            return stream.event_time(value, **policy)
    raise refuse(f"{key}: {value!r:.80} does not parse", advice=f"write it like {_LIKE[key]}")


_LIKE = {
    "where": 'where: "n > 1"',
    "select": "select: [k, n], or select: {k: k, twice: 2 * n}",
    "with_columns": 'with_columns: {share: "a / b"}',
    "event_time": "event_time: day",
}


def _keys(stage: StageText, stream: Stream) -> tuple[str, ...]:
    """The columns to group by; `k` if the stage does not name them and its input has that column."""
    given = [key for key in KEYS if key in stage.content]
    if len(given) > 1:
        raise refuse(f"{given[0]}: and {given[1]}: have the same meaning", advice="give one of them")
    if given:
        return _names(stage.content[given[0]], given[0])
    return ("k",) if "k" in stream.schema else ()


def _names(given: object, where: str) -> tuple[str, ...]:
    """One name, or a list of names."""
    names = given if isinstance(given, list) else [given]
    for name in names:
        if not isinstance(name, str):
            raise refuse(f"{where}: the value must be a name or a list of names, not {given!r:.80}")
    return tuple(names)


def _expressions(given: Mapping[Any, Any], where: str) -> dict[str, str]:
    for name in given:
        if not isinstance(name, str):
            raise refuse(f"{where}: the name of a column must be text, not {name!r}")
    return {name: str(sql) for name, sql in given.items()}
