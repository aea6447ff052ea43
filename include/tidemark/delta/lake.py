"""Where tables are: the inputs of a pipeline, and the folder of its own tables under the lake root."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from delta import exceptions
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from tidemark.errors import InputError
from tidemark.spark.jvm import DeltaSnapshot

CONFLICTS = tuple(getattr(exceptions, name) for name in exceptions.__all__)
"""What Delta raises where another process has committed to the same table meanwhile; the classes share no base."""
DELETE_TRIES = 5
"""How often `delete` tries; one that was met by another delete of the same rows finds none at its second try."""


def lake_root(option: str | None = None) -> str:
    """The lake root: the option, else `TIDEMARK_LAKE`, else `./lake`; an absolute path or a URI."""
    root = option or os.environ.get("TIDEMARK_LAKE") or "lake"
    return root.rstrip("/") if "://" in root else str(Path(root).resolve())


def resolve_path(lake: str, name: str) -> str:
    """A path that a user gave: relative to the lake root, absolute, or a URI."""
    return name if "://" in name or name.startswith("/") else f"{lake}/{name}"


def read_now(spark: SparkSession, path: str) -> DataFrame:
    """A Delta table as it stands now; what is committed before the rows are asked for does not change them.

    Raises:
        AnalysisException: there is none.
    """
    return DeltaSnapshot.newest(spark, path).rows()


def files_in_log(spark: SparkSession, path: str) -> DataFrame:
    """The files of a Delta table now, as its log tells them: `path`, `partitionValues`, `size`, `stats` (JSON)."""
    return DeltaSnapshot.newest(spark, path).files()


def delete(spark: SparkSession, path: str, gone: Column) -> None:
    """Delete rows of a Delta table, again where another process has deleted some of them at the same time.

    Raises:
        CONFLICTS: at each of `DELETE_TRIES` another process was faster; nothing was deleted here.
    """
    for more_tries in reversed(range(DELETE_TRIES)):
        try:
            DeltaTable.forPath(spark, path).delete(gone)
        except CONFLICTS:
            if not more_tries:
                raise
        else:
            return


def compact(spark: SparkSession, path: str) -> None:
    """Make one file of a Delta table's many small ones; where another process writes at the same time, leave it."""
    with suppress(PySparkException, Py4JJavaError):
        DeltaTable.forPath(spark, path).optimize().executeCompaction()


@dataclass(frozen=True)
class DeltaInput:
    """An input table at its place; every read names a version."""

    spark: SparkSession
    name: str
    path: str
    pinned: int | None = field(default=None, kw_only=True)
    """The version to keep to; the newest when first asked by default."""

    lands_late: ClassVar[bool] = True
    """Whether rows may land behind the clock."""

    @classmethod
    def find(cls, spark: SparkSession, lake: str, name: str, version: int | None = None) -> DeltaInput:
        """Find the Delta table of that path under the lake root, or of that catalog name; `version` pins it.

        Raises:
            InputError: there is none, or it is not a Delta table.
        """
        path = resolve_path(lake, name)
        if DeltaTable.isDeltaTable(spark, path):
            return cls(spark, name, path, pinned=version)
        try:
            detail = spark.sql(f"DESCRIBE DETAIL {name}").first()
        except AnalysisException:
            detail = None
        if detail is None or detail["format"] != "delta":
            raise InputError(
                f"there is no Delta table {name}: neither at {path} nor in the catalog; "
                "check `table` in the pipeline file, or pass --lake"
            )
        return cls(spark, name, detail["location"], pinned=version)

    @cached_property
    def version(self) -> int:
        """The version that this object keeps to."""
        if self.pinned is not None:
            return self.pinned
        latest = DeltaTable.forPath(self.spark, self.path).history(1).select("version").first()
        assert latest is not None, "a Delta table has at least one version"
        return int(latest["version"])

    def read(self, version: int | None = None) -> DataFrame:
        """The table as it stood at a version, by default at `version`."""
        at = self.version if version is None else version
        return self.spark.read.format("delta").option("versionAsOf", at).load(self.path)

    @cached_property
    def bytes_per_row(self) -> float:
        """The average size of a row in the table's files, 0 for an empty table."""
        detail = DeltaTable.forPath(self.spark, self.path).detail().select("sizeInBytes").first()
        rows = self.read().count()  # answered by the log
        return float(detail["sizeInBytes"]) / rows if detail and rows else 0.0

    @cached_property
    def schema(self) -> T.StructType:
        """The table's columns at `version`."""
        return self.read().schema


@dataclass(frozen=True)
class PipelineTables:
    """The folder of one pipeline's own tables: emissions, late, checkpoint, ledger, agreement, the gate's papers."""

    root: str

    @property
    def emissions(self) -> str:
        """Output rows."""
        return f"{self.root}/emissions"

    @property
    def late(self) -> str:
        """Late and rejected rows."""
        return f"{self.root}/late"

    @property
    def checkpoint(self) -> str:
        """Rows carried from slice to slice."""
        return f"{self.root}/checkpoint"

    @property
    def ledger(self) -> str:
        """One row per committed slice run."""
        return f"{self.root}/ledger"

    @property
    def agreement(self) -> str:
        """How far slices agree with what streams wrote."""
        return f"{self.root}/agreement"

    @property
    def twin(self) -> str:
        """The streaming twin's tables and checkpoint."""
        return f"{self.root}/twin"

    @property
    def rejected_output(self) -> str:
        """Output that the quality gate refused."""
        return f"{self.root}/rejected_output"

    @property
    def quality(self) -> str:
        """Great Expectations' results and Data Docs."""
        return f"{self.root}/quality"
