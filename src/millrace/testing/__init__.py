"""Testing pipelines: the reference engine, which evaluates any query slowly in plain Python."""

from millrace.model.reference import Reference, batch

__all__ = ["Reference", "batch"]
