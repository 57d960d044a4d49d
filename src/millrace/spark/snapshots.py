"""Snapshots of tables that may change while a pipeline runs, taken when a micro-batch is planned.

A repeated micro-batch must find the same rows. So a snapshot is stored in the checkpoint before it is used, under a
name derived from its content, and the offset that Spark logs holds that name. The name does not contain the folder, so
a checkpoint can be copied and moved.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from millrace.edge.tables import columns_of
from millrace.eventlog.durable import write_whole
from millrace.model.stream import Join, Stream, Table, parents
from millrace.panes.blobs import from_bytes, to_bytes

_KEPT = 8
"""The number of snapshots kept of each table: enough for the last few micro-batches."""


class Lookup(Protocol):
    """A table that may change."""

    def stamp(self) -> Hashable:
        """A value that changes whenever the rows do; cheap to compute."""

    def read(self) -> pa.Table:
        """The rows."""


class FileLookup:
    """A table in a file that may be replaced."""

    def __init__(self, table: Table) -> None:
        """The table must have a path."""
        self._table = table
        assert table.path is not None
        self._path = Path(table.path)

    def stamp(self) -> Hashable:
        """The modification time, size and inode of the file; None if there is no file."""
        try:
            about = self._path.stat()
        except FileNotFoundError:
            return None
        return about.st_mtime_ns, about.st_size, about.st_ino

    def read(self) -> pa.Table:
        """The rows. Refuses a file that does not exist or does not hold them."""
        return columns_of(self._table)


class Snapshots:
    """The snapshots of some tables, in a folder."""

    def __init__(self, folder: Path, lookups: Mapping[str, Lookup]) -> None:
        """`lookups` holds the tables by name."""
        self._folder, self._lookups = folder, lookups
        self._stamps: dict[str, Hashable] = {}
        self._names: dict[str, str] = {}

    def now(self) -> dict[str, str]:
        """The name of the current snapshot of each table; a table that has changed is stored first."""
        for name, lookup in self._lookups.items():
            stamp = lookup.stamp()
            if name not in self._names or self._stamps[name] != stamp:
                self._names[name] = self._keep(name, to_bytes(lookup.read()))
                self._stamps[name] = stamp
        return dict(self._names)

    def paths(self, names: Mapping[str, str]) -> dict[str, str]:
        """The paths of snapshots, by table."""
        return {table: str(self._folder / name) for table, name in names.items()}

    def _keep(self, name: str, data: bytes) -> str:
        table = hashlib.sha256(name.encode()).hexdigest()[:16]  # a table's name may be invalid as a file name
        kept = self._folder / f"{table}-{hashlib.sha256(data).hexdigest()[:16]}.arrow"
        if kept.exists() and kept.read_bytes() == data:  # a damaged snapshot is replaced
            kept.touch()
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(kept, lambda path: path.write_bytes(data))
            others = sorted(self._folder.glob(f"{table}-*.arrow"), key=lambda path: path.stat().st_mtime_ns)
            for old in others[:-_KEPT]:
                old.unlink(missing_ok=True)
        return kept.name


@lru_cache(16)
def read_snapshot(path: str) -> pa.Table:
    """The rows of a snapshot, cached in the worker."""
    return from_bytes(Path(path).read_bytes())


def tables_of(streams: Iterable[Stream]) -> dict[str, Table]:
    """The tables that some streams join and that may change, by name."""
    found: dict[str, Table] = {}
    for stream in streams:
        if isinstance(stream, Join) and not stream.table.rows:
            found[stream.table.name] = stream.table
        found |= tables_of(parents(stream))
    return found
