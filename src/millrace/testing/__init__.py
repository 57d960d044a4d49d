"""Transcripts: what a query must say, step by step, run against any engine."""
