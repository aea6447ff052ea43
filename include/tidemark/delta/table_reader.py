"""Find Delta tables, and read their rows with Spark."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar
from urllib.parse import quote, unquote

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from tidemark.delta.commit_history import is_outside_table, read_log_range
from tidemark.delta.missing_table import explain_missing_table
from tidemark.delta.paths import resolve_path
from tidemark.delta.staging import read_files
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import ForbiddenPathError, InputError
from tidemark.formatting import quote_identifier
from tidemark.spark.dataframe_utils import get_file_metadata
from tidemark.spark.engine import get_engine
from tidemark.spark.lazy_session import resolve_session
from tidemark.spark.void_types import drop_void_fields, list_void_paths


def read_newest(spark: SparkSession, path: str) -> DataFrame:
    """Read a Delta table's latest version. Commits before the rows are evaluated do not change them.

    Raises:
        AnalysisException: There is no Delta table at the path.
    """
    table = _open_table(path)
    rows = read_plain_parquet(spark, table) if table else None
    return get_engine(spark).load_latest_snapshot(path).read() if rows is None else rows


_CATALOG_NAME = re.compile(r"[\w-]+(\.[\w-]+){0,2}")


def _describe_catalog_table(spark: SparkSession, name: str) -> Row | None:
    """Return the `DESCRIBE DETAIL` of a catalog table; None if there is none.

    Raises:
        InputError: The name is that of a view.
    """
    if not _CATALOG_NAME.fullmatch(name):
        return None
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {'.'.join(map(quote_identifier, name.split('.')))}").first()
    except AnalysisException as error:
        if str(error.getCondition()).startswith("EXPECT_TABLE_NOT_VIEW"):
            raise InputError(
                f"{name} is a view of the catalog, which has no versions to identify late-arriving rows by. Name the "
                "Delta table that it reads, or write its rows to one."
            ) from None
        return None
    # Spark reads `delta.<path>` as the table at that path. Such a table has no name in the catalog.
    return detail if detail and detail["name"] else None


_UNESCAPED_CHARACTERS = "/-_.!~*'()@:&=+$,;"
"""ASCII characters that Java does not escape in the path of a URI, except letters and digits."""
MAX_DIRECT_FILES = 1000
"""Limit for reading files without the log, because Spark would request each file's status from the storage."""


def get_file_name(path: str) -> str:
    """Return the name of a file in its folder, by its decoded path."""
    return path.rsplit("/", 1)[-1]


def _is_escaped(char: str) -> bool:
    """Return True if Java may escape a character in the path of a URI: in ASCII, or a space or control character."""
    return char.isascii() or unicodedata.category(char) in {"Zs", "Zl", "Zp", "Cc"}


def _without_scheme(path: str) -> str:
    """Remove the scheme of a decoded path: one store may have several, such as s3 and s3a."""
    return re.sub(r"^[a-zA-Z][a-zA-Z0-9+.-]*:(?=/)/*", "/", path)


def _open_table(path: str, version: int | None = None) -> DeltaTableHandle | None:
    """Open a table, by default at its latest version; None if there is none that delta-rs can read."""
    try:
        return DeltaTableHandle.open(path, version)
    except DeltaError:
        return None


def read_plain_parquet(
    spark: SparkSession, table: DeltaTableHandle, paths: Collection[str] | None = None
) -> DataFrame | None:
    """Read a table's Parquet files without its log, which takes Spark seconds to load the first time.

    Args:
        spark: A session.
        table: The table.
        paths: Files to read. Default: all.

    Returns:
        None if the rows depend on more than the files (`is_plain_parquet`), or if there are too many files.
    """
    selected = table.files["path"] if paths is None else paths
    if not table.is_plain_parquet or len(selected) > MAX_DIRECT_FILES:
        return None
    return read_files(resolve_session(spark), table.path, table.schema, selected)


def _describe_path(spark: SparkSession, path: str) -> Row:
    """Return the `DESCRIBE DETAIL` of the table at a path, at its latest version."""
    [detail] = spark.sql(f"DESCRIBE DETAIL delta.{quote_identifier(path)}").collect()
    return detail


