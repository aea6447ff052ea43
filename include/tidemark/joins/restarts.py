"""Joins of a job that has restarted, which recovers buffers and timers but not watermarks.

Of two rows of different epochs, the one of the earlier epoch arrived first.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.joins.datastream_interval import DatastreamIntervalJoin
from tidemark.joins.window import WindowJoin
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.restarted_lane import epoch_column


@dataclass(frozen=True)
class RestartedIntervalJoin(DatastreamIntervalJoin):
    """Flink's `intervalJoin` over epochs.

    An on-time row has the `epoch` of its arrival and the `eviction_epoch`, which is the last epoch if none evicts it.
    """

    labels = (*DatastreamIntervalJoin.labels, "epoch", "eviction_epoch")

    @override
    def _add_labels(self, rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:
        rows = rows.withColumn("epoch", epoch_column(watermarks))
        return rows.withColumn("eviction_epoch", watermarks.first_epoch_reaching(self._eviction_watermark_in))

    @override
    def _add_eviction_slice(self, rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:
        rows = self._add_labels(rows, watermarks)
        epoch = F.col("eviction_epoch")
        level = self._eviction_watermark_in(epoch)
        return watermarks.with_slice_reaching_in_epoch(rows, epoch, level, "eviction_slice")

    def _eviction_watermark_in(self, epoch: Column) -> Column:
        """Return the least watermark of an epoch that evicts a row; null for epochs before its arrival."""
        own = F.col("epoch")
        event_time = F.col("event_time")
        before_restart = self.eviction_watermark(F.col("watermark"))
        after_restart = self.rules.eviction_watermark_after_restart(event_time, self._wait)
        return F.when(epoch == own, before_restart).when(epoch > own, after_restart)

    @override
    def _is_evicted_before_match(self) -> Column:
        rules = self.rules
        left_epoch = F.col("left_epoch")
        right_epoch = F.col("right_epoch")
        left_due = rules.eviction_watermark_after_restart(F.col("left_event_time"), rules.left_wait)
        right_due = rules.eviction_watermark_after_restart(F.col("right_event_time"), rules.right_wait)
        left_is_evicted = (F.col("left_eviction_epoch") < right_epoch) | (F.col("right_watermark") >= left_due)
        right_is_evicted = (F.col("right_eviction_epoch") < left_epoch) | (F.col("left_watermark") >= right_due)
        in_other_epoch = F.when(left_epoch < right_epoch, left_is_evicted)
        in_other_epoch = in_other_epoch.when(right_epoch < left_epoch, right_is_evicted)
        return F.coalesce(in_other_epoch, super()._is_evicted_before_match())


@dataclass(frozen=True)
class RestartedWindowJoin(WindowJoin):
    """A window join or coGroup over epochs, with each row in one window and no allowed lateness.

    A fired window is not in the recovered state: rows of a later epoch are on time for it, and fire it again.
    """

    fires_by_epoch = True

    @override
    def _add_first_slice(self, watermarks: JobWatermarks, rows: DataFrame, level: Column, name: str) -> DataFrame:
        rows = rows.withColumn("epoch", epoch_column(watermarks))
        firing_epoch = watermarks.first_epoch_reaching(lambda epoch: F.when(epoch >= F.col("epoch"), level))
        rows = rows.withColumn("firing_epoch", firing_epoch)
        return watermarks.with_slice_reaching_in_epoch(rows, F.col("firing_epoch"), level, name)
