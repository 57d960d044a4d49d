"""Approximate aggregates in little memory: mergeable sketches.

The sketches are those of Apache DataSketches, in its binary format, which Spark's functions read too. Only sketches
whose answers depend on the input alone are used: a rerun after a crash must give the same answers, so no sketch here
draws random numbers (docs/decisions/003).

DataSketches has no second moment. `SecondMoment` is the estimate of Alon, Matias and Szegedy in its fast form:
each row of a small table adds every value, with a sign, to one of its counters.

Values that Spark considers equal are one value: 0.0 and -0.0, and all NaNs.
"""

import hashlib
import json
import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from statistics import median
from typing import Any, ClassVar

import datasketches
import numpy as np

from millrace.model.aggregate import OfOne, Partial, Values, one_zero, positive
from millrace.model.errors import refuse

_LG_DISTINCT = 12
_LG_ITEMS = 10
_COMPRESSION = 200
_ROWS, _COUNTERS = 7, 256
_OUTSIDE = struct.Struct("<3Q")
_EMPTY = "\0the empty string"
"""The replacement for the empty string in a sketch that ignores empty strings."""


@dataclass(frozen=True, slots=True)
class ApproxDistinct(OfOne):
    """The number of distinct values, within about 1.6 percent: a HyperLogLog sketch."""

    name: ClassVar[str] = "approx_distinct"

    def lift(self, values: Values, at: int) -> bytes:
        sketch = datasketches.hll_sketch(_LG_DISTINCT, datasketches.HLL_8)
        sketch.update(_datum(values[0]))
        return bytes(sketch.serialize_compact())

    def merge(self, a: bytes, b: bytes) -> bytes:
        return bytes(self._union(a, b).get_result(datasketches.HLL_8).serialize_compact())

    def result(self, partial: bytes | None) -> int:
        # The estimate of a sketch that was filled value by value depends on their order. Merged with itself, the
        # sketch has the same registers and estimates from them alone.
        return 0 if partial is None else round(self._union(partial, partial).get_estimate())

    def _union(self, *partials: bytes) -> Any:
        union = datasketches.hll_union(_LG_DISTINCT)
        for partial in partials:
            union.update(datasketches.hll_sketch.deserialize(partial))
        return union

    def result_type(self, types: Sequence[str]) -> str:
        return "BIGINT"


@dataclass(frozen=True, slots=True)
class ApproxQuantile(OfOne):
    """The value below which the share `q` of the values lies: a t-digest.

    A digest interpolates, which needs finite values. So a partial is the counts of -infinity, infinity and NaN (the
    greatest value), then the digest of the finite values.
    """

    q: float
    name: ClassVar[str] = "approx_quantile"
    numeric: ClassVar[bool] = True

    def lift(self, values: Values, at: int) -> bytes:
        value, sketch = float(values[0]), datasketches.tdigest_double(_COMPRESSION)
        if math.isfinite(value):
            sketch.update(value)
        outside = (value == -math.inf, value == math.inf, math.isnan(value))
        return _OUTSIDE.pack(*outside) + bytes(sketch.serialize())

    def merge(self, a: bytes, b: bytes) -> bytes:
        sketch = datasketches.tdigest_double.deserialize(a[_OUTSIDE.size :])
        sketch.merge(datasketches.tdigest_double.deserialize(b[_OUTSIDE.size :]))
        outside = map(sum, zip(_OUTSIDE.unpack_from(a), _OUTSIDE.unpack_from(b), strict=True))
        return _OUTSIDE.pack(*outside) + bytes(sketch.serialize())

    def finish(self, partial: bytes) -> float:
        least, greatest, nans = _OUTSIDE.unpack_from(partial)
        sketch = datasketches.tdigest_double.deserialize(partial[_OUTSIDE.size :])
        inside = 0 if sketch.is_empty() else sketch.get_total_weight()
        below = self.q * (least + inside + greatest + nans) - least
        if below < 0 or (not inside and below == 0 and least):
            return -math.inf
        if inside and below <= inside:
            return float(sketch.get_quantile(below / inside))
        return math.inf if greatest and below <= inside + greatest else math.nan if nans else math.inf

    def result_type(self, types: Sequence[str]) -> str:
        return "DOUBLE"

    def __str__(self) -> str:
        return f"approx_quantile({self.argument}, {self.q:g})"


