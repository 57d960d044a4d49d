"""The hidden columns of rows in a native edge."""

from millrace.sources.bundle import LOGGED

ORIGIN, OFFSET, CONTROL = "__origin", "__offset", "__control"
CARRIED = f"`{ORIGIN}` STRING, `{OFFSET}` BIGINT, `{LOGGED}` BIGINT, `{CONTROL}` STRING"
"""The hidden columns of a source's rows."""
LEFT_OUT, NODE, TIME, CLOSED, BAD = "__left_out", "__node", "__time", "__closed", "__bad"
AGAIN = "__again"
MARKS = {LEFT_OUT: "boolean", NODE: "int", TIME: "bigint", CLOSED: "bigint", AGAIN: "boolean", BAD: "string"}
"""The hidden columns that rows may have beside `CARRIED`, with their types.

`AGAIN` marks a row whose event time another row counts: a step in Python made both of one row.
"""
