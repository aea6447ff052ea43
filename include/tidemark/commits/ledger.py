"""The ledger: one row per committed slice run. A slice counts only when its ledger row says so.

It is a sequence of commits, each numbered one above those that its process knew of: who does not know the last one
cannot commit.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from functools import cache
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.clock.slices import Grid
from tidemark.delta.lake import CONFLICTS, PipelineTables, compact, read_now
from tidemark.errors import SliceOrderError, UserError
from tidemark.settings import Pipeline
from tidemark.settings.values import micros
from tidemark.spark.tuning import tuned_for_tiny_queries
from tidemark.watermarks.buckets import NO_WATERMARK, Source, Watermarks

FORMAT = 2
"""Version of the ledger's and the checkpoint's layout; an unknown one is refused."""

COMPACT_EVERY = 100
"""After so many commits their files, of a few rows each, become one: each plan reads them all."""
LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
"""Where Delta tells the version that the session wrote last."""
_COUNTS = "struct<read long, carried_in long, late long, rejected long, evicted long, carried_out long>"
MARKS = {
    "left": "left_watermark",
    "right": "right_watermark",
    "batch": "batch_watermark",
    "advanced": "advanced_watermark",
    "left_last_cleanup": "left_swept",
    "right_last_cleanup": "right_swept",
}
"""The ledger's names, in ms, of the fields of `Watermarks`; null where they are not known."""
_MARKS = ", ".join(f"{name}_ms long" for name in MARKS.values())
_SOURCES = "array<struct<side string, partition string, watermark long, last long>>"
SCHEMA = f"""
    slice timestamp, slice_end timestamp, run string, attempt int, committed_at timestamp, format int, settings string,
    left_version long, right_version long, {_MARKS}, sources {_SOURCES}, drained boolean, emissions long,
    floored long, left {_COUNTS}, right {_COUNTS}, quality string, findings string, job_slices long, job_seconds double,
    commit long, digest string, carried_in_digest string, landing string, landed long, landed_from timestamp,
    waiting array<timestamp>
"""
Landing = Literal["append", "reprocess", "start"]


@dataclass(frozen=True)
class Counts:
    """One input's rows in one slice: read + carried_in = late + rejected + evicted + carried_out."""

    read: int
    carried_in: int
    late: int
    rejected: int
    evicted: int
    carried_out: int

    @classmethod
    def of(cls, read: int, carried_in: int, late: int, rejected: int, carried_out: int) -> Counts:
        """The counts, with what is left over as evicted."""
        return cls(read, carried_in, late, rejected, read + carried_in - late - rejected - carried_out, carried_out)


@dataclass(frozen=True)
class Entry:
    """A committed slice run, as other slices need it."""

    number: int
    run: str
    attempt: int
    commit: int
    """Number of the ledger's commit; 0 in ledgers of format 1, which did not count."""
    settings: str
    """`Pipeline.semantic_settings`, JSON."""
    versions: tuple[int, int]
    """Versions of the left and right input that the slice read."""
    watermarks: Watermarks
    """The watermarks at the slice's end."""
    read: tuple[int, int]
    """How many left and right rows it read."""
    carried: tuple[int, int]
    """How many left and right rows are in its checkpoint."""
    drained: bool
    digest: str | None = None
    """The digest of its checkpoint; None in format 1."""
    carried_in_digest: str | None = None
    """The digest of the checkpoint that it continued, None for empty state."""
    landing: Landing = "append"
    """What its job did with rows of earlier slices that had landed since: took them, left them to `reprocess`, or left
    them out for good, having started from empty state."""
    landed: int | None = None
    """How many rows of earlier slices, or of none, it took; None where it is not the first slice of its job."""
    landed_from: int | None = None
    """The earliest slice that those rows belong to; 0 for rows without a usable clock."""
    waiting: tuple[int, ...] | None = None
    """Under `reprocess`: slices that rows had landed for when its job was planned, and not been taken."""

    @property
    def takes_all(self) -> bool:
        """Whether no row of an earlier slice that was in the inputs then is left for a later slice."""
        return self.landed is not None and self.landing != "reprocess"


