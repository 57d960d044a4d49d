"""Columns of exact sums of floats, and of exact sums of their squares: `model.exact` for many groups at once.

A sum is a struct. Most sums are `near`: a whole number of units of 2**-72 (2**-144 for squares), as an Arrow decimal.
Any other sum is `far`: its digits, each with its place; all have the sign of the sum. The counts of NaN, inf and -inf
are in `far` too. Each sum has one such form, so a sum to which values were added and then taken back is equal to the
sum before.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.model import exact
from millrace.model.exact import Exact
from millrace.panes import wide
from millrace.panes.arms import Ints
from millrace.panes.digits import BITS, LAST, MOST, Digits, Floats, carry, magnitudes, padded, rounded, square, whole
from millrace.panes.grouping import Grouping, group, lengths, offsets

_CODE = 8
"""A code of `far` is a digit, shifted by this many bits, and the number of its place."""
_NAN, _ABOVE, _BELOW = _SPECIAL = (253, 254, 255)
"""Places that count values: NaN, inf and -inf."""
_AT_ONCE = 2**14
"""The number of values in a block. Floats add this many digits without rounding."""
_LEAST, _MOST = 2.0**-20, 2.0**60
"""The digits of floats between these, and of their squares, are digits of near sums, or one place above."""
_NARROW = 2**60
"""The sum of fewer upper parts than this is near, whatever the sum of the lower parts."""
_WORD, _LAST, _TWO = np.uint64(BITS), np.uint64(LAST), np.uint64(2)
HIGH, LOW = 10, 62
"""A float below `LIMIT` that is a whole number of units of 2**-72 has two parts: `trunc(value * 2**HIGH)`, and the rest
of `value * 2**HIGH`, times `2**LOW`. Both are integers of 64 bits."""
LIMIT = 2.0**53


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of sum: its unit, the exponent of its lowest place, and the type of near sums."""

    unit: int
    lowest: int
    near: pa.DataType
    top: int
    """The highest digit of a near sum lies between `-top` and `top`, so that the decimal is valid."""
    power: int
    """1 for a sum of values, 2 for a sum of squares."""

    @property
    def type(self) -> pa.DataType:
        """The type of a column of sums."""
        return pa.struct([("near", self.near), ("far", pa.list_(pa.int64()))])

    @property
    def base(self) -> int:
        """The place of the unit."""
        return (self.unit - self.lowest) // BITS

    @property
    def width(self) -> int:
        """The number of digits of near sums."""
        return int(self.near.byte_width) // 4


SUMS = Kind(-72, -1128, pa.decimal128(38, 0), 2**30, 1)
SQUARES = Kind(-144, -2256, pa.decimal256(76, 0), 2**27, 2)


def is_exact(type: pa.DataType) -> bool:
    """Whether a column of this type holds exact sums of floats."""
    return bool(types.is_struct(type))


def kind_of(type: pa.DataType) -> Kind:
    """The kind of the sums in a column of this type."""
    return SUMS if type == SUMS.type else SQUARES


def zero(type: pa.DataType) -> pa.Scalar:
    """The sum of no values."""
    return pa.scalar({"near": 0, "far": []}, type)


def lift(kind: Kind, values: pa.Array) -> pa.StructArray:
    """The sums of single values, a column of DOUBLE; that of NULL is 0."""
    return add(kind, pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False), np.arange(len(values)), len(values))


def add(kind: Kind, values: Floats, groups: Ints, count: int) -> pa.StructArray:
    """The sums of the values of each group. The values are in the order of the groups."""
    sizes = np.abs(values)
    inside = ((sizes >= _LEAST) & (sizes < _MOST)) | (sizes == 0)
    if inside.all():
        return _settled(kind, kind.base, _laid(kind, kind.base, kind.width + 1, values, groups, count))
    outside = np.zeros(count, np.bool_)
    outside[groups[~inside]] = True
    apart, numbers = outside[groups], np.cumsum(outside) - 1
    near = add(kind, values[~apart], groups[~apart], count)
    values, groups, many = values[apart], numbers[groups[apart]], int(outside.sum())
    special = np.isnan(values), values == np.inf, values == -np.inf
    specials = np.stack([np.bincount(groups[found], minlength=many) for found in special])
    finite = np.isfinite(values)
    values, groups = values[finite], groups[finite]
    places = _positions(kind, np.array([np.abs(values).min(initial=1.0), np.abs(values).max(initial=1.0)])) // BITS
    first, width = _span(kind, int(places[0]), int(places[1]) + _parts_of(kind))
    far = _settled(kind, first, _laid(kind, first, width, values, groups, many), specials)
    return _replaced(near, np.flatnonzero(outside), far)


