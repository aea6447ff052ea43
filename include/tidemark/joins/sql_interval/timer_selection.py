"""Find the overdue rows of a large job, by following only the timers that matter.

A row is overdue if a later row of its cache arrived before it, so that the pending timer is the later row's. This
matters only in two cases. The row is then a candidate:

- A late row can match it after it has expired.
- The later row outlives the slice, so that both may be in the carried state.

To follow the timer of a candidate, only the rows that arrived shortly before it are needed. A scan may start at any
bucket. Its timer is correct once (1) all rows from before its start have expired, and (2) the timer has then fired
once, because a firing timer is reset from the rows left. `compute_scan_buckets` derives from the watermarks of buckets
how far back a scan must start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES, SideName
from tidemark.joins.base import ExactRows, RowTransform, select_all
from tidemark.joins.keys import has_equal_columns, key_columns
from tidemark.joins.sql_interval.cleanup_timers import with_cleanup_time
from tidemark.joins.sql_interval.labels import get_other_side, select_narrow
from tidemark.joins.sql_interval.late_materialization import IDENTITY, broadcast_if_small
from tidemark.joins.sql_interval.overdue_rows import (
    OverdueRows,
    is_overdue,
    select_certain_lookups,
    with_removing_lookup,
)
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize, materialize_and_count
from tidemark.spark.tables import from_pandas
from tidemark.timegrid.time_columns import floor_div

_SCAN_SCHEMA = "bucket_number long, side string, first_bucket long, last_lookup_bucket long"


def find_overdue_rows(
    expired_partners: DataFrame,
    late_and_carried_rows: DataFrame,
    carried: DataFrame | None,
    label: RowTransform,
    exact_rows: ExactRows,
    first_slice: int,
    expiry_delays: Mapping[SideName, int] | None,
) -> OverdueRows | None:
    """Find the overdue rows that matter in a large job, with their `removing_lookup`; None if there are none.

    Args:
        expired_partners: Rows in range of a late row that have expired at its arrival.
        late_and_carried_rows: Late and carried rows, and rows that may outlive their slice or arrived after such a row.
        carried: Rows carried from the slice before the job; None for none.
        label: Function that labels rows (`labels.label_caching`).
        exact_rows: Access to rows with exact watermarks.
        first_slice: First slice of the job.
        expiry_delays: Time from a row's event time to its expiry by side, ms; None if lanes differ.
    """
    names = expired_partners.columns
    last_bucket = -1
    candidates = find_inversions(label(select_narrow(late_and_carried_rows))).select(*names)
    candidates = candidates.unionByName(expired_partners.where(F.col("cleanup_time").isNull()))
    scan_buckets = _list_scan_buckets(exact_rows, expiry_delays)
    if carried is not None:
        carried = label(select_narrow(carried))
        carried_overdue, carried_count = materialize_and_count(carried.where(is_overdue()))
        candidates = candidates.unionByName(carried_overdue.select(*names))
        if carried_count:
            [[longest]] = carried_overdue.agg(F.max("cleanup_time")).collect()
            is_before = exact_rows.buckets["combined_before"] < longest
            last_bucket = int(exact_rows.buckets.loc[is_before, "bucket_number"].max()) if is_before.any() else -1
    selection = TimerSelection.create(candidates, scan_buckets, last_bucket)
    if not selection.count:
        return None
    cache_rows = exact_rows.select(lambda rows: selection.select_rows(rows.drop(*SIDES)), select_all)
    cache_rows = materialize(label(select_narrow(cache_rows.where(F.col("rejected").isNull()))))
    timed_rows = cache_rows if carried is None else cache_rows.unionByName(selection.select_carried(carried))
    # These rows are materialized, but may be as many as a large job's: they are sorted once.
    timed_rows = with_cleanup_time(timed_rows, is_small=False)
    lookups = select_certain_lookups(cache_rows, first_slice)
    return OverdueRows.create(with_removing_lookup(selection.select_overdue(timed_rows), lookups))


def find_inversions(rows: DataFrame) -> DataFrame:
    """Select inversions: new rows that arrived after, or together with, a row of their cache that expires later.

    Only such a row can outlive its expiry: the timer that removes it may have been set for the other row.

    Args:
        rows: Rows with `is_cached`, `expires_at`, `cleanup_time` (null for new rows) and their position and keys.
    """
    up_to_position = (
        Window.partitionBy(*key_columns(rows), "side")
        .orderBy("clock", "tiebreak")
        .rangeBetween(Window.unboundedPreceding, Window.currentRow)
    )
    greatest_expiry = F.max(F.when(F.col("is_cached"), F.col("expires_at"))).over(up_to_position)
    return (
        rows.withColumn("greatest_expiry", greatest_expiry)
        .where(F.col("is_cached") & F.col("cleanup_time").isNull() & (F.col("greatest_expiry") > F.col("expires_at")))
        .drop("greatest_expiry")
    )


def compute_scan_buckets(greatest_expiries: pd.DataFrame, operator_times: np.ndarray) -> pd.DataFrame:
    """Compute for the rows of each bucket which other buckets determine when they are removed.

    Args:
        greatest_expiries: The greatest `expires_at` of the rows of a side that have arrived by the end of each bucket,
            carried rows included. One column per side, one row per bucket, in order.
        operator_times: Operator time before each bucket, ms.

    Returns:
        Columns `bucket` (row number), `side`, `first_bucket` (its timer follows from rows of its side from there on),
        and `last_lookup_bucket` (no later lookup comes before its timer), both inclusive.
    """
    numbers = np.arange(len(operator_times))
    tables = []
    for side in SIDES:
        expiries = greatest_expiries[side].to_numpy()
        unexpired_from = np.minimum(np.searchsorted(expiries, operator_times, side="right"), numbers)
        # At bucket m = unexpired_from[b], all rows from before bucket unexpired_from[m] have expired. By bucket b, all
        # rows from before m have expired too, so the timer that was pending at m has fired.
        first_buckets = unexpired_from[unexpired_from]
        last_lookup_buckets = np.maximum(np.searchsorted(operator_times, expiries) - 1, numbers)
        columns = {"first_bucket": first_buckets, "last_lookup_bucket": last_lookup_buckets}
        tables.append(pd.DataFrame({"bucket": numbers, "side": side, **columns}))
    return pd.concat(tables, ignore_index=True)


def _list_scan_buckets(exact_rows: ExactRows, expiry_delays: Mapping[SideName, int] | None) -> pd.DataFrame:
    """Compute the scan buckets of a job with the job's bucket numbers. If lanes differ, these are all buckets."""
    buckets = exact_rows.buckets.reset_index(drop=True)
    numbers = buckets["bucket_number"].to_numpy()
    if expiry_delays is None:
        every = pd.DataFrame({"bucket_number": numbers}).merge(pd.DataFrame({"side": SIDES}), how="cross")
        return every.assign(first_bucket=numbers.min(), last_lookup_bucket=numbers.max())
    expiries = pd.DataFrame(
        {
            side: np.fmax.accumulate(
                np.fmax(buckets[f"{side}_newest"].to_numpy(dtype=float), exact_rows.newest_carried.get(side, -np.inf))
            )
            + expiry_delays[side]
            for side in SIDES
        }
    )
    operator_times = buckets["combined_before"].clip(lower=0).to_numpy()
    scan_buckets = compute_scan_buckets(expiries, operator_times)
    return pd.DataFrame(
        {
            "bucket_number": numbers[scan_buckets["bucket"]],
            "side": scan_buckets["side"],
            "first_bucket": numbers[scan_buckets["first_bucket"]],
            "last_lookup_bucket": numbers[scan_buckets["last_lookup_bucket"]],
        }
    )


