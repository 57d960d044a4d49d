"""The latency of records, from the times at which they were appended."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.sources.arrived import Arrived, arrivals, arrived_from_json, arrived_in, latency_of
from millrace.sources.bundle import Bundle

SECOND = 1_000_000


def bundle(times: list[int]) -> Bundle:
    return Bundle("plays/0", np.arange(len(times)), logged=np.array(times, np.int64))


@given(st.lists(st.lists(st.integers(0, 1_000), max_size=300).map(sorted), min_size=1, max_size=4))
def test_the_samples_of_bundles_give_about_the_percentiles_of_all_records(bundles: list[list[int]]) -> None:
    found = arrivals({"plays": arrived_in(bundle([second * SECOND for second in each]))} for each in bundles)["plays"]
    found = arrived_from_json([found.records, [list(each) for each in found.logged]])
    waited = sorted(1_000 - second for each in bundles for second in each)
    assert found.records == len(waited)
    latency = latency_of([found], 1_000 * SECOND)
    if latency is None:
        assert not waited
        return
    slack = 4 * len(waited) // 32 + 1  # a sample stands for a 32nd of its bundle
    for share, value in ((0.5, latency.p50), (0.99, latency.p99)):
        place = int(share * (len(waited) - 1))
        assert waited[max(0, place - slack)] <= value <= waited[min(len(waited) - 1, place + slack)]


@pytest.mark.parametrize("logged", [None, 5])
def test_records_without_log_times_of_their_own_are_counted(logged: int | None) -> None:
    found = arrived_in(Bundle("file.json", np.arange(7), logged=logged))
    assert found == Arrived(7)
    assert latency_of([found], SECOND) is None


def test_a_clock_that_was_set_back_gives_no_negative_latency() -> None:
    latency = latency_of([arrived_in(bundle([9 * SECOND]))], SECOND)
    assert latency is not None
    assert (latency.p50, latency.p99) == (0.0, 0.0)