def from_parts(high: pa.Array, low: pa.Array, rest: pa.Array) -> pa.StructArray:
    """Sums from the sums of the two parts of near values, as HUGEINT, and the lists of the other values."""
    upper, fits = wide.narrowed(high)
    if (fits & (upper < _NARROW) & (upper > -_NARROW)).all():
        near = _shifted_sum(upper, low)
    else:
        limbs, digits = _limbs(high), padded(_limbs(low), 0, 2)
        digits[1:5] += (limbs & 3) << BITS - 2
        digits[2:6] += limbs >> 2
        near = _settled(SUMS, SUMS.base, digits)
    values = rest.flatten()
    return _both(SUMS, near, add(SUMS, values.to_numpy(), _owners(rest), len(rest))) if len(values) else near


def _shifted_sum(high: Ints, low: pa.Array) -> pa.StructArray:
    """`high * 2**LOW + low`, of which all are near."""
    words = wide.words_of(low).copy()
    words[:, 0] += high.view(np.uint64) << np.uint64(LOW)
    carried = words[:, 0] < wide.words_of(low)[:, 0]
    words[:, 1] += (high >> 64 - LOW).view(np.uint64) + carried
    return _near(SUMS, pa.Array.from_buffers(SUMS.near, len(words), [None, pa.py_buffer(words)]))


def merge(kind: Kind, column: pa.StructArray, rows: Grouping) -> pa.StructArray:
    """The sum of each group of sums."""
    if kind is SUMS and not len(column.field("far").flatten()) and _stays_near(column.field("near"), rows):
        return _near(SUMS, wide.sums(column.field("near"), rows))
    near = np.array([rows.sum(place) for place in _limbs(column.field("near"))], np.int64).reshape(kind.width, -1)
    far = column.field("far")
    if not len(far.flatten()):
        return _settled(kind, kind.base, near)
    groups = rows.ids[_owners(far)]
    outside = np.zeros(rows.count, np.bool_)
    outside[groups] = True
    first, digits, specials = _added(kind, far, (np.cumsum(outside) - 1)[groups], int(outside.sum()))
    digits[kind.base - first : kind.base - first + kind.width] += near[:, outside]
    settled = _settled(kind, kind.base, np.where(outside, 0, near))
    return _replaced(settled, np.flatnonzero(outside), _settled(kind, first, digits, specials))


def signed(kind: Kind, column: pa.StructArray, diffs: Ints) -> pa.StructArray:
    """The sums, each multiplied by its diff, 1 or -1."""
    near = _settled(kind, kind.base, _limbs(column.field("near")) * diffs)
    codes = column.field("far").flatten().to_numpy()
    if not len(codes):
        return near
    held = lengths(column.field("far"))
    places = codes & (1 << _CODE) - 1
    turned = (((codes >> _CODE) * np.repeat(diffs, held)) << _CODE) | places
    far = pa.ListArray.from_arrays(offsets(held), pa.array(turned))
    none = _decimals(kind, np.zeros((kind.width, len(column)), np.int64))
    return _both(kind, near, pa.StructArray.from_arrays([none, far], fields=list(kind.type)))


def quotients(column: pa.StructArray, counts: Ints) -> Floats:
    """Sums of values divided by counts of at least 1, each rounded once."""
    small = np.minimum(counts, MOST - 1)
    floats = rounded(_limbs(column.field("near")), SUMS.unit, [small])
    outside = np.flatnonzero(lengths(column.field("far")))
    if len(outside):
        far = column.field("far").take(pa.array(outside))
        first, digits, specials = _added(SUMS, far, _owners(far), len(far))
        carry(digits)
        floats[outside] = rounded(digits, SUMS.lowest + BITS * first, [small[outside]])
        nans = specials[0] != 0
        above = (specials[1] > 0) | (specials[2] < 0)  # an infinity that is taken back counts with the other sign
        below = (specials[1] < 0) | (specials[2] > 0)
        floats[outside[above]], floats[outside[below]] = np.inf, -np.inf
        floats[outside[nans | (above & below)]] = np.nan
    large = np.flatnonzero(counts >= MOST)
    floats[large] = [each.over(int(counts[row])) for row, each in zip(large, _models(column, large), strict=True)]
    return floats


