"""Answers kept: the rows of each view, and its recent changes by version, in a database that anyone may query."""
