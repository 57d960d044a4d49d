"""The daemon that forks Spark's Python workers; it imports Millrace once, so that no worker has to."""

import sys
from importlib import import_module

_TASKS = "pyspark.worker"
"""The module whose workers run tasks; those of others plan and look up, and need little of Millrace."""


def main() -> None:
    """Import what tasks need, and become Spark's daemon."""
    if _TASKS in sys.argv[1:]:
        for name in (_TASKS, "millrace.spark.shards", "millrace.spark.source"):
            import_module(name)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
