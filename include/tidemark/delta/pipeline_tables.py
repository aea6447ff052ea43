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
from tidemark.config.candidate_version import DROP_MARKER, cli_arguments
from tidemark.delta.filesystem import has_file
from tidemark.delta.paths import is_within, resolve_path
from tidemark.delta.staging import read_files
from tidemark.delta.store_capabilities import check_store
from tidemark.delta.table import DeltaTableHandle, get_file_name
from tidemark.errors import ForbiddenPathError, InputError, UserError
from tidemark.formatting import quote_identifier
from tidemark.spark.dataframe_utils import of_file
from tidemark.spark.engine import engine_of
from tidemark.spark.lazy_session import awake


def read_newest(spark: SparkSession, path: str) -> DataFrame:
    """A Delta table as it stands now; what is committed before the rows are asked for does not change them.

    Raises:
        AnalysisException: there is none.
    """
    table = _open_table(path)
    rows = read_plain_parquet(spark, table) if table else None
    return engine_of(spark).newest(path).rows() if rows is None else rows


_CATALOG_NAME = re.compile(r"[\w-]+(\.[\w-]+){0,2}")


def _describe_catalog_table(spark: SparkSession, name: str) -> Row | None:
    """What a catalog says of the table of that name, None where there is none.

    Raises:
        InputError: it is a view.
    """
    if not _CATALOG_NAME.fullmatch(name):
        return None
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {'.'.join(map(quote_identifier, name.split('.')))}").first()
    except AnalysisException as error:
        if str(error.getCondition()).startswith("EXPECT_TABLE_NOT_VIEW"):
            raise InputError(
                f"{name} is a view of the catalog, which has no versions to tell rows that landed from those that were "
                "read; name the Delta table behind it, or write its rows to one"
            ) from None
        return None
    # A path has no name: Spark would take the text after `delta.` for one.
    return detail if detail and detail["name"] else None


MAX_DIRECT_FILES = 1000
"""Of more, Spark would ask the storage one by one, where Delta's log tells."""


def _open_table(path: str, version: int | None = None) -> DeltaTableHandle | None:
    """A table's log; None where there is none that delta-rs reads."""
    try:
        return DeltaTableHandle.open(path, version)
    except DeltaError:
        return None


def read_plain_parquet(
    spark: SparkSession, table: DeltaTableHandle, paths: Collection[str] | None = None
) -> DataFrame | None:
    """The rows of a table, or of some of its files, where files are all that there is to it and they are few.

    Spark then reads them without the table's log, which takes it seconds the first time.
    """
    selected = table.files["path"] if paths is None else paths
    if not table.is_plain_parquet or len(selected) > MAX_DIRECT_FILES:
        return None
    return read_files(awake(spark), table.path, table.schema, selected)


