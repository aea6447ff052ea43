"""Flink SQL's interval joins of more than a million rows have the same output as the operator, one event at a time."""

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from tests.semantics.flink_sql_interval import Oracle, Row, create_oracle
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.replay_strategy import DEFAULT_LIMITS
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import with_codegen

ROWS, KEYS = 1_300_000, 2000
START = datetime(2024, 1, 1, tzinfo=UTC)
SLICE_MS = 6 * 3_600_000
DELAY_MS = 20_000
LOWER_MS, UPPER_MS = -60_000, 120_000
"""Bounds of right time minus left time."""
PADDING = -1
"""Number of a missing row."""
JOINS = {
    "inner": {"type": "inner"},
    "full, condition": {"type": "full", "condition": "left_id % 3 <> right_id % 3"},
    "left, min_cleanup_interval": {"type": "left", "min_cleanup_interval": "30 seconds"},
}


@dataclass
class IndexedOracle(Oracle):
    """The oracle with its timers in a heap."""

    timer_heap: list[tuple[int, tuple]] = field(default_factory=list)

    def _register_timer(self, cache_key, ts):
        super()._register_timer(cache_key, ts)
        heapq.heappush(self.timer_heap, (self.timers[cache_key], cache_key))

    def advance_watermarks(self, watermarks):
        for side, watermark in watermarks.items():
            self.watermarks[side] = max(self.watermarks[side], watermark)
        padded = []
        while self.timer_heap and self.timer_heap[0][0] <= self.combined:
            padded += self._fire_timer(heapq.heappop(self.timer_heap)[1])
        return padded


def draw_rows():
    """Draw a day of rows of both sides in order of arrival, a tenth of them up to minutes late; times in ms."""
    rng = np.random.default_rng(11)
    day_ms = 4 * SLICE_MS
    delay = np.where(rng.random(ROWS) < 0.1, rng.uniform(0, 400_000, ROWS), rng.exponential(6_000, ROWS))
    arrived = np.sort(rng.choice(np.arange(1_000_000, day_ms), ROWS, replace=False))
    return pd.DataFrame(
        {
            "id": np.arange(ROWS),
            "side": rng.choice(["left", "right"], ROWS),
            "k": rng.integers(0, KEYS, ROWS),
            "arrived": arrived,
            "happened": arrived - delay.astype("int64"),
        }
    )


@pytest.fixture(scope="module")
def arrivals():
    return draw_rows()


def compute_output(arrivals, join):
    """Return the multiset of left and right number and slice of the emissions."""
    params = {"lower": -UPPER_MS, "upper": -LOWER_MS, "join_type": join["type"], "allowed_lateness": 0}
    params["min_cleanup_interval"] = 30_000 if "min_cleanup_interval" in join else 0
    watermark = {"kind": "sql", "delay_ms_left": DELAY_MS, "delay_ms_right": DELAY_MS}
    oracle = create_oracle({"params": params, "watermark": watermark}, IndexedOracle)
    if "condition" in join:
        oracle.meets_condition = lambda number, partner: number % 3 != partner % 3
    start_ms = int(START.timestamp() * 1000)
    emitted = list[tuple[tuple[int | None, int | None], int]]()
    for number, side, key, arrived, happened in arrivals.itertuples(index=False):
        ids = oracle.feed(Row({"left": "L", "right": "R"}[side], key, start_ms + happened, number))
        emitted += [(pair, arrived // SLICE_MS) for pair in ids]
    last_slice = int(arrivals["arrived"].max()) // SLICE_MS
    emitted += [(pair, last_slice) for pair in oracle.drain()]
    return Counter((*(PADDING if row is None else row for row in pair), number) for pair, number in emitted)


def run_pipeline(spark, lake, pipeline, write, arrivals, join):
    """Run a join in two large jobs, and return its emissions as `compute_output` does."""
    for side, rows in arrivals.groupby("side"):
        times = {column: START + pd.to_timedelta(rows[column], unit="ms") for column in ("arrived", "happened")}
        write(side, spark.createDataFrame(rows.drop(columns="side").assign(**times)))
    bounds = {"lower": f"{LOWER_MS} ms", "upper": f"{UPPER_MS} ms"}
    settings = pipeline(
        dialect="flink-sql",
        join={"keys": ["k"], "interval": bounds, **join},
        left__watermark_delay=f"{DELAY_MS} ms",
        right__watermark_delay=f"{DELAY_MS} ms",
        slices__every=f"{SLICE_MS} ms",
    )
    plan = create_plan(spark, settings, str(lake), Request(slices_per_job=2, drain=True))
    limits = replace(DEFAULT_LIMITS, max_cached_rows=100_000)  # both jobs are large
    list(execute(spark, replace(plan, replay_limits=limits), lambda *_: None))

    emissions = spark.read.format("delta").load(str(lake / "orders/emissions"))
    ids = [f"coalesce({side}_id, {PADDING})" for side in ("left", "right")]
    slice_number = f"(unix_seconds(_slice) - {int(START.timestamp())}) div {SLICE_MS // 1000}"
    rows = emissions.selectExpr(*ids, slice_number).toPandas()
    return Counter(rows.itertuples(index=False, name=None))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINS)
def test_million_rows_match_operator(spark, lake, pipeline, write, arrivals, name):
    with with_codegen(spark):
        emitted = run_pipeline(spark, lake, pipeline, write, arrivals, JOINS[name])
    expected = compute_output(arrivals, JOINS[name])
    assert len(expected) > ROWS / 4
    assert not emitted - expected
    assert not expected - emitted