def variances(sums: pa.StructArray, squares: pa.StructArray, counts: Ints) -> Floats:
    """The sample variances, each rounded once, from the sums of values and of their squares; 0 for fewer than two."""
    small = np.clip(counts, 2, MOST - 1)
    sizes, _ = magnitudes(_limbs(sums.field("near")))
    spread = padded(_limbs(squares.field("near")), 0, 2) * small - padded(square(sizes), 0, 2)
    carry(spread)
    floats = rounded(spread, SQUARES.unit, [small, small - 1])
    is_far = (lengths(sums.field("far")) > 0) | (lengths(squares.field("far")) > 0)
    rest = np.flatnonzero((counts >= 2) & (is_far | (counts >= MOST)))
    floats[rest] = [
        exact.variance(int(counts[row]), total, units)
        for row, total, units in zip(rest, _models(sums, rest), _units(SQUARES, squares, rest), strict=True)
    ]
    return np.where(counts < 2, 0.0, floats)


def _models(column: pa.StructArray, rows: npt.NDArray[np.intp]) -> list[Exact]:
    """Sums of values in these rows, as the model holds them."""
    counts = _special(column.field("far").take(pa.array(rows)))
    return [Exact(units, *of) for units, of in zip(_units(SUMS, column, rows), counts.T.tolist(), strict=True)]


def _units(kind: Kind, column: pa.StructArray, rows: npt.NDArray[np.intp]) -> list[int]:
    """Sums in these rows in the units of the model."""
    chosen = column.take(pa.array(rows))
    first, digits, _ = _added(kind, chosen.field("far"), _owners(chosen.field("far")), len(rows))
    digits[kind.base - first : kind.base - first + kind.width] += _limbs(chosen.field("near"))
    lowest = kind.lowest + BITS * first + kind.power * exact.BITS
    return [each << lowest if lowest > 0 else each >> -lowest for each in map(whole, digits.T)]


def _positions(kind: Kind, values: Floats) -> Ints:
    """The number of the lowest bit of each finite value or square, counted from the lowest place."""
    exponents = (values.view(np.int64) >> 52) & 0x7FF
    positions: Ints = (np.maximum(exponents, 1) - 1075) * kind.power - kind.lowest
    return positions


def _parts_of(kind: Kind) -> int:
    """How many digits a value or square has at most."""
    return 2 * kind.power + 1


def _parts(kind: Kind, values: Floats, shift: npt.NDArray[np.uint64]) -> list[Floats]:
    """The digits of values or squares that are shifted by some bits, with the sign of the number."""
    bits = values.view(np.uint64)
    fraction = bits & np.uint64(2**52 - 1)
    low = np.where(bits << np.uint64(1) >> np.uint64(53), fraction | np.uint64(2**52), fraction)
    back = _WORD - shift
    if kind.power == 1:
        middle = low >> back
        parts = [low << shift & _LAST, middle & _LAST, middle >> _WORD]
        signs = np.where(values < 0, -1.0, 1.0)
        return [part.view(np.int64) * signs for part in parts]
    low, high = _squares(low)
    middle, upper = low >> back, high >> back
    parts = [low << shift & _LAST, middle & _LAST, (middle >> _WORD | high << shift) & _LAST, upper & _LAST]
    return [part.view(np.int64).astype(np.float64) for part in (*parts, upper >> _WORD)]


