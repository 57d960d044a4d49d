"""Runs a script through a pipeline, on a chosen engine."""

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from millrace.model.errors import refuse, refuse_unknown, shown
from millrace.model.pipeline import Pipeline
from millrace.testing.answers import Answers
from millrace.testing.checked import check_script
from millrace.testing.local import run_here
from millrace.testing.script import Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EngineName: TypeAlias = Literal["reference", "panes", "spark"]


def run_script(
    pipeline: Pipeline, script: Script, engine: EngineName = "reference", spark: "SparkSession | None" = None
) -> Answers:
    """Run a script through a pipeline and return the answers.

    The pipeline is unchanged, except that the script feeds its sources and its sinks are not written to. Engine
    `reference` evaluates it in plain Python, in milliseconds; `panes` uses the engine of running pipelines in this
    process; `spark` runs a Spark stream, in which each step is a micro-batch.

    `spark` is the session of engine `spark`; the default is the active session, or else a session that is started once
    and stopped when the process ends.
    """
    if not isinstance(pipeline, Pipeline):
        raise refuse(
            f"run_script() takes a Pipeline, such as Pipeline('test', {{'answers': query}}), not {shown(pipeline)}"
        )
    if not isinstance(script, Script):
        raise refuse(f"run_script() takes a Script, not {shown(script)}")
    if engine not in get_args(EngineName):
        raise refuse_unknown("engine", engine, get_args(EngineName))
    if spark is not None and engine != "spark":
        raise refuse(f"engine {engine!r} does not take spark=", advice="leave spark= out, or use engine='spark'")
    checked = check_script(pipeline, script)
    if engine == "spark":
        from millrace.testing.on_spark import run_on_spark, session_of_process  # imports Spark, which is slow

        return run_on_spark(checked, spark or session_of_process())
    return run_here(checked, panes=engine == "panes")
