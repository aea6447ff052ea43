"""Tests of the buckets from which the timer of a row of Flink SQL's interval join follows, without Spark."""

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.joins.sql_interval.timer_selection import compute_scan_buckets

STEP = st.integers(0, 4)


@st.composite
def caches(draw):
    """Draw the operator time before each bucket, and the expiries of the rows of one cache that arrive in each."""
    steps = draw(st.lists(STEP, min_size=1, max_size=12))
    operator_times = np.cumsum(steps)
    rows = [[int(time) + delay for delay in draw(st.lists(st.integers(1, 9), max_size=3))] for time in operator_times]
    return operator_times, rows


def simulate_cleanup_times(operator_times, rows, first_bucket):
    """Follow the timer of a cache from a bucket on, and return bucket, expiry and cleanup time of each row."""
    timer, cached, cleanup_times = None, [], []
    for bucket in range(first_bucket, len(rows)):
        operator_time = operator_times[bucket]
        if timer is not None and timer <= operator_time:
            cached = [expiry for expiry in cached if expiry > operator_time]
            timer = min(cached, default=None)
        for expiry in rows[bucket]:
            timer = expiry if timer is None else timer
            cached.append(expiry)
            cleanup_times.append((bucket, expiry, max(expiry, timer)))
    return cleanup_times


@settings(max_examples=1000, deadline=None)
@given(caches())
def test_scan_from_first_bucket_gives_cleanup_times_of_whole_scan(cache):
    operator_times, rows = cache
    greatest = np.maximum.accumulate([max(expiries, default=0) for expiries in rows])
    scan = compute_scan_buckets(pd.DataFrame({"left": greatest, "right": greatest}), operator_times)
    whole = simulate_cleanup_times(operator_times, rows, 0)

    for bucket, _, first, last in scan[scan["side"] == "left"].itertuples(index=False):
        expected = [row for row in whole if row[0] == bucket]
        partial = [row for row in simulate_cleanup_times(operator_times, rows, first) if row[0] == bucket]
        assert partial == expected
        latest = max((cleanup_time for _, _, cleanup_time in expected), default=0)
        assert (operator_times[last + 1 :] >= latest).all()


def test_scan_buckets_skip_rows_that_expired_two_lookbacks_ago():
    operator_times = np.array([0, 10, 20, 30, 40, 50])
    greatest = pd.DataFrame({side: [12, 22, 32, 42, 52, 62] for side in ("left", "right")})

    scan = compute_scan_buckets(greatest, operator_times).query("side == 'right'")

    assert scan["first_bucket"].tolist() == [0, 0, 0, 1, 2, 3]
    assert scan["last_lookup_bucket"].tolist() == [1, 2, 3, 4, 5, 5]
