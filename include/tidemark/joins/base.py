"""What a join takes and gives, whatever its dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config.dialect_support import TICK
from tidemark.timegrid.time_columns import floor_div
from tidemark.watermarks.buckets import Horizon, Timeline

EMISSION = ("slice", "emission", "pane", "result_time", "window_start", "window_end", "left", "right")


@dataclass(frozen=True)
class JobRows:
    """The rows of a job, with the watermarks that each met."""

    on_time: DataFrame
    """Rows that are on time by any rule; their watermarks are those from before their bucket, at most their own."""
    maybe_late: DataFrame
    """The others, rejected ones too, with exact watermarks."""
    staying: DataFrame
    """Of those on time at least the ones that are in the buffers when their slice ends, as `Join.leaves_at` tells."""
    suspected: bool
    """Whether there are rows maybe late."""
    carried: DataFrame | None
    """Rows that the slice before has carried, with the watermarks that they met on arrival."""
    horizon: Horizon
    cacheable: bool = False
    """Whether the rows are so few that what is read more than once is better computed once (`spark.materialization`)."""
    passing: DataFrame | None = None
    """Of `exact_watermarks`: rows that `where` leaves out, with the watermarks that they met; None without any."""
    in_order: DataFrame | None = None
    """Of a large job and a join that `looks_first`: the rows of `on_time` and `maybe_late` that take part, with
    exact watermarks. Nothing of them is kept yet: whoever asks for few columns has few put in order."""

    def taking_part(self, of_late: Column | None = None) -> DataFrame:
        """All rows that take part: of those maybe late the ones that meet a condition, and are not rejected."""
        return self._with_others(self.on_time, of_late)

    def perhaps_carried(self, of_late: Column | None = None) -> DataFrame:
        """The same without rows that are evicted in the slice in which they came, or most of them."""
        return self._with_others(self.staying, of_late)

    def _with_others(self, rows: DataFrame, of_late: Column | None) -> DataFrame:
        if self.suspected:
            maybe_late = self.maybe_late.where(F.col("rejected").isNull())
            rows = rows.unionByName(maybe_late if of_late is None else maybe_late.where(of_late))
        if self.carried is not None:
            rows = rows.unionByName(self.carried, allowMissingColumns=True)
        return rows


@dataclass(frozen=True)
class JoinResult:
    """What a join makes of the rows of a job."""

    joined: DataFrame
    """One row per emission, in the columns of `EMISSION`: times in ms (long, null where there is none); `left` and
    `right` are rows, null where padded, or arrays of rows for a coGroup."""
    late: DataFrame
    """Rows with a `reason`, and `window_start`, `window_end` (ms) where it holds for one window only. Rows
    that are behind the watermark and take part all the same have a `fate`, and are among `kept` too."""
    kept: DataFrame
    """Rows that entered the buffers, with `reached`: the slice whose watermark evicts them, null for none."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many rows of each side are not among `kept`: on time, and evicted when their slice ended."""
    lines: Sequence[Timeline] = ()
    """The timelines, where the join adds to the watermarks at the slices' ends."""


class Join(ABC):
    """One join under the rules of one dialect."""

    exact_watermarks = False
    """Whether every row needs the exact watermark that it met, not only those that may be late."""
    carries: tuple[str, ...] = ("watermark",)
    """What a carried row keeps of its labels, beside its times and keys."""
    dated: tuple[str, ...] = ()
    """Those of `carries` that hold slices (numbers, or a map to them): the state before such a slice has none."""
    tick = TICK["flink-sql"]
    """Microseconds: what `event_time` is counted in."""
    buckets_per_slice: int | None = None
    """Where a bucket has a meaning of its own: how many a slice has."""
    looks_first = False
    """Whether with `exact_watermarks` a large job's rows are wanted as those of other joins, and `JobRows.in_order`."""
    knows_buckets = False
    """Whether rows keep the number of their bucket, in `of_bucket`."""

    def admitted(self, rows: DataFrame) -> DataFrame:
        """The job's rows (`sources.stored_input.Side.normalized`), those `rejected` too that this join lets take no part."""
        return rows

    @abstractmethod
    def times_match(self, left: Column, right: Column) -> Column:
        """Whether a pair of event times is one that the join looks for, lateness aside."""

    def leaves_at(self, watermark: Column) -> Column | None:  # noqa: ARG002
        """The least watermark that evicts a row on time that met `watermark`; None where its own time does not tell.

        The later its event time, the greater. Such a join takes its `kept` from `JobRows.perhaps_carried`.
        """
        return None

    @abstractmethod
    def apply(self, rows: JobRows) -> JoinResult:
        """Join the rows of a job."""


def clock_of_rows() -> Column:
    """The processing time at which labelled rows came: their arrival clock, in ms."""
    return floor_div(F.col("clock"), 1000)


def with_reason(rows: DataFrame, reason: Column, start: Column | None = None, end: Column | None = None) -> DataFrame:
    """Rows as `JoinResult.late` has them."""
    none = F.lit(None).cast("long")
    start, end = (none if at is None else at for at in (start, end))
    return rows.withColumns({"reason": reason, "window_start": start, "window_end": end})
