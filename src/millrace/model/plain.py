"""Values as JSON text, the same wherever rows go out: to files, topics, tables, HTTP and the command line.

What JSON has no value for is text: NaN and the infinities (as Spark writes them), decimals, times, bytes in base 64.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime
from math import isfinite
from typing import Any

_NOT_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def to_json(value: Any) -> str:
    """JSON of a value, or of rows of them.

    >>> to_json({"mean": float("nan"), "n": 1})
    '{"mean": "NaN", "n": 1}'
    """
    try:
        return json.dumps(value, default=as_text, ensure_ascii=False, allow_nan=False)
    except ValueError:  # there are numbers that JSON does not have
        return json.dumps(_finite(value), default=as_text, ensure_ascii=False, allow_nan=False)


def finite(value: float) -> float | str:
    """A number as JSON has it."""
    return value if isfinite(value) else _NOT_FINITE[str(value)]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def as_text(value: Any) -> str:
    """A value that JSON does not have, as text."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)
