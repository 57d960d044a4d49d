"""Deduplication: selects the rows of a bundle whose key has not been seen before."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from millrace.panes.arms import Ints
from millrace.panes.grouping import identify
from millrace.panes.hashing import hash_keys
from millrace.panes.store import HASH, Located, RowStore

_AT = "at"


def first_seen(
    seen: RowStore, keys: Sequence[pa.Array], at: Ints, within: int | None, watermark: int
) -> tuple[RowStore, npt.NDArray[np.intp]]:
    """The seen keys after a bundle, and the bundle's rows that were the first with their key, in order.

    `at` is the event time of each row. A key is removed when the watermark is more than `within` past its event time.
    """
    if within is not None:
        old = seen.where([segment.column(_AT) + within < watermark for segment in seen.segments])
        if len(old):
            seen = seen.put(old, pa.table({}))
    names = [f"key{number}" for number in range(len(keys))]
    same = [_compared(key) for key in keys]
    firsts = np.sort(identify(same, len(at)).firsts)
    chosen = pa.table([key.take(pa.array(firsts)) for key in same], names=names)
    chosen = chosen.append_column(
        HASH, pa.array(hash_keys([chosen[name].combine_chunks() for name in names], len(firsts)))
    )
    known, _ = seen.find(chosen, names)
    new = np.setdiff1d(np.arange(len(firsts)), known)
    added = chosen.take(pa.array(new)).append_column(_AT, pa.array(at[firsts[new]]))
    nothing = Located(np.zeros(0, np.intp), np.zeros(0, np.intp))
    return (seen.put(nothing, added) if len(new) else seen), firsts[new]


def _compared(key: pa.Array) -> pa.Array:
    """A key in the form in which it is compared: -0.0 is 0.0."""
    return pc.add(key, pa.scalar(0.0, key.type)) if types.is_floating(key.type) else key
