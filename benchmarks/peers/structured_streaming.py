"""Spark's stream-stream join over finite tables."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.cases import DELAY
from benchmarks.data import START
from benchmarks.peers.batch import RESULT, SAME_KEY
from benchmarks.peers.peer import Peer, Work
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration
from tidemark.spark.session import get_spark_session
from tidemark.spark.temporary_settings import override_settings

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class StructuredStreaming(Peer):
    """A query over existing rows, in one batch or in a batch per hour of arrival."""

    has_own_process = True

    def __init__(self, *, hourly: bool = False) -> None:
        self.hourly = hourly
        self.name = "structured streaming" + (", hourly" if hourly else "")
        batches = "one batch per slice" if hourly else "one batch"
        self.description = f"Spark's stream-stream join, availableNow, state in RocksDB, {batches}"

    def prepare(self, work: Work) -> None:
        """Write the same rows with a file per hour, for hourly batches."""
        if not self.hourly:
            return
        spark, hours = get_spark_session("benchmark"), work.case.shape.span // timedelta(hours=1)
        hour = F.floor((F.unix_seconds("seen") - int(START.timestamp())) / 3600).cast("int")
        for side in SIDES:
            rows = spark.read.format("delta").load(work.get_input_path(side)).repartitionById(hours, hour)
            rows.write.format("delta").save(self._input_path(work, side))

    def run(self, work: Work) -> None:
        """Run the query to its end."""
        spark = get_spark_session("benchmark")
        settings = {
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
            # Each partition has a state store; more partitions than cores take longer.
            "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism),
        }
        low, high = (f"left_at + INTERVAL {ms} MILLISECONDS" for ms in work.case.shape.interval_ms)
        left, right = (self._read_stream(work, side) for side in SIDES)
        joined = left.join(right, F.expr(f"{SAME_KEY} AND right_at BETWEEN {low} AND {high}")).select(*RESULT)
        with override_settings(spark, settings):
            sink = joined.writeStream.format("delta").trigger(availableNow=True)
            sink.option("checkpointLocation", f"{work.output_path}/_checkpoint").start(
                work.output_path
            ).awaitTermination()

    def _read_stream(self, work: Work, side: str) -> DataFrame:
        # As changes, because only these are read in the order in which they were written.
        options = {"maxFilesPerTrigger": "1", "startingVersion": "0"} if self.hourly else {}
        rows = (
            get_spark_session("benchmark")
            .readStream.format("delta")
            .options(**options)
            .load(self._input_path(work, side))
        )
        flat = rows.select(*(F.col(name).alias(f"{side}_{name}") for name in rows.columns))
        return flat.withWatermark(f"{side}_at", format_duration(DELAY))

    def _input_path(self, work: Work, side: str) -> str:
        return work.get_input_path(f"{side}_by_hour" if self.hourly else side)
