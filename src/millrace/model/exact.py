"""Sums of floats without rounding: an answer is rounded once, so it does not depend on the order of additions."""

from dataclasses import dataclass
from math import inf, isfinite, isnan, nan

BITS = 1074
"""Every finite float is a whole number of units of 2**-1074, its square of units of 2**-2148."""


@dataclass(frozen=True, slots=True)
class Exact:
    """A sum of floats: its finite values in units of 2**-1074, and the numbers of values that are not finite.

    A number below 0 is of values that are taken back and were not added: an inf that is taken back counts as -inf.
    """

    units: int = 0
    nans: int = 0
    above: int = 0
    """How many values are inf."""
    below: int = 0
    """How many values are -inf."""

    @classmethod
    def of(cls, value: float) -> "Exact":
        """The sum of one value."""
        if isfinite(value):
            return cls(_units(value))
        return cls(nans=int(isnan(value)), above=int(value == inf), below=int(value == -inf))

    def __add__(self, other: "Exact") -> "Exact":
        return Exact(
            self.units + other.units,
            self.nans + other.nans,
            self.above + other.above,
            self.below + other.below,
        )

    def __neg__(self) -> "Exact":
        return Exact(-self.units, -self.nans, -self.above, -self.below)

    @property
    def is_finite(self) -> bool:
        """Whether all values are finite."""
        return not (self.nans or self.above or self.below)

    def over(self, count: int) -> float:
        """The sum divided by a count, rounded once; infinite if it is beyond DOUBLE."""
        if self.is_finite:
            return _quotient(self.units, count << BITS)
        goes_up, goes_down = self.above > 0 or self.below < 0, self.above < 0 or self.below > 0
        return nan if self.nans or (goes_up and goes_down) else inf if goes_up else -inf


def square(value: float) -> int:
    """The square of a value in units of 2**-2148; 0 if the value is not finite."""
    return _units(value) ** 2 if isfinite(value) else 0


def variance(count: int, total: Exact, squares: int) -> float:
    """The sample variance of at least two values, rounded once, from their sum and the sum of their squares."""
    if not total.is_finite:
        return nan
    return _quotient(count * squares - total.units**2, count * (count - 1) << 2 * BITS)


def _units(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << BITS + 1 - denominator.bit_length()


def _quotient(numerator: int, denominator: int) -> float:
    """Python rounds a quotient of integers once, to the nearest float, and refuses one that is too large."""
    try:
        return numerator / denominator
    except OverflowError:
        return inf if numerator > 0 else -inf
