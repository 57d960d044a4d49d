"""The Spark session that everything runs in."""

import logging
import os
import sys

from pyspark.sql import SparkSession

from millrace.spark.java import java_home


def start(name: str, master: str = "local[*]") -> SparkSession:
    """Start Spark, or take the session that is there, on a Java that it can run on."""
    home = java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = home
    # The workers must be this Python, with what is installed in it, not the first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # PySpark writes every failed query there once more, as JSON, beside the exception it raises.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return (
        SparkSession.builder.appName(name)
        .master(master)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "FATAL")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
