"""Join by interval on processing time as Flink SQL does, in closed form.

A row's time is the processing time at its arrival, so no row is late. Pairs follow from both times and, within a
millisecond, from the order of arrival. Only the removal of unmatched rows, which outer joins pad, depends on the state
of the operator. A row is removed by its cache's timer, or before that by the first row of the other side with the same
key that arrives after it has expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from tidemark.config.sides import SIDES
from tidemark.joins.base import (
    JobRows,
    Join,
    JoinResult,
    add_late_reason,
    row_position,
    select_rejected,
    with_null_watermarks,
)
from tidemark.joins.binned_join import join_by_interval
from tidemark.joins.emission_order import to_emission_order
from tidemark.joins.join_type import JoinType
from tidemark.joins.keys import has_equal_columns, key_columns
from tidemark.joins.rules.flink_sql import IntervalRules
from tidemark.joins.sql_interval.match_tracking import (
    compute_match_hash,
    find_first_matches,
    is_padded,
    select_pairs,
    to_emissions,
    with_first_match,
)
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize
from tidemark.watermarks.job_watermarks import JobWatermarks

_STATE_COLUMNS = ("first_match_slice", "cleanup_time", "removal_slice")
_ARRIVAL_ORDER = ("clock", "tiebreak", "event_time")
_LABELS = ("slice", "clock", "tiebreak", "match_hash")


@dataclass(frozen=True)
class ProcessingTimeJoin(Join):
    """An inner, left, right or full interval join on processing time (`ProcTimeIntervalJoin`).

    Carried rows have these columns:

    - `first_match_slice`: the slice of the row's first match.
    - `cleanup_time`: the processing time at which a timer removes it, ms.
    - `removal_slice`: the slice in which a row of the other side removed it before that.
    """

    rules: IntervalRules
    """Rules with the processing time at a row's arrival in place of its event time."""
    processing_time_ms: Column
    """Processing time at a row's arrival, ms."""
    join_type: JoinType
    condition: str | None = None
    """SQL over `left_*` and `right_*` that pairs must meet as well."""

    carried_columns = _STATE_COLUMNS
    slice_valued_columns = ("first_match_slice", "removal_slice")
    may_lose_rows_at_end = True

    @override
    def reject_invalid(self, rows: DataFrame) -> DataFrame:
        return rows.withColumns({"event_time": self.processing_time_ms, "floored": F.lit(False)})

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.is_within(left, right)

    def apply(self, job_rows: JobRows) -> JoinResult:
        """Join in closed form."""
        rows = self._label_rows(job_rows)
        first_slice = job_rows.watermarks.first_slice
        pairs = self._join_pairs(rows, first_slice)
        states = rows
        joined = to_emissions(pairs, F.lit("matched"))
        late_outputs = [select_rejected(job_rows.late_candidates)]
        if self._has_padding:
            first_matches = materialize(find_first_matches(pairs, SIDES))
            states = with_first_match(self._with_removal_slice(rows, job_rows.watermarks), first_matches)
            is_unmatched = F.col("first_match_slice").isNull() & is_padded(F.col("side"), self.join_type)
            is_removed = F.col("removal_slice").isNotNull() & (F.col("removal_slice") >= first_slice)
            padded = states.where(is_unmatched & is_removed).withColumn("slice", F.col("removal_slice"))
            padded = padded.withColumns({"emitting_row": row_position(), "emission_order": to_emission_order(None)})
            joined = joined.unionByName(to_emissions(padded, F.concat(F.lit("padded_"), "side")))
            late_outputs.append(
                _select_lost_rows(states.where(is_unmatched & F.col("removal_slice").isNull()), job_rows)
            )
        states = states.withColumn("eviction_slice", F.coalesce("eviction_slice", job_rows.watermarks.drain_slice))
        return JoinResult(joined, reduce(DataFrame.unionByName, late_outputs), states)

    @property
    def _has_padding(self) -> bool:
        """True if the join of some lane pads unmatched rows."""
        return bool(self.join_type.types - {"inner"})

    def _label_rows(self, job_rows: JobRows) -> DataFrame:
        """Label participating rows with their cleanup time, and with its slice as `eviction_slice`."""
        rows = job_rows.select_participating()
        first_slice = job_rows.watermarks.first_slice
        missing_columns = {name: F.lit(None).cast("long") for name in _STATE_COLUMNS if name not in rows.columns}
        rules = self.rules
        event_time = F.col("event_time")
        rows = rows.transform(with_columns, missing_columns)
        wait = rules.wait_for_side(F.col("side"))
        labelled_rows = rows.withColumns(
            {
                **{name: F.when(F.col(name) < first_slice, F.col(name)) for name in self.slice_valued_columns},
                "is_cached": rules.is_cached_in_processing_time(wait) & ~rules.is_empty,
                "expires_at": rules.expires_at(event_time, wait),
                "cleanup_delay": rules.cleanup_delay(wait),
                "match_hash": compute_match_hash(rows, self.condition),
            }
        )
        cached = labelled_rows.where("is_cached")
        uncached = labelled_rows.where(~F.col("is_cached")).withColumn("eviction_slice", F.col("slice"))
        if not self._has_padding:
            cached = cached.withColumn("cleanup_time", F.coalesce("cleanup_time", "expires_at"))
            return job_rows.watermarks.with_slice_at_processing_time(
                cached, F.col("cleanup_time"), "eviction_slice"
            ).unionByName(uncached)
        cached = with_cleanup_time(cached, self.rules.min_cleanup + 1)
        with_eviction = job_rows.watermarks.with_slice_at_processing_time(
            cached, F.col("cleanup_time"), "eviction_slice"
        )
        return materialize(with_eviction.unionByName(uncached))

    def _join_pairs(self, rows: DataFrame, first_slice: int) -> DataFrame:
        """Return each pair once, in the slice of its later row."""
        rules = self.rules
        times = F.col("left_event_time"), F.col("right_event_time")
        left_is_earlier = F.struct("left_clock", "left_tiebreak") <= F.struct("right_clock", "right_tiebreak")
        earlier_is_cached = F.when(left_is_earlier, rules.is_cached_in_processing_time(rules.left_wait))
        earlier_is_cached = earlier_is_cached.otherwise(rules.is_cached_in_processing_time(rules.right_wait))
        later_slice = F.greatest("left_slice", "right_slice")
        pairs = join_by_interval(
            rows,
            rules.lower,
            rules.upper,
            _LABELS,
            rules.is_within(*times) & earlier_is_cached & (later_slice >= first_slice),
            sql_condition=self.condition,
        )
        return select_pairs(pairs.withColumn("slice", later_slice), has_match_hashes=True)

    def _with_removal_slice(self, rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:
        """Set `removal_slice`: the slice in which a timer or a lookup removes a row; null if it remains cached.

        A lookup makes a difference only if the row expires in an earlier slice than its timer fires.
        """
        is_in_cache = F.col("is_cached") & F.col("removal_slice").isNull()
        with_expiry = watermarks.with_slice_at_processing_time(rows, F.col("expires_at"), "expiry_slice")
        is_removed_after_expiry = (
            is_in_cache & F.col("expiry_slice").isNotNull() & ~F.col("expiry_slice").eqNullSafe(F.col("eviction_slice"))
        )
        overdue_rows = with_expiry.where(is_removed_after_expiry)
        other_rows = with_expiry.where(~is_removed_after_expiry)
        with_lookup = _with_first_lookup(overdue_rows, rows.where(F.col("slice") >= watermarks.first_slice))
        removed_rows = with_lookup.withColumn("removal_slice", F.least("lookup_slice", "eviction_slice")).drop(
            "lookup_slice"
        )
        other_rows = other_rows.withColumn("removal_slice", F.coalesce("removal_slice", "eviction_slice"))
        return other_rows.unionByName(removed_rows).drop("expiry_slice")


def _select_lost_rows(rows: DataFrame, job_rows: JobRows) -> DataFrame:
    """Select unmatched rows that are never padded, because their timers do not fire once the input has ended."""
    lost_rows = rows.withColumn("slice", job_rows.watermarks.drain_slice).where(F.col("slice").isNotNull())
    lost_rows = with_null_watermarks(lost_rows).select(*job_rows.late_candidates.columns)
    return add_late_reason(lost_rows, F.lit("lost_at_end_of_input"))


def _with_first_lookup(rows: DataFrame, lookups: DataFrame) -> DataFrame:
    """Add `lookup_slice`: the slice of the first row of the other side and same key to arrive after a row's expiry."""
    keys = key_columns(rows)
    expiry_columns = F.col("side"), F.col("expires_at"), F.col("cleanup_time")
    lookup_columns = (F.col(name).alias(f"_{name}") for name in ("side", "slice", "event_time", *keys))
    is_same_key = has_equal_columns(keys)
    is_before_timer = F.col("_event_time").between(F.col("expires_at"), F.col("cleanup_time"))
    expiries = rows.select(*expiry_columns, *keys).distinct()
    candidates = expiries.join(
        lookups.select(*lookup_columns), is_same_key & is_before_timer & (F.col("side") != F.col("_side"))
    )
    first_lookups = candidates.groupBy("side", "expires_at", "cleanup_time", *keys).agg(
        F.min("_slice").alias("lookup_slice")
    )
    first_lookups = first_lookups.withColumnsRenamed(
        {name: f"_{name}" for name in ("side", "expires_at", "cleanup_time", *keys)}
    )
    is_same_key &= (F.col("side") == F.col("_side")) & (F.col("expires_at") == F.col("_expires_at"))
    with_lookup = rows.join(first_lookups, is_same_key & (F.col("cleanup_time") == F.col("_cleanup_time")), "left")
    return with_lookup.select(*rows.columns, "lookup_slice")


def with_cleanup_time(rows: DataFrame, span: Column) -> DataFrame:
    """Fill in `cleanup_time` of cached rows, when a timer removes them (processing time), where no earlier job has.

    The rows of one side and key have one timer at a time. It is set for the first row, the anchor, and removes all rows
    up to `span` after it. The next row is the next anchor. A gap longer than the span starts a new run of rows, and its
    first row is an anchor. Runs not longer than the span have no other one. Only longer runs are scanned in order, in
    Arrow.

    Args:
        rows: Cached rows with `side`, `key_*`, `cleanup_time`, and `cleanup_delay`, the time from an anchor to its
            timer. Times are in ms.
        span: Longest time from an anchor to a row that its timer removes, ms.
    """
    keys = key_columns(rows)
    cache_window = Window.partitionBy(*keys, "side")
    order = [F.col(name) for name in _ARRIVAL_ORDER]
    up_to_row = cache_window.orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_after_gap = F.col("event_time") - F.lag("event_time").over(cache_window.orderBy(*order)) > span
    is_first_of_run = F.coalesce(is_after_gap, F.lit(True))
    with_runs = rows.withColumns({"span": span, "starts_run": is_first_of_run})
    with_runs = with_runs.withColumn(
        "run_start", F.max(F.when(F.col("starts_run"), F.col("event_time"))).over(up_to_row)
    )
    run_window = Window.partitionBy(*keys, "side", "run_start")
    is_longer_than_span = (F.col("event_time") - F.col("run_start") > F.col("span")) | F.col("cleanup_time").isNotNull()
    with_runs = with_runs.withColumn("needs_scan", F.max(is_longer_than_span).over(run_window))
    within_span = with_runs.where(~F.col("needs_scan")).withColumn(
        "cleanup_time", F.col("run_start") + F.col("cleanup_delay")
    )
    longer_runs = with_runs.where("needs_scan").sortWithinPartitions(*keys, "side", *order)
    schema = T.StructType([T.StructField(field.name, field.dataType) for field in longer_runs.schema])
    helper_columns = ("span", "starts_run", "run_start", "needs_scan")
    return within_span.unionByName(longer_runs.mapInArrow(_scan_timers, schema)).drop(*helper_columns)


def _scan_timers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Follow the anchors of each run of rows, in order of arrival."""
    anchor = 0
    for batch in batches:
        cleanup_times = []
        columns = (
            batch.column(name).to_pylist()
            for name in ("starts_run", "event_time", "span", "cleanup_delay", "cleanup_time")
        )
        for starts_run, event_time, span, cleanup_delay, carried_cleanup_time in zip(*columns, strict=True):
            if carried_cleanup_time is not None:
                anchor = carried_cleanup_time - cleanup_delay
            elif starts_run or event_time > anchor + span:
                anchor = event_time
            cleanup_times.append(anchor + cleanup_delay)
        index = batch.schema.get_field_index("cleanup_time")
        yield batch.set_column(index, "cleanup_time", pa.array(cleanup_times, pa.int64()))
