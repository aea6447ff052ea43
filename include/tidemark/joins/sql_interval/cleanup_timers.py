"""When Flink SQL's clean-up timers remove the rows that an interval join caches.

Without a clean-up interval a key's rows of one side, a slot, have one timer. It is set for the first row that finds
none, and when it fires, for the oldest row that is left. A row that expires before the timer pending at its arrival
stays until that timer fires; every other row leaves at the first advance that expires it. So `leaves_at` is known when
a row arrives. It is all that a slice has to carry of the timers: the pending one is the least `leaves_at` of the
cached rows that leave as they expire, because whoever has set it is among these.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.joins.keys import key_columns
from tidemark.spark.materialization import materialize


def with_leaves_at(rows: DataFrame, *, is_small: bool) -> DataFrame:
    """Fill in `leaves_at`, the least watermark that removes a row (ms), where no earlier slice has.

    Takes rows with whether each `waits` in the cache, `expires_at`, the `watermark` that they met, and whatever
    identifies their slot; one that does not wait has no `leaves_at`. A slot is gone through in stretches: where a row
    comes, all before it may be gone, and the timer with them. Unless they are `few` what is found of them is kept.
    """
    keys = key_columns(rows)
    order = ("clock", "tiebreak", "watermark", "event_time")
    slot_window = Window.partitionBy(*keys, "side").orderBy(*order)
    earlier_rows = slot_window.rowsBetween(Window.unboundedPreceding, -1)
    up_to_row = slot_window.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_cached = F.col("waits")
    last_removal = F.max(F.when(is_cached, F.greatest("expires_at", "leaves_at"))).over(earlier_rows)
    is_first_of_stretch = is_cached & F.coalesce(F.col("last_gone") <= F.col("watermark"), F.lit(True))
    is_out_of_order = is_cached & F.col("leaves_at").isNull() & (F.col("last_gone") > F.col("expires_at"))
    with_stretch = rows.withColumn("last_gone", last_removal).withColumn("begins", is_first_of_stretch)
    with_stretch = with_stretch.withColumn("stretch", F.sum(F.col("begins").cast("int")).over(up_to_row))
    is_in_unordered_stretch = is_cached & F.max(is_out_of_order).over(Window.partitionBy(*keys, "side", "stretch"))
    labelled = with_stretch.withColumn("in_disorder", F.coalesce(is_in_unordered_stretch, F.lit(False))).drop(
        "last_gone", "stretch"
    )
    if not is_small:  # or slots would be put in order for each of both branches
        labelled = materialize(labelled)
    ordered = labelled.where(~F.col("in_disorder"))
    ordered = ordered.withColumn("leaves_at", F.when(is_cached, F.coalesce("leaves_at", "expires_at")))
    unordered = labelled.where("in_disorder").sortWithinPartitions(*keys, "side", *order)
    schema = T.StructType([T.StructField(field.name, field.dataType) for field in unordered.schema])
    scanned_rows = unordered.mapInArrow(_scan_slots, schema)
    return ordered.unionByName(scanned_rows if is_small else materialize(scanned_rows)).drop("begins", "in_disorder")


def _scan_slots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Follow the timer of each slot, stretch after stretch, each in the order of arrival."""
    timer: int | None = None
    expiries: list[int] = []
    for batch in batches:
        removal_watermarks = []
        columns = (batch.column(name).to_pylist() for name in ("begins", "expires_at", "watermark", "leaves_at"))
        for is_first_of_stretch, expires_at, watermark, carried_leaves_at in zip(*columns, strict=True):
            if is_first_of_stretch:
                timer, expiries = None, []
            leaves_at = carried_leaves_at
            if carried_leaves_at is None:
                timer = _find_pending_timer(timer, expiries, watermark) or expires_at
                leaves_at = max(expires_at, timer)
            elif carried_leaves_at == expires_at:
                timer = carried_leaves_at if timer is None else min(timer, carried_leaves_at)
            heapq.heappush(expiries, expires_at)
            removal_watermarks.append(leaves_at)
        index = batch.schema.get_field_index("leaves_at")
        yield batch.set_column(index, "leaves_at", pa.array(removal_watermarks, pa.int64()))


def _find_pending_timer(timer: int | None, expiries: list[int], watermark: int) -> int | None:
    """The slot's timer at a watermark, after one that was set earlier; takes expired rows off the heap."""
    if timer is not None and timer > watermark:
        return timer
    while expiries and expiries[0] <= watermark:
        heapq.heappop(expiries)
    return expiries[0] if expiries else None
