"""Floats of every size, and what sums of them are, by fractions."""

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

from hypothesis import strategies as st

LIMITS = [
    0.0, -0.0, 5e-324, 2.0**-1022, 2.0**-72, 2.0**-73, 2.0**-20, 2.0**-21, 1e-6, 0.001, 19.99, 1e12, 2.0**52,
    2.0**53 - 1, 2.0**53, 2.0**54, 2.0**60, 2.0**75, 2.0**76, 1e150, 1e300, 1.7e308,
]  # fmt: skip
ordinary = st.integers(-(10**9), 10**9).map(lambda cents: cents / 100)
finite = st.one_of(
    ordinary,
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e-300, 1e-300),
    st.sampled_from([*LIMITS, *(-each for each in LIMITS)]),
)
"""Finite floats: amounts of money, any bits, subnormals, and the limits of what the engines treat in one way."""
anything = finite | st.sampled_from([math.nan, math.inf, -math.inf])


def bits(value: float | None) -> bytes | None:
    """The bits of a float; one form for all NaN."""
    return None if value is None else struct.pack(">d", math.nan if math.isnan(value) else value)


def answers(values: Sequence[float]) -> dict[str, float | None]:
    """The sum, mean, variance and standard deviation of values, each rounded once; the last is a root of the third."""
    if not values:
        return dict.fromkeys(("sum", "mean", "variance", "stddev"))
    if not all(map(math.isfinite, values)):
        not_finite = sum(value for value in values if not math.isfinite(value))
        spread = math.nan if len(values) > 1 else None
        return {"sum": not_finite, "mean": not_finite, "variance": spread, "stddev": spread}
    exact = [Fraction(value) for value in values]
    total = sum(exact, Fraction(0))
    mean = total / len(exact)
    variance = None
    if len(exact) > 1:
        variance = _rounded(sum(((each - mean) * (each - mean) for each in exact), Fraction(0)) / (len(exact) - 1))
    return {
        "sum": _rounded(total),
        "mean": _rounded(mean),
        "variance": variance,
        "stddev": None if variance is None else math.sqrt(variance),
    }


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
