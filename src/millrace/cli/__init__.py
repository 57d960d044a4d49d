"""The command line: one module for each group of commands."""

from millrace.cli.app import app

__all__ = ["app"]
