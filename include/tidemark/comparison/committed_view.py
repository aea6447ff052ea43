"""What a pipeline has committed, looked up by the input rows that emissions are made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, reduce

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.expressions import fields_told
from tidemark.config.sides import SIDES, SideName
from tidemark.delta.pipeline_tables import PipelineTables, read_now
from tidemark.delta.table import DeltaLog
from tidemark.errors import SliceOrderError
from tidemark.joins.window_output import HALVES
from tidemark.ledger.checkpoint_files import restore
from tidemark.ledger.committed_snapshot import committed
from tidemark.ledger.ledger import Entry, Ledger
from tidemark.ledger.staleness import ConsumedVersions
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.sources.stored_input import StoredInput, stored_inputs
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.row_status import FILTERED, is_filtered

_LATENESS = "reason string, watermark long, behind_ms long, held_by string"
KNOWN_OF_ROW = f"struct<clock long, event_time long, {_LATENESS}, landed boolean, buffered boolean>"
"""What is known of an input row: clock and event time in microseconds; for late and rejected rows what the table `late`
says (watermark in ms), or that `where` leaves it out; whether it came after the slice of its clock was committed;
whether it waits in the buffers."""


@dataclass(frozen=True)
class CommittedView:
    """A pipeline's committed slices, and its inputs as they are now."""

    spark: SparkSession
    pipeline: Pipeline
    grid: Grid
    tables: PipelineTables
    inputs: tuple[StoredInput, StoredInput]
    ledger: Ledger

    @classmethod
    def read(cls, spark: SparkSession, pipeline: Pipeline, lake: str) -> CommittedView:
        """Read a pipeline's ledger and find its inputs.

        Raises:
            SliceOrderError: nothing is committed.
            InputError: an input does not serve.
        """
        ledger = Ledger.of(pipeline, lake)
        if not ledger.last:
            raise SliceOrderError(f"{pipeline.name} has no committed slice to compare; run it first, with tidemark run")
        return cls(spark, pipeline, ledger.grid, ledger.tables, stored_inputs(spark, pipeline, lake), ledger)

    @property
    def last(self) -> Entry:
        """The last committed slice."""
        assert self.ledger.last, "read has seen to it"
        return self.ledger.last

    @property
    def end(self) -> int:
        """Number of the slice after the last committed one."""
        return self.last.number + 1

    @property
    def fires_again(self) -> bool:
        """Whether the engine fires windows more often than the emissions show."""
        join = self.pipeline.join
        return join.window is not None and join.emit == "latest" and join.allowed_lateness > timedelta()

    def emissions(self) -> DataFrame:
        """The emissions that count, as stored."""
        return committed(self.spark, self.ledger, "emissions")

    def quarantined(self) -> DataFrame | None:
        """What was emitted and is kept from the emissions, with `EXPECTATIONS`; None where nothing ever was."""
        there = DeltaLog.open(self.tables.quarantined) is not None
        return read_now(self.spark, self.tables.quarantined) if there else None

    def columns(self, side: SideName) -> dict[str, str]:
        """The columns of an input, by their names in the emissions; with `select` or `flatten` perhaps not all."""
        if (side == "right" and self.pipeline.join.type in HALVES) or self.pipeline.join.api == "cogroup":
            return {}
        source = {f"{side}_{name}": name for name in self.inputs[SIDES.index(side)].side.schema.names}
        if self.pipeline.flatten is not None:
            told = fields_told(self.pipeline.flatten)
            return {name: source[column] for name, column in told.items() if column in source}
        match self.pipeline.select:
            case None:
                return source
            case list(names):
                return {name: source[name] for name in names if name in source}
            case expressions:
                bare = {name: text.strip().strip("`") for name, text in expressions.items()}
                return {name: source[text] for name, text in bare.items() if text in source}

    def known_of_rows(self, side: SideName, columns: list[str], wanted: DataFrame) -> DataFrame:
        """What is known of rows of an input: `label` (`KNOWN_OF_ROW`) by `_hash`, the hash of these columns.

        Rows that the input does not have are missing; of rows with equal columns the first to arrive counts.
        """
        source = self.inputs[SIDES.index(side)]
        rows = source.side.told(source.table.read(), self.grid, self.grid.start)
        filtered = F.when(is_filtered(), FILTERED).alias("_filtered")
        event_time = (F.col("event_time") * self.pipeline.tick).alias("_event_time")
        rows = rows.select(F.col("clock").alias("_clock"), event_time, filtered, f"{side}.*")
        times = rows.select(content_hash(rows, columns).alias("_hash"), "_clock", "_event_time", "_filtered")
        known = _of(times, wanted).agg(*(F.min(f"_{name}").alias(name) for name in ("clock", "event_time", "filtered")))
        for more in (self._late, self._landed, self._buffered):
            known = known.join(more(side, columns, wanted), "_hash", "left")
        names = [part.split()[0] for part in KNOWN_OF_ROW.removeprefix("struct<").removesuffix(">").split(", ")]
        known = known.withColumn("reason", F.coalesce("reason", "filtered"))
        return known.select("_hash", F.struct(*names).alias("label"))

    def _late(self, side: SideName, columns: list[str], wanted: DataFrame) -> DataFrame:
        late = committed(self.spark, self.ledger, "late").where(F.col("side") == side)
        names = ["reason", "watermark", "behind_ms", "held_by"]
        late = late.withColumn("watermark", F.unix_millis("watermark"))
        rows = late.select(*(F.col(name).alias(f"_{name}") for name in names), f"{side}.*")
        hashed = rows.select(content_hash(rows, columns).alias("_hash"), *(f"_{name}" for name in names))
        furthest = F.coalesce("_behind_ms", F.lit(-(2**63)))
        return _of(hashed, wanted).agg(*(F.max_by(f"_{name}", furthest).alias(name) for name in names))

    def _landed(self, side: SideName, columns: list[str], wanted: DataFrame) -> DataFrame:
        number = SIDES.index(side)
        landed = self.inputs[number].landed(self.grid, self.end, self._own_versions[number])
        none = self.spark.createDataFrame([], "_hash long")
        hashes = (rows.select(content_hash(rows, columns).alias("_hash")) for rows in landed)
        return _of(reduce(DataFrame.unionByName, hashes, none), wanted).agg(F.lit(True).alias("landed"))

    def _buffered(self, side: SideName, columns: list[str], wanted: DataFrame) -> DataFrame:
        if not any(self.last.carried):
            return self.spark.createDataFrame([], "_hash long, buffered boolean")
        held = restore(self.spark, self.tables, self.last.number, self.grid).where(F.col("side") == side)
        rows = held.select(f"{side}.*")
        return _of(rows.select(content_hash(rows, columns).alias("_hash")), wanted).agg(F.lit(True).alias("buffered"))

    @cached_property
    def _own_versions(self) -> tuple[ConsumedVersions, ConsumedVersions]:
        """The version of each input up to which the slices themselves have read, whatever later ones took."""
        versions: tuple[list[tuple[int | None, int]], ...] = ([], [])
        for number, entry in self.ledger.entries.items():
            for homes, version in zip(versions, entry.versions, strict=True):
                if not homes or homes[-1][1] != version:
                    homes.append((number if homes else None, version))
        left, right = (ConsumedVersions(tuple(homes), None) for homes in versions)
        return left, right


def _of(rows: DataFrame, wanted: DataFrame) -> GroupedData:
    return rows.join(wanted, "_hash", "semi").groupBy("_hash")
