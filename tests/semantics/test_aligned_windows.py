"""Shortcuts of aligned windows compared with the list of all windows, which the recorded vectors cover."""

import random

from pyspark.sql import functions as F

from tidemark.joins.upstream_windows import UpstreamWindows
from tidemark.joins.window import AlignedWindows
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

EXAMPLES = 2000
_SHAPE = "size long, slide long, offset long, cumulating boolean"


def generate_shapes():
    """Yield windows of all kinds, some with gaps, and two times, some before 1970."""
    rng = random.Random("windows")
    for _ in range(EXAMPLES):
        slide, kind = rng.randint(1, 20), rng.choice(["tumbling", "sliding", "cumulating"])
        size = {"tumbling": slide, "sliding": rng.randint(1, 60), "cumulating": slide * rng.randint(1, 5)}[kind]
        times = (rng.randint(-100, 100) for _ in range(2))
        yield kind, size, slide, rng.randrange(slide), kind == "cumulating", *times


def test_aligned_windows_shortcuts_equal_list_of_windows(spark):
    rows = spark.createDataFrame(generate_shapes(), f"kind string, {_SHAPE}, time long, other long")
    shape = [F.col(name) for name in ("size", "slide", "offset", "cumulating")]
    listed, tumbling = AlignedWindows(*shape), AlignedWindows(*shape, is_tumbling=True)
    upstream = UpstreamWindows(*shape, event_times={"left": "time"})
    time, other = F.col("time"), F.col("other")
    last = listed.last_end(time) - 1  # as the event time of a row that another window join has emitted
    ends = F.transform(listed.assign(other), lambda window: window["end"])

    compared = rows.select(
        "kind",
        F.array_max(listed.assign(time))["end"].eqNullSafe(listed.last_end(time)).alias("last_ends_equal"),
        (listed.assign(time) == tumbling.assign(time)).alias("windows_equal"),
        (listed.overlap(time, other) == tumbling.overlap(time, other)).alias("overlaps_equal"),
        listed.overlap(time, other).alias("overlaps"),
        upstream.overlap(last, other).eqNullSafe(F.array_contains(ends, last + 1)).alias("upstream_overlaps_equal"),
        (F.size(listed.assign(time)) == 0).alias("in_gap"),
    )
    with tuned_for_tiny_queries(spark):
        results = compared.collect()

    assert all(row["last_ends_equal"] and row["upstream_overlaps_equal"] for row in results)
    assert all(row["windows_equal"] and row["overlaps_equal"] for row in results if row["kind"] == "tumbling")
    assert {row["overlaps"] for row in results} == {row["in_gap"] for row in results} == {True, False}