@dataclass(frozen=True)
class Ledger:
    """The ledger of one pipeline, as it stood when read, or as it stands after further commits."""

    spark: SparkSession
    tables: PipelineTables
    grid: Grid
    rows: pd.DataFrame = field(repr=False, compare=False)
    """The newest attempt of each slice, in order, as stored when the ledger was read."""
    entries: dict[int, Entry]
    """The newest attempt of each slice, by its number, in order."""
    runs: frozenset[str]
    """Every run that has been committed, of whatever attempt."""
    number: int
    """The number of the last commit, 0 before the first."""

    @classmethod
    def of(cls, spark: SparkSession, pipeline: Pipeline, lake: str) -> Ledger:
        """The ledger of a pipeline in a lake, as `read`."""
        return cls.read(spark, PipelineTables(f"{lake}/{pipeline.output}"), Grid.of(pipeline.slices))

    @classmethod
    def read(cls, spark: SparkSession, tables: PipelineTables, grid: Grid) -> Ledger:
        """The ledger as it stands now; empty where there is none.

        Raises:
            UserError: written by a later version of Tidemark.
        """
        if not DeltaTable.isDeltaTable(spark, tables.ledger):
            return cls(spark, tables, grid, pd.DataFrame({"number": pd.Series(dtype="int64")}), {}, frozenset(), 0)
        with tuned_for_tiny_queries(spark):
            stored = _numbered(read_now(spark, tables.ledger), grid).toPandas()
        newest = stored["format"].max()
        if len(stored) and newest > FORMAT:
            raise UserError(
                f"{tables.ledger} has format {newest} and this version reads up to {FORMAT}; upgrade Tidemark"
            )
        stored = _from_format_1(stored.sort_values(["number", "attempt"]))
        rows = stored.drop_duplicates("number", keep="last").reset_index(drop=True)
        entries = {int(row["number"]): _entry(row) for row in rows.to_dict("records")}
        return cls(
            spark,
            tables,
            grid,
            rows,
            entries,
            frozenset(stored["run"]),
            int(stored["commit"].max() if len(stored) else 0),
        )

    @property
    def last(self) -> Entry | None:
        """The last committed slice."""
        return next(reversed(self.entries.values()), None)

    def entry(self, number: int) -> Entry | None:
        """The newest committed run of a slice, None where there is none."""
        return self.entries.get(number)

    def after(self, entries: Iterable[Entry]) -> Ledger:
        """The ledger once these are committed too."""
        added = {entry.number: entry for entry in entries}
        runs = self.runs | {entry.run for entry in added.values()}
        number = max([self.number, *(entry.commit for entry in added.values())])
        return replace(self, entries=dict(sorted({**self.entries, **added}.items())), runs=runs, number=number)

    def row(self, entry: Entry) -> dict[str, Any]:
        """The columns of the ledger that an entry tells, for `commit`."""
        plain = {f.name: getattr(entry, f.name) for f in fields(entry) if f.name not in _NOT_COLUMNS}
        marks = {f"{name}_ms": _known(getattr(entry.watermarks, part)) for part, name in MARKS.items()}
        earliest, waiting = entry.landed_from, entry.waiting
        return {
            "slice": self.grid.datetime_of(entry.number),
            "slice_end": self.grid.datetime_of(entry.number + 1),
            "format": FORMAT,
            **plain,
            **marks,
            "sources": [asdict(one) for one in entry.watermarks.sources],
            "left_version": entry.versions[0],
            "right_version": entry.versions[1],
            "landed_from": None if earliest is None else self.grid.datetime_of(earliest),
            "waiting": None if waiting is None else [self.grid.datetime_of(number) for number in waiting],
        }

    def overtaken(self, first: int) -> SliceOrderError:
        """The error of a process that has looked before another one committed; `first` is its slice."""
        return SliceOrderError(
            f"another process has committed slices of {self.tables.root} since this one looked, so slice "
            f"{self.grid.name(first)} and those after it were not published; run the same command again"
        )

    def commit(self, rows: list[dict[str, Any]], number: int) -> None:
        """Append rows (`row`, and what else the ledger holds) as commit `number`: they count from then on, all or none.

        Every commit of a pipeline is a transaction of one Delta application, with its number as the version: Delta
        drops one that is not above the last.

        Raises:
            SliceOrderError: another process has committed since this ledger was read.
        """
        table = pa.Table.from_pylist(rows).select(_schema().fieldNames())
        frame = self.spark.createDataFrame(table, _schema()).coalesce(1)
        self.spark.conf.unset(LAST_COMMIT)
        writer = frame.write.format("delta").mode("append").option("mergeSchema", "true")
        try:
            with tuned_for_tiny_queries(self.spark):
                writer.options(txnAppId="tidemark", txnVersion=number).save(self.tables.ledger)
            overtaken = self.spark.conf.get(LAST_COMMIT, None) is None
        except CONFLICTS:
            overtaken = True
        if overtaken:
            raise self.overtaken(self.grid.number_at(micros(rows[0]["slice"])))
        if number % COMPACT_EVERY == 0:
            compact(self.spark, self.tables.ledger)


