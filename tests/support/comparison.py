"""Answers of two engines, made comparable."""

import math
from typing import Any

from millrace.model.pane import Pane


def said(panes: list[Pane]) -> list[Any]:
    """Panes in an order of their own: those of one step may come in any."""
    return sorted(
        (
            (repr(p.key), p.window, p.diff, p.index, str(p.timing), p.last, tuple(map(str, p.values.values())))
            for p in panes
        ),
        key=repr,
    )


def same(one: Any, other: Any) -> bool:
    """Whether two answers are the same; NaN is NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return bool(one == other)
