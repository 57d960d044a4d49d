"""The counts of a run: what several outputs share is counted once."""

import json

import pyarrow as pa
import pytest

from millrace import Pipeline, agg, log, to_topic, window
from millrace.model.query import Query
from millrace.panes.blobs import to_bytes
from millrace.plan.compile import compile
from millrace.running.totals import Totals
from millrace.spark.gather import Gathered
from millrace.spark.messages import PANES, STATUS

PLAYS, VISITS = (log(name, "k STRING, at TIMESTAMP").event_time("at", "0s") for name in ("plays", "visits"))
BY_KEY = PLAYS.group_by("k").window(window.fixed("1h")).aggregate(n=agg.count())
IN_ALL = PLAYS.window(window.fixed("1d")).aggregate(n=agg.count())
OTHER = VISITS.window(window.fixed("1h")).aggregate(n=agg.count())


def counted(pipeline: Pipeline, dropped: int = 3, answers: int = 2) -> Totals:
    """The counts of a run in which every output has dropped and answered so much, and has 5 open windows."""
    plan = compile(pipeline)
    messages = []
    for number, stage in enumerate(plan.stages):
        about = {"stage": number, "watermark": 0, "now": 0, "groups": 5, "bytes": 0, "dropped": dropped, "spent": 0.0}
        messages.append(
            {"stage": number, "kind": STATUS, "report": json.dumps({**about, "errors": 1}), "payload": None}
        )
        panes = {name: [0] * answers for name in ("start", "end", "value0", "timing", "index")}
        keys = {key: ["a"] * answers for key in (stage.query.key_columns if stage.query else ())}
        table = pa.table({**keys, **panes, "diff": [1] * answers, "last": [True] * answers})
        messages.append({"stage": number, "kind": PANES, "report": None, "payload": to_bytes(table)})
    return Totals().after(Gathered(plan, messages).progress(0, {}))


@pytest.mark.parametrize(
    ("views", "sinks", "late", "answers", "windows"),
    [
        ({"a": BY_KEY}, [], 3, 2, 5),
        ({"a": BY_KEY}, [BY_KEY.to(to_topic("out"))], 3, 2, 5),
        ({"a": BY_KEY, "b": IN_ALL}, [], 3, 4, 10),
        ({"a": BY_KEY, "b": OTHER}, [], 6, 4, 10),
    ],
    ids=["one output", "a view and a sink of one query", "two queries over a source", "two sources"],
)
def test_what_outputs_share_is_counted_once(
    views: dict[str, Query], sinks: list[object], late: int, answers: int, windows: int
) -> None:
    totals = counted(Pipeline("p", views, sinks))  # type: ignore[arg-type]
    assert (totals.late, totals.answers, totals.open_windows) == (late, answers, windows)
    assert totals.errors == answers // 2
    assert f"{answers} answers, {windows} windows open, {late} too late" in totals.summary(1.0)
