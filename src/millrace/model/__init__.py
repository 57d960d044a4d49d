"""What is asked: windows, triggers, aggregates, pipelines, and what they mean. Pure: no Spark."""
