"""Whole numbers as digits, against Python's own."""

import numpy as np
import numpy.typing as npt
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.panes.digits import BITS, LAST, carry, divide, magnitudes, padded, rounded, square, whole

PLACES = 12
near_a_tie = st.builds(
    lambda odd, zeros, more, sign: sign * (((2 * odd + 1) << zeros) + more),
    st.integers(2**52, 2**53 - 1),
    st.integers(0, 250),
    st.sampled_from([-1, 0, 0, 1]),
    st.sampled_from([-1, 1]),
)
"""Numbers that lie halfway between two floats, or beside such a number."""
numbers = st.integers(-(2**350), 2**350) | near_a_tie


def digits_of(values: list[int]) -> npt.NDArray[np.int64]:
    rows = [[value >> BITS * place & int(LAST) for place in range(PLACES - 1)] for value in values]
    tops = [value >> BITS * (PLACES - 1) for value in values]
    return np.array([[*row, top] for row, top in zip(rows, tops, strict=True)], np.int64).T.copy()


@given(st.lists(numbers, min_size=1, max_size=5))
def test_digits_mean_the_number(values: list[int]) -> None:
    digits = digits_of(values)
    assert [whole(each) for each in digits.T] == values
    sizes, negative = magnitudes(digits)
    assert [whole(each) for each in sizes.T] == list(map(abs, values))
    assert negative.tolist() == [value < 0 for value in values]
    squares = padded(square(sizes), 0, 1)
    carry(squares)
    assert [whole(each) for each in squares.T] == [value**2 for value in values]


@given(st.lists(st.tuples(numbers, st.integers(1, 2**31 - 1)), min_size=1, max_size=5))
def test_division_tells_whether_something_is_left(pairs: list[tuple[int, int]]) -> None:
    digits = digits_of([abs(value) for value, _ in pairs])
    left = divide(digits, np.array([divisor for _, divisor in pairs]))
    assert [whole(each) for each in digits.T] == [abs(value) // divisor for value, divisor in pairs]
    assert left.tolist() == [value % divisor > 0 for value, divisor in pairs]


divisors = st.integers(1, 2**31 - 1) | st.sampled_from([1, 2, 3, 7, 2**20, 2**31 - 1])


@given(
    st.lists(st.tuples(numbers | st.integers(-9, 9), divisors, divisors), min_size=1, max_size=5),
    st.sampled_from([-2256, -1300, -1128, -1100, -1074, -144, -72]),
)
@example([(1, 2**31 - 1 - number, 2**12 - 1) for number in range(50)], -72)  # ties, but for the remainder
@example([(1, 6066, 2**31 - 1), (3, 2**31 - 1, 2**31 - 1)], -72)  # the smallest number by the greatest divisors
def test_numbers_are_rounded_once(given: list[tuple[int, int, int]], exponent: int) -> None:
    values, one, other = (list(each) for each in zip(*given, strict=True))
    expected = [value / (a * b << -exponent) for value, a, b in given]
    found = rounded(digits_of(values), exponent, [np.array(one), np.array(other)])
    assert found.tobytes() == np.array(expected).tobytes()
