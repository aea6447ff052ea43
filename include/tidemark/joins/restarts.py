"""Joins of a job that has restarted: buffers and their timers are recovered, watermarks begin anew.

Of two rows the one of the earlier epoch came first.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.joins.datastream_interval import DatastreamIntervalJoin
from tidemark.joins.window import WindowJoin
from tidemark.watermarks.buckets import Horizon
from tidemark.watermarks.job_restarts import epoch_of_rows


@dataclass(frozen=True)
class RestartedIntervalJoin(DatastreamIntervalJoin):
    """Flink's `intervalJoin` over epochs.

    A row on time has the `epoch` in which it came, and the one in which it is evicted as `until`: the last one where
    none does.
    """

    labels = ("slice", "watermark", "epoch", "until")

    @override
    def _labelled(self, rows: DataFrame, horizon: Horizon) -> DataFrame:
        rows = rows.withColumn("epoch", epoch_of_rows(horizon))
        return rows.withColumn("until", horizon.epoch_reaching(self._leaves_in))

    @override
    def _kept(self, rows: DataFrame, horizon: Horizon) -> DataFrame:
        rows = self._labelled(rows, horizon)
        until = F.col("until")
        return horizon.first_slice_reaching_in(rows, until, self._leaves_in(until), "reached")

    def _leaves_in(self, epoch: Column) -> Column:
        """The least watermark of an epoch that evicts a row; null in those before it came."""
        its = F.col("epoch")
        own, later = self.leaves_at(F.col("watermark")), self.rules.evicted_anew(F.col("event_time"), self._wait)
        return F.when(epoch == its, own).when(epoch > its, later)

    @override
    def _evicted(self) -> Column:
        rules, epochs = self.rules, (F.col("left_epoch"), F.col("right_epoch"))
        left_due = rules.evicted_anew(F.col("left_event_time"), rules.left_wait)
        right_due = rules.evicted_anew(F.col("right_event_time"), rules.right_wait)
        left_gone = (F.col("left_until") < epochs[1]) | (F.col("right_watermark") >= left_due)
        right_gone = (F.col("right_until") < epochs[0]) | (F.col("left_watermark") >= right_due)
        in_another = F.when(epochs[0] < epochs[1], left_gone).when(epochs[1] < epochs[0], right_gone)
        return F.coalesce(in_another, super()._evicted())


@dataclass(frozen=True)
class RestartedWindowJoin(WindowJoin):
    """A window join or coGroup over epochs, each row in one window and no lateness allowed.

    A window that has fired is forgotten: rows of it that come in a later epoch are on time, and fire it again.
    """

    by_epoch = True

    @override
    def _first_slice(self, horizon: Horizon, rows: DataFrame, level: Column, name: str) -> DataFrame:
        rows = rows.withColumn("epoch", epoch_of_rows(horizon))
        until = horizon.epoch_reaching(lambda epoch: F.when(epoch >= F.col("epoch"), level))
        return horizon.first_slice_reaching_in(rows.withColumn("until", until), F.col("until"), level, name)