def committed(spark: SparkSession, tables: PipelineTables, path: str, as_of: datetime | int | None = None) -> DataFrame:
    """The rows of emissions or late that belong to committed slices, as they stand now: what readers should see.

    With `as_of`, a combined watermark (an instant, or ms since 1970 UTC), what they saw while it stood there: the
    slices at whose end it was at most that (inclusive), each in its newest attempt among the ledger's commits up to
    the one that took it further. What was reprocessed after that is left out.
    """
    attempts = _complete(read_now(spark, tables.ledger))
    if as_of is not None:
        attempts = _standing(attempts, micros(as_of) // 1000 if isinstance(as_of, datetime) else as_of)
    newest = attempts.groupBy("slice").agg(F.max_by("run", "attempt").alias("_run"))
    rows = read_now(spark, path)
    return rows.join(F.broadcast(newest.withColumnRenamed("slice", "_slice")), ["_slice", "_run"], "semi")


def _standing(attempts: DataFrame, watermark: int) -> DataFrame:
    """The attempts that counted when the combined watermark stood at `watermark` ms; an unknown one is below all."""
    left, right = F.col("left_watermark_ms"), F.col("right_watermark_ms")
    both = F.when(left.isNotNull() & right.isNotNull(), F.least(left, right))
    beyond = F.coalesce(F.coalesce("batch_watermark_ms", "advanced_watermark_ms", both) > watermark, F.lit(False))
    commit = F.coalesce("commit", F.lit(0))
    passed = attempts.where(beyond).agg(F.min(commit)).first()
    standing = attempts.where(~beyond)
    return standing if passed is None or passed[0] is None else standing.where(commit <= passed[0])


_NOT_COLUMNS = {"number", "versions", "watermarks", "read", "carried", "landed_from", "waiting"}
settings_of = cache(json.loads)
"""`Entry.settings` as data; nearly all entries have the same."""


@cache
def _schema() -> StructType:
    return cast(StructType, StructType.fromDDL(SCHEMA))


def _complete(stored: DataFrame) -> DataFrame:
    """The ledger with every column of `SCHEMA`."""
    missing = [one for one in _schema() if one.name not in stored.columns]
    return stored.withColumns({one.name: F.lit(None).cast(one.dataType) for one in missing})


def _numbered(stored: DataFrame, grid: Grid) -> DataFrame:
    """The ledger with slices as numbers."""

    def number(time: Column) -> Column:
        return grid.number_column(F.unix_micros(time))

    return _complete(stored).withColumns(
        {
            "number": number(F.col("slice")),
            "landed_from": number(F.col("landed_from")),
            "waiting": F.transform("waiting", number),
        }
    )


def _from_format_1(stored: pd.DataFrame) -> pd.DataFrame:
    """Format 1 did not say what the first slice of each job did: it took all rows that had landed."""
    old = stored["commit"].isna()
    first = old & ~stored.duplicated("run")
    return stored.assign(
        commit=stored["commit"].fillna(0),
        landing=stored["landing"].where(~old, "append"),
        landed=stored["landed"].mask(first, 0),
    )


def _entry(row: Mapping[Hashable, Any]) -> Entry:
    def known(name: str) -> int | None:
        return None if pd.isna(row[name]) else int(row[name])

    def text_or_none(name: str) -> str | None:
        return None if pd.isna(row[name]) else str(row[name])

    marks = {part: known(f"{name}_ms") for part, name in MARKS.items()}
    known_marks: dict[str, Any] = {part: mark for part, mark in marks.items() if mark is not None}
    return Entry(
        number=int(row["number"]),
        run=row["run"],
        attempt=int(row["attempt"]),
        commit=int(row["commit"]),
        settings=row["settings"],
        versions=(int(row["left_version"]), int(row["right_version"])),
        watermarks=replace(Watermarks(sources=_sources(row["sources"])), **known_marks),
        read=(row["left"]["read"], row["right"]["read"]),
        carried=(row["left"]["carried_out"], row["right"]["carried_out"]),
        drained=bool(row["drained"]),
        digest=text_or_none("digest"),
        carried_in_digest=text_or_none("carried_in_digest"),
        landing=row["landing"],
        landed=known("landed"),
        landed_from=known("landed_from"),
        waiting=tuple(map(int, row["waiting"])) if np.iterable(row["waiting"]) else None,
    )


def _known(watermark: int | None) -> int | None:
    return None if watermark == NO_WATERMARK else watermark


def _sources(stored: Any) -> tuple[Source, ...]:
    return tuple(Source(**one.asDict()) for one in stored) if np.iterable(stored) else ()
