"""Flink DataStream's interval join, in closed form, and the binned equi-join of event times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.joins.base import EMISSION_COLUMNS, JobRows, Join, JoinResult, add_late_reason, later_position
from tidemark.joins.emission_order import order_of_pair
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.rules.flink_datastream import IntervalRules
from tidemark.spark.struct_columns import flatten_struct
from tidemark.timegrid.time_columns import trunc_div
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
        watermarks, is_late = job_rows.watermarks, self.rules.is_late(F.col("event_time"), F.col("watermark"))
        on_time = job_rows.select_participating(~is_late)
        late = job_rows.late_candidates.where(F.col("rejected").isNotNull() | is_late)
        retained = job_rows.select_retention_candidates(~is_late)
        return JoinResult(
            joined=self._join_pairs(self._add_labels(on_time, watermarks), watermarks.first_slice),
            late=add_late_reason(late, F.coalesce("rejected", F.lit("late"))),
            buffered=self._add_eviction_slice(retained, watermarks),
        )

    @property
    def _wait(self) -> Column:
        """Time for which a row is buffered after its event time."""
        return F.when(F.col("side") == "left", self.rules.left_wait).otherwise(self.rules.right_wait)

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


def join_by_interval(
    rows: DataFrame,
    lower: Column,
    upper: Column,
    labels: tuple[str, ...],
    condition: Column,
    *,
    repeated_side: SideName = "right",
    is_broadcast: bool = False,
    unmatched: Literal["drop", "keep", "only"] = "drop",
) -> DataFrame:
    """Join rows with equal keys and `lower <= right event time - left event time <= upper`.

    Spark would cross all rows of a key and then filter, so event times are binned. A bin is twice as wide as the
    interval, so a row of one side is repeated in one or two bins. Rounding towards zero makes the bin around 1970 even
    wider.

    Args:
        rows: Rows of both sides with `side`, `event_time`, `labels`, `key_*` and `left` or `right`.
        lower: Lower bound, in units of the event time, inclusive.
        upper: Upper bound, inclusive.
        labels: Further columns of both rows that the condition or the caller reads.
        condition: Condition over `left_*` and `right_*` of event time, labels and flat columns of `left` and `right`
            (`struct_columns`). It must include the bounds.
        repeated_side: Side of which rows are repeated, the one with fewer rows.
        is_broadcast: True to broadcast the rows of this side.
        unmatched: What happens to rows of the other side without a partner, those with null keys among them: `drop`
            them, `keep` them with nulls for the partner, or return them `only`, without pairs.

    Returns:
        Pairs with `left_*` and `right_*` of event time and labels, the keys, and `left` and `right`. If only unmatched
        rows are returned, they lack the event time and labels of the other side.
    """
    size = F.greatest(2 * (upper - lower), F.lit(1))
    keys, single_side = key_columns(rows), OTHER[repeated_side]
    # Null keys match nothing, and would skew a few tasks.
    can_match = ~has_null_key(rows)
    rows = rows.where(can_match if unmatched == "drop" else can_match | (F.col("side") == single_side))
    flat = {side: flatten_side(rows, side, keys, labels) for side in SIDES}
    sides, structs = {side: flat[side][0] for side in SIDES}, {side: flat[side][1] for side in SIDES}
    own, single_time = F.col(f"{repeated_side}_event_time"), F.col(f"{single_side}_event_time")
    nearest, farthest = (own + lower, own + upper) if repeated_side == "left" else (own - upper, own - lower)
    bins = F.explode(F.sequence(trunc_div(nearest, size), trunc_div(farthest, size)))
    repeated, single = sides[repeated_side].withColumn("bin", bins), sides[single_side]
    single = single.withColumn("bin", trunc_div(single_time, size))
    if is_broadcast:
        # Few rows have a partner. Spark drops the others here, before it unites the rows of several sources.
        bins_with_rows = F.broadcast(repeated.select(*keys, "bin"))
        single = single.join(bins_with_rows, [*keys, "bin"], "left_semi")
    repeated = repeated.withColumnsRenamed({name: f"repeated_{name}" for name in (*keys, "bin")})
    repeated = F.broadcast(repeated) if is_broadcast else repeated
    is_same_bin = [F.col(name) == F.col(f"repeated_{name}") for name in (*keys, "bin")]
    how = {"drop": "inner", "keep": "left", "only": "left_anti"}[unmatched]
    joined = single.join(repeated, reduce(Column.__and__, [*is_same_bin, condition]), how)
    if unmatched == "keep":
        structs[repeated_side] = F.when(own.isNotNull(), structs[repeated_side]).alias(repeated_side)
    if unmatched == "only":
        structs[repeated_side] = F.lit(None).cast(rows.schema[repeated_side].dataType).alias(repeated_side)
    labelled_sides = [single_side] if unmatched == "only" else SIDES
    columns = [f"{side}_{name}" for side in labelled_sides for name in ("event_time", *labels)]
    return joined.select(*columns, *keys, *structs.values())


def flatten_side(rows: DataFrame, side: str, keys: list[str], labels: tuple[str, ...]) -> tuple[DataFrame, Column]:
    """Select one side's rows with flat columns.

    Returns:
        The rows, and the side's struct as an expression over their columns.
    """
    fields, struct = flatten_struct(rows, side)
    columns = (F.col(name).alias(f"{side}_{name}") for name in ("event_time", *labels))
    return rows.where(F.col("side") == side).select(*keys, *columns, *fields), struct
