"""Spark: the sessions and hosts that run pipelines."""
