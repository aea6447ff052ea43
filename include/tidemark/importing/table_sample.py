"""Read a bounded sample of a Delta table's newest rows, without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import Schema
from deltalake.exceptions import DeltaError
from pyspark.sql import types as T

from tidemark.delta.commit_history import Commit, is_outside_table, list_commits
from tidemark.delta.filesystem import open_filesystem
from tidemark.delta.missing_table import explain_missing_table
from tidemark.delta.paths import resolve_path
from tidemark.delta.row_commit_times import ArrivalTracker
from tidemark.delta.snapshot import DeltaSnapshot
from tidemark.errors import InputError
from tidemark.formatting import format_count

_BATCH_ROWS = 8192
_TEXT_TYPES = (T.StringType, T.BinaryType)
_TIME_TYPES = (T.TimestampType, T.TimestampNTZType, T.DateType)
_PRIMITIVES = {"string", "binary", "byte", "short", "integer", "long", "float", "double"} | {
    "date",
    "timestamp",
    "timestamp_ntz",
}
_MICROS_PER_DAY = 86_400_000_000
_US_PER_MS = 1000


@dataclass(frozen=True)
class SampleLimits:
    """Upper bounds of a sample, per table."""

    rows: int = 100_000
    files: int = 64


@dataclass(frozen=True)
class Leaf:
    """A column, or a field of a struct, with a primitive type."""

    path: tuple[str, ...]
    physical_path: tuple[str, ...]
    """Names in the data files. They differ from `path` in a table with column mapping."""
    dtype: T.DataType

    @property
    def is_column(self) -> bool:
        """True for a column, false for a field of a struct."""
        return len(self.path) == 1

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, eq=False)
class SampledColumn:
    """Values of a leaf in the sampled rows."""

    leaf: Leaf
    values: pa.ChunkedArray
    """Times as microseconds since 1970 UTC, numbers as they are, hashes of strings as uint64."""

    @cached_property
    def is_null(self) -> npt.NDArray[np.bool_]:
        """True where the value is null."""
        mask: npt.NDArray[np.bool_] = self.values.is_null().to_numpy()
        return mask

    @cached_property
    def numbers(self) -> npt.NDArray[Any]:
        """Values as an array of numbers; 0 for null."""
        array: npt.NDArray[Any] = pc.fill_null(self.values, 0).to_numpy()
        return array

    @cached_property
    def row_hashes(self) -> npt.NDArray[np.uint64]:
        """Hash of each row's value, arbitrary for null. A number and its text have the same hash."""
        if isinstance(self.leaf.dtype, _TEXT_TYPES):
            hashes: npt.NDArray[np.uint64] = self.numbers
            return hashes
        return _hash_texts(self.values.cast(pa.string()))

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Hashes of the values that are not null, each once, sorted."""
        distinct: npt.NDArray[np.uint64] = np.unique(self.row_hashes[~self.is_null])
        return distinct


@dataclass(frozen=True, eq=False, kw_only=True)
class TableSample:
    """A table's schema, figures of its log, and its newest rows."""

    name: str
    version: int
    file_count: int
    row_count: int | None
    """Rows by the log; None if a file has no statistics."""
    size: int
    """Bytes of all files."""
    has_deletion_vectors: bool
    """True if the sample may have rows that deletion vectors delete."""
    sampled_files: int
    columns: tuple[SampledColumn, ...]
    """Leaves that may be keys or times."""
    column_names: tuple[str, ...]
    """Names of all columns of the table."""
    commit_times: npt.NDArray[np.int64] | None
    """Commit time of each sampled row in microseconds; None if the log does not have all of them."""
    commit_problem: str
    """Reason why rows cannot arrive by commit; empty if they can."""
    commit_count: int
    """Commits in the log that added rows."""
    first_commit: int | None
    """Time of the first of them, in microseconds."""
    log_commit_times: npt.NDArray[np.int64]
    """Time of each commit in the log that added rows, in microseconds."""
    minima: dict[str, npt.NDArray[Any]]
    """Least value of columns in each file by the log's statistics, as in `SampledColumn.numbers`."""
    maxima: dict[str, npt.NDArray[Any]]
    """Greatest value of the same columns, if all files have one."""
    file_rows: npt.NDArray[np.float64]
    """Rows of each file by the log; NaN without statistics."""

    @property
    def is_whole_table(self) -> bool:
        """True if all rows of the table are sampled."""
        return self.rows == self.row_count

    @property
    def rows(self) -> int:
        """Number of sampled rows."""
        return len(self.columns[0].values) if self.columns else 0

    def find_column(self, name: str) -> SampledColumn | None:
        """Return the column of a name; None if there is none that may be a key or a time."""
        return next((column for column in self.columns if column.leaf.path == (name,)), None)

    def describe(self) -> str:
        """Describe table and sample in one line."""
        rows = "an unknown number of rows" if self.row_count is None else format_count(self.row_count, "row")
        parts = [f"version {self.version}", format_count(self.file_count, "file"), rows, f"{self.size:,} bytes"]
        sample = f"{format_count(self.rows, 'row')} of the newest {format_count(self.sampled_files, 'file')}"
        deleted = ", perhaps with deleted rows" if self.has_deletion_vectors else ""
        return f"{', '.join(parts)}; sample: {sample}{deleted}"


