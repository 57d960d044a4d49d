"""Columns of whole numbers of any size, as digits: a matrix with a row for each place and a column for each number.

A digit has 32 bits; the first row is the lowest place. Digits in 64 bits can be added, multiplied by small numbers and
negated place by place; `carry` then makes them digits again. Only the last digit may be negative. Numpy computes each
step for all numbers at once.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from millrace.panes.arms import Bools, Ints

Digits: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
BITS = 32
LAST = np.int64(2**BITS - 1)
MOST = 2**31
"""Numbers are multiplied and divided by numbers below this one."""
_LEAST_NORMAL = -1022


def padded(digits: Digits, below: int, above: int) -> Digits:
    """The digits with zeros added below and above; always a copy."""
    wider = np.zeros((below + len(digits) + above, digits.shape[1]), np.int64)
    wider[below : below + len(digits)] = digits
    return wider


def carry(digits: Digits) -> None:
    """Make every place but the last a digit of 32 bits, in place; the last one has the sign of the number.

    The last place must have room for the carry.
    """
    for place, following in pairwise(digits):
        following += place >> BITS
        place &= LAST


def magnitudes(digits: Digits) -> tuple[Digits, Bools]:
    """The digits of the absolute values, and the mask of the negative numbers."""
    negative: Bools = digits[-1] < 0
    if not negative.any():
        return digits, negative
    sizes = np.where(negative, -digits, digits)
    carry(sizes)
    return sizes, negative


def square(digits: Digits) -> Digits:
    """The squares, twice as many places, before `carry`."""
    small = digits.view(np.uint64)
    squares = np.zeros((2 * len(digits), digits.shape[1]), np.int64)
    for low in range(len(small)):
        for high in range(low, len(small)):
            product = small[low] * small[high]
            times = 1 if low == high else 2
            squares[low + high] += (product & np.uint64(LAST)).view(np.int64) * times
            squares[low + high + 1] += (product >> np.uint64(BITS)).view(np.int64) * times
    return squares


def divide(digits: Digits, divisors: Ints) -> Bools:
    """Divide by divisors of at least 1 and below MOST, in place; returns the mask of those with a remainder."""
    rest: Ints = np.zeros(digits.shape[1], np.int64)
    for place in digits[::-1]:
        place |= rest << BITS
        quotient = place // divisors
        rest = place - quotient * divisors
        place[:] = quotient
    left: Bools = rest > 0
    return left


def rounded(digits: Digits, exponent: int, divisors: Sequence[Ints] = ()) -> Floats:
    """Numbers in units of `2**exponent`, divided by all divisors, each rounded once."""
    sizes, negative = magnitudes(digits)
    more: Bools = np.zeros(len(negative), np.bool_)
    if any((each > 1).any() for each in divisors):
        places = -(-(_EXACT_BITS + _DIVISOR_BITS * len(divisors)) // BITS)  # of the smallest number, too
        sizes, exponent = padded(sizes, places, 0), exponent - places * BITS
        for each in divisors:
            more |= divide(sizes, each)
    floats = _to_floats(sizes, exponent, more)
    return np.where(negative, -floats, floats)


def _to_floats(digits: Digits, exponent: int, more: Bools) -> Floats:
    """Numbers in units of `2**exponent`, a little greater where `more` is set, each rounded once, to the nearest float.

    The 64 highest bits, with the last one set if there is anything below, are rounded as the number itself would be.
    """
    digits, exponent = padded(digits, 2, 0), exponent - 2 * BITS
    columns = np.arange(digits.shape[1])
    top = np.full(len(columns), 2)
    for number, place in enumerate(digits[3:], start=3):
        top[place > 0] = number
    first, second, third = (digits[top - back, columns] for back in range(3))
    shift = BITS - np.frexp(first.astype(np.float64))[1].astype(np.int64)
    head = ((first << BITS | second).view(np.uint64) << shift.view(np.uint64)) | (third >> (BITS - shift)).view(
        np.uint64
    )
    lost = more | ((third << shift) & LAST > 0)
    for number, place in enumerate(digits[:-3]):
        lost |= (place > 0) & (number < top - 2)
    units = exponent + BITS * (top - 1) - shift
    with np.errstate(over="ignore", under="ignore"):
        floats: Floats = np.ldexp((head | lost.astype(np.uint64)).astype(np.float64), units)
    for row in np.flatnonzero((head > 0) & (units + 63 < _LEAST_NORMAL)).tolist():  # a subnormal number has fewer bits
        floats[row] = (2 * whole(digits[:, row]) + int(more[row])) / 2 ** (1 - exponent)
    return floats


def whole(digits: Ints) -> int:
    """One number, from its digits; they may have signs."""
    return sum(digit << BITS * place for place, digit in enumerate(digits.tolist()))


_EXACT_BITS = 55
"""The bits of a quotient that decide how it is rounded: those of a float, and two more."""
_DIVISOR_BITS = 31
"""The most bits of a divisor."""
