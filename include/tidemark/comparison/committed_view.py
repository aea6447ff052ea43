"""Read what a pipeline has committed, and label input rows with what happened to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, reduce
from itertools import pairwise

from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.chain_files import load_upstreams
from tidemark.config.expressions import find_copied_columns
from tidemark.config.sides import SIDES, SideName
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.delta.table_reader import read_newest
from tidemark.errors import SliceOrderError
from tidemark.execution.replay import LOSS_REASONS
from tidemark.joins.join_type import SEMI_ANTI_TYPES
from tidemark.ledger.adoption import find_adoption
from tidemark.ledger.checkpoint_files import read_buffered_rows
from tidemark.ledger.committed_snapshot import read_committed_rows
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.row_content import content_hash
from tidemark.ledger.staleness import ConsumedVersions
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import StoredInput
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.row_status import FILTERED, is_filtered

_LATENESS = ("reason string", "watermark long", "lateness_ms long", "limiting_side string")
_LOSSES = "losses array<struct<reason: string, window_start: long>>"
_LABEL_FIELDS = ("clock long", "event_time long", *_LATENESS, _LOSSES, "late_arriving boolean", "buffered boolean")
ROW_LABEL = f"struct<{', '.join(_LABEL_FIELDS)}>"
"""Type of an input row's label. `clock` and `event_time` are in microseconds UTC. The lateness fields of late and
rejected rows are from table `late` (watermark in ms); `reason` may also be the filter `where`. `losses`: the
`LOSS_REASONS` for which the output lacks the row, each with the start of the window (microseconds UTC, null without
one). `late_arriving`: the row arrived after its slice was committed. `buffered`: it is in the buffers at the end of the
last slice."""


@dataclass(frozen=True)
class CommittedView:
    """A pipeline's committed slices, and its inputs as they are now."""

    spark: SparkSession
    pipeline: Pipeline
    lake: str
    grid: Grid
    tables: PipelineTables
    inputs: tuple[StoredInput, StoredInput]
    ledger: Ledger

    @classmethod
    def read(cls, spark: SparkSession, pipeline: Pipeline, lake: str) -> CommittedView:
        """Read a pipeline's ledger and open its inputs.

        Raises:
            SliceOrderError: Nothing is committed.
            InputError: An input is missing or unusable.
        """
        ledger = Ledger.from_pipeline(pipeline, lake)
        if not ledger.last:
            command = f"tidemark run {format_cli_arguments(pipeline)}"
            raise SliceOrderError(f"{pipeline.name} has no committed slice. Run {command} first.")
        return cls(spark, pipeline, lake, ledger.grid, ledger.tables, open_inputs(spark, pipeline, lake), ledger)

    @cached_property
    def upstreams(self) -> dict[SideName, CommittedView]:
        """Views of the pipelines whose output the inputs are."""
        upstreams = load_upstreams(self.pipeline)
        return {side: CommittedView.read(self.spark, upstream, self.lake) for side, upstream in upstreams.items()}

    @property
    def last(self) -> Entry:
        """The last committed slice."""
        assert self.ledger.last, "checked by read"
        return self.ledger.last

    @property
    def end(self) -> int:
        """Number of the slice after the last committed one."""
        return self.last.number + 1

    @property
    def first_published(self) -> int:
        """First slice whose output is the pipeline's own: the first one that is committed and not adopted."""
        adoption = find_adoption(self.ledger.entries)
        return adoption.end if adoption else next(iter(self.ledger.entries))

    @property
    def skipped_slices(self) -> list[range]:
        """Slices between committed ones that `run --from-empty-state` has skipped."""
        return [range(before + 1, after) for before, after in pairwise(self.ledger.entries) if after > before + 1]

    @property
    def chains(self) -> list[range]:
        """Ranges of consecutive committed slices. The first slice of each began from empty state."""
        skipped = self.skipped_slices
        starts = [next(iter(self.ledger.entries)), *(slices.stop for slices in skipped)]
        ends = [*(slices.start for slices in skipped), self.end]
        return list(map(range, starts, ends))

    def is_comparable(self, slice_start: Column) -> Column:
        """Return True unless a slice has no output of the pipeline's own: adopted, skipped and earlier slices.

        Slices that are not due yet, and unknown ones (null), are comparable.
        """
        datetime_of = self.grid.datetime_of
        is_comparable = slice_start >= F.lit(datetime_of(self.first_published))
        for skipped in self.skipped_slices:
            start, end = F.lit(datetime_of(skipped.start)), F.lit(datetime_of(skipped.stop))
            is_comparable &= (slice_start < start) | (slice_start >= end)
        return F.coalesce(is_comparable, F.lit(True))

    @property
    def has_hidden_firings(self) -> bool:
        """True if the engine fires windows more often than the emissions show."""
        join = self.pipeline.join
        return join.window is not None and join.emit == "latest" and join.allowed_lateness > timedelta()

    def read_emissions(self) -> DataFrame:
        """Read the emissions of the slices that were committed when the view was read, as stored."""
        rows = read_committed_rows(self.spark, self.ledger, "emissions")
        return rows.where(F.col("_slice") < F.lit(self.grid.datetime_of(self.end)))

    def read_quarantined(self) -> DataFrame | None:
        """Read the emissions in quarantine, with `EXPECTATIONS`; None if there never were any."""
        if DeltaTableHandle.open(self.tables.quarantined) is None:
            return None
        return read_newest(self.spark, self.tables.quarantined)

    def map_columns(self, side: SideName) -> dict[str, str]:
        """Map names in the emissions to an input's columns. `select` or `explode` may leave columns out."""
        if (side == "right" and self.pipeline.join.type in SEMI_ANTI_TYPES) or self.pipeline.join.api == "cogroup":
            return {}
        source = self.inputs[SIDES.index(side)].side.emitted_columns
        if self.pipeline.explode is not None:
            copied = find_copied_columns(self.pipeline.explode)
            return {name: source[column] for name, column in copied.items() if column in source}
        match self.pipeline.select:
            case None:
                return source
            case list(names):
                return {name: source[name] for name in names if name in source}
            case expressions:
                bare = {name: expression.strip().strip("`") for name, expression in expressions.items()}
                return {name: source[column] for name, column in bare.items() if column in source}

    def label_rows(self, side: SideName, columns: list[str], hashes: DataFrame) -> DataFrame:
        """Return the `label` (`ROW_LABEL`) of input rows by `_hash`, their hash over `columns`.

        Hashes that the input does not contain are missing. Of rows with equal hashes the first to arrive counts.

        Args:
            hashes: The rows to label, as column `_hash`.
        """
        source = self.inputs[SIDES.index(side)]
        rows = source.side.normalize_all(source.table.read(), self.grid, self.grid.start)
        filtered = F.when(is_filtered(), FILTERED).alias("filtered")
        event_time = (F.col("event_time") * self.pipeline.tick_micros).alias("event_time")
        times = _hash_side(rows, side, columns, ["clock", event_time, filtered])
        first = (F.min(name).alias(name) for name in ("clock", "event_time", "filtered"))
        labels = _group(times, hashes).agg(*first)
        for find_rows in (self._find_late, self._find_late_arriving, self._find_buffered):
            labels = labels.join(find_rows(side, columns, hashes), "_hash", "left")
        labels = labels.withColumn("reason", F.coalesce("reason", "filtered"))
        return labels.select("_hash", F.struct(*(field.split()[0] for field in _LABEL_FIELDS)).alias("label"))

    def _find_late(self, side: SideName, columns: list[str], hashes: DataFrame) -> DataFrame:
        """Return the lateness and the losses of rows of the side output.

        Of several windows the one with the greatest lateness counts.
        """
        late = read_committed_rows(self.spark, self.ledger, "late").where(F.col("side") == side)
        names = [field.split()[0] for field in _LATENESS]
        window_start = F.unix_micros(F.col("window_start").cast("timestamp"))
        late = late.withColumns({"watermark": F.unix_millis("watermark"), "window_start": window_start})
        hashed = _hash_side(late, side, columns, [*names, "window_start"])
        is_lost = F.col("reason").isin(*LOSS_REASONS)
        lateness = F.when(~is_lost, F.coalesce("lateness_ms", F.lit(-(2**63))))
        losses = F.collect_set(F.when(is_lost, F.struct("reason", "window_start")))
        return _group(hashed, hashes).agg(
            *(F.max_by(name, lateness).alias(name) for name in names), losses.alias("losses")
        )

    def _find_late_arriving(self, side: SideName, columns: list[str], hashes: DataFrame) -> DataFrame:
        number = SIDES.index(side)
        changes = self.inputs[number].changes
        arrivals = changes.read_late_arriving_rows(self.grid, self.end, self._own_versions[number])
        none = self.spark.createDataFrame([], "_hash long")
        hashed = (rows.select(content_hash(rows, columns).alias("_hash")) for rows in arrivals)
        return _group(reduce(DataFrame.unionByName, hashed, none), hashes).agg(F.lit(True).alias("late_arriving"))

    def _find_buffered(self, side: SideName, columns: list[str], hashes: DataFrame) -> DataFrame:
        if not any(self.last.carried):
            return self.spark.createDataFrame([], "_hash long, buffered boolean")
        buffers = read_buffered_rows(self.spark, self.tables, self.last.number, self.grid).where(F.col("side") == side)
        rows = buffers.select(f"{side}.*")
        hashed = rows.select(content_hash(rows, columns).alias("_hash"))
        return _group(hashed, hashes).agg(F.lit(True).alias("buffered"))

    @cached_property
    def _own_versions(self) -> tuple[ConsumedVersions, ConsumedVersions]:
        """For each input the version that each slice read when it ran, without what later slices read of it."""
        versions: tuple[list[tuple[int | None, int]], ...] = ([], [])
        for number, entry in self.ledger.entries.items():
            for changes, version in zip(versions, entry.versions, strict=True):
                if not changes or changes[-1][1] != version:
                    changes.append((number if changes else None, version))
        left, right = (ConsumedVersions(tuple(changes), None) for changes in versions)
        return left, right


def _hash_side(rows: DataFrame, side: SideName, columns: list[str], extra_columns: Sequence[Column | str]) -> DataFrame:
    """Select the hash of one side's columns as `_hash`, with extra columns of the rows."""
    # In a struct, as an input may have columns of the same names.
    wide = rows.select(F.struct(*extra_columns).alias("_extra"), f"{side}.*")
    return wide.select(content_hash(wide, columns).alias("_hash"), "_extra.*")


def _group(rows: DataFrame, hashes: DataFrame) -> GroupedData:
    """Group the rows with one of the hashes by `_hash`."""
    return rows.join(hashes, "_hash", "semi").groupBy("_hash")
