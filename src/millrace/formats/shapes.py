"""The shapes of JSON records: which texts stand between the values of records of one producer, learnt from records.

A shape is a graph. A node is the name of the field that was read last; an edge is the text up to the next value, such
as `,"user": `, or up to the end of the record, as it was seen after that name. So one graph holds records of several
producers, with fields in several orders, and with fields that only some records have. As each text is complete (comma,
name, colon, white space), any way through the graph with a JSON value after each edge is a JSON object.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.formats.forms import SKIP

_SPACE = r"[ \t\r\n]*"
_NAME = r'"([^"\\\x00-\x1f]*)"'
_FIRST, _LATER = (re.compile(rf"{_SPACE}{sign}{_SPACE}{_NAME}{_SPACE}:{_SPACE}") for sign in (r"\{", ","))
_LAST, _EMPTY = re.compile(rf"{_SPACE}\}}{_SPACE}\Z"), re.compile(rf"{_SPACE}\{{{_SPACE}\}}{_SPACE}\Z")
_START = None
_LONGEST, _MOST = 256, 256
"""The most bytes of an edge, and the most edges, that are learnt."""
_LARGEST = 1 << 16
"""The most characters of a record that is learnt from."""
_SCAN = json.JSONDecoder()


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The shapes as arrays, as `formats.kernel` reads them."""

    edges: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint64]
    """The texts of edges, eight bytes at a time."""
    masks: npt.NDArray[np.uint64]
    """The bits of the words that belong to a text."""
    roots: npt.NDArray[np.int64]
    """The first edge of each node; the first node is the start of a record."""


class Shapes:
    """The shapes that were learnt for the columns that are read."""

    def __init__(self, columns: Mapping[str, int], known: Iterable[str] | None = None) -> None:
        """Know no shape yet. `columns` gives the kinds of values by name, in the order of the columns.

        A record with a field that is not `known`, if that is given, has no shape.
        """
        self._columns = {name: (kind, number) for number, (name, kind) in enumerate(columns.items())}
        self._known = None if known is None else frozenset(known)
        self._counts: Counter[tuple[str | None, bytes, str | None]] = Counter()
        """How often each edge was seen: the name before it, its text, and the name in it; None at start and end."""

    def __len__(self) -> int:
        return len(self._counts)

    def learn(self, texts: Iterable[str | None]) -> bool:
        """Learn from records; whether there is something new."""
        before = len(self._counts)
        for text in texts:
            if text is not None and len(text) <= _LARGEST:
                found = list(_edges(text))
                is_new = any(edge not in self._counts for edge in found)
                if self._fit(found) and not (is_new and len(self._counts) + len(found) > _MOST):
                    self._counts.update(found)
        return len(self._counts) > before

    def _fit(self, edges: Sequence[tuple[str | None, bytes, str | None]]) -> bool:
        names = [name for _, _, name in edges if name is not None]
        is_known = self._known is None or self._known.issuperset(names)
        return is_known and all(len(text) <= _LONGEST for _, text, _ in edges)

    def graph(self) -> Graph:
        """The shapes; of the edges of a node, the one that was seen most often comes first."""
        nodes: dict[str | None, int] = {_START: 0}
        for _, _, name in self._counts:
            nodes.setdefault(name, len(nodes))
        roots, latest = np.full(len(nodes), -1), dict[int, int]()
        edges, words, masks = list[list[int]](), list[bytes](), list[bytes]()
        for (before, text, name), _ in self._counts.most_common():
            node, number = nodes[before], len(edges)
            if node in latest:
                edges[latest[node]][2] = number
            else:
                roots[node] = number
            latest[node] = number
            after = -1 if name is None else nodes[name]
            edges.append([len(text), sum(map(len, words)) // 8, -1, *self._column(name), after])
            words.append(text + bytes(-len(text) % 8))
            masks.append(b"\xff" * len(text) + bytes(-len(text) % 8))
        return Graph(
            np.array(edges, np.int64).reshape(-1, 6),
            np.frombuffer(b"".join(words), "<u8").astype(np.uint64),
            np.frombuffer(b"".join(masks), "<u8").astype(np.uint64),
            roots.astype(np.int64),
        )

    def _column(self, name: str | None) -> tuple[int, int]:
        """The kind and the number of the column of this name."""
        return (SKIP, -1) if name is None else self._columns.get(name, (SKIP, -1))


def _edges(text: str) -> list[tuple[str | None, bytes, str | None]]:
    """The edges of a record; none if it is no JSON object, or has an escape in a name."""
    found: list[tuple[str | None, bytes, str | None]] = []
    if _EMPTY.match(text):
        return [(_START, text.encode(), None)]
    name, at, pattern = _START, 0, _FIRST
    try:
        while (edge := pattern.match(text, at)) is not None:
            found.append((name, edge[0].encode(), edge[1]))
            name, pattern = edge[1], _LATER
            _, at = _SCAN.raw_decode(text, edge.end())
    except (ValueError, RecursionError):
        return []
    last = _LAST.match(text, at)
    return [*found, (name, last[0].encode(), None)] if found and last is not None else []
