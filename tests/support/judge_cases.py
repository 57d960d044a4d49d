"""Random transcripts whose expectations `judge` computes: small, and close to the edges of windows and lateness."""

import dataclasses
from random import Random
from typing import Any

from judge import INF, SECOND, Change, Query, Spec
from judge_stages import Graph, Join

Doc = dict[str, Any]

_AGGREGATES = ("count()", "sum(v)", "min(v)", "max(v)", "mean(v)", "collect(v)", "collect_set(v)", "top_k(v, 2)",
               "first(v)", "last(v)")  # fmt: skip
_TIMES = (-3, 0, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 15, 18, 20, 25, 30, 31, 40)


def transcript(random: Random, name: str) -> Doc:
    """A transcript of one query."""
    kind = random.choice(("fixed", "sliding", "session", "session", "global", "count"))
    query = _query(random, kind, _trigger(random, random.randint(0, 3)), ("discarding", "accumulating", "retracting"))
    query.aggregate = {f"a{i}": _aggregate(text, "v") for i, text in enumerate(random.sample(_AGGREGATES, 2))}
    steps: list[Doc] = []
    for inputs, marks, clock in _steps(random, ["all"]):
        said: list[tuple[Doc, list[Doc]]] = []
        if inputs:
            said.append(({"input": _elements(inputs["all"])}, query.step(inputs["all"])))
        if marks:
            said.append(({"watermark": _seconds(marks["all"])}, query.step(watermark=marks["all"])))
        if clock is not None:
            said.append(({"clock": _seconds(clock)}, query.step(clock=clock)))
        for step, panes in said:
            steps += [step, {"expect": [_pane(pane, query) for pane in panes]}]
        steps.append({"dropped": query.dropped})
    return {"name": name, **_written(query), "steps": steps}


def stages(random: Random, name: str) -> Doc:
    """A transcript of up to three stages: queries over queries, rows that a condition lets through, joins."""
    made: dict[str, tuple[Query | Join | None, tuple[str, ...]]] = {}
    graph = Graph(made)
    texts: list[Doc] = []
    first = _staged(random, "v", takes_back=False, last=False)
    match random.choice(("chain", "where", "union", "join", "answers joined", "pairs counted")):
        case "join":
            sources = ["plays", "clicks"]
            _add_join(random, made, texts, "plays", None)
        case "pairs counted":
            sources = ["plays", "clicks"]
            join = _add_join(random, made, texts, "plays", None)
            takes_back = join.early and join.how not in ("inner", "semi")
            if join.window is None:
                _add_query(made, texts, "last", _staged(random, "plays_v", takes_back, last=True), ("joined",))
        case "answers joined":
            sources = ["plays", "clicks"]
            _add_query(made, texts, "first", first, ("plays",))
            _add_join(random, made, texts, "first", first)
        case shape:
            sources = ["plays", "skips"] if shape == "union" else ["plays"]
            _add_query(made, texts, "first", first, tuple(sources))
            read = "first"
            if shape == "where":
                made["some"], read = (None, ("first",)), "some"
                graph.where["some"] = ("v", random.randint(0, 4))
                texts.append({"name": "some", "input": "first", "where": f"v > {graph.where['some'][1]}"})
            last = _staged(random, "v", first.mode == "retracting", last=True)
            last.by = random.choice((("k",), ()))
            _add_query(made, texts, "last", last, (read,))
    steps: list[Doc] = []
    now = 0
    for inputs, marks, clock in _steps(random, sources):
        now = clock or now
        said = graph.step(inputs, marks, now)
        step: Doc = {"input": {source: _elements(some) for source, some in inputs.items()}} if inputs else {}
        step |= {"watermark": {source: _seconds(mark) for source, mark in marks.items()}} if marks else {}
        step |= {} if clock is None else {"clock": _seconds(clock)}
        steps += [
            step,
            {"expect": {stage: [_said(one, made[stage][0]) for one in some] for stage, some in said.items()}},
        ]
        counted = {stage: of.dropped for stage, (of, _) in made.items() if of is not None}
        steps.append({"dropped": counted})
    schemas = dict.fromkeys(sources, "k STRING, v BIGINT")
    return {"name": name, "stages": texts, "sources": schemas, "watch": [*made], "steps": steps}


