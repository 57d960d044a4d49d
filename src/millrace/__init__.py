"""Millrace: stream processing for Python people, on Spark.

A pipeline says what is computed, where in event time (windows), when in processing time answers
appear (triggers, imported as `on`) and how later answers relate to earlier ones.
"""

# The first import of a package binds its name here; the function of that name, below, must come after it.
import millrace.log  # noqa: F401
from millrace.edge.explain import explain
from millrace.log.producer import Producer
from millrace.model import trigger as on
from millrace.model import window as windows
from millrace.model.aggregate import (
    collect,
    collect_set,
    count,
    count_if,
    first,
    fold,
    last,
    max_,
    mean,
    min_,
    stddev,
    sum_,
    top_k,
    variance,
)
from millrace.model.errors import ModelError
from millrace.model.inputs import files, layers, log, memory, table
from millrace.model.pane import Mode, Pane, Timing
from millrace.model.pipeline import Pipeline, to_files, to_function, to_table, to_topic
from millrace.model.reference import Reference, batch
from millrace.model.sketch import approx_distinct, approx_quantile, approx_top_k, second_moment
from millrace.model.watermark import percentile, punctuated
from millrace.model.window import calendar, fixed, global_, session, sliding

__version__ = "0.1.0"

__all__ = [
    "Mode",
    "ModelError",
    "Pane",
    "Pipeline",
    "Producer",
    "Reference",
    "Timing",
    "approx_distinct",
    "approx_quantile",
    "approx_top_k",
    "batch",
    "calendar",
    "collect",
    "collect_set",
    "count",
    "count_if",
    "explain",
    "files",
    "first",
    "fixed",
    "fold",
    "global_",
    "last",
    "layers",
    "log",
    "max_",
    "mean",
    "memory",
    "min_",
    "on",
    "percentile",
    "punctuated",
    "second_moment",
    "session",
    "sliding",
    "stddev",
    "sum_",
    "table",
    "to_files",
    "to_function",
    "to_table",
    "to_topic",
    "top_k",
    "variance",
    "windows",
]
