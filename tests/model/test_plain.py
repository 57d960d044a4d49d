"""JSON of any value is JSON that everybody reads."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest

from millrace.model.plain import to_json


def no_constant(text: str) -> None:
    pytest.fail(f"{text} is no JSON")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"a": [nan, {"b": inf}], "c": (1.5, -inf)}, {"a": ["NaN", {"b": "Infinity"}], "c": [1.5, "-Infinity"]}),
        ([datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1)], ["2026-01-01T00:00:00+00:00", "2026-01-01"]),
        ([Decimal("1.10"), b"\xff\x00", None, True, "ü"], ["1.10", "/wA=", None, True, "ü"]),
        ({"nan": nan, "at": date(2026, 1, 1)}, {"nan": "NaN", "at": "2026-01-01"}),
    ],
)
def test_what_json_does_not_have_is_text(value: Any, read: Any) -> None:
    assert json.loads(to_json(value), parse_constant=no_constant) == read
