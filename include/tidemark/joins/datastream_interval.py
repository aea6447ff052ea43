"""Flink DataStream's interval join, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES, SideName
from tidemark.joins.base import EMISSION_COLUMNS, JobRows, Join, JoinResult, add_late_reason, later_position
from tidemark.joins.binned_join import join_by_interval
from tidemark.joins.emission_order import order_of_pair
from tidemark.joins.rules.flink_datastream import IntervalRules
from tidemark.spark.dataframe_utils import choose_by_side
from tidemark.watermarks.job_watermarks import JobWatermarks


@dataclass(frozen=True)
class DatastreamIntervalJoin(Join):
    """Flink's `intervalJoin`: an inner join with late rows in the side output."""

    rules: IntervalRules
    upstream_sides: tuple[SideName, ...] = ()
    """Inputs that are the output of another join, of which one event may emit several rows."""

    labels: ClassVar[tuple[str, ...]] = ("slice", "watermark", "clock", "tiebreak")
    """Columns that determine which pairs of a row are emitted, and when."""

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.is_within(left, right)

    @override
    def eviction_watermark(self, watermark: Column) -> Column:
        return self.rules.eviction_watermark(F.col("event_time"), watermark, self._wait)

    @override
    def apply(self, job_rows: JobRows) -> JoinResult:
        """Join in closed form; see `flink_datastream.IntervalRules`."""
        watermarks = job_rows.watermarks
        is_late = self.rules.is_late(F.col("event_time"), F.col("watermark"))
        on_time = job_rows.select_participating(~is_late)
        late = job_rows.late_candidates.where(F.col("rejected").isNotNull() | is_late)
        may_be_carried = job_rows.select_rows_that_may_be_carried(~is_late)
        return JoinResult(
            joined=self._join_pairs(self._add_labels(on_time, watermarks), watermarks.first_slice),
            late=add_late_reason(late, F.coalesce("rejected", F.lit("late"))),
            buffered=self._add_eviction_slice(may_be_carried, watermarks),
        )

    @property
    def _wait(self) -> Column:
        """Time for which a row is buffered after its event time."""
        return choose_by_side(self.rules.left_wait, self.rules.right_wait)

    def _add_labels(self, rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:  # noqa: ARG002
        """Add those of `labels` that rows lack."""
        return rows

    def _add_eviction_slice(self, rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:
        """Add the slice whose watermark evicts a row."""
        return watermarks.with_slice_reaching(rows, self.eviction_watermark(F.col("watermark")), "eviction_slice")

    def _is_evicted_before_match(self) -> Column:
        """Return True if one row of a pair was evicted before the other arrived."""
        left, right = (F.col(f"{side}_event_time") for side in SIDES)
        return self.rules.is_evicted_before_match(left, F.col("left_watermark"), right, F.col("right_watermark"))

    def _join_pairs(self, rows: DataFrame, first_slice: int) -> DataFrame:
        """Emit each pair once, in the slice of its later row."""
        times = F.col("left_event_time"), F.col("right_event_time")
        later = F.greatest("left_slice", "right_slice")
        columns = {
            "slice": later,
            "emission": F.lit("matched"),
            "pane": F.lit(0),
            "result_time": F.greatest(*times),
            "window_start": F.lit(None).cast("long"),
            "window_end": F.lit(None).cast("long"),
            "emitting_row": later_position(),
            "emitting_watermark": F.lit(None).cast("long"),
            "emission_order": order_of_pair(self.upstream_sides),
        }
        condition = self.rules.is_within(*times) & ~self._is_evicted_before_match() & (later >= first_slice)
        pairs = join_by_interval(rows, self.rules.lower, self.rules.upper, self.labels, condition)
        return pairs.select(*(column.alias(name) for name, column in columns.items()), *EMISSION_COLUMNS[-2:])
