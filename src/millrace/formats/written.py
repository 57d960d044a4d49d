"""The texts of fields of JSON objects as written: numbers to the last digit, nested values unchanged."""

import json
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.formats.fields import Fields, Ints, scan
from millrace.model.schema import Column
from millrace.model.types import digits_of

_NEAR = 200_000
"""The approximate bytes of records that are scanned together."""
_LONGEST = 100
"""The largest exponent that is expanded; no DECIMAL has as many digits."""


def written(objects: pa.Array, columns: Sequence[Column]) -> list[pa.Array]:
    """The text of each record's field, with quotes, by column; NULL if it has none. All records must be JSON objects.

    Of several fields with one name, the first counts. For DECIMAL, a number with an exponent is expanded.
    """
    step = max(1, len(objects) * _NEAR // max(1, objects.nbytes))
    parts: list[list[pa.Array]] = [[] for _ in columns]
    for start in range(0, len(objects), step):
        found = scan(objects.slice(start, step).cast(pa.string()))
        for column, part in zip(columns, parts, strict=True):
            texts = _texts(found, column.name)
            part.append(texts if digits_of(column.type) is None else _plain(texts))
    return [pa.concat_arrays(part) if part else pa.array([], pa.string()) for part in parts]


def _texts(found: Fields, name: str) -> pa.Array:
    places = np.flatnonzero(found.named(name))
    records = found.record[places]
    first = np.concatenate([np.ones(min(1, len(places)), np.bool_), records[1:] != records[:-1]])
    places, records = places[first], records[first]
    texts = pc.utf8_trim(_between(found, found.colon[places] + 1, found.end[places]), " \t\r\n")
    chosen = np.full(len(found.close), -1)
    chosen[records] = np.arange(len(places))
    return texts.take(pa.array(chosen, mask=chosen < 0))


def _between(found: Fields, starts: Ints, ends: Ints) -> pa.Array:
    """The parts of the data between starts and ends, which must not overlap."""
    cuts = np.concatenate([[0], np.stack([starts, ends], axis=1).ravel()]).astype(np.int32)
    parts = pa.Array.from_buffers(pa.string(), len(cuts) - 1, [None, pa.py_buffer(cuts), pa.py_buffer(found.data)])
    return parts.take(pa.array(np.arange(1, len(cuts) - 1, 2)))


def _plain(texts: pa.Array) -> pa.Array:
    exponents = pc.fill_null(pc.match_substring_regex(texts, "[eE]"), False)
    if not pc.any(exponents).as_py():
        return texts
    return pa.array([without_exponent(text) if text else text for text in texts.to_pylist()], pa.string())


def without_exponent(text: str) -> str:
    """A number, perhaps quoted, without an exponent; any other text unchanged.

    >>> without_exponent("12.5e-1"), without_exponent('"1E2"'), without_exponent("true")
    ('1.25', '100', 'true')
    """
    try:
        number = Decimal(json.loads(text) if text.startswith('"') else text)
    except (InvalidOperation, ValueError):
        return text
    exponent = number.as_tuple().exponent
    if text.strip('"')[-1:].isdigit() and isinstance(exponent, int) and abs(exponent) <= _LONGEST:
        return f"{number:f}"
    return text
