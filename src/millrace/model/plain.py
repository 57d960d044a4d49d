"""Values as JSON, in one form for all outputs: files, topics, tables, HTTP and the command line; texts for a terminal.

A value that JSON cannot represent is text: NaN and the infinities (as Spark writes them), decimals, times, bytes in
base 64.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime
from math import isfinite
from typing import Any

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""The control characters, which can move the cursor or change the title; line breaks and tabs are harmless."""
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


def visible(text: str) -> str:
    r"""A text for a terminal: control characters are written as escapes, so that they have no effect.

    >>> print(visible("red \x1b[31m"))
    red \u001b[31m
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def as_text(value: Any) -> str:
    """The text of a value that JSON cannot represent."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)
