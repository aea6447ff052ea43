"""Read inputs whose rows arrive when the table version that added them was committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

import pyarrow.fs as pafs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from tidemark.config import CommitArrival
from tidemark.delta.commit_history import Commit, is_outside_table, list_commits
from tidemark.delta.filesystem import open_filesystem
from tidemark.delta.row_commit_times import ArrivalTracker, FileArrival, FileRewrite
from tidemark.delta.table import DeltaTableHandle
from tidemark.delta.table_reader import DeltaInput, read_plain_parquet
from tidemark.errors import InputError
from tidemark.formatting import quote_identifier
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN, require_no_columns
from tidemark.spark.dataframe_utils import cast_columns, get_file_metadata
from tidemark.spark.lazy_session import resolve_session

_FILE_COLUMN, _SELECTION_COLUMN = f"{ARRIVAL_COLUMN}_file", f"{ARRIVAL_COLUMN}_known"
_SELECTION_SCHEMA = (
    f"{_FILE_COLUMN} string, {_SELECTION_COLUMN} struct<is_selected: boolean, at: long, by_commit: map<long, long>>"
)
_FileSelection = tuple[bool, int | None, Mapping[int, int] | None]
"""True if the rows of a file are selected, their arrival, and arrivals by row commit version; in microseconds UTC."""


@dataclass(frozen=True)
class CommitTimeInput(DeltaInput):
    """A table that `read` returns with the commit time of each row in `ARRIVAL_COLUMN`, a timestamp."""

    def require_no_name_conflicts(self, settings: CommitArrival) -> None:
        """Require that no column conflicts with the setting `arrival: commit` or with internal columns.

        Raises:
            InputError: A column is named `commit`, or has the name of an internal column.
        """
        if settings.is_bare_word and "commit" in self.schema.names:
            raise InputError(
                f"input {self.name} has a column commit, so arrival: commit is ambiguous. Write arrival: {{column: "
                "commit}, or arrival: {commit: true} for the time at which a row was committed."
            )
        require_no_columns(self, {ARRIVAL_COLUMN, _FILE_COLUMN, _SELECTION_COLUMN})

    @cached_property
    @override
    def schema(self) -> T.StructType:
        """The table's columns, without `ARRIVAL_COLUMN`."""
        return self.table.schema if self.table else super().read().schema

    @cached_property
    @override
    def bytes_per_row(self) -> float:
        """Average size of a row of the plain table, whose log has the number of rows."""
        return DeltaInput(self.spark, self.name, self.path, pinned_version=self.version, lake=self.lake).bytes_per_row

    @override
    def read(self, version: int | None = None, paths: Collection[str] | None = None) -> DataFrame:
        """Read the rows of a version's files, by default of all, with `ARRIVAL_COLUMN`.

        Raises:
            InputError: The log no longer has the files of this version.
        """
        at = self.version if version is None else version
        return self._read_paths(at, self.arrivals(at) if paths is None else map(unquote, paths))

    def _read_paths(self, at: int, paths: Iterable[str]) -> DataFrame:
        """Read some files of a version. Rows that a rewrite moved are read from the files before it, with their group.

        Args:
            at: The version.
            paths: Decoded paths of the files.
        """
        arrivals = self.arrivals(at)
        requested = {path: arrivals[path] for path in paths}
        groups = list(dict.fromkeys(arrival.rewrite for arrival in requested.values() if arrival.rewrite))
        unmoved = {path: arrival for path, arrival in requested.items() if arrival.rewrite is None}
        if (plain_rows := self._read_plain(at, unmoved, groups)) is not None:
            return plain_rows
        needs_row_tracking = any(
            not arrival.is_single_commit and arrival.ambiguity_reason is None for arrival in unmoved.values()
        )
        selections = {path: _select_arrival(unmoved[path]) if path in unmoved else _EXCLUDED for path in arrivals}
        rows = self._add_arrival_times(
            self._read_with_spark(at) if needs_row_tracking else super().read(at),
            selections,
            uses_row_tracking=needs_row_tracking,
        )
        for originals in self._read_originals(groups):
            columns = [quote_identifier(name) for name in originals.columns if name in rows.columns]
            current = cast_columns(originals.select(*columns), rows.schema)
            rows = rows.unionByName(current, allowMissingColumns=True)
        return rows

    @override
    def read_files(self, files: Collection[str], version: int | None = None) -> DataFrame:
        at = self.version if version is None else version
        chosen = [path for path in self.arrivals(at) if path in files]
        for path in chosen:
            moved = self.arrivals(at)[path].rewrite
            if moved and not moved.files <= set(chosen):
                raise InputError(
                    f"input {self.name}: {moved.commit_label} put rows of several commits into one file, and only some "
                    "of its files were changed since, so late-arriving rows cannot be identified. Reprocess from the "
                    "first slice, and turn on delta.enableRowTracking before the next rewrite."
                )
        return self._read_paths(at, chosen)

    def arrivals(self, version: int | None = None) -> Mapping[str, FileArrival]:
        """Return the commit times in each file of a version, by default the one that is read, by decoded path.

        Raises:
            InputError: The log no longer has the files of this version.
        """
        at = self.version if version is None else version
        if at not in self._arrivals:
            self._arrivals[at] = self._derive_arrivals(at)
        return self._arrivals[at]

    def find_latest_ambiguous_file(self, *versions: int) -> FileArrival | None:
        """Find the file with the latest rows whose commit is ambiguous, in versions or in the one that is read."""
        files = (
            file for at in versions or (self.version,) for file in self.arrivals(at).values() if file.ambiguity_reason
        )
        return max(files, key=lambda file: file.latest_us, default=None)

    @cached_property
    def _arrivals(self) -> dict[int, Mapping[str, FileArrival]]:
        return {}

    @cached_property
    def _commits(self) -> tuple[Commit, ...]:
        try:
            return list_commits(self.path, self.version)
        except InputError as error:
            raise InputError(f"input {self.name}: {error}") from None

    def _derive_arrivals(self, version: int) -> Mapping[str, FileArrival]:
        commits = [commit for commit in self._commits if commit.version <= version]
        if not commits:
            raise InputError(
                f"the log of input {self.name} no longer has version {version}, so the commit times of its rows are "
                "unknown. Keep delta.logRetentionDuration longer, or name an arrival column."
            )
        tracker = ArrivalTracker(commits[0])
        for commit in commits:
            tracker.apply_commit(commit)
        log = self.open_at_version(version)
        paths = [unquote(path) for path in log.files["path"]] if log else sorted(tracker.live_files)
        if log is None and commits[0].version > 0:
            raise InputError(
                f"the log of input {self.name} begins with version {commits[0].version}, and the table has a feature "
                "with which its checkpoints cannot be read without Spark. Name an arrival column."
            )
        tracked = log.has_row_tracking if log else tracker.has_row_tracking
        return {
            path: tracker.get_arrival(path, has_row_tracking=tracked, are_present=self._have_files) for path in paths
        }

    def _have_files(self, paths: Collection[str]) -> bool:
        if any(map(is_outside_table, paths)):
            return False
        infos = open_filesystem(self.path).get_file_info(sorted(paths))
        return all(info.type is pafs.FileType.File for info in infos)

    def _read_plain(
        self, version: int, unmoved: Mapping[str, FileArrival], groups: Iterable[FileRewrite]
    ) -> DataFrame | None:
        """Read plain Parquet files; None if the rows need more, such as deletion vectors or row tracking."""
        log = self.open_at_version(version)
        parts = [part for group in groups for part in group.sources]
        if log is None or any(part.deletion_vector for part in parts):
            return None
        if any(not arrival.is_single_commit and arrival.ambiguity_reason is None for arrival in unmoved.values()):
            return None  # Parquet alone has no row commit versions
        selections = {path: _select_arrival(arrival) for path, arrival in unmoved.items()} | {
            part.path: (True, part.arrived_us, None) for part in parts
        }
        rows = read_plain_parquet(self.spark, log, list(selections))
        return None if rows is None else self._add_arrival_times(rows, selections, uses_row_tracking=False)

    def _read_originals(self, groups: Iterable[FileRewrite]) -> Iterator[DataFrame]:
        """Yield moved rows from the files before the rewrite, by the last version that had these files."""
        by_version: dict[int, dict[str, _FileSelection]] = {}
        for part in (part for group in groups for part in group.sources):
            by_version.setdefault(part.version, {})[part.path] = (True, part.arrived_us, None)
        for version, selections_of_version in sorted(by_version.items()):
            selections = {path: selections_of_version.get(path, _EXCLUDED) for path in self.arrivals(version)}
            yield self._add_arrival_times(super().read(version), selections, uses_row_tracking=False)

    def _add_arrival_times(
        self, rows: DataFrame, selections: Mapping[str, _FileSelection], *, uses_row_tracking: bool
    ) -> DataFrame:
        """Keep the rows of selected files and add `ARRIVAL_COLUMN`. Rows of other files fail the query."""
        if not selections:  # an empty table has no file metadata
            return rows.withColumn(ARRIVAL_COLUMN, F.lit(None).cast("timestamp"))
        uri_selections = [
            (uri, selection) for path, selection in selections.items() for uri in self.list_spark_uris(path)
        ]
        table = F.broadcast(resolve_session(self.spark).createDataFrame(uri_selections, _SELECTION_SCHEMA))
        columns = [get_file_metadata(rows, "file_path").alias(_FILE_COLUMN)]
        if uses_row_tracking:
            columns.append(get_file_metadata(rows, "row_commit_version").alias(ARRIVAL_COLUMN))
        selection_column = F.col(_SELECTION_COLUMN)
        micros = selection_column["at"]
        if uses_row_tracking:
            micros = F.coalesce(micros, selection_column["by_commit"][F.col(ARRIVAL_COLUMN)])
        unmatched = F.raise_error(F.concat(F.lit("no commit time is known for the rows of file "), F.col(_FILE_COLUMN)))
        selected = (
            rows.select("*", *columns)
            .join(table, _FILE_COLUMN, "left")
            .where(selection_column.isNull() | selection_column["is_selected"])
        )
        arrival = F.timestamp_micros(F.coalesce(micros, unmatched.cast("long"))).alias(ARRIVAL_COLUMN)
        return selected.select(*(F.col(quote_identifier(name)) for name in rows.columns), arrival)


_EXCLUDED: _FileSelection = (False, None, None)


def _select_arrival(arrival: FileArrival) -> _FileSelection:
    if arrival.is_single_commit or arrival.ambiguity_reason:
        return (True, arrival.latest_us, None)
    return (True, None, arrival.us_by_row_commit_version)


def create_commit_time_input(table: DeltaInput, settings: CommitArrival) -> CommitTimeInput:
    """Create an input whose rows arrive with the table's commits.

    Raises:
        InputError: A column's name conflicts with the setting or with internal columns.
    """
    source = CommitTimeInput(table.spark, table.name, table.path, pinned_version=table.pinned_version, lake=table.lake)
    source.require_no_name_conflicts(settings)
    return source


def find_last_commit_time(log: DeltaTableHandle) -> int | None:
    """Find the time of the last commit with new rows, in microseconds; None if the log has none."""
    commits = list_commits(log.path, log.version)
    return max(
        (commit.committed_us for commit in commits if any(file.changes_data for file in commit.added)), default=None
    )