def _trigger(random: Random, depth: int) -> Spec:
    leaves: tuple[Spec, ...] = (
        ("elements", random.randint(1, 3)), ("after", random.choice((2, 5, 10)) * SECOND), ("default",), ("each",),
        ("every", random.choice((3, 5, 10)) * SECOND), ("watermark", None, None), ("never",),
    )  # fmt: skip
    if not depth:
        return random.choice(leaves)
    some = [_trigger(random, depth - 1) for _ in range(random.choice((2, 2, 3)))]
    phases = (random.choice((None, some[0])), random.choice((None, some[1])))
    combined = [("any_of", *some), ("all_of", *some), ("in_order", *some), ("until", *some[:2]), ("repeat", some[0])]
    return random.choice([random.choice(leaves), *[("watermark", *phases)] * 3, *combined])


def _query(random: Random, kind: str, trigger: Spec, modes: tuple[str, ...]) -> Query:
    window: Spec = {
        "fixed": ("fixed", random.choice((5, 10, 20)) * SECOND),
        "sliding": ("sliding", 10 * SECOND, random.choice((4, 5)) * SECOND),
        "session": ("session", random.choice((5, 10)) * SECOND),
        "global": ("global",),
        "count": ("count", random.randint(1, 3)),
    }[kind]
    lateness = random.choice((0, 0, 5, 10, 20)) * SECOND if kind in ("fixed", "sliding", "session") else 0
    return Query(window, trigger, random.choice(modes), lateness)


def _staged(random: Random, column: str, takes_back: bool, last: bool) -> Query:
    often: Spec = ("watermark", random.choice((None, ("each",))), random.choice((None, ("each",))))
    trigger = random.choice((often, _trigger(random, 1)))
    modes = ("retracting", "retracting", "discarding", *(["accumulating"] if last else []))
    query = _query(random, random.choice(("fixed", "sliding", "session", "global")), trigger, modes)
    answers: tuple[str, ...] = ("sum(v)", "count()") if query.mode == "discarding" and takes_back else _AGGREGATES
    answers = answers if last else ("sum(v)", "max(v)", "count()")
    query.aggregate = {"v": _aggregate(random.choice(answers), column), "n": ("count",)}
    return query


def _add_query(made: dict[str, Any], texts: list[Doc], name: str, query: Query, inputs: tuple[str, ...]) -> None:
    made[name] = (query, inputs)
    texts.append({"name": name, "input": [*inputs], "group_by": [*query.by], **_written(query)})


def _add_join(random: Random, made: dict[str, Any], texts: list[Doc], left: str, of: Query | None) -> Join:
    how = random.choice(("inner", "left", "right", "full", "semi", "anti"))
    early = how not in ("inner", "semi") and random.random() < 0.4
    low = random.choice((-10, -5, 0, 0, 3))
    span = (low * SECOND, random.choice([high for high in (-2, 0, 2, 5, 10) if high >= low]) * SECOND)
    window: Spec | None = None
    if of is None and random.random() < 0.3:
        window = random.choice((("fixed", 10 * SECOND), ("sliding", 10 * SECOND, 5 * SECOND)))
    lateness = (random.choice((0, 0, 5)) * SECOND, random.choice((0, 0, 5)) * SECOND)
    columns = (("v",) if of is None else ("v", "n"), ("v",))
    join = Join((left, "clicks"), how, None if window else span, window, lateness, early, columns)
    paired = {"window": _window(window)} if window else {"within": [_duration(each) for each in span]}
    text = {"left": left, "right": "clicks", "on": "k", "how": how, "lateness": [_duration(each) for each in lateness]}
    made["joined"] = (join, (left, "clicks"))
    texts.append({"name": "joined", "join": text | paired | ({"unmatched": "early"} if early else {})})
    return join


