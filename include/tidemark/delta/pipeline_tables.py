"""Where tables are: the inputs of a pipeline, and the folder of its own tables under the lake root."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import ClassVar

from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.candidate_version import DROPPED, called
from tidemark.delta.filesystem import is_file
from tidemark.delta.paths import is_within, place
from tidemark.delta.staging import read_files
from tidemark.delta.store_capabilities import check_store
from tidemark.delta.table import DeltaLog, file_name
from tidemark.errors import InputError, PlaceError, UserError
from tidemark.formatting import quoted
from tidemark.spark.dataframe_utils import of_file
from tidemark.spark.engine import engine_of
from tidemark.spark.lazy_session import awake


def read_now(spark: SparkSession, path: str) -> DataFrame:
    """A Delta table as it stands now; what is committed before the rows are asked for does not change them.

    Raises:
        AnalysisException: there is none.
    """
    log = _log_of(path)
    bare = bare_rows(spark, log) if log else None
    return engine_of(spark).newest(path).rows() if bare is None else bare


_CATALOG_NAME = re.compile(r"[\w-]+(\.[\w-]+){0,2}")


def _in_catalog(spark: SparkSession, name: str) -> Row | None:
    """What a catalog says of the table of that name, None where there is none.

    Raises:
        InputError: it is a view.
    """
    if not _CATALOG_NAME.fullmatch(name):
        return None
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {'.'.join(map(quoted, name.split('.')))}").first()
    except AnalysisException as error:
        if str(error.getCondition()).startswith("EXPECT_TABLE_NOT_VIEW"):
            raise InputError(
                f"{name} is a view of the catalog, which has no versions to tell rows that landed from those that were "
                "read; name the Delta table behind it, or write its rows to one"
            ) from None
        return None
    # A path has no name: Spark would take `delta.x` for one.
    return detail if detail and detail["name"] else None


MOST_FILES = 1000
"""Of more, Spark would ask the storage one by one, where Delta's log tells."""


def _log_of(path: str, version: int | None = None) -> DeltaLog | None:
    """A table's log; None where there is none that delta-rs reads."""
    try:
        return DeltaLog.open(path, version)
    except DeltaError:
        return None


def bare_rows(spark: SparkSession, log: DeltaLog, paths: Collection[str] | None = None) -> DataFrame | None:
    """The rows of a table, or of some of its files, where files are all that there is to it and they are few.

    Spark then reads them without the table's log, which takes it seconds the first time.
    """
    chosen = log.files["path"] if paths is None else paths
    if not log.is_bare or len(chosen) > MOST_FILES:
        return None
    return read_files(awake(spark), log.path, log.schema, chosen)


