"""Divides CSV text into its records, which may contain line breaks between quotes.

A quote counts only at the start of a field, as in Arrow's reader and in Python's: `5" pipe` is text.
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_QUOTE, _LF, _CR = b'"\n\r'


@dataclass(frozen=True, slots=True, eq=False)
class CsvRows:
    """The records of a text that are not blank lines."""

    starts: Ints
    ends: Ints
    """After the line break."""
    fields: Ints
    """The number of fields of each."""
    is_open: bool
    """Whether the last record opens a quote that is never closed."""


def rows_of(data: bytes | memoryview, delimiter: str) -> CsvRows:
    """The records of a text."""
    signs = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(signs == _QUOTE)
    if not _are_regular(signs, quotes, ord(delimiter)):
        return _one_by_one(bytes(data), delimiter)
    after = np.append(signs[1:], 0)
    breaks = _outside(np.flatnonzero((signs == _LF) | ((signs == _CR) & (after != _LF))), quotes)
    between = _outside(np.flatnonzero(signs == ord(delimiter)), quotes)
    ends = breaks + 1
    if len(signs) and (not len(ends) or ends[-1] < len(signs)):
        ends = np.append(ends, len(signs))
    starts = np.concatenate([np.zeros(1, np.int64), ends])[: len(ends)]
    fields = 1 + np.searchsorted(between, ends) - np.searchsorted(between, starts)
    return _without_blank(signs, CsvRows(starts, ends, fields, len(quotes) % 2 == 1))


def _are_regular(signs: npt.NDArray[np.uint8], quotes: Ints, delimiter: int) -> bool:
    """Whether every quote that opens a text stands at the start of a field, or after one that closes a text."""
    opening = quotes[::2]
    before = signs[opening[opening > 0] - 1]
    return bool(np.isin(before, [delimiter, _LF, _CR, _QUOTE]).all())


def _outside(places: Ints, quotes: Ints) -> Ints:
    return places[np.searchsorted(quotes, places) % 2 == 0] if len(quotes) else places


def _one_by_one(data: bytes, delimiter: str) -> CsvRows:
    between = re.escape(delimiter.encode())
    text = rb'"(?:[^"]++|"")*+(?P<closed>"?)[^%b\r\n]*+' % between
    field = re.compile(rb"(?:%b|[^%b\r\n]*+)(?P<end>%b|\r\n|\n|\r|\Z)" % (text, between, between))
    starts, ends, counts, at, begun, fields, is_open = [], [], [], 0, 0, 0, False
    while at < len(data):
        found = field.match(data, at)
        assert found is not None
        at, fields, is_open = found.end(), fields + 1, found["closed"] == b""
        if found["end"] == delimiter.encode() and at < len(data):
            continue
        starts.append(begun)
        ends.append(at)
        counts.append(fields + (found["end"] == delimiter.encode()))
        begun, fields = at, 0
    rows = CsvRows(np.array(starts, np.int64), np.array(ends, np.int64), np.array(counts, np.int64), is_open)
    return _without_blank(np.frombuffer(data, np.uint8), rows)


def _without_blank(signs: npt.NDArray[np.uint8], rows: CsvRows) -> CsvRows:
    breaks = [_LF, _CR]
    held = (rows.ends - rows.starts > 2) | ~np.isin(signs[rows.starts], breaks)
    return CsvRows(rows.starts[held], rows.ends[held], rows.fields[held], rows.is_open)
