"""The rows of a damaged SQLite file, read page by page.

SQLite reads a row only if the whole path to it, from the root of its table, is intact. Here every page that holds rows
is read by itself, whatever points to it, so that damage costs only the rows in the damaged pages. SQLite's
documentation of its file format and of the write-ahead log defines what is read. Callers check what they get.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

Value: TypeAlias = int | float | str | bytes | None

_MAGIC = b"SQLite format 3\0"
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 13, 10, 2
_HEAD = 100
"""The first page starts with a header of this many bytes."""
_WAL_HEAD, _FRAME_HEAD = struct.Struct(">8I"), struct.Struct(">6I")
_WAL_MAGIC = (0x377F0682, 0x377F0683)
_WIDTHS = (0, 1, 2, 3, 4, 6, 8)
"""The bytes of an integer, by its type in the head of a row."""
_TEXT, _BLOB = 13, 12
"""The types of an empty text and an empty blob; each byte adds 2."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A row in a page. Its content may continue in other pages."""

    rowid: int | None
    """None for a table without rowids."""
    size: int
    start: bytes
    """The content in the page itself."""
    more: int
    """The page in which it continues; 0 if it does not."""

    @property
    def types(self) -> list[int]:
        """The type of each value, from the head of the row. Raises ValueError or IndexError for something else."""
        end, at = _varint(self.start, 0)
        found = []
        while at < end:
            kind, at = _varint(self.start, at)
            found.append(kind)
        return found


class Pages:
    """The pages of a database as of its last transaction, including those in the write-ahead log beside it."""

    def __init__(self, path: Path, page: int) -> None:
        """`page` is the size of a page, used if the header of the file does not tell it."""
        self._held = ExitStack()
        self._file, self._journal = self._mapped(path), self._mapped(path.with_name(f"{path.name}-wal"))
        self._later: dict[int, int] = {}
        """The offsets of pages in the write-ahead log."""
        self._size = _page_size(self._file[:_HEAD]) or page
        self._read_journal()

    def __enter__(self) -> "Pages":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.close()

    def cells(self) -> Iterator[Cell]:
        """All rows in pages that are in use. What does not have the form of a row is left out."""
        free = self._free()
        for number in range(1, max([len(self._file) // self._size, *self._later]) + 1):
            page = self._page(number)
            if number not in free and page is not None:
                yield from self._rows(page, _HEAD if number == 1 else 0)

    def values(self, cell: Cell) -> tuple[Value, ...] | None:
        """The values of a row; None if its content is damaged."""
        content = self._content(cell)
        if content is None:
            return None
        with suppress(ValueError, IndexError, struct.error):
            at, _ = _varint(content, 0)
            found: list[Value] = []
            for kind in cell.types:
                value, at = _value(content, kind, at)
                found.append(value)
            return tuple(found) if at == len(content) else None
        return None

    def _mapped(self, path: Path) -> "mmap.mmap | bytes":
        if not path.exists() or not path.stat().st_size:
            return b""
        file = self._held.enter_context(path.open("rb"))
        return self._held.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def _page(self, number: int) -> bytes | None:
        if number in self._later:
            at = self._later[number]
            return self._journal[at : at + self._size]
        page = self._file[(number - 1) * self._size : number * self._size]
        return page if number > 0 and len(page) == self._size else None

    def _read_journal(self) -> None:
        if len(self._journal) < _WAL_HEAD.size:
            return
        magic, _, size, _, *salts = _WAL_HEAD.unpack_from(self._journal)
        if magic not in _WAL_MAGIC or size != self._size:
            return
        waiting: dict[int, int] = {}
        for at in range(_WAL_HEAD.size, len(self._journal) - _FRAME_HEAD.size - size + 1, _FRAME_HEAD.size + size):
            number, committed, *found = _FRAME_HEAD.unpack_from(self._journal, at)
            if found[:2] != salts[:2]:  # what follows is of an earlier time
                return
            waiting[number] = at + _FRAME_HEAD.size
            if committed:
                self._later.update(waiting)
                waiting = {}

    def _free(self) -> set[int]:
        """The pages that are not in use, and still hold rows that were deleted; none if the first page is damaged."""
        first = self._page(1)
        if first is None or not _page_size(first[:_HEAD]):
            return set()
        free: set[int] = set()
        (trunk,) = struct.unpack_from(">I", first, 32)
        while trunk and trunk not in free and (page := self._page(trunk)) is not None:
            free.add(trunk)
            trunk, many = struct.unpack_from(">2I", page)
            free.update(struct.unpack_from(f">{min(many, self._size // 4 - 2)}I", page, 8))
        return free

    def _rows(self, page: bytes, head: int) -> Iterator[Cell]:
        kind = page[head]
        if kind not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            return
        (many,) = struct.unpack_from(">H", page, head + 3)
        pointers = head + (12 if kind == _INDEX_INTERIOR else 8)
        if pointers + 2 * many > self._size:
            return
        for at in struct.unpack_from(f">{many}H", page, pointers):
            with suppress(ValueError, IndexError, struct.error):
                yield self._cell(page, kind, at + 4 if kind == _INDEX_INTERIOR else at)

    def _cell(self, page: bytes, kind: int, at: int) -> Cell:
        size, at = _varint(page, at)
        rowid = None
        if kind == _TABLE_LEAF:
            rowid, at = _varint(page, at)
            most = self._size - 35
        else:
            most = (self._size - 12) * 64 // 255 - 23
        if size <= most:
            return Cell(rowid, size, page[at : at + size], 0)
        least = (self._size - 12) * 32 // 255 - 23
        here = least + (size - least) % (self._size - 4)
        here = here if here <= most else least
        (more,) = struct.unpack_from(">I", page, at + here)
        return Cell(rowid, size, page[at : at + here], more)

    def _content(self, cell: Cell) -> bytes | None:
        parts, left, more = [cell.start], cell.size - len(cell.start), cell.more
        while left > 0:
            page = self._page(more) if more else None
            if page is None:
                return None
            (more,) = struct.unpack_from(">I", page)
            parts.append(page[4 : 4 + left])
            left -= self._size - 4
        return b"".join(parts)


def _page_size(header: bytes) -> int | None:
    """The size of a page by the header of a file; None if that is damaged."""
    if header[: len(_MAGIC)] != _MAGIC:
        return None
    (size,) = struct.unpack_from(">H", header, 16)
    size = 65536 if size == 1 else size
    return size if size >= 512 and size & (size - 1) == 0 else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer of one to nine bytes, and the place after it."""
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _value(content: bytes, kind: int, at: int) -> tuple[Value, int]:
    """The value of a type at a place, and the place after it."""
    if kind == 0:
        return None, at
    if kind < len(_WIDTHS):
        end = at + _WIDTHS[kind]
        return int.from_bytes(content[at:end], "big", signed=True), end
    if kind == 7:
        return struct.unpack_from(">d", content, at)[0], at + 8
    if kind in (8, 9):
        return kind - 8, at
    end = at + (kind - _BLOB) // 2
    return (content[at:end].decode() if kind % 2 else content[at:end]), end


def is_integer(kind: int) -> bool:
    """Whether a type in the head of a row is that of an integer."""
    return 1 <= kind <= 6 or kind in (8, 9)


def is_text(kind: int) -> bool:
    """Whether a type in the head of a row is that of a text."""
    return kind >= _TEXT and kind % 2 == 1


def is_blob(kind: int) -> bool:
    """Whether a type in the head of a row is that of a blob."""
    return kind >= _BLOB and kind % 2 == 0
