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
    ARRIVAL,
    emissions,
    first_matches,
    is_padded,
    mark,
    matching,
    with_first_match,
)
from tidemark.joins.window_output import JoinType
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import computed_once
from tidemark.watermarks.job_watermarks import JobWatermarks

_STATE = ("matched_in", "leaves_at", "gone_in")
_LABELS = ("slice", "clock", "tiebreak", "mark")


@dataclass(frozen=True)
class ProcessingTimeJoin(Join):
    """`ProcTimeIntervalJoin`: inner, left, right or full.

    Of a carried row are known `leaves_at`, the clock at which a timer takes it (ms), `matched_in`, the slice of its
    first match, and `gone_in`, the slice in which a row of the other side has removed it before that.
    """

    rules: IntervalRules
    """Over the clock at which rows came, which takes the place of their event time."""
    now: Column
    """That clock of a row, ms."""
    join_type: JoinType
    condition: str | None = None
    """Part of the match, over `left_*` and `right_*`."""

    carried_columns = _STATE
    slice_valued_columns = ("matched_in", "gone_in")

    @override
    def reject_invalid(self, rows: DataFrame) -> DataFrame:
        return rows.withColumns({"event_time": self.now, "floored": F.lit(False)})

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.is_within(left, right)

    def apply(self, came: JobRows) -> JoinResult:
        """The closed form."""
        rows, first = self._labelled(came), came.watermarks.first_slice
        rejected = came.late_candidates.where(F.col("rejected").isNotNull())
        pairs = self._pairs(rows, first)
        states, joined = rows, emissions(pairs, F.lit("matched"))
        aside = [add_late_reason(rejected, F.col("rejected"))]
        if self._pads:
            matches = computed_once(first_matches(pairs))
            states = with_first_match(self._removed(rows, came.watermarks), matches)
            unmatched = F.col("matched_in").isNull() & is_padded(F.col("side"), self.join_type)
            due = F.col("gone_in").isNotNull() & (F.col("gone_in") >= first)
            padded = states.where(unmatched & due).withColumn("slice", F.col("gone_in"))
            joined = joined.unionByName(emissions(padded, F.concat(F.lit("padded_"), "side")))
            aside.append(_lost(states.where(unmatched & F.col("gone_in").isNull()), came))
        states = states.withColumn("eviction_slice", F.coalesce("eviction_slice", came.watermarks.drain_slice))
        return JoinResult(joined, reduce(DataFrame.unionByName, aside), states)

    @property
    def _pads(self) -> bool:
        """Whether rows of some lane come out padded."""
        return bool(self.join_type.types - {"inner"})

    def _labelled(self, came: JobRows) -> DataFrame:
        """All rows that take part, with their timers and `reached`, the slice that these fire in."""
        rows, first = came.select_participating(), came.watermarks.first_slice
        missing = {name: F.lit(None).cast("long") for name in _STATE if name not in rows.columns}
        rules, event_time = self.rules, F.col("event_time")
        rows = rows.transform(with_columns, missing)
        wait = rules.wait_for_side(F.col("side"))
        known = rows.withColumns(
            {
                **{name: F.when(F.col(name) < first, F.col(name)) for name in self.slice_valued_columns},
                "waits": rules.is_cached_in_processing_time(wait) & ~rules.is_empty,
                "expires_at": rules.expires_at(event_time, wait),
                "timer_after": rules.cleanup_delay(wait),
                "mark": mark(rows, self.condition),
            }
        )
        waiting, others = (
            known.where("waits"),
            known.where(~F.col("waits")).withColumn("eviction_slice", F.col("slice")),
        )
        if not self._pads:
            waiting = waiting.withColumn("leaves_at", F.coalesce("leaves_at", "expires_at"))
            return came.watermarks.with_slice_at_clock(waiting, F.col("leaves_at"), "eviction_slice").unionByName(
                others
            )
        waiting = anchored(waiting, self.rules.min_cleanup + 1)
        timed = came.watermarks.with_slice_at_clock(waiting, F.col("leaves_at"), "eviction_slice")
        return computed_once(timed.unionByName(others))

    def _pairs(self, rows: DataFrame, first: int) -> DataFrame:
        """Each pair once, in the slice of its later row."""
        rules = self.rules
        times = F.col("left_event_time"), F.col("right_event_time")
        left_first = F.struct("left_clock", "left_tiebreak") <= F.struct("right_clock", "right_tiebreak")
        waited = F.when(left_first, rules.is_cached_in_processing_time(rules.left_wait))
        waited = waited.otherwise(rules.is_cached_in_processing_time(rules.right_wait))
        later = F.greatest("left_slice", "right_slice")
        found = join_by_interval(
            rows, rules.lower, rules.upper, _LABELS, rules.is_within(*times) & waited & (later >= first)
        )
        return matching(found.withColumn("slice", later), self.condition)

    def _removed(self, rows: DataFrame, horizon: JobWatermarks) -> DataFrame:
        """The rows with `gone_in`, null for those still in the buffers: by a timer, or by a row of the other side.

        The latter matters only to rows whose timer fires in a later slice than the one in which they expire.
        """
        waiting = F.col("waits") & F.col("gone_in").isNull()
        dated = horizon.with_slice_at_clock(rows, F.col("expires_at"), "expired_in")
        straddles = waiting & F.col("expired_in").isNotNull() & ~F.col("expired_in").eqNullSafe(F.col("eviction_slice"))
        few, others = dated.where(straddles), dated.where(~straddles)
        found = _with_first_search(few, rows.where(F.col("slice") >= horizon.first_slice))
        gone = found.withColumn("gone_in", F.least("searched_in", "eviction_slice")).drop("searched_in")
        others = others.withColumn("gone_in", F.coalesce("gone_in", "eviction_slice"))
        return others.unionByName(gone).drop("expired_in")