def _steps(random: Random, sources: list[str]) -> list[tuple[dict[str, list[Change]], dict[str, int], int | None]]:
    """Micro-batches: input by source, watermarks by source, and the clock."""
    keys = random.choice((("a",), ("a", "b")))
    mark = clock = 0
    steps: list[tuple[dict[str, list[Change]], dict[str, int], int | None]] = []
    for _ in range(random.randint(3, 9)):
        what = random.random()
        inputs: dict[str, list[Change]] = {}
        for source in sources if what < 0.6 or what > 0.9 else []:
            inputs[source] = [
                Change((("k", random.choice(keys)), ("v", random.randint(-3, 9))), _time(random))
                for _ in range(random.choice((1, 1, 2, 3)))
            ]
        marks = {}
        if what > 0.6:
            mark += random.choice((0, 1, 2, 3, 5, 5, 7, 20)) * SECOND
            some = sources if random.random() < 0.7 else [random.choice(sources)]
            marks = dict.fromkeys(some, mark + random.choice((0, 0, 0, 1)))
        if what > 0.8:
            clock += random.choice((1, 2, 3, 5, 10, 33)) * SECOND
        steps.append((inputs, marks, clock if what > 0.8 else None))
    return [*steps, ({}, dict.fromkeys(sources, INF), None)] if random.random() < 0.2 else steps


def _time(random: Random) -> int:
    return random.choice(_TIMES) * SECOND + random.choice((0, 0, 0, 0, 0, -1, SECOND // 2))


def _aggregate(text: str, column: str) -> Spec:
    name, _, rest = text.rstrip(")").partition("(")
    return (name, *([column] if rest else []), *([2] if "," in rest else []))


def _written(query: Query) -> Doc:
    texts = {name: f"{of}({', '.join(map(str, rest))})" for name, (of, *rest) in query.aggregate.items()}
    given = {"window": _window(query.window), "mode": query.mode, "aggregate": texts}
    if query.window[0] != "count":
        given["trigger"] = _text(query.trigger)
    return given | ({"lateness": _duration(query.lateness)} if query.lateness else {})


def _text(trigger: Spec) -> str:
    name, *parts = trigger
    if name == "watermark":
        given = [f"{key}={_text(part)}" for key, part in zip(("early", "late"), parts, strict=True) if part]
    else:
        given = [_text(part) if isinstance(part, tuple) else str(part) for part in parts]
    return f"{name}({_duration(parts[0]) if name in ('after', 'every') else ', '.join(given)})"


def _window(window: Spec) -> str:
    match window:
        case ("fixed", size):
            return f"fixed({_duration(size)})"
        case ("sliding", size, every):
            return f"sliding({_duration(size)}, every={_duration(every)})"
        case ("session", gap):
            return f"session(gap={_duration(gap)})"
        case ("count", size):
            return f"count({size})"
    return "global()"


def _duration(instant: int) -> str:
    return f"{instant // SECOND}s"


def _seconds(instant: int) -> float:
    return float("inf") if instant >= INF else float("-inf") if instant <= -INF else instant / SECOND


def _elements(changes: list[Change]) -> list[Doc]:
    return [{**dict(change.row), "at": _seconds(change.at)} for change in changes]


def _pane(pane: Doc, query: Query) -> Doc:
    hidden = {"at", *(["timing"] if query.window[0] == "count" else [])}
    bounds = [*pane["window"]] if query.window[0] == "count" else [_seconds(each) for each in pane["window"]]
    hidden |= {"window"} if query.window[0] == "global" else set()
    return {key: value for key, value in ({**pane, "window": bounds}).items() if key not in hidden}


def _said(one: Any, stage: Query | Join | None) -> Doc:
    if isinstance(stage, Query):
        return _pane(one, stage)
    assert dataclasses.is_dataclass(one)
    assert isinstance(one, Change)
    row = {name: value for name, value in one.row if not name.startswith("window")}
    is_of_sources = isinstance(stage, Join) and stage.names[0] == "plays"
    # A join of answers with a source has the column `at` of the source, which hides the event time.
    return row | ({"at": _seconds(one.at)} if stage is None or is_of_sources else {}) | {"diff": one.diff}
