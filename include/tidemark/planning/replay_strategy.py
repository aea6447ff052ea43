"""Choose how a replay runs in Spark, by statistics of the job's rows.

A strategy changes how long a replay takes, never its result. It is chosen in two steps: `ReplayStrategy.choose` uses
the statistics of a job's buckets, and the `refine_by_` methods use counts that only a query over the rows gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import pandas as pd

from tidemark.config.sides import SIDES
from tidemark.joins.base import Join
from tidemark.watermarks.lanes import Lane, Timeline

COUNT_COLUMNS = [f"{side}_{name}" for side in SIDES for name in ("rows", "filtered")]
"""Columns of bucket statistics that count rows, those that `where` filters included."""


@dataclass(frozen=True)
class ReplayLimits:
    """Thresholds for the choice of a strategy, all inclusive. A share is a fraction (0 to 1) of a job's rows."""

    max_cached_rows: int = 1_000_000
    """Maximum number of rows of a small job, whose rows are materialized (`spark.materialization`): planning the scan
    of a Delta table takes longer than reading a small one. A larger job scans its rows once per output, which is faster
    than caching."""
    max_increment_share: float = 0.25
    """Maximum share of rows that raise a watermark for broadcasting watermark increments. With more, all rows are
    ordered."""
    max_comparisons_per_row: float = 32
    """Maximum average number of broadcast watermark increments, or positions, that a row is compared with."""
    max_late_candidate_share: float = 0.25
    """Maximum share of late candidates for computing the exact watermarks of each. With more, the late ones among them
    are found first."""
    max_broadcast_positions: int = 500_000
    """Maximum number of positions that are broadcast: about 60 MB in each executor."""
    max_carried_share: float = 0.25
    """Maximum share of rows that outlive their slice for materializing the late and carried rows."""
    max_repartitioned_share: float = 0.1
    """Maximum share of rows that outlive their slice for repartitioning the carried rows before they are written. With
    more, each Spark task that reads rows has enough of them for a file."""

    def can_cache(self, rows: float) -> bool:
        """Return True if a job with this number of rows is small."""
        return rows <= self.max_cached_rows

    def can_broadcast_positions(self, positions: int, comparisons_per_row: float) -> bool:
        """Return True if these positions are few enough to be broadcast and compared with all rows of their buckets."""
        return positions <= self.max_broadcast_positions and comparisons_per_row <= self.max_comparisons_per_row

    def describe_expected_strategy(self, rows: float) -> str:
        """Describe for users how a job will be replayed, by its estimated number of rows."""
        return "rows cached" if self.can_cache(rows) else "large job, rows scanned once per output"


DEFAULT_LIMITS = ReplayLimits()


@dataclass(frozen=True)
class JobStatistics:
    """Statistics of a job's rows that are known after one scan of them."""

    buckets: pd.DataFrame
    """One row per bucket, as `watermarks.lanes.Timelines.bucket_statistics`."""
    timelines: Sequence[Timeline]

    @cached_property
    def row_count(self) -> int:
        """Number of rows."""
        return count_rows(self.buckets)

    @cached_property
    def late_candidate_share(self) -> float | None:
        """Estimated share of late candidates; None without mean event times, and for micro-batches.

        All rows of a bucket count if a row with its mean event time and mean clock would be one.
        """
        if "mean" not in self.buckets:
            return None
        buckets = self._buckets_with_watermarks
        if "combined_after" not in buckets:
            return None
        may_be_late = (buckets["mean"] <= buckets["combined_before"]) | (
            buckets["mean_lead"] <= buckets["watermark_lead"]
        )
        return count_rows(buckets[(buckets["mean"] <= buckets["combined_after"]) & may_be_late]) / self.row_count

    @cached_property
    def increment_share(self) -> float:
        """Estimated share of rows that raise a watermark.

        All rows of a bucket with an increment count if its mean event time is later than all earlier ones of a side.
        """
        buckets = self._buckets_with_watermarks
        left, right = (buckets[f"{side}_before"] + buckets[f"{side}_lag"] for side in SIDES)
        raises = buckets["has_increment"] & (buckets["mean"] > left.clip(upper=right))
        return count_rows(buckets[raises]) / self.row_count

    def compute_comparisons_per_row(self, counts: pd.DataFrame, name: str) -> float:
        """Compute the average number of comparisons if each row is compared with everything counted in its bucket.

        Args:
            counts: Counts in the column `name`, by `bucket`.
            name: The column.
        """
        buckets = self.buckets.merge(counts, on="bucket")
        return int((buckets[COUNT_COLUMNS].sum(axis="columns") * buckets[name]).sum()) / self.row_count

    @cached_property
    def _buckets_with_watermarks(self) -> pd.DataFrame:
        return self.buckets.merge(pd.concat([timeline.buckets for timeline in self.timelines]), on="bucket")


