"""A join on a single machine without Spark."""

from __future__ import annotations

import polars as pl

from benchmarks.data import COLUMNS
from benchmarks.peers.batch import RESULT
from benchmarks.peers.peer import Peer, Work
from tidemark.config.sides import SIDES


class Polars(Peer):
    """The binned join in Polars, streamed."""

    name = "polars"
    description = "Polars' streaming engine, the join on key and bin"
    uses_spark, has_own_process = False, True

    def run(self, work: Work) -> None:
        """Run an inner join by interval."""
        low, high = work.case.shape.interval_ms
        width = 2 * (high - low)
        left, right = (_read_side(work, side) for side in SIDES)
        first, last = (pl.col("right_ms") - ms for ms in (high, low))
        bins = pl.int_ranges(first // width, last // width + 1)
        exploded = right.with_columns(right_bin=bins).explode("right_bin")
        binned = left.with_columns(left_bin=pl.col("left_ms") // width)
        left_on, right_on = ([f"{side}_key", f"{side}_bin"] for side in SIDES)
        pairs = binned.join(exploded, left_on=left_on, right_on=right_on, coalesce=False)
        near = (pl.col("right_ms") - pl.col("left_ms")).is_between(low, high)
        pairs.filter(near).select(RESULT).sink_delta(work.output_path)


def _read_side(work: Work, side: str) -> pl.LazyFrame:
    columns = (pl.col(name).alias(f"{side}_{name}") for name in COLUMNS)
    return pl.scan_delta(work.get_input_path(side)).select(*columns, pl.col("at").dt.epoch("ms").alias(f"{side}_ms"))
