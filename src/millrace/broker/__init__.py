"""A single-node Kafka for development: its jars and its process."""
