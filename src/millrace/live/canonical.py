r"""Rows as canonical JSON text, and the checksum of a result.

A row is an array of values in the order of the columns. Its canonical text is what `JSON.stringify` gives in
JavaScript for the row that `JSON.parse` has read: no spaces, numbers as ECMAScript writes them, and only the escapes
that JSON needs. Whole numbers beyond 2^53 - 1, which JavaScript would round, are text, as are decimals, times, bytes
(base 64), NaN and the infinities.

>>> canonical([1, 1.0, 1e-7, 2**60, "a\n", None])
'[1,1,1e-7,"1152921504606846976","a\\n",null]'
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

import pyarrow as pa

from millrace.model.plain import as_text, finite

MOST = 2**53 - 1
"""The largest whole number that JavaScript represents exactly."""
_MODULUS = 2**32


def canonical(value: Any) -> str:
    """The canonical JSON text of a value, or of a row of values."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if -MOST <= value <= MOST else f'"{value}"'
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{encode_basestring(name)}:{canonical(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical, value)) + "]"
    return encode_basestring(as_text(value))


def parsed(text: str | bytes) -> Any:
    """A message as a client reads it. A whole number beyond 2^53 - 1 can only be a DOUBLE: others come as text."""
    return json.loads(text, parse_int=lambda digits: int(digits) if abs(int(digits)) <= MOST else float(digits))


def _number(value: float) -> str:
    """A floating point number as ECMAScript writes it: the shortest digits, an exponent only if it is large or small.

    >>> _number(5.0), _number(-0.0), _number(1.5e20), _number(1e21), _number(1.25e-05), _number(1e-7)
    ('5', '0', '150000000000000000000', '1e+21', '0.0000125', '1e-7')
    """
    if not isfinite(value):
        return f'"{finite(value)}"'
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0")
    digits, exponent = text.split("e")
    power = int(exponent)
    if not -7 < power < 21:
        return f"{digits}e{power:+d}"
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    whole, _, decimals = digits.partition(".")
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{whole}{decimals}"
    return f"{sign}{whole}{decimals.ljust(power, '0')}"


def row_texts(rows: pa.Table, columns: Sequence[str]) -> list[str]:
    """The canonical text of each row, with these columns."""
    found = [list(map(canonical, rows.column(name).to_pylist())) for name in columns]
    if not found:
        return ["[]"] * len(rows)
    return [f"[{','.join(values)}]" for values in zip(*found, strict=True)]


def hashed(id: str, text: str, before: str = "") -> int:
    """The hash of a row: CRC-32 of the id of the row before it, its own id and its text, in UTF-8.

    Where rows have no positions, nothing is before them.
    """
    return zlib.crc32(f"{before}{id}{text}".encode())


def checksum(rows: Iterable[tuple[str, str]], is_sorted: bool) -> int:
    """The checksum of a result, from the ids and texts of its rows: the sum of their hashes, modulo 2^32."""
    total, before = 0, ""
    for id, text in rows:
        total += hashed(id, text, before)
        before = id if is_sorted else ""
    return total % _MODULUS