@dataclass(frozen=True)
class DeltaInput:
    """An input table at its place; every read names a version.

    What the log says is asked of delta-rs, and of Spark where the table has something that delta-rs does not read.
    """

    spark: SparkSession
    name: str
    path: str
    pinned: int | None = field(default=None, kw_only=True)
    """The version to keep to; the newest when first asked by default."""
    lake: str | None = field(default=None, kw_only=True)
    """The lake root to whose bounds its files are held; None for a table of the catalog, which is the operator's."""

    lands_late: ClassVar[bool] = True
    """Whether rows may land behind the clock."""

    @classmethod
    def find(cls, spark: SparkSession, lake: str, name: str, version: int | None = None) -> DeltaInput:
        """Find the Delta table of that path under the lake root, or of that catalog name; `version` pins it.

        Raises:
            InputError: there is none, or it is not a Delta table.
            PlaceError: the path lies where the operator allows none.
        """
        path = place(lake, name)
        try:
            there = DeltaLog.open(path) is not None
        except DeltaError:
            there = True
        if there:
            found = cls(spark, name, path, pinned=version, lake=lake)
            found._confine(found.log)
            return found
        detail = _in_catalog(spark, name)
        if detail is None or detail["format"] != "delta":
            raise InputError(
                f"there is no Delta table {name}: neither at {path} nor in the catalog; "
                "check `table` in the pipeline file, or pass --lake"
            )
        return cls(spark, name, detail["location"].removeprefix("file:"), pinned=version)

    def _confine(self, log: DeltaLog | None) -> None:
        """See that the files of a version lie where tables may: who writes the log may name any file.

        Raises:
            PlaceError: a file lies where the operator allows none.
        """
        if self.lake is None or log is None:
            return
        for file in log.elsewhere:
            is_absolute = file.startswith("/") or ":" in file.partition("/")[0]
            try:
                place(self.lake, file if is_absolute else f"{self.path}/{file}")
            except PlaceError as error:
                raise PlaceError(f"input {self.name} has a file elsewhere: {error}") from None

    @cached_property
    def log(self) -> DeltaLog | None:
        """The table at `version`, as its log tells it; None where delta-rs does not read that."""
        return _log_of(self.path, self.pinned)

    @cached_property
    def version(self) -> int:
        """The version that this object keeps to."""
        if self.pinned is not None:
            return self.pinned
        return self.log.version if self.log else engine_of(self.spark).newest(self.path).version

    @cached_property
    def paths(self) -> list[str]:
        """The paths of its files at `version`."""
        return list(self.log.files["path"]) if self.log else self.read().inputFiles()

    def read(self, version: int | None = None, paths: Collection[str] | None = None) -> DataFrame:
        """The table as it stood at a version, by default at `version`; `paths` are files with all rows that matter.

        Raises:
            PlaceError: that version has a file where the operator allows none.
        """
        at = self.version if version is None else version
        log = self._log_at(at)
        bare = bare_rows(self.spark, log, paths) if log else None
        if bare is not None:
            return bare
        return self._by_spark(at)

    def _by_spark(self, version: int) -> DataFrame:
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.path)

    def of_files(self, names: Collection[str], version: int | None = None) -> DataFrame:
        """The rows of the files of these names, as they stood at a version, by default at `version`."""
        at = self.version if version is None else version
        if log := self._log_at(at):
            chosen = [path for path in log.files["path"] if file_name(path) in names]
            if (bare := bare_rows(self.spark, log, chosen)) is not None:
                return bare
        rows = self._by_spark(at)
        return rows.where(of_file(rows, "file_name").isin(list(names)))

    def _log_at(self, version: int) -> DeltaLog | None:
        if self.log is None or self.log.version == version:
            return self.log
        log = _log_of(self.path, version)
        self._confine(log)
        return log

    def columns_at(self, version: int) -> list[str] | None:
        """The names of its columns at a version; None where its log does not tell without Spark."""
        log = self._log_at(version)
        return log.schema.names if log else None

    @cached_property
    def bytes_per_row(self) -> float:
        """The average size of a row in the table's files, 0 for an empty table."""
        detail = self.spark.sql(f"DESCRIBE DETAIL delta.{quoted(self.path)}").first()
        rows = self.read().count()  # answered by the log
        return float(detail["sizeInBytes"]) / rows if detail and rows else 0.0

    @cached_property
    def schema(self) -> T.StructType:
        """The table's columns at `version`."""
        return self.log.schema if self.log else self.read().schema


_UNWRITABLE = re.compile(r"[][^|\\]|%[0-9A-Fa-f]{2}")
"""What delta-rs 1.6 takes for part of an address, or decodes, where a table is made or appended to."""


@dataclass(frozen=True)
class PipelineTables:
    """The folder of one pipeline's own tables, and of the gate's papers."""

    root: str

    @classmethod
    def of(cls, pipeline: Pipeline, lake: str) -> PipelineTables:
        """The tables of a pipeline in a lake.

        Raises:
            PlaceError: its `output` lies where the operator allows none, or is or lies in a table.
            UserError: it is a shadow that is being dropped.
        """
        root = place(lake, pipeline.output)
        folders = [] if "://" in root else [Path(root), *Path(root).parents]
        for folder in folders:
            if (folder / "_delta_log").is_dir():
                raise PlaceError(f"output {pipeline.output} is or lies in the table {folder}; name a folder of its own")
        if is_within(lake, root):
            raise PlaceError(f"output {pipeline.output} has the lake root in it; name a folder under {lake}")
        if (shadow := called(pipeline)) != pipeline.name and is_file(root, DROPPED):
            raise UserError(
                f"{shadow}: that shadow was being dropped; tidemark shadows {pipeline.name} --drop "
                f"{PurePosixPath(root).name} goes on with it"
            )
        return cls(root)

    def check(self) -> None:
        """See that delta-rs can write at this place, and that two processes that do are kept apart.

        Raises:
            PlaceError: it takes a part of the path for something else, which is named; or nothing keeps them apart.
        """
        check_store(self.root)
        if (odd := _UNWRITABLE.search(self.root)) is not None:
            raise PlaceError(
                f"tables cannot be written to {self.root}: a path with {odd[0]} is misread on the way; let `output` "
                "and the lake root be without it"
            )

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
    def refused(self) -> str:
        """What the expectations came to that it was refused for."""
        return f"{self.root}/refused"

    @property
    def quarantined(self) -> str:
        """Output rows that break an expectation, kept apart from those that are published."""
        return f"{self.root}/quarantined"

    @property
    def waivers(self) -> str:
        """Expectations that somebody lets a slice through for."""
        return f"{self.root}/waivers"

    @property
    def quality(self) -> str:
        """What each expectation came to in each slice."""
        return f"{self.root}/quality"

    @property
    def papers(self) -> str:
        """Great Expectations' results and Data Docs."""
        return f"{self.root}/gx"
