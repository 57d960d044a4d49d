"""The embedded log: topics, partitions, offsets, retention, producers."""
