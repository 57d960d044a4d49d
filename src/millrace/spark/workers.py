"""The daemon that forks Spark's Python workers; it imports Millrace once, so that no worker has to."""

import atexit
import gc
import os
import sys
from importlib import import_module

_TASKS = "pyspark.worker"
"""The module whose workers run tasks; those of others plan and look up, and need little of Millrace."""
_IMPORTED = (
    _TASKS,
    "millrace.spark.reading",
    "millrace.spark.shards",
    "pandas",  # PySpark's functions over Arrow import it
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "pyspark.sql.worker.plan_data_source_read",
)


def prepare() -> None:
    """Import all that tasks need.

    A worker collects garbage after each task. It then looks at what the task left, not at all that was imported.
    """
    for name in _IMPORTED:
        import_module(name)
    numpy = import_module("numpy")
    os.register_at_fork(after_in_child=numpy.random.seed)  # otherwise all workers would draw the same numbers
    gc.freeze()
    atexit.register(gc.unfreeze)  # DuckDB complains of objects that are not freed at the end


def main() -> None:
    """Import what tasks need, and become Spark's daemon."""
    if _TASKS in sys.argv[1:]:
        prepare()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
