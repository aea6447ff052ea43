"""The interface of joins: the rows of a job in; emissions, late rows and buffered rows out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.dialect_support import TICK_MICROS
from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.time_columns import as_json, floor_div
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.lanes import Timeline

EMISSION_COLUMNS = ("slice", "emission", "pane", "result_time", "window_start", "window_end", "left", "right")
EMITTING_EVENT_COLUMNS = ("emitting_row", "emitting_watermark", "emission_order")
"""Columns that determine which event of the stream emits a row, for joins whose output is another join's input.

- `emitting_row`: position (`clock`, `tiebreak`) of the row whose arrival emits it at the earliest; null for none.
- `emitting_watermark`: the least combined watermark that emits it, ms; null if a row emits it at once.
- `emission_order`: order among the rows that the event emits, an array (`emission_order`); null if it does not matter.
"""
POSITION_TYPE = T.StructType([T.StructField(name, T.LongType()) for name in ("clock", "tiebreak")])
"""Type of `emitting_row`."""


RowFilter = Callable[[DataFrame], DataFrame]
"""Function that selects rows by columns that all rows of a job have, and drops columns that are not needed."""
RowTransform = Callable[[DataFrame], DataFrame]
"""Function that returns the same rows with columns added or replaced."""


def select_all(rows: DataFrame) -> DataFrame:
    """Return all rows, as a `RowFilter`."""
    return rows


@dataclass(frozen=True)
class ExactRows:
    """Rows of a large job of which the join selects some, with exact watermarks."""

    select: Callable[[RowFilter, RowFilter], DataFrame]
    """Function that adds exact watermarks to the rows that the first filter selects, rejected and filtered rows among
    them. The second filter selects the buckets of these rows, to read fewer rows. Reads the rows twice."""
    buckets: pd.DataFrame
    """One row per bucket with rows, in order: `lane`, `slice`, its number as `bucket_number`, `combined_before`,
    `end_watermark`, the least event time of a row that takes part as `oldest`, and for each side the number of these
    rows as `left_participating` and the greatest event time of any row as `left_newest`. Times are in ms."""
    newest_carried: Mapping[str, int]
    """Greatest event time of the carried rows by side, ms, if the job has one lane."""

    def with_column(self, name: str, column: Column) -> Self:
        """Add a column to the rows before they are selected."""

        def select(rows_filter: RowFilter, bucket_filter: RowFilter) -> DataFrame:
            return self.select(lambda rows: rows_filter(rows.withColumn(name, column)), bucket_filter)

        return replace(self, select=select)


@dataclass(frozen=True, kw_only=True)
class JobRows:
    """The rows of a job, with the watermarks at their arrival."""

    on_time: DataFrame
    """Rows that are surely on time. Their watermarks are those before their bucket, at most the exact ones."""
    late_candidates: DataFrame
    """Other rows, rejected ones included, with exact watermarks. If the job computes the exact watermarks of all rows,
    these are all rows, and `on_time` is empty."""
    may_be_carried: DataFrame
    """Subset of `on_time` with at least the rows that are in the buffers at the end of their slice."""
    has_late_candidates: bool
    """False if `late_candidates` is empty."""
    carried: DataFrame | None
    """Rows carried from the slice before the job, with the watermarks at their arrival."""
    watermarks: JobWatermarks
    has_materialized_input: bool = False
    """True if the job is so small that its rows are materialized. It is then cheap to sort or label them once more for
    a second use, and materializing costs more. A result with many uses is worth it, because each use is planned again.

    False in a large job: each use of a DataFrame scans the inputs again. A sort or a shuffle is then worth
    materializing, but not all rows as they were read."""
    filtered: DataFrame | None = None
    """Rows that `where` filters, with exact watermarks; None if there are none or the join needs no exact ones."""
    exact_rows: ExactRows | None = None
    """Access to rows with exact watermarks, in large jobs of joins with `selects_exact_rows`."""

    def with_column(self, name: str, column: Column) -> Self:
        """Add a column to all rows, except to `filtered` ones."""
        on_time = self.on_time.withColumn(name, column)
        return replace(
            self,
            on_time=on_time,
            late_candidates=self.late_candidates.withColumn(name, column),
            # a join compares the two: if they are the same, any row may be carried
            may_be_carried=on_time
            if self.may_be_carried is self.on_time
            else self.may_be_carried.withColumn(name, column),
            carried=None if self.carried is None else self.carried.withColumn(name, column),
            exact_rows=None if self.exact_rows is None else self.exact_rows.with_column(name, column),
        )

    def select_participating(self, late_condition: Column | None = None) -> DataFrame:
        """Select the rows that take part in the join, carried ones included.

        Args:
            late_condition: Condition for late candidates; by default all that are not rejected take part.
        """
        return self._union_candidates_and_carried(self.on_time, late_condition)

    def select_rows_that_may_be_carried(self, late_condition: Column | None = None) -> DataFrame:
        """Select participating rows without most of those that are evicted in the slice of their arrival."""
        return self._union_candidates_and_carried(self.may_be_carried, late_condition)

    def _union_candidates_and_carried(self, rows: DataFrame, late_condition: Column | None) -> DataFrame:
        if self.has_late_candidates:
            candidates = self.late_candidates.where(F.col("rejected").isNull())
            rows = rows.unionByName(candidates if late_condition is None else candidates.where(late_condition))
        if self.carried is not None:
            rows = rows.unionByName(self.carried, allowMissingColumns=True)
        return rows


@dataclass(frozen=True)
class JoinResult:
    """The outputs of a join over the rows of a job."""

    joined: DataFrame
    """One row per emission, in `EMISSION_COLUMNS`. Times are in ms (long, null if there is none). `left` and `right`
    are rows, null if padded, or arrays of rows for a coGroup. Joins that can precede another one add
    `EMITTING_EVENT_COLUMNS`."""
    late: DataFrame
    """Late and rejected rows with a `reason`, and `window_start`, `window_end` (ms) if it applies to one window only.
    Rows below the watermark that take part all the same have an `outcome`, and are in `buffered` too."""
    buffered: DataFrame
    """Rows that entered the buffers, with `eviction_slice`: the slice whose watermark evicts them, null for none."""
    evicted_counts: Mapping[str, int] = field(default_factory=dict)
    """Number of rows by side that are not in `buffered`: on time, and evicted by the end of their slice."""
    timelines: Sequence[Timeline] = ()
    """Timelines, if the join changes the watermarks at the ends of slices."""


class Join(ABC):
    """A join under the rules of one dialect."""

    needs_exact_watermarks = False
    """True if all rows need exact watermarks, not only late candidates."""
    carried_columns: tuple[str, ...] = ("watermark",)
    """Columns of carried rows besides their times and keys."""
    slice_valued_columns: tuple[str, ...] = ()
    """Carried columns that have slice numbers (or maps to them). Values from later slices do not apply to the state."""
    tick = TICK_MICROS["flink-sql"]
    """Unit of `event_time`, microseconds."""
    buckets_per_slice: int | None = None
    """Buckets per slice, if a bucket is a unit of the engine such as a micro-batch."""
    selects_exact_rows = False
    """True if the join needs exact watermarks of all rows only in small jobs. In large jobs it selects the rows that
    need them (`JobRows.exact_rows`), and gets the others as if it needed no exact ones."""
    buffers_overdue_rows = False
    """True if a row may stay buffered longer than `eviction_watermark`, since a later row of its side arrived before.
    `JobRows.may_be_carried` then has all rows that arrive after such a row, from its bucket on."""
    may_lose_rows_at_end = False
    """True if the end of the input can lose rows on time, which are then in `JoinResult.late`."""
    needs_bucket_number = False
    """True if rows need their bucket, as `bucket_number`."""

    def reject_invalid(self, rows: DataFrame) -> DataFrame:
        """Set `rejected` on rows that cannot take part, in addition to `sources.normalization.Side.normalize`."""
        return rows

    @abstractmethod
    def times_match(self, left: Column, right: Column) -> Column:
        """Return True if the join can match two event times, lateness aside."""

    def eviction_watermark(self, watermark: Column) -> Column | None:  # noqa: ARG002
        """Return the least watermark that evicts an on-time row, or None if its event time does not determine it.

        It never falls as the event time rises, except for rows in no window, which leave at once. If it is not None,
        the join computes `JoinResult.buffered` from `JobRows.select_rows_that_may_be_carried`.

        Args:
            watermark: Watermark at the row's arrival, ms.
        """
        return None

    @abstractmethod
    def apply(self, job_rows: JobRows) -> JoinResult:
        """Join the rows of a job."""


def row_position(prefix: str = "") -> Column:
    """Return a row's position in the stream as a struct, from columns with a prefix such as `left_`."""
    return F.struct(*(F.col(f"{prefix}{name}").alias(name) for name in POSITION_TYPE.names))


