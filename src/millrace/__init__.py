"""Millrace: stream processing for Python people, on Spark.

A pipeline says what is computed (`agg`), where in event time (`window`), when in processing time answers appear
(`on`) and how later answers relate to earlier ones.
"""

from millrace import agg, on, window
from millrace.client.connect import connect
from millrace.eventlog.producer import Producer
from millrace.model.connectors import Commit, CustomSink, CustomSource
from millrace.model.errors import (
    ConflictError,
    CorruptError,
    MachineError,
    MillraceError,
    NotFoundError,
    PipelineError,
)
from millrace.model.inputs import files, layers, log, memory, source, table
from millrace.model.pane import Mode, Pane, Timing
from millrace.model.pipeline import Pipeline, to_files, to_function, to_sink, to_table, to_topic
from millrace.model.watermark import percentile, punctuated
from millrace.plan.explain import explain
from millrace.running.handle import Run

__version__ = "0.2.0"

__all__ = [
    "Commit",
    "ConflictError",
    "CorruptError",
    "CustomSink",
    "CustomSource",
    "MachineError",
    "MillraceError",
    "Mode",
    "NotFoundError",
    "Pane",
    "Pipeline",
    "PipelineError",
    "Producer",
    "Run",
    "Timing",
    "agg",
    "connect",
    "explain",
    "files",
    "layers",
    "log",
    "memory",
    "on",
    "percentile",
    "punctuated",
    "source",
    "table",
    "to_files",
    "to_function",
    "to_sink",
    "to_table",
    "to_topic",
    "window",
]