def _lost(rows: DataFrame, came: JobRows) -> DataFrame:
    """Rows that would come out padded, had the input not ended before their timers: these never run then."""
    lost = rows.withColumn("slice", came.watermarks.drain_slice).where(F.col("slice").isNotNull())
    unknown = dict.fromkeys(("watermark", "left_watermark", "right_watermark"), F.lit(None).cast("long"))
    return add_late_reason(
        lost.transform(with_columns, unknown).select(*came.late_candidates.columns), F.lit("lost_at_end")
    )


def _with_first_search(rows: DataFrame, searches: DataFrame) -> DataFrame:
    """Add `searched_in`: the slice of the first row of the same key and other side to come once a row has expired."""
    keys = key_columns(rows)
    asks = F.col("side"), F.col("expires_at"), F.col("leaves_at")
    named = (F.col(name).alias(f"_{name}") for name in ("side", "slice", "event_time", *keys))
    same = reduce(Column.__and__, (F.col(key).eqNullSafe(F.col(f"_{key}")) for key in keys))
    since = F.col("_event_time").between(F.col("expires_at"), F.col("leaves_at"))
    asked = rows.select(*asks, *keys).distinct()
    met = asked.join(searches.select(*named), same & since & (F.col("side") != F.col("_side")))
    first = met.groupBy("side", "expires_at", "leaves_at", *keys).agg(F.min("_slice").alias("searched_in"))
    first = first.withColumnsRenamed({name: f"_{name}" for name in ("side", "expires_at", "leaves_at", *keys)})
    same &= (F.col("side") == F.col("_side")) & (F.col("expires_at") == F.col("_expires_at"))
    found = rows.join(first, same & (F.col("leaves_at") == F.col("_leaves_at")), "left")
    return found.select(*rows.columns, "searched_in")


def anchored(rows: DataFrame, span: Column) -> DataFrame:
    """Fill in `leaves_at` of cached rows: the clock at which a timer takes them (ms), where no earlier job has.

    A slot, the rows of a key and side, has one timer at a time, set for its first row, the anchor; it takes all rows up
    to `span` ms after that, and the first row behind them is the next anchor. Rows that follow each other within the
    span of one are told natively; where that goes on for longer, they are scanned in order, in Arrow.
    """
    keys = key_columns(rows)
    slot, order = Window.partitionBy(*keys, "side"), [F.col(name) for name in ARRIVAL]
    so_far = slot.orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    apart = F.col("event_time") - F.lag("event_time").over(slot.orderBy(*order)) > span
    begins = F.coalesce(apart, F.lit(True))
    placed = rows.withColumns({"span": span, "begins": begins})
    placed = placed.withColumn("run_from", F.max(F.when(F.col("begins"), F.col("event_time"))).over(so_far))
    run = Window.partitionBy(*keys, "side", "run_from")
    longer = (F.col("event_time") - F.col("run_from") > F.col("span")) | F.col("leaves_at").isNotNull()
    placed = placed.withColumn("scanned", F.max(longer).over(run))
    told = placed.where(~F.col("scanned")).withColumn("leaves_at", F.col("run_from") + F.col("timer_after"))
    others = placed.where("scanned").sortWithinPartitions(*keys, "side", *order)
    schema = T.StructType([T.StructField(field.name, field.dataType) for field in others.schema])
    helpers = ("span", "begins", "run_from", "scanned")
    return told.unionByName(others.mapInArrow(_scanned, schema)).drop(*helpers)


def _scanned(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Follow the anchors of each run of rows, each in the order of arrival."""
    anchor = 0
    for batch in batches:
        found = []
        labels = (
            batch.column(name).to_pylist() for name in ("begins", "event_time", "span", "timer_after", "leaves_at")
        )
        for begins, time, span, timer_after, known in zip(*labels, strict=True):
            if known is not None:
                anchor = known - timer_after
            elif begins or time > anchor + span:
                anchor = time
            found.append(anchor + timer_after)
        place = batch.schema.get_field_index("leaves_at")
        yield batch.set_column(place, "leaves_at", pa.array(found, pa.int64()))
