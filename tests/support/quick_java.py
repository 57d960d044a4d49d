"""A Java that starts in a third of the time, for the many processes of the tests.

It has its class archive from the beginning, and its slower compiler, which pays in long runs only, is off.
"""

import os
import subprocess
import sys

SET = ("SPARK_HOME", "SPARK_SUBMIT_OPTS")
"""The variables that this process sets, or its Spark session: a test that is about how Spark starts leaves them out."""


def variables() -> dict[str, str]:
    """The environment of processes that start Spark; the first call in an environment makes the class archive."""
    subprocess.run([sys.executable, "-m", "millrace.spark.home"], check=True, timeout=600, env=dict(os.environ))
    return {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