@dataclass(frozen=True)
class DeltaInput:
    """An input table at its place; every read names a version.

    What the log says is asked of delta-rs, and of Spark where the table has something that delta-rs does not read.
    """

    spark: SparkSession
    name: str
    path: str
    pinned_version: int | None = field(default=None, kw_only=True)
    """The version to keep to; the newest when first asked by default."""
    lake: str | None = field(default=None, kw_only=True)
    """The lake root to whose bounds its files are held; None for a table of the catalog, which is the operator's."""

    can_have_late_arriving_rows: ClassVar[bool] = True
    """Whether rows may land behind the clock."""

    @classmethod
    def find(cls, spark: SparkSession, lake: str, name: str, version: int | None = None) -> DeltaInput:
        """Find the Delta table of that path under the lake root, or of that catalog name; `version` pins it.

        Raises:
            InputError: there is none, or it is not a Delta table.
            ForbiddenPathError: The operator does not allow the path.
        """
        path = resolve_path(lake, name)
        try:
            exists = DeltaTableHandle.open(path) is not None
        except DeltaError:
            exists = True
        if exists:
            input_table = cls(spark, name, path, pinned_version=version, lake=lake)
            input_table._check_file_locations(input_table.table)
            return input_table
        detail = _describe_catalog_table(spark, name)
        if detail is None or detail["format"] != "delta":
            raise InputError(
                f"there is no Delta table {name}: neither at {path} nor in the catalog; "
                "check `table` in the pipeline file, or pass --lake"
            )
        return cls(spark, name, detail["location"].removeprefix("file:"), pinned_version=version)

    def _check_file_locations(self, table: DeltaTableHandle | None) -> None:
        """See that the files of a version lie where tables may: who writes the log may name any file.

        Raises:
            ForbiddenPathError: The operator does not allow the path of a file.
        """
        if self.lake is None or table is None:
            return
        for file in table.external_files:
            is_absolute = file.startswith("/") or ":" in file.partition("/")[0]
            try:
                resolve_path(self.lake, file if is_absolute else f"{self.path}/{file}")
            except ForbiddenPathError as error:
                raise ForbiddenPathError(f"input {self.name} has a file elsewhere: {error}") from None

    @cached_property
    def table(self) -> DeltaTableHandle | None:
        """The table at `version`, as its log tells it; None where delta-rs does not read that."""
        return _open_table(self.path, self.pinned_version)

    @cached_property
    def version(self) -> int:
        """The version that this object keeps to."""
        if self.pinned_version is not None:
            return self.pinned_version
        return self.table.version if self.table else engine_of(self.spark).newest(self.path).version

    @cached_property
    def paths(self) -> list[str]:
        """The paths of its files at `version`."""
        return list(self.table.files["path"]) if self.table else self.read().inputFiles()

    def read(self, version: int | None = None, paths: Collection[str] | None = None) -> DataFrame:
        """The table as it stood at a version, by default at `version`; `paths` are files with all rows that matter.

        Raises:
            ForbiddenPathError: The operator does not allow the path of a file of this version.
        """
        at = self.version if version is None else version
        table = self._open_version(at)
        rows = read_plain_parquet(self.spark, table, paths) if table else None
        if rows is not None:
            return rows
        return self._read_with_spark(at)

    def _read_with_spark(self, version: int) -> DataFrame:
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.path)

    def read_files(self, names: Collection[str], version: int | None = None) -> DataFrame:
        """The rows of the files of these names, as they stood at a version, by default at `version`."""
        at = self.version if version is None else version
        if table := self._open_version(at):
            paths = [path for path in table.files["path"] if get_file_name(path) in names]
            if (direct_rows := read_plain_parquet(self.spark, table, paths)) is not None:
                return direct_rows
        rows = self._read_with_spark(at)
        return rows.where(of_file(rows, "file_name").isin(list(names)))

    def _open_version(self, version: int) -> DeltaTableHandle | None:
        if self.table is None or self.table.version == version:
            return self.table
        table = _open_table(self.path, version)
        self._check_file_locations(table)
        return table

    def get_columns_at(self, version: int) -> list[str] | None:
        """The names of its columns at a version; None where its log does not tell without Spark."""
        table = self._open_version(version)
        return table.schema.names if table else None

    @cached_property
    def bytes_per_row(self) -> float:
        """The average size of a row in the table's files, 0 for an empty table."""
        detail = self.spark.sql(f"DESCRIBE DETAIL delta.{quote_identifier(self.path)}").first()
        rows = self.read().count()  # answered by the log
        return float(detail["sizeInBytes"]) / rows if detail and rows else 0.0

    @cached_property
    def schema(self) -> T.StructType:
        """The table's columns at `version`."""
        return self.table.schema if self.table else self.read().schema


_MISREAD_BY_DELTA_RS = re.compile(r"[][^|\\]|%[0-9A-Fa-f]{2}")
"""What delta-rs 1.6 takes for part of an address, or decodes, where a table is made or appended to."""


@dataclass(frozen=True)
class PipelineTables:
    """The folder of one pipeline's own tables, and of the gate's papers."""

    root: str

    @classmethod
    def from_config(cls, pipeline: Pipeline, lake: str) -> PipelineTables:
        """The tables of a pipeline in a lake.

        Raises:
            ForbiddenPathError: The operator does not allow the path of `output`, or it is or lies in another table.
            UserError: It is a candidate version that is being deleted.
        """
        root = resolve_path(lake, pipeline.output)
        folders = [] if "://" in root else [Path(root), *Path(root).parents]
        for folder in folders:
            if (folder / "_delta_log").is_dir():
                raise ForbiddenPathError(
                    f"output {pipeline.output} is or lies in the table {folder}; name a folder of its own"
                )
        if is_within(lake, root):
            raise ForbiddenPathError(f"output {pipeline.output} has the lake root in it; name a folder under {lake}")
        if (candidate := cli_arguments(pipeline)) != pipeline.name and has_file(root, DROP_MARKER):
            raise UserError(
                f"{candidate}: that candidate is being deleted. Finish it with tidemark versions {pipeline.name} "
                f"--drop {PurePosixPath(root).name}."
            )
        return cls(root)

    def check_writable(self) -> None:
        """Check that delta-rs can write to this location, and that the store can prevent conflicting commits.

        Raises:
            ForbiddenPathError: The store changes a part of the path, or cannot prevent conflicting commits.
        """
        check_store(self.root)
        if (misread := _MISREAD_BY_DELTA_RS.search(self.root)) is not None:
            raise ForbiddenPathError(
                f"tables cannot be written to {self.root}: a path with {misread[0]} is misread on the way; let "
                "`output` and the lake root be without it"
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
    def live_query(self) -> str:
        """Folder of the live query: tables and checkpoint."""
        return f"{self.root}/live_query"

    @property
    def rejected_output(self) -> str:
        """Output that the quality gate refused."""
        return f"{self.root}/rejected_output"

    @property
    def rejection_results(self) -> str:
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
    def gx_folder(self) -> str:
        """Great Expectations' results and Data Docs."""
        return f"{self.root}/gx"
