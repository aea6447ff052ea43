"""Compute the watermark at which Flink SQL's cleanup timers remove each cached row.

A cache has the rows of one side and key, and at most one timer. An arriving row that finds no timer sets one for its
own expiry. A timer that fires removes all expired rows of the cache, and sets the next one for the expiry of the oldest
row left. Rows may arrive out of order, so a row can expire before the timer that was pending at its arrival. It is then
overdue until that timer fires. Any other row is removed by the first watermark that expires it. Therefore (without a
cleanup interval):

    cleanup_time = max(expires_at, timer pending at the arrival)

This is fixed at the arrival, and it is all that a slice carries of the timers. The pending timer is the least
`cleanup_time` among cached rows with `cleanup_time = expires_at`, as the row that the timer was set for is one of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.joins.keys import key_columns
from tidemark.joins.sql_interval.arrival_order import ARRIVAL_ORDER_OF_SIDE
from tidemark.spark.materialization import materialize


def with_cleanup_time(rows: DataFrame, *, is_small: bool) -> DataFrame:
    """Fill in `cleanup_time`, the least watermark at which a timer removes a row, where no earlier slice has.

    The rows of a cache are split into busy periods. A row that arrives when the cache is empty, and so without a timer,
    starts a new one. In a busy period in order of expiry, no row expires before the pending timer, so that all are
    removed when they expire. Only other busy periods are scanned row by row, in Arrow.

    Args:
        rows: Rows with `side`, `key_*`, `is_cached`, `expires_at`, `cleanup_time`, their position and `order_in_event`,
            and the `watermark` at their arrival. Times are in ms.
        is_small: True if the rows are few and materialized (`JobRows.has_materialized_input`): sorting them twice then
            costs less than materializing the sorted ones. False to sort once.

    Returns:
        The rows with `cleanup_time`; null if they are not cached.
    """
    keys = key_columns(rows)
    cache_window = Window.partitionBy(*keys, "side").orderBy(*ARRIVAL_ORDER_OF_SIDE)
    earlier_rows = cache_window.rowsBetween(Window.unboundedPreceding, -1)
    up_to_row = cache_window.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_cached = F.col("is_cached")
    # A running maximum: once the watermark has reached it, all earlier rows of the cache have been removed.
    max_cleanup_time = F.max(F.when(is_cached, F.greatest("expires_at", "cleanup_time"))).over(earlier_rows)
    starts_busy_period = is_cached & F.coalesce(F.col("max_cleanup_time") <= F.col("watermark"), F.lit(True))
    is_out_of_order = is_cached & F.col("cleanup_time").isNull() & (F.col("max_cleanup_time") > F.col("expires_at"))
    with_period = rows.withColumn("max_cleanup_time", max_cleanup_time).withColumn(
        "starts_busy_period", starts_busy_period
    )
    with_period = with_period.withColumn("busy_period", F.sum(F.col("starts_busy_period").cast("int")).over(up_to_row))
    is_in_unordered_period = is_cached & F.max(is_out_of_order).over(Window.partitionBy(*keys, "side", "busy_period"))
    labelled_rows = with_period.withColumn("needs_scan", F.coalesce(is_in_unordered_period, F.lit(False))).drop(
        "max_cleanup_time", "busy_period"
    )
    if not is_small:  # otherwise both branches below would sort all rows
        labelled_rows = materialize(labelled_rows)
    ordered_rows = labelled_rows.where(~F.col("needs_scan"))
    ordered_rows = ordered_rows.withColumn("cleanup_time", F.when(is_cached, F.coalesce("cleanup_time", "expires_at")))
    unordered_rows = labelled_rows.where("needs_scan").sortWithinPartitions(*keys, "side", *ARRIVAL_ORDER_OF_SIDE)
    schema = T.StructType([T.StructField(field.name, field.dataType) for field in unordered_rows.schema])
    scanned_rows = unordered_rows.mapInArrow(_scan_timers, schema)
    return ordered_rows.unionByName(scanned_rows if is_small else materialize(scanned_rows)).drop(
        "starts_busy_period", "needs_scan"
    )


def _scan_timers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Follow the timer of each cache through its busy periods, in order of arrival."""
    timer: int | None = None
    expiries: list[int] = []
    for batch in batches:
        cleanup_times = []
        columns = (
            batch.column(name).to_pylist() for name in ("starts_busy_period", "expires_at", "watermark", "cleanup_time")
        )
        for starts_busy_period, expires_at, watermark, carried_cleanup_time in zip(*columns, strict=True):
            if starts_busy_period:
                timer = None
                expiries = []
            cleanup_time = carried_cleanup_time
            if carried_cleanup_time is None:
                timer = _find_pending_timer(timer, expiries, watermark) or expires_at
                cleanup_time = max(expires_at, timer)
            elif carried_cleanup_time == expires_at:
                timer = carried_cleanup_time if timer is None else min(timer, carried_cleanup_time)
            heapq.heappush(expiries, expires_at)
            cleanup_times.append(cleanup_time)
        index = batch.schema.get_field_index("cleanup_time")
        yield batch.set_column(index, "cleanup_time", pa.array(cleanup_times, pa.int64()))


def _find_pending_timer(timer: int | None, expiries: list[int], watermark: int) -> int | None:
    """Return the pending timer of a cache at a watermark; None if the cache is empty.

    Args:
        timer: The pending timer at the row before; None if there was none.
        expiries: Heap of the expiries of the cache's rows. Expired rows are popped.
        watermark: The watermark, ms.
    """
    if timer is not None and timer > watermark:
        return timer
    while expiries and expiries[0] <= watermark:
        heapq.heappop(expiries)
    return expiries[0] if expiries else None
