"""The interval join as a relational query over labelled rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES, SideName
from tidemark.joins.base import EMISSION, JobRows, Join, JoinResult, with_reason
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.rules.flink_datastream import IntervalRules
from tidemark.spark.struct_columns import unnested
from tidemark.timegrid.time_columns import div
from tidemark.watermarks.buckets import Horizon


@dataclass(frozen=True)
class DatastreamIntervalJoin(Join):
    """Flink's `intervalJoin`: inner, late rows to the side output."""

    rules: IntervalRules

    labels: ClassVar[tuple[str, ...]] = ("slice", "watermark")
    """What of a row's labels decides about its pairs."""

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.within(left, right)

    @override
    def leaves_at(self, watermark: Column) -> Column:
        return self.rules.evicted_at(F.col("event_time"), watermark, self._wait)

    @override
    def apply(self, came: JobRows) -> JoinResult:
        """A closed form: see `flink_datastream.IntervalRules`."""
        rules, horizon = self.rules, came.horizon
        is_late = rules.late(F.col("event_time"), F.col("watermark"))
        on_time = came.taking_part(~is_late)
        late = came.maybe_late.where(F.col("rejected").isNotNull() | is_late)
        carried = came.perhaps_carried(~is_late)
        return JoinResult(
            joined=self._pairs(self._labelled(on_time, horizon), horizon.first),
            late=with_reason(late, F.coalesce("rejected", F.lit("late"))),
            kept=self._kept(carried, horizon),
        )

    @property
    def _wait(self) -> Column:
        """How long after its event time a row is kept."""
        return F.when(F.col("side") == "left", self.rules.left_wait).otherwise(self.rules.right_wait)

    def _labelled(self, rows: DataFrame, horizon: Horizon) -> DataFrame:  # noqa: ARG002
        """Rows on time with all `labels`."""
        return rows

    def _kept(self, rows: DataFrame, horizon: Horizon) -> DataFrame:
        """Rows that entered the buffers, with the slice that evicts them."""
        return horizon.first_slice_reaching(rows, self.leaves_at(F.col("watermark")), "reached")

    def _evicted(self) -> Column:
        """Whether of a pair one row was evicted before the other came."""
        times = F.col("left_event_time"), F.col("right_event_time")
        met = F.col("left_watermark"), F.col("right_watermark")
        return self.rules.evicted_before_match(times[0], met[0], times[1], met[1])

    def _pairs(self, rows: DataFrame, first: int) -> DataFrame:
        """Each pair once, in the slice of its later row."""
        times = F.col("left_event_time"), F.col("right_event_time")
        later = F.greatest("left_slice", "right_slice")
        columns = {
            "slice": later,
            "emission": F.lit("matched"),
            "pane": F.lit(0),
            "result_time": F.greatest(*times),
            "window_start": F.lit(None).cast("long"),
            "window_end": F.lit(None).cast("long"),
        }
        joins = self.rules.within(*times) & ~self._evicted() & (later >= first)
        found = candidates(rows, self.rules.lower, self.rules.upper, self.labels, joins)
        return found.select(*(column.alias(name) for name, column in columns.items()), *EMISSION[-2:])


def candidates(
    rows: DataFrame,
    lower: Column,
    upper: Column,
    labels: tuple[str, ...],
    condition: Column,
    few: SideName | None = None,
) -> DataFrame:
    """All pairs of rows with equal keys, `lower <= right event time - left event time <= upper`, and a condition.

    Takes rows of both sides by `side`, `event_time`, `labels`, `key_*` and `left` or `right`. The condition is over
    `left_*` and `right_*` of the event time and the labels, and has to say the bounds itself. Gives these columns,
    the keys, and `left` and `right`.

    Event time is binned, because Spark crosses all rows of a key and filters afterwards. A bin is twice as wide as the
    interval, so that a right row reaches one bin or two; rounding towards zero makes the one around 1970 wider still.
    The rows of a side of which there are `few` go to all tasks.
    """
    size = F.greatest(2 * (upper - lower), F.lit(1))
    keys = key_columns(rows)
    rows = rows.where(~has_null_key(rows))  # they meet nobody, and would all be few tasks'
    left, left_row = one_side(rows, "left", keys, labels)
    right, right_row = one_side(rows, "right", keys, labels)
    times = F.col("left_event_time"), F.col("right_event_time")
    reached = F.sequence(div(times[1] - upper, size), div(times[1] - lower, size))
    columns = [f"{side}_{name}" for side in SIDES for name in ("event_time", *labels)]
    left, right = left.withColumn("bin", div(times[0], size)), right.withColumn("bin", F.explode(reached))
    left, right = F.broadcast(left) if few == "left" else left, F.broadcast(right) if few == "right" else right
    return left.join(right, [*keys, "bin"]).where(condition).select(*columns, *keys, left_row, right_row)


def one_side(rows: DataFrame, side: str, keys: list[str], labels: tuple[str, ...]) -> tuple[DataFrame, Column]:
    """One side's rows in flat columns, and the struct made of them."""
    fields, struct = unnested(rows, side)
    named = (F.col(name).alias(f"{side}_{name}") for name in ("event_time", *labels))
    return rows.where(F.col("side") == side).select(*keys, *named, *fields), struct
