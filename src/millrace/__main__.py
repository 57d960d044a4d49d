"""`python -m millrace` is `millrace`."""

from millrace.cli import app

app()