@dataclass(frozen=True)
class TimerSelection:
    """The candidates of a job, with the buckets of the rows that determine when they are removed."""

    candidates: DataFrame
    """One row per candidate: its identity, keys, `bucket_number`, `first_bucket` and `last_lookup_bucket`."""
    count: int
    bin_size: int
    """Number of buckets in a bin of `_list_ranges`."""

    @classmethod
    def create(cls, candidates: DataFrame, scan_buckets: pd.DataFrame, last_bucket: int) -> TimerSelection:
        """Look up the buckets of each candidate, and materialize the candidates.

        Args:
            candidates: New rows of which timers must be followed, and overdue carried rows, whose cleanup time is
                known.
            scan_buckets: Result of `compute_scan_buckets`, with the job's bucket numbers.
            last_bucket: Last bucket with a lookup that may remove a carried row.
        """
        identity = [*IDENTITY, *key_columns(candidates)]
        buckets = F.broadcast(from_pandas(candidates.sparkSession, scan_buckets, _SCAN_SCHEMA))
        rows = candidates.select(*identity, "bucket_number").distinct().join(buckets, ["bucket_number", "side"], "left")
        none = F.lit(-1)
        columns = {
            "first_bucket": F.coalesce("first_bucket", none),
            "bucket_number": F.coalesce("bucket_number", none),
            "last_lookup_bucket": F.coalesce("last_lookup_bucket", F.lit(last_bucket)),
        }
        # Most ranges of buckets then reach one or two bins.
        lengths = scan_buckets["last_lookup_bucket"] - scan_buckets["first_bucket"]
        bin_size = int(lengths.quantile(0.9)) + 1 if len(lengths) else 1
        return cls(*materialize_and_count(rows.transform(with_columns, columns)), bin_size)

    def select_rows(self, rows: DataFrame) -> DataFrame:
        """Select at least the rows that determine when candidates are removed: their caches and the lookups of these.

        Further rows of the same keys do not change the result.
        """
        bucket_bin = floor_div(F.col("bucket_number"), self.bin_size)
        is_in_range = (F.col("side") == F.col("_side")) & (bucket_bin == F.col("_bin"))
        is_in_range &= F.col("bucket_number").between(F.col("_first"), F.col("_last"))
        return rows.join(self._hint(self._list_ranges()), self._has_same_key(rows) & is_in_range, "left_semi")

    def select_carried(self, rows: DataFrame) -> DataFrame:
        """Select the carried rows in the caches of candidates."""
        is_in_cache = self._has_same_key(rows) & (F.col("side") == F.col("_side"))
        return rows.join(self._hint(_with_prefix(self.candidates)), is_in_cache, "left_semi")

    def select_overdue(self, rows: DataFrame) -> DataFrame:
        """Select the overdue rows among the candidates."""
        is_same_row = has_equal_columns([*IDENTITY, *key_columns(rows)])
        return rows.where(is_overdue()).join(self._hint(_with_prefix(self.candidates)), is_same_row, "left_semi")

    def _list_ranges(self) -> DataFrame:
        """List a range of buckets per key, side and bin, so that a row of a frequent key is compared with one only."""
        bucket = F.col("bucket_number")
        other_side = get_other_side(F.col("side"))
        cache = F.struct("side", F.col("first_bucket").alias("first"), bucket.alias("last"))
        lookups = F.struct(other_side.alias("side"), bucket.alias("first"), F.col("last_lookup_bucket").alias("last"))
        keys = key_columns(self.candidates)
        size = self.bin_size
        ranges = self.candidates.select("lane", *keys, F.explode(F.array(cache, lookups)).alias("range"))
        ranges = ranges.select("lane", *keys, "range.*").where(F.col("first") <= F.col("last"))
        bins = F.sequence(floor_div(F.col("first"), size), floor_div(F.col("last"), size))
        by_bin = ranges.withColumn("bin", F.explode(bins)).groupBy("lane", *keys, "side", "bin")
        first_of_bin, last_of_bin = F.col("bin") * size, F.col("bin") * size + (size - 1)
        merged = by_bin.agg(
            F.min(F.greatest("first", first_of_bin)).alias("first"), F.max(F.least("last", last_of_bin)).alias("last")
        )
        return _with_prefix(merged)

    def _hint(self, rows: DataFrame) -> DataFrame:
        return broadcast_if_small(rows, self.count)

    def _has_same_key(self, rows: DataFrame) -> Column:
        return (F.col("lane") == F.col("_lane")) & has_equal_columns(key_columns(rows))


def _with_prefix(rows: DataFrame) -> DataFrame:
    return rows.select(*(F.col(name).alias(f"_{name}") for name in rows.columns))
