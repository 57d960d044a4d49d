"""The command line: what a person types, in modules by what it is about."""

from millrace.cli.app import app

__all__ = ["app"]
