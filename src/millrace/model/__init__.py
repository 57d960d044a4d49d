"""Windows, triggers, aggregates, pipelines and their reference semantics. Pure Python, without Spark."""
