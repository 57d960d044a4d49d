"""Finds the fields of JSON objects in all records at once, and replaces bytes of the records.

An edit leaves all other bytes as written: numbers, order, white space.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.formats.texts import offsets_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_QUOTE, _COLON, _COMMA, _OPEN, _CLOSE, _BACKSLASH = (ord(sign) for sign in '":,{}\\')
_BRACE = 0x20
"""The bit that turns a bracket into a brace; it turns no other byte into one."""


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The fields of each record's outermost object, in order. Positions are into `data`."""

    data: npt.NDArray[np.uint8]
    starts: Ints
    """The start of each record, and the end of the last."""
    close: Ints
    """The last brace of each object."""
    comma: Ints
    """A comma before that brace, which DuckDB allows; -1 if there is none."""
    record: Ints
    """The index of the field's record."""
    lead: Ints
    """The brace or the comma before the field."""
    key: Ints
    """The quote that opens its name."""
    colon: Ints
    end: Ints
    """The comma or the brace after the field."""
    quote: Ints
    """The quote that closes its name."""
    escaped: dict[int, str] = field(default_factory=dict)
    """The names that are written with a backslash, by the index of the field."""

    def named(self, name: str) -> Bools:
        """Which fields have this name."""
        wanted = np.frombuffer(name.encode(), np.uint8)
        found: Bools = self.quote - self.key - 1 == len(wanted)
        places = np.flatnonzero(found)
        written = self.data[self.key[places, None] + 1 + np.arange(len(wanted))]
        found[places] = (written == wanted).all(axis=1)
        for place, each in self.escaped.items():
            found[place] = each == name
        return found

    def having(self, fields: Bools) -> Bools:
        """Which records have one of these fields."""
        found = np.zeros(len(self.close), np.bool_)
        found[self.record[fields]] = True
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """Bytes to replace: the starts, the ends, and the new text."""

    start: Ints
    end: Ints
    text: bytes = b""


def scan(objects: pa.Array) -> Fields:
    """Find the fields of records, all of which must be JSON objects."""
    offsets = offsets_of(objects).astype(np.int64)
    starts = offsets - offsets[0]
    held = objects.buffers()[2] if len(objects) else None
    data = np.frombuffer(held or b"", np.uint8)[offsets[0] : offsets[-1]]
    braces = data | _BRACE
    around = (braces == _OPEN) | (braces == _CLOSE)
    places = np.flatnonzero(around | (data == _QUOTE) | (data == _COLON) | (data == _COMMA))
    signs = data[places]
    quotes = signs == _QUOTE
    backslashes = np.flatnonzero(data == _BACKSLASH)
    if len(backslashes):
        quotes[quotes] = ~_is_escaped(places[quotes], backslashes)
    inside = np.cumsum(quotes, dtype=np.uint8) & 1 == 1
    outside = np.flatnonzero(quotes | ~inside)
    braces = signs[outside] | _BRACE
    turns = (braces == _OPEN).view(np.int8) - (braces == _CLOSE).view(np.int8)
    depth = np.cumsum(turns, dtype=np.int32)
    outer = np.flatnonzero(((depth == 1) & (turns >= 0)) | (depth == 0))
    depth, left = depth[outer], outside[outer]
    places, signs, quotes = places[left], signs[left], quotes[left]
    # Each field is now reduced to its lead, the quotes of its name, a colon, perhaps the quotes of its value, its end.
    colon = np.flatnonzero(signs == _COLON)
    close = np.flatnonzero(depth == 0)
    found = Fields(
        data,
        starts,
        places[close],
        np.where(signs[close - 1] == _COMMA, places[close - 1], -1),
        np.cumsum(depth == 0)[colon],
        places[colon - 3],
        places[colon - 2],
        places[colon],
        places[np.where(quotes[colon + 1], colon + 3, colon + 1)],
        places[colon - 1],
    )
    if len(backslashes):
        _note_escaped(found, backslashes)
    return found


def names_of(text: str) -> list[str]:
    r"""The names of the fields of one JSON object, in order.

    >>> names_of('{"a": {"b": 1}, "c\u0064": [2]}')
    ['a', 'cd']
    """
    fields = scan(pa.array([text], pa.string()))
    spans = zip((fields.key + 1).tolist(), fields.quote.tolist(), strict=True)
    names = [fields.data[start:end].tobytes().decode() for start, end in spans]
    return [fields.escaped.get(place, name) for place, name in enumerate(names)]


def without(fields: Fields, dropped: Bools) -> list[Edits]:
    """The edits that drop fields, each with one comma."""
    first = fields.data[fields.lead] == _OPEN
    kept: Ints = np.cumsum(~dropped) - ~dropped  # the number of fields kept before each, in all records
    begun = np.maximum.accumulate(np.where(first, kept, 0))
    leading = ~dropped & ~first & (kept == begun)
    # A comma before the last brace is dropped if all fields of the record are.
    bare = (fields.comma >= 0) & ~fields.having(~dropped) & fields.having(dropped)
    return [
        Edits(np.where(first, fields.lead + 1, fields.lead)[dropped], fields.end[dropped]),
        Edits(fields.lead[leading], fields.lead[leading] + 1),
        Edits(fields.comma[bare], fields.comma[bare] + 1),
    ]


def edit(fields: Fields, edits: Sequence[Edits]) -> pa.Array:
    """The records with bytes replaced. Edits must not overlap; insertions at one position keep their order."""
    start = np.concatenate([each.start for each in edits])
    end = np.concatenate([each.end for each in edits])
    which = np.repeat(np.arange(len(edits)), [len(each.start) for each in edits])
    order = np.lexsort((end, start))  # an insertion precedes a replacement that starts at the same position
    start, end, which = start[order], end[order], which[order]
    many = len(start)
    cuts = np.concatenate([[0], np.stack([start, end], axis=1).ravel(), [len(fields.data)]]).astype(np.int32)
    # Every second part between two cuts is kept; the new texts go between those.
    buffers = [None, pa.py_buffer(cuts), pa.py_buffer(fields.data)]
    parts = pa.Array.from_buffers(pa.binary(), 2 * many + 1, buffers)
    texts = pa.array([each.text for each in edits], pa.binary())
    chosen = np.empty(2 * many + 1, np.int64)
    chosen[0::2] = np.arange(0, 2 * many + 1, 2)
    chosen[1::2] = 2 * many + 1 + which
    written = pa.concat_arrays([parts, texts]).take(pa.array(chosen))
    grown = np.array([len(each.text) for each in edits], np.int64)[which] - (end - start)
    before = np.concatenate([[0], np.cumsum(grown)])
    offsets = (fields.starts + before[np.searchsorted(start, fields.starts)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(fields.close), [None, pa.py_buffer(offsets), written.buffers()[2]])


def _is_escaped(quotes: Ints, backslashes: Ints) -> Bools:
    """Whether an odd number of backslashes precedes each quote."""
    runs = np.where(np.diff(backslashes, prepend=-2) > 1, backslashes, 0)
    length = backslashes - np.maximum.accumulate(runs) + 1
    place = np.searchsorted(backslashes, quotes) - 1
    escaped: Bools = (place >= 0) & (backslashes[place] == quotes - 1) & (length[place] & 1 == 1)
    return escaped


def _note_escaped(fields: Fields, backslashes: Ints) -> None:
    some = np.searchsorted(backslashes, fields.key) < np.searchsorted(backslashes, fields.quote)
    for place in np.flatnonzero(some).tolist():
        text = fields.data[fields.key[place] : fields.quote[place] + 1].tobytes()
        fields.escaped[place] = json.loads(text)
