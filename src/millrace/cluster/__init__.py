"""A standalone Spark cluster on one machine, for development."""
