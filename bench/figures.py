"""A figure: what was measured, beside a peer that did the same work in the same run."""

import json
from typing import TypedDict


class Figure(TypedDict):
    """One line of the results."""

    bench: str
    unit: str
    millrace: float
    peer: float
    ratio: float


def figure(name: str, ours: float, theirs: float, unit: str = "elements/s") -> Figure:
    """Print a figure as a line of JSON, and keep it."""
    digits = 0 if ours > 100 else 3
    made = Figure(
        bench=name, unit=unit, millrace=round(ours, digits), peer=round(theirs, digits), ratio=round(ours / theirs, 4)
    )
    print(json.dumps(made), flush=True)
    return made