@dataclass(frozen=True, slots=True)
class ApproxTopK(OfOne):
    """The `k` most frequent values with their counts, most frequent first: a frequent-items sketch.

    Counts are exact up to 768 distinct values; beyond that, a count may be too high by 0.35 percent of all values.
    """

    k: int
    name: ClassVar[str] = "approx_top_k"

    def lift(self, values: Values, at: int) -> bytes:
        sketch = datasketches.frequent_strings_sketch(_LG_ITEMS)
        # The sketch holds strings; JSON distinguishes values of other types from strings.
        sketch.update(json.dumps(_written(one_zero(values[0])), default=str))
        return bytes(sketch.serialize())

    def merge(self, a: bytes, b: bytes) -> bytes:
        sketch = datasketches.frequent_strings_sketch.deserialize(a)
        sketch.merge(datasketches.frequent_strings_sketch.deserialize(b))
        return bytes(sketch.serialize())

    def result(self, partial: bytes | None) -> list[dict[str, Any]]:
        if partial is None:
            return []
        sketch = datasketches.frequent_strings_sketch.deserialize(partial)
        found = sketch.get_frequent_items(datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES)
        ranked = sorted(found, key=lambda item: (-item[1], item[0]))[: self.k]
        return [{"item": _read(json.loads(item[0])), "count": item[1]} for item in ranked]

    def result_type(self, types: Sequence[str]) -> str:
        return f"ARRAY<STRUCT<item: {types[0]}, count: BIGINT>>"

    def __str__(self) -> str:
        return f"approx_top_k({self.argument}, {self.k})"


@dataclass(frozen=True, slots=True)
class SecondMoment(OfOne):
    """The sum of the squared frequencies of the values, within about 9 percent.

    It measures the skew of a stream: n for n distinct values, n squared for n times the same value.
    """

    name: ClassVar[str] = "second_moment"
    invertible: ClassVar[bool] = True

    def lift(self, values: Values, at: int) -> bytes:
        table = np.zeros((_ROWS, _COUNTERS), np.int64)
        digest = hashlib.blake2b(_canonical(values[0]), digest_size=2 * _ROWS).digest()
        for row, bits in enumerate(struct.unpack(f"<{_ROWS}H", digest)):
            table[row, bits % _COUNTERS] = 1 if bits & 0x8000 else -1
        return table.tobytes()

    def merge(self, a: bytes, b: bytes) -> bytes:
        return bytes((np.frombuffer(a, np.int64) + np.frombuffer(b, np.int64)).tobytes())

    def result(self, partial: bytes | None) -> float:
        if partial is None:
            return 0.0
        table = np.frombuffer(partial, np.int64).reshape(_ROWS, _COUNTERS).astype(float)
        return float(median((table * table).sum(axis=1)))

    def inverse(self, total: bytes, part: bytes) -> Partial | None:
        left = np.frombuffer(total, np.int64) - np.frombuffer(part, np.int64)
        return left.tobytes() if left.any() else None

    def result_type(self, types: Sequence[str]) -> str:
        return "DOUBLE"


def approx_distinct(column: str) -> ApproxDistinct:
    """The approximate number of distinct values."""
    return ApproxDistinct(column)


def approx_quantile(column: str, q: float) -> ApproxQuantile:
    """The approximate value below which the share `q` of the values lies: `approx_quantile("ms", 0.99)`."""
    if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
        raise refuse(f"approx_quantile() takes a share from 0 to 1, not {q!r}")
    return ApproxQuantile(column, float(q))


def approx_top_k(column: str, k: int) -> ApproxTopK:
    """The approximately most frequent values: a list of {item, count}."""
    return ApproxTopK(column, positive(k, "approx_top_k"))


def second_moment(column: str) -> SecondMoment:
    """The approximate sum of the squared frequencies of the values."""
    return SecondMoment(column)


def _datum(value: Any) -> int | float | str:
    """The input of a sketch for a value: equal for equal values, different for different ones."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value + 0.0
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return value or _EMPTY
    return json.dumps(_written(one_zero(value)), default=str)


def _canonical(value: Any) -> bytes:
    return f"{type(value).__name__}:{_datum(value)}".encode()


def _written(value: Any) -> Any:
    """A value for JSON; a value that JSON cannot represent is tagged with its type."""
    match value:
        case datetime():
            instant = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
            return {"time": instant.isoformat()}
        case date():
            return {"date": value.isoformat()}
        case Decimal():
            return {"decimal": f"{value:f}"}
        case bytes():
            return {"bytes": b64encode(value).decode()}
    return value


def _read(written: Any) -> Any:
    """The value that `_written` encoded."""
    match written:
        case {"time": str(text)}:
            return datetime.fromisoformat(text)
        case {"date": str(text)}:
            return date.fromisoformat(text)
        case {"decimal": str(text)}:
            return Decimal(text)
        case {"bytes": str(text)}:
            return b64decode(text)
    return written
