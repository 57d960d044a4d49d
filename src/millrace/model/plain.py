"""Values as JSON, in one form for all outputs: files, topics, tables, HTTP and the command line.

A value that JSON cannot represent is text: NaN and the infinities (as Spark writes them), decimals, times, bytes in
base 64.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime
from math import isfinite
from typing import Any

_NOT_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def to_json(value: Any) -> str:
    """A value or rows of values as JSON.

    >>> to_json({"mean": float("nan"), "n": 1})
    '{"mean": "NaN", "n": 1}'
    """
    try:
        return json.dumps(value, default=as_text, ensure_ascii=False, allow_nan=False)
    except ValueError:  # it holds NaN or an infinity
        return json.dumps(_finite(value), default=as_text, ensure_ascii=False, allow_nan=False)


def finite(value: float) -> float | str:
    """A number, or its text if it is NaN or infinite."""
    return value if isfinite(value) else _NOT_FINITE[str(value)]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def as_text(value: Any) -> str:
    """The text of a value that JSON cannot represent."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)