def _squares(values: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The lower 64 bits of the squares of integers of 53 bits, and the upper bits."""
    upper, lower = values >> _WORD, values & _LAST
    least = lower * lower
    middle = _TWO * upper * lower + (least >> _WORD)
    return (middle << _WORD) | (least & _LAST), upper * upper + (middle >> _WORD)


def _laid(kind: Kind, first: int, width: int, values: Floats, groups: Ints, count: int) -> Digits:
    """Add the digits of values or squares for each group, in blocks that fit into the cache of a processor."""
    digits = np.zeros((width, count), np.int64)
    most = width - _parts_of(kind) + 1
    for start in range(0, len(values), _AT_ONCE):
        some, block = values[start : start + _AT_ONCE], groups[start : start + _AT_ONCE]
        least, many = int(block[0]), int(block[-1] - block[0]) + 1
        # 0 has no digits; its lowest place may be any.
        position = np.maximum(_positions(kind, some) - BITS * first, 0)
        cells = (position >> 5) * many + (block - least)
        for number, part in enumerate(_parts(kind, some, (position & BITS - 1).view(np.uint64))):
            added = np.bincount(cells, part, most * many).reshape(most, many)
            digits[number : number + most, least : least + many] += added.astype(np.int64)
    return digits


def _added(kind: Kind, far: pa.ListArray, groups: npt.NDArray[np.intp], count: int) -> tuple[int, Digits, Digits]:
    """Add the codes of far sums, each to its group: the first place, the digits, and the counts of special values."""
    codes = far.flatten().to_numpy()
    places, values = codes & (1 << _CODE) - 1, codes >> _CODE
    special = places >= _NAN
    counts = np.zeros((len(_SPECIAL), count), np.int64)
    np.add.at(counts, (places[special] - _NAN, groups[special]), values[special])
    groups, places, values = groups[~special], places[~special], values[~special]
    first, width = _span(kind, int(places.min(initial=kind.base)), int(places.max(initial=kind.base)) + 1)
    digits = np.zeros((width + 1, count), np.int64)
    np.add.at(digits, (places - first, groups), values)
    return first, digits, counts


def _span(kind: Kind, first: int, end: int) -> tuple[int, int]:
    """The first place and the number of places that hold these places and those of near sums."""
    first = min(first, kind.base)
    return first, max(end, kind.base + kind.width) - first


def _settled(kind: Kind, first: int, digits: Digits, specials: Digits | None = None) -> pa.StructArray:
    """Sums in their one form, from digits before `carry`; the first place is at most that of the unit."""
    digits, base = padded(digits, 0, 2), kind.base - first
    carry(digits)
    end = base + kind.width
    near, sign = digits[base:end], digits[-1]
    highest = near[-1] + (sign << BITS)
    is_near = (sign >= -1) & (sign <= 0) & (highest >= -kind.top) & (highest < kind.top)
    for place in digits[:base]:
        is_near &= place == 0
    for place in digits[end:-1]:
        is_near &= place == sign & LAST
    whole_far = ~is_near if specials is None else ~is_near | specials.any(axis=0)
    rows = np.flatnonzero(whole_far)
    if not len(rows):
        return _near(kind, _decimals(kind, near))
    sizes, negative = magnitudes(np.where(is_near, 0, digits)[:, rows])
    codes = np.where(negative, -sizes, sizes)
    places = np.arange(first, first + len(codes))
    if specials is not None:
        codes, places = np.concatenate([codes, specials[:, rows]]), np.append(places, _SPECIAL)
    owner, place = np.nonzero(codes.T)
    held = np.bincount(rows[owner], minlength=len(is_near)).astype(np.int64)
    far = pa.ListArray.from_arrays(offsets(held), pa.array((codes[place, owner] << _CODE) | places[place]))
    return pa.StructArray.from_arrays([_decimals(kind, np.where(is_near, near, 0)), far], fields=list(kind.type))


def _near(kind: Kind, near: pa.Array) -> pa.StructArray:
    """A column of near sums only."""
    far = pa.ListArray.from_arrays(pa.array(np.zeros(len(near) + 1, np.int32)), pa.array([], pa.int64()))
    return pa.StructArray.from_arrays([near, far], fields=list(kind.type))


def _stays_near(near: pa.Array, rows: Grouping) -> bool:
    """Whether the sums of groups are surely near, because there are few rows and none is large."""
    high = wide.words_of(near)[:, 1].view(np.int64)
    most = int(np.diff(rows.starts, append=len(rows.order)).max(initial=0))
    return (max(int(high.max(initial=0)), -int(high.min(initial=0))) + 1) * most < SUMS.top << BITS


def _decimals(kind: Kind, digits: Digits) -> pa.Array:
    """Near sums, from digits of 32 bits."""
    return pa.Array.from_buffers(
        kind.near, digits.shape[1], [None, pa.py_buffer(np.ascontiguousarray(digits.T.astype(np.uint32)))]
    )


def _limbs(column: pa.Array) -> Digits:
    """The digits of decimals; the last one has a sign."""
    words = wide.words_of(column)
    halves = words.view(np.uint32).reshape(len(words), 2 * words.shape[1])
    digits = np.ascontiguousarray(halves.T.astype(np.int64))
    digits[-1] = digits[-1].astype(np.int32)
    return digits


def _special(far: pa.ListArray) -> Digits:
    return _added(SUMS, far, _owners(far), len(far))[2]


def _owners(lists: pa.ListArray) -> npt.NDArray[np.intp]:
    return np.repeat(np.arange(len(lists)), lengths(lists))


def _replaced(column: pa.StructArray, rows: npt.NDArray[np.intp], others: pa.StructArray) -> pa.StructArray:
    """The column with others in these rows."""
    index = np.arange(len(column))
    index[rows] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, others]).take(pa.array(index))


def _both(kind: Kind, one: pa.StructArray, other: pa.StructArray) -> pa.StructArray:
    """The sums of two columns, row by row."""
    rows = np.arange(len(one))
    return merge(kind, pa.concat_arrays([one, other]), group(np.concatenate([rows, rows]), len(one)))