def no_position() -> Column:
    """Return a position of null."""
    return F.lit(None).cast(POSITION_TYPE)


def later_position() -> Column:
    """Return the position of the later row of a pair."""
    return F.greatest(*(row_position(f"{side}_") for side in SIDES))


def processing_time() -> Column:
    """Return a row's processing time: its arrival clock in ms."""
    return floor_div(F.col("clock"), 1000)


def compute_row_hash(rows: DataFrame) -> Column:
    """Return a hash that orders rows with equal times and sides reproducibly."""
    dtypes = {side: rows.schema[side].dataType for side in SIDES}
    is_hashable = not any(name in dtype.simpleString() for dtype in dtypes.values() for name in ("map<", "variant"))
    return F.xxhash64(*(F.col(side) if is_hashable else as_json(F.col(side), dtype) for side, dtype in dtypes.items()))


def add_late_reason(
    rows: DataFrame, reason: Column, start: Column | None = None, end: Column | None = None
) -> DataFrame:
    """Add the columns of `JoinResult.late`.

    Args:
        rows: Late or rejected rows.
        reason: The reason.
        start: Start of the window that the reason applies to, ms; None for all windows.
        end: End of that window, ms.
    """
    null = F.lit(None).cast("long")
    start, end = (null if bound is None else bound for bound in (start, end))
    return rows.withColumns({"reason": reason, "window_start": start, "window_end": end})


def select_rejected(candidates: DataFrame) -> DataFrame:
    """Select the rejected ones among late candidates, with the columns of `JoinResult.late`."""
    return add_late_reason(candidates.where(F.col("rejected").isNotNull()), F.col("rejected"))


def with_null_watermarks(rows: DataFrame) -> DataFrame:
    """Set the watermarks of rows to null, for late rows whose reason has none, such as the end of the input."""
    names = ("watermark", "left_watermark", "right_watermark")
    return rows.transform(with_columns, dict.fromkeys(names, F.lit(None).cast("long")))
