"""Finds where lines end, compiled by Numba."""

from typing import Any

import numpy as np

from millrace.formats.machine import compiled, first_bit, line_breaks, not_ascii

_U = np.uint64


@compiled
def line_ends(begin: int, size: int, first: int, ends: Any) -> int:
    """Put into `ends` where lines end in the bytes at an address, counted from `first`; how many do.

    `size` is a multiple of 64. The answer is the complement of the number if not all bytes are ASCII.
    """
    many, others = 0, _U(0)
    for at in range(0, size, 64):
        bits = line_breaks(begin + at)
        others |= not_ascii(begin + at)
        while bits != _U(0):
            ends[many] = first + at + first_bit(bits) + 1
            bits &= bits - _U(1)
            many += 1
    return many if others == _U(0) else ~many