def _require_readable_log(spark: SparkSession, name: str, path: str, error: DeltaError) -> None:
    """Require that Spark can read the log of a table that delta-rs cannot read.

    Raises:
        InputError: It is damaged, or the path is no table.
    """
    try:
        _describe_path(spark, path)  # reads the whole log
    except (PySparkException, Py4JJavaError):
        [reason, *_] = [*str(error).splitlines(), ""]
        raise InputError(
            f"the Delta log of {name} at {path} cannot be read: {reason.rstrip('.')}. Restore its files, or name the "
            "folder of another table."
        ) from None


@dataclass(frozen=True)
class DeltaInput:
    """An input table, read at explicit versions.

    Metadata is read by delta-rs, or by Spark if the table has features that delta-rs does not support. Columns and
    fields without a type (VOID) are left out: a table has no values of them, and few readers can read files with them.
    """

    spark: SparkSession
    name: str
    path: str
    pinned_version: int | None = field(default=None, kw_only=True)
    """Version to read; None: the latest one at the first access."""
    lake: str | None = field(default=None, kw_only=True)
    """Lake root that restricts the paths of data files; None for a catalog table, whose location the operator chose."""

    can_have_late_arriving_rows: ClassVar[bool] = True
    """True if rows can arrive in the table after their slice was committed."""

    @classmethod
    def find(cls, spark: SparkSession, lake: str, name: str, version: int | None = None) -> DeltaInput:
        """Find a Delta table by its path or by its name in the catalog.

        Args:
            spark: A session.
            lake: The lake root.
            name: Path relative to the lake root, absolute path, URI, or name in the catalog.
            version: Version to read. Default: the latest.

        Raises:
            InputError: There is no such Delta table.
            ForbiddenPathError: The operator does not allow the path of the table or of a file.
        """
        path = resolve_path(lake, name)
        try:
            exists = DeltaTableHandle.open(path) is not None
        except DeltaError as error:
            _require_readable_log(spark, name, path, error)
            exists = True
        if exists:
            input_table = cls(spark, name, path, pinned_version=version, lake=lake)
            input_table._check_file_locations(input_table.table)
            return input_table
        detail = _describe_catalog_table(spark, name)
        if detail is None or detail["format"] != "delta":
            remedy = "The catalog has none either. Name another one, or pass --lake."
            raise InputError(explain_missing_table(name, path, remedy))
        return cls(spark, name, detail["location"].removeprefix("file:"), pinned_version=version)

    def _check_file_locations(self, table: DeltaTableHandle | None) -> None:
        """Check that a version's files lie where tables may, because a log can refer to any file.

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
        """The table at `version`; None if delta-rs cannot read it."""
        return _open_table(self.path, self.pinned_version)

    @cached_property
    def version(self) -> int:
        """Version that is read by default."""
        if self.pinned_version is not None:
            return self.pinned_version
        return self.table.version if self.table else get_engine(self.spark).load_latest_snapshot(self.path).version

    @cached_property
    def table_id(self) -> str:
        """Id that Delta gave to the table when it was created."""
        return str(self.table.table.metadata().id if self.table else self._detail["id"])

    def find_table_id_at(self, version: int) -> str | None:
        """Find the id of a version, which `CREATE OR REPLACE TABLE` changes; None if the log no longer has it."""
        if table := self.open_at_version(version):
            return str(table.table.metadata().id)
        commits = read_log_range(self.path, range(version + 1)).values()
        ids = [action["metaData"]["id"] for actions in commits for action in actions if "metaData" in action]
        return str(ids[-1]) if ids else None

    def list_files(self, version: int | None = None) -> list[str]:
        """List the files of a version, by default of `version`.

        Returns:
            Decoded paths, relative to the table's folder or absolute. Files of different partitions can have one name.
        """
        table_version = self.version if version is None else version
        if table := self.open_at_version(table_version):
            return [unquote(path) for path in table.files["path"]]
        # Delta lists decoded paths.
        return [self._remove_folder(path) for path in self._read_all_columns(table_version).inputFiles()]

    def has_unique_names(self, version: int | None = None) -> bool:
        """Return True if no two files of a version, by default of `version`, have the same name."""
        files = self.list_files(version)
        return len({get_file_name(file) for file in files}) == len(files)

    def to_log_path(self, uri: str) -> str:
        """Return the decoded path that the table's log has for a file, by its URI in `_metadata.file_path`."""
        return self._remove_folder(unquote(uri))

    def _remove_folder(self, path: str) -> str:
        bare, folder = _without_scheme(path), _without_scheme(self.path)
        return bare.removeprefix(f"{folder}/") if bare.startswith(f"{folder}/") else path

    def list_spark_uris(self, path: str) -> list[str]:
        """List the URIs that Spark may have for a file in `_metadata.file_path`, by its decoded path in the log."""
        address = path if is_outside_table(path) and not path.startswith("..") else f"{self.path}/{path}"
        scheme, _, rest = address.rpartition("://") if "://" in address else ("file", "", address.removeprefix("file:"))
        encoded = "".join(quote(char, safe=_UNESCAPED_CHARACTERS) if _is_escaped(char) else char for char in rest)
        if scheme == "file":
            return [f"file:/{encoded.lstrip('/')}", f"file:///{encoded.lstrip('/')}"]
        return [f"{scheme}://{encoded}", *([f"s3a://{encoded}"] if scheme == "s3" else [])]

    def read(self, version: int | None = None, paths: Collection[str] | None = None) -> DataFrame:
        """Read the table at a version.

        Args:
            version: The version. Default: `version`.
            paths: Files with all rows that the caller needs; rows of other files may be returned too. Default: all.

        Raises:
            ForbiddenPathError: The operator does not allow the path of a file of this version.
        """
        table_version = self.version if version is None else version
        table = self.open_at_version(table_version)
        rows = read_plain_parquet(self.spark, table, paths) if table else None
        if rows is not None:
            return rows
        return self._read_with_spark(table_version)

    def _read_with_spark(self, version: int) -> DataFrame:
        rows = self._read_all_columns(version)
        schema = drop_void_fields(rows.schema)
        return rows if schema == rows.schema else rows.to(schema)

    def _read_all_columns(self, version: int) -> DataFrame:
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.path)

    def read_files(self, files: Collection[str], version: int | None = None) -> DataFrame:
        """Read the rows of files at a version, by default at `version`.

        Args:
            files: Decoded paths, as `list_files`.
            version: The version.
        """
        table_version = self.version if version is None else version
        if table := self.open_at_version(table_version):
            paths = [path for path in table.files["path"] if unquote(path) in files]
            if (direct_rows := read_plain_parquet(self.spark, table, paths)) is not None:
                return direct_rows
        rows = self._read_with_spark(table_version)
        if self.has_unique_names(table_version):  # does not depend on the form of Spark's URIs
            return rows.where(get_file_metadata(rows, "file_name").isin(list(map(get_file_name, files))))
        uris = [uri for file in files for uri in self.list_spark_uris(file)]
        return rows.where(get_file_metadata(rows, "file_path").isin(uris))

    def open_at_version(self, version: int) -> DeltaTableHandle | None:
        """Open the table at a version; None if delta-rs cannot read it."""
        if self.table is None or self.table.version == version:
            return self.table
        table = _open_table(self.path, version)
        self._check_file_locations(table)
        return table

    def get_schema_at(self, version: int) -> T.StructType | None:
        """Return the schema at a version; None if delta-rs cannot read it."""
        table = self.open_at_version(version)
        return table.schema if table else None

    @cached_property
    def bytes_per_row(self) -> float:
        """Average size of a row in the table's files in bytes; 0 for an empty table."""
        row_count = self.read().count()  # from statistics in the log
        return float(self._detail["sizeInBytes"]) / row_count if row_count else 0.0

    @cached_property
    def _detail(self) -> Row:
        return _describe_path(self.spark, self.path)

    @cached_property
    def schema(self) -> T.StructType:
        """Columns of the table at `version`, without those of type VOID."""
        return self.table.schema if self.table else self.read().schema

    @cached_property
    def void_paths(self) -> tuple[str, ...]:
        """Paths of the table's columns and fields at `version` that have no type (VOID)."""
        declared = self.table.declared_schema if self.table else self._read_all_columns(self.version).schema
        return tuple(list_void_paths(declared))
