"""Millrace: stream processing for Python people, on Spark.

A pipeline says what is computed (`agg`), where in event time (`window`), when in processing time answers appear
(`on`) and how later answers relate to earlier ones.

Names are imported when they are used, because every worker and every command imports this package, and most need few of
its names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from millrace.model.kafka import kafka
    from millrace.model.kafka_sink import to_kafka
    from millrace.model.pane import Mode, Pane, Timing
    from millrace.model.pipeline import Pipeline, to_files, to_function, to_sink, to_table, to_topic
    from millrace.model.udf import udf
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
    "kafka",
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
    "to_kafka",
    "to_sink",
    "to_table",
    "to_topic",
    "udf",
    "window",
]


_HOMES = {
    "agg": (),
    "client.connect": ("connect",),
    "eventlog.producer": ("Producer",),
    "model.connectors": ("Commit", "CustomSink", "CustomSource"),
    "model.errors": (
        "ConflictError", "CorruptError", "MachineError", "MillraceError", "NotFoundError", "PipelineError",
    ),
    "model.inputs": ("files", "layers", "log", "memory", "source", "table"),
    "model.kafka": ("kafka",),
    "model.kafka_sink": ("to_kafka",),
    "model.pane": ("Mode", "Pane", "Timing"),
    "model.pipeline": ("Pipeline", "to_files", "to_function", "to_sink", "to_table", "to_topic"),
    "model.udf": ("udf",),
    "model.watermark": ("percentile", "punctuated"),
    "on": (),
    "plan.explain": ("explain",),
    "running.handle": ("Run",),
    "window": (),
}  # fmt: skip
"""The module of each public name; a module without names is public itself."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    for home, names in _HOMES.items():
        if name in names or (name == home and not names):
            module = import_module(f"millrace.{home}")
            value = getattr(module, name) if names else module
            globals()[name] = value
            return value
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted(__all__)
