"""A plan is a value: golden files show what it holds, and fingerprints what must not change."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from millrace import Pipeline, agg, files, log, memory, on, table, to_files, to_function, to_table, window
from millrace.model.aggregate import Aggregate
from millrace.model.errors import PipelineError
from millrace.model.query import Query
from millrace.model.stream import EventTime, Node, Stream, Where
from millrace.panes.columns import columnar
from millrace.plan.compile import PlanSettings, compile, stage_of
from millrace.plan.explain import as_text
from millrace.plan.fingerprint import fingerprint_of
from millrace.plan.plan import FusedEdge, NativeEdge
from millrace.running.load import load

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = sorted(path for path in (Path(__file__).parents[2] / "examples").glob("*.py") if path.stem != "make_data")
PLAYS = log("plays", "user STRING, track STRING, ms BIGINT, at TIMESTAMP")
TIMED = PLAYS.event_time("at", delay="10s")


@pytest.mark.parametrize("path", [*EXAMPLES, Path(__file__).with_name("functions.py")], ids=lambda path: path.stem)
def test_the_plans_of_the_examples(path: Path) -> None:
    """To accept a change of plan: UPDATE_GOLDEN=1 pytest tests/plan, and read the difference in git."""
    pipeline = load(path)
    plan = compile(pipeline, PlanSettings(shards=2))
    fingerprint = json.dumps(plan.fingerprint(), indent=1)
    found = f"{as_text(plan, statements=True)}\n\nfingerprint {fingerprint}\n"
    golden = GOLDEN / f"{path.stem}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8"), "the plan has changed; UPDATE_GOLDEN=1 accepts it"


def test_a_plan_is_a_value_and_compiles_the_same_twice() -> None:
    query = TIMED.group_by("track").window(window.fixed("1h")).aggregate(n=agg.count())
    pipeline = Pipeline("charts", {"hourly": query}, [PLAYS.select("user").to(to_files("out"))])
    plan = compile(pipeline, PlanSettings(shards=2))
    assert plan == compile(pipeline, PlanSettings(shards=2))
    assert [stage.id for stage in plan.stages] == ["view hourly", "sink files out"]
    assert [(each.id, each.source.name) for each in plan.sources] == [("log plays", "plays")]
    assert (plan.fused, plan.native, plan.shards) == ((0, 1), (), 2)
    hourly, users = plan.stages
    assert hourly.inputs == ("log plays",)
    assert hourly.is_stateful
    assert not users.is_stateful
    assert all(isinstance(edge, FusedEdge) for _, edge in hourly.edges)


def test_a_plan_that_must_not_fuse_says_so() -> None:
    query = TIMED.window(window.fixed("1h")).aggregate(n=agg.count())
    plan = compile(Pipeline("charts", {"hourly": query}), PlanSettings(fuse=False))
    assert plan.stages[0].edges == (("log plays", NativeEdge("fusing is switched off")),)
    assert (plan.fused, plan.native) == ((), (0,))


def test_a_plan_reads_no_data(tmp_path: Path) -> None:
    missing = table("names", "user STRING, name STRING", path=str(tmp_path / "missing.csv"))
    source = files(str(tmp_path / "none"), "user STRING, at TIMESTAMP")
    query = source.join(missing, on="user").window(window.all_time()).aggregate(n=agg.count())
    assert compile(Pipeline("charts", {"all": query})).stages[0].is_fused
    assert list(tmp_path.iterdir()) == []


def keep(rows: Any, batch: int) -> None:
    pass


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (to_files("out"), to_files("./out", "json")),
        (to_table("a.db", "T"), to_table("./a.db", "t")),
        (to_function(keep), to_function(keep)),
    ],
    ids=["files", "table", "function"],
)
def test_two_outputs_to_one_place_are_refused(one: Any, other: Any) -> None:
    with pytest.raises(
        PipelineError, match=r"test_plan.py:\d+: two outputs write to .*; give each output a sink of its own"
    ):
        compile(Pipeline("p", sinks=[PLAYS.to(one), PLAYS.to(other)]))


def test_functions_with_names_of_their_own_are_two_sinks() -> None:
    sinks = [PLAYS.to(to_function(keep)), PLAYS.to(to_function(keep, name="again"))]
    assert [each.id for each in compile(Pipeline("p", sinks=sinks)).outputs] == [
        "sink function keep",
        "sink function again",
    ]


def hourly(**changes: Any) -> Query:
    at: dict[str, Any] = {
        "stream": TIMED, "windowing": window.fixed("1h"), "lateness": "0s",
        "trigger": on.watermark(early=on.every("10s")), "aggregates": {"n": agg.count()},
    }  # fmt: skip
    at |= changes
    windowed = at["stream"].group_by("track").window(at["windowing"], lateness=at["lateness"])
    return windowed.trigger(at["trigger"]).retracting().aggregate(**at["aggregates"])  # type: ignore[no-any-return]


def print_of(query: Query) -> str:
    return json.dumps(fingerprint_of(query))


@pytest.mark.parametrize(
    "changes",
    [
        {"lateness": "1d"},
        {"trigger": on.watermark(early=on.every("20s"))},
        {"stream": PLAYS.event_time("at", delay="1h", idle="5s")},
        {"stream": log("plays", "user STRING, track STRING, ms BIGINT, at TIMESTAMP", start="latest").event_time(
            "at", delay="10s")},
        {"stream": log("plays", "country STRING, user STRING, track STRING, ms INT, at TIMESTAMP").event_time(
            "at", delay="10s")},
        {"stream": PLAYS.select("track", "at").event_time("at", delay="10s")},
    ],
    ids=["lateness", "numbers of the trigger", "delay", "start", "columns that are not read", "columns left out"],
)  # fmt: skip
def test_what_may_change(changes: dict[str, Any]) -> None:
    assert print_of(hourly(**changes)) == print_of(hourly())


@pytest.mark.parametrize(
    "changes",
    [
        {"windowing": window.fixed("2h")},
        {"windowing": window.fixed("1h", offset="5m")},
        {"trigger": on.watermark(late=on.every("10s"))},
        {"trigger": on.watermark(early=on.each())},
        {"aggregates": {"n": agg.count("ms")}},
        {"aggregates": {"m": agg.count()}},
        {"aggregates": {"n": agg.approx_quantile("ms", 0.5)}},
        {"stream": PLAYS.where("ms > 1").event_time("at", delay="10s")},
        {"stream": PLAYS.where("ms > 2").event_time("at", delay="10s")},
        {"stream": TIMED.dedup("user")},
        {"stream": memory("plays", "track STRING, at TIMESTAMP").event_time("at", delay="10s")},
    ],
    ids=str,
)
def test_what_must_not_change(changes: dict[str, Any]) -> None:
    assert print_of(hourly(**changes)) != print_of(hourly())
    assert print_of(hourly(**changes)) == print_of(hourly(**changes)), "equal for equal queries"


def test_a_view_with_more_columns_of_a_topic_leaves_the_others_as_they_are() -> None:
    wide = log("plays", "track STRING, country STRING, at TIMESTAMP").event_time("at", delay="10s")
    narrow = log("plays", "at TIMESTAMP, track STRING").event_time("at", delay="10s")
    views = {"hourly": hourly(stream=narrow), "countries": hourly(stream=wide.where("country = 'FR'"))}
    plan = compile(Pipeline("charts", views))
    assert [str(each.source.schema) for each in plan.sources] == ["at TIMESTAMP, track STRING, country STRING"]
    assert plan.fingerprint()["view hourly"] == json.loads(print_of(hourly(stream=narrow)))
    assert [len(stage.edges) for stage in plan.stages] == [1, 1]


def test_a_type_that_only_spark_knows_is_no_part_of_it() -> None:
    """A replay that was stopped is found again before Spark has said what types there are."""
    built = hourly(stream=PLAYS.where("hash(user) > 1").event_time("at", delay="10s"))
    assert isinstance(built.stream, EventTime)
    where = built.stream.parent
    assert isinstance(where, Where)
    settled = replace(where, condition=replace(where.condition, type="another type"))
    assert print_of(replace(built, stream=replace(built.stream, parent=settled))) == print_of(built)


def of_fold(add: Callable[[Any, Any], Any], version: str | None = None) -> str:
    return print_of(hourly(aggregates={"n": agg.fold("ms", 0, add, type="BIGINT", version=version)}))


def scope(text: str) -> dict[str, Any]:
    """Names of a module that has a source file."""
    names: dict[str, Any] = {"__name__": "charts"}
    exec(compile_text(text), names)
    return names


def compile_text(text: str) -> Any:
    import linecache

    name = f"<module {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return __builtins__["compile"](text, name, "exec")  # type: ignore[index]


ADD = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("# a comment\ndef add(a, b):\n    'A docstring.'\n\n    return (a + b)  # the sum\n", True),
        ("def add(a: int, b: int) -> int:\n    return a + b\n", True),
        ("def add(a, b):\n    return a - b\n", False),
        ("def add(a, b):\n    return a + b + 0\n", False),
        ("def add(b, a):\n    return a + b\n", False),
    ],
)
def test_a_changed_function_is_a_changed_computation(text: str, is_same: bool) -> None:
    assert (of_fold(scope(text)["add"]) == of_fold(scope(ADD)["add"])) is is_same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("LIMIT = 1\ndef add(a, b):\n    return min(a + b, LIMIT)\n", "LIMIT = 2\n"),
        ("def near(x):\n    return x\ndef add(a, b):\n    return near(a) + b\n", "def near(x):\n    return -x\n"),
        ("def made(n):\n    return lambda a, b: a + n * b\nadd = made(1)\n", "add = made(2)\n"),
        ("class Adder:\n    def of(self, a, b):\n        return a + b\nadd = Adder().of\n",
         "class Adder:\n    def of(self, a, b):\n        return a * b\nadd = Adder().of\n"),
        ("class Adder:\n    def __init__(self, n):\n        self.n = n\n    def __call__(self, a, b):\n"
         "        return a + self.n\nadd = Adder(1)\n", "add = Adder(2)\n"),
        ("class Base:\n    step = 1\nclass Adder(Base):\n    def of(self, a, b):\n        return a + self.step\n"
         "add = Adder().of\n",
         "class Base:\n    step = 2\nclass Adder(Base):\n    def of(self, a, b):\n        return a + self.step\n"
         "add = Adder().of\n"),
    ],
    ids=["a constant", "a function that it calls", "a captured variable", "a method", "an object", "a base class"],
)  # fmt: skip
def test_what_a_function_refers_to_counts(one: str, other: str) -> None:
    before, after = scope(one), scope(one)
    exec(compile_text(other), after)
    assert of_fold(before["add"]) != of_fold(after["add"])
    assert of_fold(before["add"]) == of_fold(scope(one)["add"])


def test_lambdas_on_one_line_are_told_apart() -> None:
    made = scope("first, second, third = lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a + b\n")
    assert of_fold(made["first"]) != of_fold(made["second"])


def test_a_version_stands_for_the_code() -> None:
    added, taken = scope(ADD)["add"], scope("def add(a, b):\n    return a - b\n")["add"]
    assert of_fold(added, "1") == of_fold(taken, "1")
    assert of_fold(added, "1") != of_fold(added, "2")
    with pytest.raises(PipelineError, match="version= must be a string such as '2', not 2"):
        agg.fold("ms", 0, added, version=2)  # type: ignore[arg-type]


def test_custom_windows_are_code_too() -> None:
    def halves(at: datetime, row: Any) -> Iterable[tuple[datetime, datetime]]:
        return [(at, at + timedelta(minutes=30))]

    def thirds(at: datetime, row: Any) -> Iterable[tuple[datetime, datetime]]:
        return [(at, at + timedelta(minutes=20))]

    assert print_of(hourly(windowing=window.custom(halves))) != print_of(hourly(windowing=window.custom(thirds)))
    one, other = (print_of(hourly(windowing=window.custom(each, version="1"))) for each in (halves, thirds))
    assert one == other


def concrete(base: type) -> set[str]:
    """The names of our classes below a base; by name, as a dataclass with slots leaves a twin without them behind."""
    children: list[type] = base.__subclasses__()
    below = {name for child in children for name in concrete(child)}
    is_ours = base.__module__.startswith("millrace.") and not getattr(base, "__abstractmethods__", None)
    return below | ({base.__name__} if is_ours else set())


def test_every_kind_of_stream_is_a_node() -> None:
    assert concrete(Stream) - {"Stream"} == {kind.__name__ for kind in get_args(Node)}


def test_every_aggregate_has_columns_and_a_fingerprint() -> None:
    made: list[Aggregate] = [
        agg.count(), agg.count_if("ms > 1"), agg.sum("ms"), agg.mean("ms"), agg.min("ms"), agg.max("ms"),
        agg.variance("ms"), agg.stddev("ms"), agg.first("ms"), agg.last("ms"), agg.collect("ms"), agg.collect_set("ms"),
        agg.top_k("ms", 3), agg.fold("ms", 0, max, type="BIGINT"), agg.approx_distinct("ms"),
        agg.approx_quantile("ms", 0.5), agg.approx_top_k("ms", 3), agg.second_moment("ms"),
    ]  # fmt: skip
    assert {type(each).__name__ for each in made} == concrete(Aggregate)
    for each in made:
        query = hourly(aggregates={"x": each})
        columnar(query.computed[0].aggregate)
        assert stage_of("view v", query).is_fused
        assert print_of(query) == print_of(query)
