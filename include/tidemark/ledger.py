"""The ledger: one row per committed slice run. A slice counts only when its ledger row says so."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.errors import SliceOrderError, UserError
from tidemark.lake import PipelineTables
from tidemark.slices import Grid
from tidemark.watermarks import Source, Watermarks

FORMAT = 1
"""Version of the ledger's and the checkpoint's layout; an unknown one is refused."""

_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
_COUNTS = "struct<read long, carried_in long, late long, rejected long, evicted long, carried_out long>"
MARKS = {
    "left": "left_watermark",
    "right": "right_watermark",
    "batch": "batch_watermark",
    "advanced": "advanced_watermark",
    "left_swept": "left_swept",
    "right_swept": "right_swept",
}
"""The ledger's names, in ms, of the fields of `Watermarks`; null where they are not known."""
_MARKS = ", ".join(f"{name}_ms long" for name in MARKS.values())
_SOURCES = "array<struct<side string, partition string, watermark long, last long>>"
SCHEMA = f"""
    slice timestamp, slice_end timestamp, run string, attempt int, committed_at timestamp, format int, settings string,
    left_version long, right_version long, {_MARKS}, sources {_SOURCES}, drained boolean, emissions long,
    floored long, left {_COUNTS}, right {_COUNTS}, quality string, findings string, job_slices long, job_seconds double
"""


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
        """With what is left over as evicted."""
        return cls(read, carried_in, late, rejected, read + carried_in - late - rejected - carried_out, carried_out)


@dataclass(frozen=True)
class Entry:
    """A committed slice run, as the next slice needs it."""

    number: int
    run: str
    attempt: int
    settings: dict[str, Any]
    versions: tuple[int, int]
    """Versions of the left and right input that the slice read."""
    watermarks: Watermarks
    """At the slice's end."""
    carried: tuple[int, int]
    """How many left and right rows are in its checkpoint."""
    drained: bool


@dataclass(frozen=True)
class Ledger:
    """The ledger of one pipeline, as it stood when read."""

    spark: SparkSession
    tables: PipelineTables
    grid: Grid

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The newest attempt of each slice, in order, with the slice's `number`.

        Raises:
            UserError: written by a later version of Tidemark.
        """
        if not DeltaTable.isDeltaTable(self.spark, self.tables.ledger):
            return pd.DataFrame({"number": pd.Series(dtype="int64")})
        stored = self.spark.read.format("delta").load(self.tables.ledger)
        micros = F.unix_micros("slice") - F.lit(self.grid.start)
        found: pd.DataFrame = stored.withColumn("number", (micros / F.lit(self.grid.every)).cast("long")).toPandas()
        newest = found["format"].max()
        if len(found) and newest > FORMAT:
            raise UserError(
                f"{self.tables.ledger} has format {newest} and this version reads up to {FORMAT}; upgrade Tidemark"
            )
        found = found.sort_values(["number", "attempt"]).drop_duplicates("number", keep="last")
        return found.reset_index(drop=True)

    @property
    def last(self) -> Entry | None:
        """The last committed slice."""
        return None if self.rows.empty else self.entry(int(self.rows["number"].iloc[-1]))

    def entry(self, number: int) -> Entry | None:
        """The committed run of a slice, None where there is none."""
        rows = self.rows[self.rows["number"] == number]
        if rows.empty:
            return None
        row = rows.iloc[0]
        marks = {field: row.get(f"{name}_ms") for field, name in MARKS.items()}
        known: dict[str, Any] = {field: int(mark) for field, mark in marks.items() if not pd.isna(mark)}
        return Entry(
            number,
            row["run"],
            int(row["attempt"]),
            json.loads(row["settings"]),
            (int(row["left_version"]), int(row["right_version"])),
            replace(Watermarks(sources=_sources(row)), **known),
            (row["left"]["carried_out"], row["right"]["carried_out"]),
            bool(row["drained"]),
        )

    def commit(self, job: str, entries: list[dict[str, Any]]) -> None:
        """Append the rows of one job's slices in one Delta commit: they count from then on, all or none.

        A job starts where the ledger ends, so two processes that would commit the same slice run the same job, and
        Delta takes one transaction of a job: of two, one is dropped.

        Raises:
            SliceOrderError: another process committed this job meanwhile.
        """
        rows = self.spark.createDataFrame(pa.Table.from_pylist(entries), SCHEMA).coalesce(1)
        self.spark.conf.unset(_LAST_COMMIT)
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        try:
            writer.options(txnAppId=f"tidemark {job}", txnVersion=1).save(self.tables.ledger)
            taken = self.spark.conf.get(_LAST_COMMIT, None) is None
        except PySparkException as error:
            taken = "DELTA_CONCURRENT" in (error.getCondition() or "")
            if not taken:
                raise
        if taken:
            raise SliceOrderError(
                f"slice {entries[0]['slice']:%Y-%m-%dT%H:%MZ} was committed by another process meanwhile; "
                "this one published nothing: run again to continue after it"
            )


def committed(spark: SparkSession, tables: PipelineTables, path: str) -> DataFrame:
    """The rows of emissions or late that belong to committed slices: what readers should see."""
    runs = spark.read.format("delta").load(tables.ledger)
    newest = runs.groupBy("slice").agg(F.max_by("run", "attempt").alias("_run"))
    rows = spark.read.format("delta").load(path)
    return rows.join(F.broadcast(newest.withColumnRenamed("slice", "_slice")), ["_slice", "_run"], "semi")


def _sources(row: pd.Series) -> tuple[Source, ...]:
    stored = row.get("sources")
    return () if stored is None else tuple(Source(**one.asDict()) for one in stored)
