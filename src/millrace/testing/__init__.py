"""Tests of pipelines: scripts of rows and time, and the engines that run them.

    answers = run_script(charts, Script().rows("plays", {...}).end())
    assert answers.view("hourly_plays") == [{...}]

`Reference` and `batch` evaluate a single query in plain Python, without a pipeline.
"""

from millrace.model.reference import Reference, batch
from millrace.testing.answers import Answers, DeadLetter, StepAnswers
from millrace.testing.run import run_script
from millrace.testing.script import Script

__all__ = ["Answers", "DeadLetter", "Reference", "Script", "StepAnswers", "batch", "run_script"]
