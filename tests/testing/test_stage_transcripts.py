"""Every transcript with stages passes on both engines, and a mistake in one gets a clear message."""

from pathlib import Path

import pytest
import yaml

from documents import STAGES
from millrace.testing.check import check
from millrace.testing.transcript import Document


@pytest.mark.parametrize("engine", ["reference", "panes"])
@pytest.mark.parametrize("document", STAGES, ids=lambda document: f"{Path(document.file).stem}: {document.name}")
def test_transcript(document: Document, engine: str) -> None:
    verdict = check(document, engine)
    assert verdict.passed, verdict.failure


COUNTED = "{name: counted, input: plays, window: fixed(10s), aggregate: {n: count()}}"
TOP = "{name: top, input: counted, window: fixed(10s), aggregate: {most: max(n)}}"
BOTH = f"stages: [{COUNTED}, {{name: other, input: skips, window: fixed(10s)}}]"
JOIN = "stages: [{name: both, join: {left: plays, right: skips, on: k, WITH}}]\nsteps: []"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"stages: [{COUNTED}]", "needs steps:"),
        (f"stages: [{COUNTED}]\nsteps: []\nwindow: fixed(10s)", "unknown key 'window'"),
        ("stages: []\nsteps: []", "at least one stage"),
        ("stages: 7\nsteps: []", "the value must be a list"),
        ("stages: [7]\nsteps: []", "stage 1 must be a mapping"),
        ("stages: [{input: plays}]\nsteps: []", "stage 1 needs name:"),
        ("stages: [{name: x}]\nsteps: []", "stage x needs either input: or join:"),
        ("stages: [{name: x, input: []}]\nsteps: []", "stage x has no input"),
        ("stages: [{name: x, input: [7]}]\nsteps: []", "a name or a list of names"),
        ("stages: [{name: x, input: plays, windows: fixed(10s)}]\nsteps: []", "stage x: unknown key 'windows'"),
        (f"stages: [{COUNTED}, {COUNTED}]\nsteps: []", "two stages have the name 'counted'"),
        ("stages: [{name: x, input: y}, {name: y, input: x}]\nsteps: []", "in a circle: x, y, x"),
        ("stages: [{name: x, input: x}]\nsteps: []", "in a circle: x, x"),
        ("stages: [{name: x, input: plays, lateness: 5s}]\nsteps: []", "stage x: lateness: needs window:"),
        ("stages: [{name: x, input: plays, by: k}]\nsteps: []", "stage x: by: needs window:"),
        ("stages: [{name: x, input: plays, by: k, keys: k, window: global()}]\nsteps: []", "have the same meaning"),
        ("stages: [{name: x, input: plays, where: 7}]\nsteps: []", "where: 7 does not parse; write it like"),
        ("stages: [{name: x, input: plays, where: w > 1}]\nsteps: []", "stage x: "),
        ("stages: [{name: x, input: plays, where: v}]\nsteps: []", "needs a condition"),
        ("stages: [{name: x, input: plays, with_columns: [v]}]\nsteps: []", "with_columns: ['v'] does not parse"),
        ("stages: [{name: x, input: plays, with_columns: {1: v}}]\nsteps: []", "the name of a column must be text"),
        ("stages: [{name: x, input: plays, select: [k]}]\nsteps: []", "which the event time needs"),
        ("stages: [{name: x, input: plays, window: fixed(10s), trigger: each()}]\nsteps: []", "needs mode:"),
        (f"stages: [{COUNTED}, {{name: x, input: counted, window: fixed(10s)}}]\nsteps: []", "needs aggregate:"),
        (f"stages: [{COUNTED}, {{name: x, input: counted, event_time: n}}]\nsteps: []", "must be a TIMESTAMP"),
        (f"sources: 7\nstages: [{COUNTED}]\nsteps: []", "sources: must map names to schemas"),
        (f"sources: {{play: k STRING}}\nstages: [{COUNTED}]\nsteps: []", "unknown source 'play'"),
        (f"sources: {{plays: k TEXTILE}}\nstages: [{COUNTED}]\nsteps: []", "TEXTILE"),
        (f"sources: {{plays: k STRING}}\nstages: [{COUNTED}]\nsteps: [{{input: [{{v: 1, at: 2}}]}}]", "column 'v'"),
        (f"stages: [{COUNTED}]\nsteps: [{{input: {{skips: [1]}}}}]", "unknown source 'skips'"),
        (f"stages: [{COUNTED}]\nsteps: [{{input: [1], source: skips}}]", "unknown source 'skips'"),
        (f"stages: [{COUNTED}]\nsteps: [{{input: {{plays: [1]}}, source: plays}}]", "source: is left out"),
        (f"stages: [{COUNTED}]\nsteps: [{{watermark: 5, source: plays}}]", "source: needs input:"),
        (f"{BOTH}\nsteps: [{{input: [1]}}]", "there are several sources; write it like {plays: [...]}"),
        (f"stages: [{COUNTED}]\nsteps: [{{input: [five]}}]", "an element must be like"),
        (f"stages: [{COUNTED}]\nsteps: [{{input: [{{k: a}}]}}]", "each element needs at:"),
        (f"stages: [{COUNTED}]\nsteps: [{{input: [{{at: soon}}]}}]", "a time in seconds"),
        (f"stages: [{COUNTED}]\nsteps: [{{input: [.inf]}}]", "must be finite"),
        (f"stages: [{COUNTED}]\nsteps: [{{watermark: {{skips: 5}}}}]", "unknown source 'skips'"),
        (f"stages: [{COUNTED}]\nsteps: [{{watermark: later}}]", "a time in seconds"),
        (f"stages: [{COUNTED}]\nsteps: [{{wait: 5}}]", "unknown step 'wait'"),
        (f"stages: [{COUNTED}]\nsteps: [7]", "step 1 must be a mapping"),
        (f"stages: [{COUNTED}]\nsteps: [{{}}]", "step 1 must be a mapping"),
        (f"stages: [{COUNTED}]\nsteps: [{{input: [1], expect: []}}]", "write expect as a step of its own"),
        (f"stages: [{COUNTED}]\nsteps: [{{expect: {{top: []}}}}]", "unknown stage 'top'"),
        (f"stages: [{COUNTED}]\nwatch: top\nsteps: []", "watch: unknown stage 'top'"),
        (f"stages: [{COUNTED}]\nwatch: [[top]]\nsteps: []", "watch: unknown stage"),
        (f"stages: [{COUNTED}]\nidle: 5s\nsteps: [{{watermark: 5}}]", "step 1: the watermark follows from the events"),
        (f"{BOTH}\nsteps: [{{expect: [{{n: 1}}]}}]", "0 stages are watched; name the stage"),
        (f"stages: [{COUNTED}]\nsteps: [{{expect: [{{m: 1}}]}}]", "unknown attribute 'm'"),
        (f"stages: [{COUNTED}]\nsteps: [{{expect: [{{at: 1}}]}}]", "unknown attribute 'at'"),
        (f"stages: [{COUNTED}]\nsteps: [{{expect: [{{diff: 3}}]}}]", "diff must be +1 or -1"),
        (f"stages: [{COUNTED}]\nsteps: [{{expect: [7]}}]", "a pane must be a mapping"),
        ("stages: [{name: x, input: plays}]\nsteps: [{expect: [{timing: early}]}]", "unknown attribute 'timing'"),
        (f"stages: [{COUNTED}, {TOP}]\nsteps: [{{dropped: some}}]", "a number of elements"),
        (f"stages: [{COUNTED}, {TOP}]\nsteps: [{{dropped: {{bottom: 1}}}}]", "'bottom'"),
        (f"stages: [{COUNTED}]\nsteps: []\nerror: '['", "not a regular expression"),
        (JOIN.replace("WITH", "within: [0s, 10s], how: over"), "stage both: unknown kind of join 'over'"),
        (JOIN.replace("WITH", "windows: 7"), "unknown key 'windows'"),
        (JOIN.replace("WITH", "how: left"), "needs either within: or window:"),
        (JOIN.replace("WITH", "within: 10s"), "within must be like [0s, 10s]"),
        ("stages: [{name: x, join: {left: a, on: k, window: fixed(1s)}}]\nsteps: []", "join needs right:"),
        ("stages: [{name: x, join: {left: a, right: b, window: fixed(1s)}}]\nsteps: []", "join needs on:"),
        ("stages: [{name: x, join: 7}]\nsteps: []", "must be a mapping with left:"),
    ],
)
def test_a_mistake_gets_a_clear_message(text: str, says: str) -> None:
    for engine in ("reference", "panes"):
        verdict = check(Document("mistake.yaml", 1, yaml.safe_load(text)), engine)
        assert verdict.failure is not None
        assert says in verdict.failure


def test_columns_without_a_value_have_the_type_of_the_same_column_elsewhere() -> None:
    text = (
        "stages: [{name: all, input: [plays, skips], window: fixed(10s), aggregate: {n: count()}}]\n"
        "steps: [{input: {plays: [{k: a, at: 1}], skips: [{at: 2}]}}, {watermark: 10},"
        " {expect: [{k: a, n: 1}, {k: null, n: 1}]}]"
    )
    verdict = check(Document("stages.yaml", 1, yaml.safe_load(text)))
    assert verdict.passed, verdict.failure
