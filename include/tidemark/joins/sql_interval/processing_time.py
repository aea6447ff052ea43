"""Flink SQL's interval join on processing time, in closed form.

A row's event time is the clock when it came, so none is late, and a pair needs no more than both clocks and, within a
millisecond, the order of arrival. What is left of the operator's ways is when an unmatched row leaves: by its slot's
timer, set for the slot's oldest row and then for the oldest one left (`anchored`), or before that by a row of the
other side with the same key, which removes what has expired.
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

from tidemark.joins.base import JobRows, Join, JoinResult, add_late_reason
from tidemark.joins.datastream_interval import join_by_interval
from tidemark.joins.keys import key_columns
from tidemark.joins.rules.flink_sql import IntervalRules
from tidemark.joins.sql_interval.match_tracking import (
    ARRIVAL_ORDER,
    compute_mark,
    filter_matches,
    find_first_matches,
    is_padded,
    to_emissions,
    with_first_match,
)
from tidemark.joins.window_output import JoinType
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize
from tidemark.watermarks.job_watermarks import JobWatermarks

_STATE_COLUMNS = ("matched_in", "leaves_at", "gone_in")
_LABELS = ("slice", "clock", "tiebreak", "mark")


@dataclass(frozen=True)
class ProcessingTimeJoin(Join):
    """`ProcTimeIntervalJoin`: inner, left, right or full.

    Of a carried row are known `leaves_at`, the clock at which a timer takes it (ms), `matched_in`, the slice of its
    first match, and `gone_in`, the slice in which a row of the other side has removed it before that.
    """

    rules: IntervalRules
    """Over the clock at which rows came, which takes the place of their event time."""
    clock: Column
    """That clock of a row, ms."""
    join_type: JoinType
    condition: str | None = None
    """Part of the match, over `left_*` and `right_*`."""

    carried_columns = _STATE_COLUMNS
    slice_valued_columns = ("matched_in", "gone_in")

    @override
    def reject_invalid(self, rows: DataFrame) -> DataFrame:
        return rows.withColumns({"event_time": self.clock, "floored": F.lit(False)})

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.is_within(left, right)

    def apply(self, job_rows: JobRows) -> JoinResult:
        """The closed form."""
        rows, first_slice = self._with_labels(job_rows), job_rows.watermarks.first_slice
        rejected = job_rows.late_candidates.where(F.col("rejected").isNotNull())
        pairs = self._join_pairs(rows, first_slice)
        states, joined = rows, to_emissions(pairs, F.lit("matched"))
        late_outputs = [add_late_reason(rejected, F.col("rejected"))]
        if self._has_padding:
            first_matches = materialize(find_first_matches(pairs))
            states = with_first_match(self._with_removal_slice(rows, job_rows.watermarks), first_matches)
            is_unmatched = F.col("matched_in").isNull() & is_padded(F.col("side"), self.join_type)
            is_removed = F.col("gone_in").isNotNull() & (F.col("gone_in") >= first_slice)
            padded = states.where(is_unmatched & is_removed).withColumn("slice", F.col("gone_in"))
            joined = joined.unionByName(to_emissions(padded, F.concat(F.lit("padded_"), "side")))
            late_outputs.append(_select_lost_rows(states.where(is_unmatched & F.col("gone_in").isNull()), job_rows))
        states = states.withColumn("eviction_slice", F.coalesce("eviction_slice", job_rows.watermarks.drain_slice))
        return JoinResult(joined, reduce(DataFrame.unionByName, late_outputs), states)

    @property
    def _has_padding(self) -> bool:
        """Whether rows of some lane come out padded."""
        return bool(self.join_type.types - {"inner"})

    def _with_labels(self, job_rows: JobRows) -> DataFrame:
        """All rows that take part, with their timers and `reached`, the slice that these fire in."""
        rows, first_slice = job_rows.select_participating(), job_rows.watermarks.first_slice
        missing_columns = {name: F.lit(None).cast("long") for name in _STATE_COLUMNS if name not in rows.columns}
        rules, event_time = self.rules, F.col("event_time")
        rows = rows.transform(with_columns, missing_columns)
        wait = rules.wait_for_side(F.col("side"))
        labelled = rows.withColumns(
            {
                **{name: F.when(F.col(name) < first_slice, F.col(name)) for name in self.slice_valued_columns},
                "waits": rules.is_cached_in_processing_time(wait) & ~rules.is_empty,
                "expires_at": rules.expires_at(event_time, wait),
                "timer_after": rules.cleanup_delay(wait),
                "mark": compute_mark(rows, self.condition),
            }
        )
        cached, uncached = (
            labelled.where("waits"),
            labelled.where(~F.col("waits")).withColumn("eviction_slice", F.col("slice")),
        )
        if not self._has_padding:
            cached = cached.withColumn("leaves_at", F.coalesce("leaves_at", "expires_at"))
            return job_rows.watermarks.with_slice_at_clock(cached, F.col("leaves_at"), "eviction_slice").unionByName(
                uncached
            )
        cached = with_leaves_at(cached, self.rules.min_cleanup + 1)
        with_eviction = job_rows.watermarks.with_slice_at_clock(cached, F.col("leaves_at"), "eviction_slice")
        return materialize(with_eviction.unionByName(uncached))

    def _join_pairs(self, rows: DataFrame, first_slice: int) -> DataFrame:
        """Each pair once, in the slice of its later row."""
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
        )
        return filter_matches(pairs.withColumn("slice", later_slice), self.condition)

    def _with_removal_slice(self, rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:
        """The rows with `gone_in`, null for those still in the buffers: by a timer, or by a row of the other side.

        The latter matters only to rows whose timer fires in a later slice than the one in which they expire.
        """
        is_in_cache = F.col("waits") & F.col("gone_in").isNull()
        with_expiry = watermarks.with_slice_at_clock(rows, F.col("expires_at"), "expired_in")
        is_removed_after_expiry = (
            is_in_cache & F.col("expired_in").isNotNull() & ~F.col("expired_in").eqNullSafe(F.col("eviction_slice"))
        )
        overdue_rows, other_rows = (
            with_expiry.where(is_removed_after_expiry),
            with_expiry.where(~is_removed_after_expiry),
        )
        with_lookup = _with_first_lookup(overdue_rows, rows.where(F.col("slice") >= watermarks.first_slice))
        removed_rows = with_lookup.withColumn("gone_in", F.least("searched_in", "eviction_slice")).drop("searched_in")
        other_rows = other_rows.withColumn("gone_in", F.coalesce("gone_in", "eviction_slice"))
        return other_rows.unionByName(removed_rows).drop("expired_in")


def _select_lost_rows(rows: DataFrame, job_rows: JobRows) -> DataFrame:
    """Rows that would come out padded, had the input not ended before their timers: these never run then."""
    lost_rows = rows.withColumn("slice", job_rows.watermarks.drain_slice).where(F.col("slice").isNotNull())
    null_watermarks = dict.fromkeys(("watermark", "left_watermark", "right_watermark"), F.lit(None).cast("long"))
    return add_late_reason(
        lost_rows.transform(with_columns, null_watermarks).select(*job_rows.late_candidates.columns),
        F.lit("lost_at_end"),
    )


def _with_first_lookup(rows: DataFrame, lookups: DataFrame) -> DataFrame:
    """Add `searched_in`: the slice of the first row of the same key and other side to come once a row has expired."""
    keys = key_columns(rows)
    expiry_columns = F.col("side"), F.col("expires_at"), F.col("leaves_at")
    lookup_columns = (F.col(name).alias(f"_{name}") for name in ("side", "slice", "event_time", *keys))
    is_same_slot = reduce(Column.__and__, (F.col(key).eqNullSafe(F.col(f"_{key}")) for key in keys))
    is_before_timer = F.col("_event_time").between(F.col("expires_at"), F.col("leaves_at"))
    expiries = rows.select(*expiry_columns, *keys).distinct()
    candidates = expiries.join(
        lookups.select(*lookup_columns), is_same_slot & is_before_timer & (F.col("side") != F.col("_side"))
    )
    first_lookups = candidates.groupBy("side", "expires_at", "leaves_at", *keys).agg(
        F.min("_slice").alias("searched_in")
    )
    first_lookups = first_lookups.withColumnsRenamed(
        {name: f"_{name}" for name in ("side", "expires_at", "leaves_at", *keys)}
    )
    is_same_slot &= (F.col("side") == F.col("_side")) & (F.col("expires_at") == F.col("_expires_at"))
    with_lookup = rows.join(first_lookups, is_same_slot & (F.col("leaves_at") == F.col("_leaves_at")), "left")
    return with_lookup.select(*rows.columns, "searched_in")


def with_leaves_at(rows: DataFrame, span: Column) -> DataFrame:
    """Fill in `leaves_at` of cached rows: the clock at which a timer takes them (ms), where no earlier job has.

    A slot, the rows of a key and side, has one timer at a time, set for its first row, the anchor; it takes all rows up
    to `span` ms after that, and the first row behind them is the next anchor. Rows that follow each other within the
    span of one are told natively; where that goes on for longer, they are scanned in order, in Arrow.
    """
    keys = key_columns(rows)
    slot_window, order = Window.partitionBy(*keys, "side"), [F.col(name) for name in ARRIVAL_ORDER]
    up_to_row = slot_window.orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_after_gap = F.col("event_time") - F.lag("event_time").over(slot_window.orderBy(*order)) > span
    is_first_of_run = F.coalesce(is_after_gap, F.lit(True))
    with_runs = rows.withColumns({"span": span, "begins": is_first_of_run})
    with_runs = with_runs.withColumn("run_from", F.max(F.when(F.col("begins"), F.col("event_time"))).over(up_to_row))
    run_window = Window.partitionBy(*keys, "side", "run_from")
    is_longer_than_span = (F.col("event_time") - F.col("run_from") > F.col("span")) | F.col("leaves_at").isNotNull()
    with_runs = with_runs.withColumn("scanned", F.max(is_longer_than_span).over(run_window))
    within_span = with_runs.where(~F.col("scanned")).withColumn("leaves_at", F.col("run_from") + F.col("timer_after"))
    longer_runs = with_runs.where("scanned").sortWithinPartitions(*keys, "side", *order)
    schema = T.StructType([T.StructField(field.name, field.dataType) for field in longer_runs.schema])
    helper_columns = ("span", "begins", "run_from", "scanned")
    return within_span.unionByName(longer_runs.mapInArrow(_scan_runs, schema)).drop(*helper_columns)


def _scan_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Follow the anchors of each run of rows, each in the order of arrival."""
    anchor = 0
    for batch in batches:
        removal_clocks = []
        columns = (
            batch.column(name).to_pylist() for name in ("begins", "event_time", "span", "timer_after", "leaves_at")
        )
        for is_first_of_run, event_time, span, timer_after, carried_leaves_at in zip(*columns, strict=True):
            if carried_leaves_at is not None:
                anchor = carried_leaves_at - timer_after
            elif is_first_of_run or event_time > anchor + span:
                anchor = event_time
            removal_clocks.append(anchor + timer_after)
        index = batch.schema.get_field_index("leaves_at")
        yield batch.set_column(index, "leaves_at", pa.array(removal_clocks, pa.int64()))