@dataclass(frozen=True)
class ReplayStrategy:
    """Physical choices of a replay."""

    cache_rows: bool
    """True if all rows are materialized; False if each output scans them."""
    exact_watermarks: Literal["ordered", "broadcast_increments"] | None
    """Method to compute the exact watermarks of all rows; None if only late candidates need them."""
    late_candidates: Literal["all_rows", "ordered", "broadcast_positions", "by_position"]
    """Method to compute the exact watermarks of late candidates:

    - `all_rows`: all rows are candidates, since all need exact watermarks.
    - `ordered`: order the candidates among the rows that raise a watermark.
    - `broadcast_positions`: order nothing (`watermarks.broadcast_positions`), unless there are too many positions
      (`ReplayLimits.can_broadcast_positions`).
    - `by_position`: only rows at late positions are candidates (`watermarks.late_positions`).
    """
    materialize_late_and_carried_rows: bool = False
    """True if late candidates and rows that may outlive their slice are materialized in one scan."""
    repartition_carried_rows: bool = True
    """True if carried rows are moved into few files; False if each task writes a file."""

    @classmethod
    def choose(cls, statistics: JobStatistics, join: Join, lane_class: type[Lane], limits: ReplayLimits) -> Self:
        """Choose a strategy without another query.

        | job   | join needs exact watermarks | exact_watermarks | late_candidates | materialize_late_and_carried_rows |
        |-------|-----------------------------|------------------|-----------------|-----------------------------------|
        | small | no                          | None             | ordered         | False                             |
        | small | yes                         | ordered          | all_rows        | False                             |
        | large | no                          | None             | (2)             | (3)                               |
        | large | yes                         | (1)              | all_rows        | False                             |
        | large | selects exact rows (4)      | None             | (2)             | (3)                               |

        (1) `broadcast_increments` if few rows raise a watermark, else `ordered`.
        (2) `by_position` if many rows are late candidates, else `broadcast_positions` if many rows raise a watermark,
            else `ordered`.
        (3) True unless many late candidates are ordered.
        (4) As with "yes" if rows at one position may meet different watermarks (`Lane.applies_to_own_row`). These order
            the rows, so that a late one and one on time are compared.
        If a row's position does not determine its watermark (`Lane.is_determined_by_position`), (1) and (2) are
        `ordered`. Carried rows are repartitioned until `refine_by_carried_share`.

        Args:
            statistics: Statistics of the job's rows.
            join: The join.
            lane_class: Class of the job's lanes.
            limits: Thresholds of "small", "few" and "many".
        """
        has_positions = lane_class.is_determined_by_position
        is_small = limits.can_cache(statistics.row_count)
        selects_exact_rows = join.selects_exact_rows and not lane_class.applies_to_own_row
        needs_exact = join.needs_exact_watermarks and (is_small or not selects_exact_rows)
        strategy = cls(is_small, "ordered" if needs_exact else None, "all_rows" if needs_exact else "ordered")
        if is_small:
            return strategy
        has_many_increments = has_positions and statistics.increment_share > limits.max_increment_share
        if needs_exact and has_positions and not has_many_increments:
            strategy = replace(strategy, exact_watermarks="broadcast_increments")
        if needs_exact:
            return strategy
        late_share = statistics.late_candidate_share
        has_many_candidates = late_share is not None and late_share > limits.max_late_candidate_share
        strategy = replace(strategy, materialize_late_and_carried_rows=has_positions or not has_many_candidates)
        if has_many_candidates and has_positions:
            return replace(strategy, late_candidates="by_position")
        return replace(strategy, late_candidates="broadcast_positions") if has_many_increments else strategy

    @property
    def selects_carried_rows(self) -> bool:
        """True if the replay selects the rows that outlive their slice, where event times determine them."""
        return not self.cache_rows and self.exact_watermarks is None

    def refine_by_increments(self, increments_per_row: float, limits: ReplayLimits) -> Self:
        """Order rows if each would be compared with too many watermark increments, on average."""
        if increments_per_row <= limits.max_comparisons_per_row:
            return self
        return replace(self, exact_watermarks="ordered")

    def refine_by_late_positions(self, count: int, limits: ReplayLimits) -> Self:
        """Order late candidates if there are too many late positions to broadcast.

        The candidates are many then, so that they are not worth materializing.
        """
        if count <= limits.max_broadcast_positions:
            return self
        return replace(self, late_candidates="ordered", materialize_late_and_carried_rows=False)

    def refine_by_carried_share(self, share: float | None, limits: ReplayLimits) -> Self:
        """Materialize late and carried rows only if they are few, and repartition carried rows unless they are many.

        Args:
            share: Upper bound of the share of rows that outlive their slice; None if event times do not determine it.
            limits: The limits.
        """
        if share is None:
            return replace(self, materialize_late_and_carried_rows=False)
        return replace(
            self,
            materialize_late_and_carried_rows=self.materialize_late_and_carried_rows
            and share <= limits.max_carried_share,
            repartition_carried_rows=share <= limits.max_repartitioned_share,
        )


def count_rows(counts: pd.DataFrame) -> int:
    """Count the rows of both sides, those that `where` filters included."""
    return int(counts[COUNT_COLUMNS].to_numpy().sum())
