"""Rows that come again are known by their key, until it is forgotten: against a plain dict."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.panes.seen import first_seen
from millrace.panes.store import RowStore

keys = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0.0, -0.0, 1.5, math.nan, None]))
bundles = st.lists(st.tuples(st.lists(st.tuples(keys, st.integers(0, 20)), max_size=8), st.integers(0, 40)), max_size=6)


def plain(key: tuple[Any, ...]) -> str:
    """A key as it is compared: -0.0 is 0.0, and NaN is itself."""
    return repr(tuple(value + 0.0 if isinstance(value, float) else value for value in key))


@pytest.mark.parametrize("within", [None, 0, 7])
@given(bundles)
def test_the_first_row_of_a_key_is_told_from_those_that_come_again(
    within: int | None, given: list[tuple[list[tuple[tuple[Any, ...], int]], int]]
) -> None:
    seen, model = RowStore(), dict[str, int]()
    for rows, watermark in given:
        columns = [
            pa.array([key[0] for key, _ in rows], pa.string()),
            pa.array([key[1] for key, _ in rows], pa.float64(), from_pandas=False),
        ]
        at = np.array([at for _, at in rows], np.int64)
        seen, firsts = first_seen(seen, columns, at, within, watermark)
        if within is not None:
            model = {key: since for key, since in model.items() if since + within >= watermark}
        expected = []
        for number, (key, since) in enumerate(rows):
            if plain(key) not in model:
                model[plain(key)] = since
                expected.append(number)
        assert firsts.tolist() == expected
        assert len(seen) == len(model)
