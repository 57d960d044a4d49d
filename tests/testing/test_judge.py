"""Random transcripts, with what an outside reading of the rules expects, pass on the reference and on the panes."""

import os
from random import Random
from typing import Any

import pytest

from judge_cases import stages, transcript
from millrace.testing.check import check
from millrace.testing.transcript import Document

IS_RANDOM = os.environ.get("CI_SEEDS") == "random"
SEED = int.from_bytes(os.urandom(4)) if IS_RANDOM else 17
MANY = {"reference": 2_000, "panes": 300} if IS_RANDOM else {"reference": 150, "panes": 20}


@pytest.mark.parametrize("engine", ["reference", "panes"])
@pytest.mark.parametrize("make", [transcript, stages])
def test_the_engines_agree_with_an_outside_judge(make: Any, engine: str) -> None:
    random = Random(SEED)
    for number in range(MANY[engine]):
        content = make(random, f"case {number}")
        verdict = check(Document("judge.yaml", 1, content), engine)
        assert verdict.passed, f"seed {SEED}, case {number}: {verdict.failure}\n{content}"