def read_sample(lake: str, name: str, limits: SampleLimits) -> TableSample:
    """Read a sample of a table.

    Args:
        lake: The lake root.
        name: Path of the table, relative to the lake root, absolute, or a URI.
        limits: Upper bounds of the sample.

    Raises:
        InputError: There is no such table, or it cannot be read without Spark.
        ForbiddenPathError: The operator does not allow the path.
    """
    path = resolve_path(lake, name)
    try:
        snapshot = DeltaSnapshot.open(path)
    except DeltaError as error:
        raise InputError(
            f"table {name} cannot be read without Spark ({error}). Write the pipeline file by hand."
        ) from None
    if snapshot is None:
        remedy = "Name one by its path under the lake root, or pass --lake."
        raise InputError(explain_missing_table(name, path, remedy))
    return _Reader(name, snapshot, limits).read()


class _Reader:
    def __init__(self, name: str, snapshot: DeltaSnapshot, limits: SampleLimits) -> None:
        self._name, self._snapshot, self._limits = name, snapshot, limits
        schema = json.loads(snapshot.table.schema().to_json())
        self._json_schema = _prune(schema)
        self._leaves = tuple(_list_leaves(self._json_schema, (), (), snapshot.schema))
        actions = pa.table(snapshot.table.get_add_actions(flatten=False))
        self._files = pd.DataFrame(
            {
                "path": [unquote(path) for path in actions["path"].to_pylist()],
                "modified": actions["modification_time"].to_pylist(),
                "rows": snapshot.files["rows"],
                "size": snapshot.files["size"],
            }
        )
        self._partitions: list[dict[str, Any]] = (
            actions["partition"].to_pylist() if "partition" in actions.schema.names else [{}] * len(actions)
        )

    def read(self) -> TableSample:
        """Read the sample."""
        commits, arrivals, problem = self._find_commit_times()
        chunks: list[list[pa.Array]] = []
        commit_times: list[int] = []
        file_numbers = set()
        for number, batch in self._read_batches():
            file_numbers.add(number)
            chunks.append(batch)
            commit_times += [arrivals.get(self._files["path"][number], -1)] * (len(batch[0]) if batch else 0)
        columns = tuple(
            SampledColumn(leaf, pa.chunked_array([chunk[number] for chunk in chunks], _value_type(leaf.dtype)))
            for number, leaf in enumerate(self._leaves)
        )
        is_known = not problem and -1 not in commit_times
        added = [commit for commit in commits if any(file.changes_data for file in commit.added)]
        rows = self._files["rows"].sum(skipna=False) if len(self._files) else 0
        return TableSample(
            name=self._name,
            version=self._snapshot.version,
            file_count=len(self._files),
            row_count=None if pd.isna(rows) else int(rows),
            size=int(self._files["size"].sum()),
            has_deletion_vectors="deletionVectors" in (self._snapshot.table.protocol().reader_features or []),
            sampled_files=len(file_numbers),
            columns=columns,
            column_names=tuple(self._snapshot.schema.names),
            commit_times=np.array(commit_times, np.int64) if is_known else None,
            commit_problem=problem,
            commit_count=len(added),
            first_commit=added[0].committed_us if added else None,
            log_commit_times=np.array([commit.committed_us for commit in added], np.int64),
            minima=self._find_bounds(self._snapshot.get_min_values),
            maxima=self._find_bounds(self._snapshot.get_max_values),
            file_rows=self._files["rows"].to_numpy(np.float64),
        )

    def _find_commit_times(self) -> tuple[tuple[Commit, ...], dict[str, int], str]:
        """Return the commits of the log, the commit time of each file with rows of one commit, and a problem."""
        try:
            commits = list_commits(self._snapshot.path, self._snapshot.version)
        except InputError as error:
            return (), {}, str(error)
        if not commits:
            return (), {}, "the log no longer has the newest commit"
        tracker = ArrivalTracker(commits[0])
        for commit in commits:
            tracker.apply_commit(commit)
        times = {}
        for path in self._files["path"]:
            arrival = tracker.get_arrival(
                path, has_row_tracking=self._snapshot.has_row_tracking, are_present=lambda _: True
            )
            if arrival.ambiguity_reason:
                return commits, {}, arrival.ambiguity_reason
            if arrival.is_single_commit:
                times[path] = arrival.latest_us
        return commits, times, ""

    def _find_bounds(self, get_values: Callable[[str], list[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return a statistic of each file for the columns of which all files have it."""
        bounds = {}
        for leaf in self._leaves:
            if not leaf.is_column or isinstance(leaf.dtype, _TEXT_TYPES):
                continue
            values = [value for value in get_values(leaf.path[0]) if value is not None]
            if values and len(values) == len(self._files):
                bounds[leaf.path[0]] = _to_values(pa.array(values), leaf.dtype).to_numpy(zero_copy_only=False)
        return bounds

    def _read_batches(self) -> Iterator[tuple[int, list[pa.Array]]]:
        """Yield the number of a file and the values of its leaves, the newest file first, up to the limits."""
        remaining = self._limits.rows
        order = self._files["modified"].to_numpy().argsort(kind="stable")[::-1]
        inside = [int(number) for number in order if not is_outside_table(self._files["path"][number])]
        if not inside and len(order):
            raise InputError(
                f"table {self._name}: all its files lie elsewhere, as in a shallow clone. Name the original."
            )
        for number in inside[: self._limits.files]:
            for batch in self._read_file(number):
                part = batch.slice(0, remaining)
                yield number, [self._get_values(part, leaf, number) for leaf in self._leaves]
                remaining -= len(part)
                if remaining <= 0:
                    return

    def _read_file(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, its last row group first."""
        partition_columns = set(self._snapshot.partition_columns)
        fields = [field for field in self._json_schema["fields"] if field["name"] not in partition_columns]
        physical = {"type": "struct", "fields": [_to_physical(field) for field in fields]}
        schema = pa.schema(Schema.from_json(json.dumps(physical)).to_arrow())
        options = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
        file_format = ds.ParquetFileFormat(read_options=options)
        path = self._files["path"][number]
        try:
            fragment = file_format.make_fragment(path, self._filesystem)
            for group in reversed(fragment.split_by_row_group()):
                yield from group.to_batches(
                    schema=schema, batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1
                )
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"table {self._name}: file {path} cannot be read: {error}") from None

    @cached_property
    def _filesystem(self) -> pafs.FileSystem:
        return open_filesystem(self._snapshot.path)

    def _get_values(self, batch: pa.RecordBatch, leaf: Leaf, number: int) -> pa.Array:
        if leaf.path[0] in self._snapshot.partition_columns:
            values = self._partitions[number]
            value = values.get(leaf.physical_path[0], values.get(leaf.path[0]))
            array = pa.array([value] * len(batch))
            if isinstance(leaf.dtype, _TEXT_TYPES) and not pa.types.is_string(array.type):
                array = array.cast(pa.string())
        else:
            column, *fields = leaf.physical_path
            array = batch.column(column)
            for name in fields:
                array = pc.struct_field(array, name)
        return _to_values(array, leaf.dtype)


def _prune(schema: Any) -> Any:
    """Return a struct of Delta's JSON schema with its primitive fields only, at any depth."""
    fields = []
    for field in schema["fields"]:
        dtype = field["type"]
        if isinstance(dtype, dict) and dtype["type"] == "struct":
            pruned = _prune(dtype)
            if pruned["fields"]:
                fields.append({**field, "type": pruned})
        elif isinstance(dtype, str) and (dtype in _PRIMITIVES or dtype.startswith("decimal")):
            fields.append(field)
    return {"type": "struct", "fields": fields}


def _list_leaves(
    schema: Any, path: tuple[str, ...], physical_path: tuple[str, ...], spark_schema: T.StructType
) -> Iterator[Leaf]:
    for field in schema["fields"]:
        name = field["name"]
        physical_name = _get_physical_name(field)
        dtype = spark_schema[name].dataType
        if isinstance(dtype, T.StructType):
            yield from _list_leaves(field["type"], (*path, name), (*physical_path, physical_name), dtype)
        else:
            yield Leaf((*path, name), (*physical_path, physical_name), dtype)


def _get_physical_name(field: Any) -> str:
    return str(field["metadata"].get("delta.columnMapping.physicalName", field["name"]))


def _to_physical(field: Any) -> Any:
    """Rename a field, and its own fields, to the names in the data files."""
    dtype = field["type"]
    if isinstance(dtype, dict):
        dtype = {**dtype, "fields": [_to_physical(inner) for inner in dtype["fields"]]}
    return {"name": _get_physical_name(field), "type": dtype, "nullable": True, "metadata": {}}


def is_integral(dtype: T.DataType) -> bool:
    """Return True for a type of whole numbers."""
    return isinstance(dtype, T.IntegralType) or (isinstance(dtype, T.DecimalType) and dtype.scale == 0)


def _value_type(dtype: T.DataType) -> pa.DataType:
    if isinstance(dtype, _TEXT_TYPES):
        return pa.uint64()
    return pa.int64() if isinstance(dtype, _TIME_TYPES) or is_integral(dtype) else pa.float64()


def _to_values(array: pa.Array, dtype: T.DataType) -> pa.Array:
    """Convert values to those of `SampledColumn.values`."""
    if isinstance(dtype, _TEXT_TYPES):
        return pa.array(_hash_texts(array), mask=array.is_null().to_numpy(zero_copy_only=False))
    if isinstance(dtype, T.DateType):
        return pc.multiply(array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), _MICROS_PER_DAY)
    if isinstance(dtype, T.TimestampType | T.TimestampNTZType):
        if pa.types.is_timestamp(array.type) and array.type.tz is not None:
            return array.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
        return array.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return array.cast(_value_type(dtype), safe=False)


def _hash_texts(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return a hash of each text; that of an empty text for null."""
    empty = pa.scalar("" if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) else b"")
    filled = pc.fill_null(values, empty.cast(values.type))
    return pd.util.hash_array(np.array(filled.to_pylist(), dtype=object))
