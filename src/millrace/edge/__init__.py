"""Rows to partial aggregates: what is done once for each row, close to the data."""
