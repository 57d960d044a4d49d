"""`udf`: Python functions as values of a row, on every engine alike."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.util import PythonEvalType

from millrace import Pipeline, PipelineError, agg, memory, to_topic, udf, window
from millrace.letters.box import box_of
from millrace.plan.compile import compile
from millrace.plan.fingerprint import fingerprint_of
from millrace.sources.memory import Happening, MemoryScript
from millrace.testing import Script, run_script
from stream_run import run

SCHEMA = "text STRING, v BIGINT, at TIMESTAMP, m MAP<STRING, INT>"
POSTS = memory("posts", SCHEMA)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def words(text: str | None, least: int) -> int:
    return sum(len(each) >= least for each in (text or "").split())


anything: Any = 7
WORDS = udf(words, "INT")
IS_LONG = udf(lambda text: len(text) > 5, "BOOLEAN")
SHARE = udf(lambda v: Decimal(100) / v, "DECIMAL(10, 2)")


def rows(*texts: str | None) -> list[dict[str, Any]]:
    return [{"text": text, "v": number, "at": NOON, "m": {"k": number}} for number, text in enumerate(texts)]


def pipeline() -> Pipeline:
    """Calls of one column and of expressions, that replace a column, after event time, and as a condition."""
    timed = POSTS.event_time("at", delay="0s")
    made = timed.with_columns(v=WORDS("upper(text)", "1 + 1"), twice="v * 2", n=WORDS("text", "v"))
    long = made.where(IS_LONG("text")).select("at", "v", "m", share=SHARE("v"))
    counts = long.window(window.fixed("1h")).aggregate(n=agg.count(), total=agg.sum("share"))
    return Pipeline("p", {"counts": counts}, [long.to(to_topic("long"))])


SCRIPT = Script().rows("posts", *rows("a bb ccc", "no", "sixteen words", None, "x y z u v w")).end()


def test_calls_are_values_of_a_row_and_other_columns_pass() -> None:
    answers = run_script(pipeline(), SCRIPT)
    made = [(row["v"], row["m"], row["share"]) for row in answers["topic long"]]
    assert made == [(2, {"k": 0}, Decimal("50.00")), (2, {"k": 2}, Decimal("50.00"))]
    reasons = [letter.reason for letter in answers.dead_letters]
    assert len(reasons) == 2
    assert "TypeError: object of type 'NoneType' has no len()" in reasons[0]
    assert reasons[0].startswith("test_udf.py:")
    assert "DivisionByZero" in reasons[1], "no word has two letters"


@pytest.mark.parametrize("engine", ["panes", pytest.param("spark", marks=pytest.mark.spark)])
def test_engines_agree_on_calls(engine: Any, request: Any) -> None:
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    found, expected = run_script(pipeline(), SCRIPT, engine, spark), run_script(pipeline(), SCRIPT)
    assert found["topic long"] == expected["topic long"]
    assert found.view("counts") == expected.view("counts")
    assert [letter.row for letter in found.dead_letters] == [letter.row for letter in expected.dead_letters]


@pytest.mark.spark
def test_calls_in_a_native_edge_and_functions_made_for_spark(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is different on every replay"):
        udf(f.udf(lambda v: v, "int").asNondeterministic())
    vectorised: Any = f.udf(lambda v: v, "int")
    vectorised.evalType = PythonEvalType.SQL_SCALAR_PANDAS_UDF
    with pytest.raises(PipelineError, match="takes many rows at once; pass it to map"):
        udf(vectorised)
    shout = spark.udf.register("shout", lambda text: text.upper() + "!", "string")
    loud = POSTS.where(udf(f.udf(lambda v: v < 3, "boolean"))("v")).with_columns(loud=udf(shout)("text"))
    odd = loud.with_columns(code="soundex(loud)").event_time("at", delay="0s").group_by("code")
    asked = Pipeline("p", {"n": odd.window(window.fixed("1h")).aggregate(n=agg.count(), most=agg.max("loud"))})
    assert compile(asked).native
    script = MemoryScript([Happening(rows("ab", None, "ab", "ab"), watermark=None), Happening(watermark=2**62)])
    batches = run(spark, asked, tmp_path, {"posts": script})
    answers = [row for _, said in batches for row in said["view n"].to_pylist()]
    assert [(row["n"], row["most"]) for row in answers] == [(2, "AB!")]
    (letter,) = box_of(tmp_path, "p").letters()
    assert json.loads(letter.rejected.value or "")["v"] == 1
    assert "AttributeError: 'NoneType' object has no attribute 'upper'" in letter.rejected.reason


def test_a_changed_function_is_another_computation_unless_it_has_a_version() -> None:
    def printed(function: Callable[..., Any], version: str | None = None) -> Any:
        return fingerprint_of(POSTS.select(x=udf(function, "INT", version=version)("v")))

    assert printed(lambda v: v) == printed(lambda v: v) != printed(lambda v: v + 1)
    assert printed(lambda v: v, "1") == printed(lambda v: v + 1, "1") != printed(lambda v: v, "2")


def test_a_value_of_another_type_is_a_dead_letter() -> None:
    of_text = POSTS.select("at", n=udf(lambda text: text, "INT")("text"))
    answers = run_script(Pipeline("p", sinks=[of_text.to(to_topic("n"))]), Script().rows("posts", *rows("x", None)))
    assert [row["n"] for row in answers["topic n"]] == [None]
    assert [letter.reason for letter in answers.dead_letters] == [
        "map(<lambda>): <lambda>() returned a value that does not fit: 'x' is not INT"
    ]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: udf(anything, "STRING"), "udf() takes a function, not 7"),
        (lambda: udf(words), "udf() needs the type of the result; such as udf(count_words, 'BIGINT')"),
        (lambda: udf(words, "NUMBER OF"), "does not parse"),
        (lambda: WORDS(), "words() needs arguments"),
        (lambda: POSTS.where(WORDS("text", "2")), "needs a condition, but this is INT"),
        (lambda: POSTS.select(n=WORDS("texts", "2")), "unknown column 'texts'; did you mean 'text'?"),
        (lambda: POSTS.select(n=cast(Any, WORDS)), "did you forget the parentheses?"),
        (lambda: POSTS.with_columns(c="soundex(text)").select(n=WORDS("text", "2")), "is not known before Spark runs"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(PipelineError) as raised:
        make()
    assert says in str(raised.value)
    assert str(raised.value).startswith("test_udf.py:")
