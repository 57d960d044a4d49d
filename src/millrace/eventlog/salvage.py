"""Saves what can be read of a log whose file SQLite cannot read any more.

Rows are recognised by the types of their values: those of each table of a log differ. A block is saved if its checksum
matches. Offsets keep their records, and offsets without a block become gaps, as after a damaged block was skipped. The
end of a partition is that of its last block that was found.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from millrace.eventlog.content import decode
from millrace.eventlog.durable import sync
from millrace.eventlog.opening import PAGE, made
from millrace.eventlog.pages import Cell, Pages, Value, is_blob, is_integer, is_text
from millrace.eventlog.trouble import clear
from millrace.model.errors import CorruptError

Row = tuple[Value, ...]
Kind = Callable[[int], bool]


def _or_null(kind: Kind) -> Kind:
    return lambda type: type == 0 or kind(type)


def _is_null(type: int) -> bool:
    return type == 0


_NUMBER, _NUMBERS = _or_null(is_integer), (is_integer,) * 8
_SHAPES: dict[str, tuple[bool, tuple[Kind, ...]]] = {
    "log": (True, (is_text, _NUMBER, _NUMBER, _NUMBER)),
    "topics": (True, (_is_null, is_text, is_text, is_integer, _NUMBER, _NUMBER, is_text)),
    "partitions": (False, (is_integer,) * 3),
    "blocks": (False, (*_NUMBERS, _NUMBER)),
    "contents": (True, (_is_null, is_integer, is_blob, is_blob)),
    "sequences": (False, (is_integer, is_text, is_integer, is_text, is_text, is_integer)),
    "consumers": (False, (is_integer, is_text, is_text, is_text)),
}
"""For each table of a log, whether it has rowids, and the types of its values."""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was saved."""

    records: int
    topics: tuple[str, ...]
    lost: int
    """The records before the end of their partitions that were not saved."""
    unplaced: int
    """The blocks of which nothing tells their topic and offsets."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows that were found, by table; blocks still in their pages."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    contents: dict[int, list[Cell]] = field(default_factory=lambda: defaultdict(list))


def topics_in(damaged: Path) -> list[str]:
    """The topics of a damaged log of which something can be saved."""
    with Pages(damaged, PAGE) as pages:
        return sorted(str(row[1]) for row in _topics(_found(pages)).values())


def salvage(damaged: Path, to: Path) -> Salvaged:
    """Save what can be read of a damaged log in a new file."""
    with clear(to), Pages(damaged, PAGE) as pages, closing(made(to.absolute())) as log:
        # An incomplete file is worthless, so it needs no journal; it is fsynced once at the end.
        log.execute("PRAGMA journal_mode = OFF")
        log.execute("PRAGMA synchronous = OFF")
        log.execute("BEGIN")
        saved = _save(pages, _found(pages), log)
        log.execute("COMMIT")
        log.execute("PRAGMA journal_mode = WAL")
    sync(to)
    return saved


def _found(pages: Pages) -> _Found:
    found = _Found()
    for cell in pages.cells():
        table = _table_of(cell)
        if table == "contents" and cell.rowid is not None:
            found.contents[cell.rowid].append(cell)
        elif table is not None and (row := pages.values(cell)) is not None:
            found.rows[table].append((cell.rowid, *row[1:]) if table == "topics" else row)
    return found


def _table_of(cell: Cell) -> str | None:
    try:
        types = cell.types
    except (ValueError, IndexError):
        return None
    for table, (has_rowids, kinds) in _SHAPES.items():
        same = has_rowids == (cell.rowid is not None) and len(types) == len(kinds)
        if same and all(kind(type) for kind, type in zip(kinds, types, strict=True)):
            return table
    return None


def _topics(found: _Found) -> dict[int, Row]:
    """The topics by id. Pages that are not in use may hold an earlier topic of a name, with a smaller id."""
    by_name = {row[1]: row for row in sorted(found.rows["topics"], key=lambda row: _whole(row[0]))}
    return {_whole(row[0]): row for row in by_name.values()}


def _save(pages: Pages, found: _Found, log: sqlite3.Connection) -> Salvaged:
    if found.rows["log"]:
        log.execute("UPDATE log SET id = ?, own = ?, wall = ?, seen = ?", found.rows["log"][0])
    topics, records, lost = _topics(found), 0, 0
    placed: set[Value] = set()
    for id, topic in topics.items():
        _insert(log, "topics", topic)
        for partition in range(_whole(topic[3])):
            mine = [row for row in found.rows["blocks"] if row[:2] == (id, partition)]
            starts = [_whole(row[2]) for row in found.rows["partitions"] if row[:2] == (id, partition)]
            start = max(starts) if starts else min((_whole(row[2]) for row in mine), default=0)
            _insert(log, "partitions", (id, partition, start))
            for block in _in_order(mine, start):
                content = _content(pages, found, block, log)
                placed.add(block[8])
                many = _whole(block[3])
                records, lost = (records + many, lost) if content is not None else (records, lost + many)
                _insert(log, "blocks", (*block[:4], block[4] if content is not None else 0, *block[5:8], content))
        for table in ("sequences", "consumers"):
            for row in found.rows[table]:
                if row[0] == id:
                    _insert(log, table, row)
    names = tuple(sorted(str(topic[1]) for topic in topics.values()))
    return Salvaged(records, names, lost, len(found.contents.keys() - placed))


def _in_order(blocks: Sequence[Row], start: int) -> Iterator[Row]:
    """The blocks of a partition from its start on, with blocks without content in place of those that are missing.

    Pages that are not in use may hold a block before it was merged into a larger one.
    """
    at, ended = start, 0
    for block in sorted(blocks, key=lambda row: (_whole(row[2]), -_whole(row[3]))):
        first, many = _whole(block[2]), _whole(block[3])
        if first < at or many <= 0:
            continue
        if first > at:
            yield (*block[:2], at, first - at, 0, block[5], ended or block[6], block[6], None)
        yield block
        at, ended = first + many, _whole(block[7])


def _content(pages: Pages, found: _Found, block: Row, log: sqlite3.Connection) -> int | None:
    """Save the content of a block, and return its id; None if there is none whose checksum matches."""
    for cell in found.contents.get(_whole(block[8]), ()) if block[8] is not None else ():
        values = pages.values(cell)
        if values is None:
            continue
        _, checksum, marks, content = values
        try:
            assert isinstance(content, bytes)
            assert isinstance(checksum, int)
            if len(decode(content, checksum, "this block")) != block[3]:
                continue
        except CorruptError:
            continue
        row = log.execute("INSERT INTO contents (checksum, marks, block) VALUES (?, ?, ?)", (checksum, marks, content))
        return row.lastrowid
    return None


def _insert(log: sqlite3.Connection, table: str, row: Row) -> None:
    log.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _whole(value: Value) -> int:
    assert isinstance(value, int)
    return value
