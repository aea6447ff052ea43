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
from tidemark.spark.materialization import computed_once


def with_leaves_at(rows: DataFrame, *, few: bool) -> DataFrame:
    """Fill in `leaves_at`, the least watermark that removes a row (ms), where no earlier slice has.

    Takes rows with whether each `waits` in the cache, `expires_at`, the `watermark` that they met, and whatever
    identifies their slot; one that does not wait has no `leaves_at`. A slot is gone through in stretches: where a row
    comes, all before it may be gone, and the timer with them. Unless they are `few` what is found of them is kept.
    """
    keys = key_columns(rows)
    order = ("clock", "tiebreak", "watermark", "event_time")
    slot = Window.partitionBy(*keys, "side").orderBy(*order)
    earlier = slot.rowsBetween(Window.unboundedPreceding, -1)
    so_far = slot.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    waits = F.col("waits")
    last_gone = F.max(F.when(waits, F.greatest("expires_at", "leaves_at"))).over(earlier)
    begins = waits & F.coalesce(F.col("last_gone") <= F.col("watermark"), F.lit(True))
    overtaken = waits & F.col("leaves_at").isNull() & (F.col("last_gone") > F.col("expires_at"))
    placed = rows.withColumn("last_gone", last_gone).withColumn("begins", begins)
    placed = placed.withColumn("stretch", F.sum(F.col("begins").cast("int")).over(so_far))
    in_disorder = waits & F.max(overtaken).over(Window.partitionBy(*keys, "side", "stretch"))
    known = placed.withColumn("in_disorder", F.coalesce(in_disorder, F.lit(False))).drop("last_gone", "stretch")
    if not few:  # or slots would be put in order for each of both branches
        known = computed_once(known)
    in_order = known.where(~F.col("in_disorder"))
    in_order = in_order.withColumn("leaves_at", F.when(waits, F.coalesce("leaves_at", "expires_at")))
    others = known.where("in_disorder").sortWithinPartitions(*keys, "side", *order)
    schema = T.StructType([T.StructField(field.name, field.dataType) for field in others.schema])
    scanned = others.mapInArrow(_scanned, schema)
    return in_order.unionByName(scanned if few else computed_once(scanned)).drop("begins", "in_disorder")


def _scanned(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Follow the timer of each slot, stretch after stretch, each in the order of arrival."""
    timer: int | None = None
    waiting: list[int] = []
    for batch in batches:
        found = []
        labels = (batch.column(name).to_pylist() for name in ("begins", "expires_at", "watermark", "leaves_at"))
        for begins, expires_at, met, known in zip(*labels, strict=True):
            if begins:
                timer, waiting = None, []
            leaves_at = known
            if known is None:
                timer = _pending(timer, waiting, met) or expires_at
                leaves_at = max(expires_at, timer)
            elif known == expires_at:
                timer = known if timer is None else min(timer, known)
            heapq.heappush(waiting, expires_at)
            found.append(leaves_at)
        place = batch.schema.get_field_index("leaves_at")
        yield batch.set_column(place, "leaves_at", pa.array(found, pa.int64()))


def _pending(timer: int | None, waiting: list[int], watermark: int) -> int | None:
    """The slot's timer at a watermark, after one that was set earlier; takes expired rows off the heap."""
    if timer is not None and timer > watermark:
        return timer
    while waiting and waiting[0] <= watermark:
        heapq.heappop(waiting)
    return waiting[0] if waiting else None
