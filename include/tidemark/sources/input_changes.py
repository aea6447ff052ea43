"""Read the rows that an input gained or lost since a version, by its Delta log."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from urllib.parse import unquote

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidemark.delta.commit_history import is_outside_table, read_log_actions
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import InputError, MissingFilesError
from tidemark.ledger.row_content import content_hash
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN
from tidemark.spark.dataframe_utils import cast_columns


@dataclass(frozen=True)
class _FileAction:
    """A file that a version added or removed."""

    version: int
    file: str
    """Decoded path. Files of different partitions can have one name."""
    changes_data: bool
    is_removal: bool


@dataclass(frozen=True)
class InputChanges:
    """Changes of an input table after `since_version`, up to the version that is read.

    Rewrites that change no row, such as OPTIMIZE, do not count.
    """

    table: DeltaInput
    since_version: int
    added: dict[int, set[str]]
    """Decoded paths of the files with new rows, by version."""
    removed: dict[int, set[str]]
    """Paths of the removed files, by version, also of those that were rewritten without a change of rows."""
    mutating_versions: tuple[int, ...]
    """Versions that deleted or changed rows."""
    mutated_files: frozenset[str]
    """Paths of the files that these versions removed."""
    fully_removed: frozenset[str]
    """Paths of files of `since_version` that were removed with all of their rows."""
    touched_files: frozenset[str]
    """Paths of all files that were added or removed."""

    @classmethod
    def read_log(cls, table: DeltaInput, since_version: int) -> InputChanges:
        """Read the changes from the table's log.

        Raises:
            InputError: The log no longer has all versions, or the table is older than `since_version`.
        """
        if table.version == since_version:
            return cls(table, since_version, {}, {}, (), frozenset(), frozenset(), frozenset())
        if table.version < since_version:
            raise InputError(
                f"input {table.name} is at version {table.version}, but slices have read version {since_version}: the "
                "table was replaced or restored from a copy. Restore the table, or reprocess from the first slice."
            )
        versions = range(since_version + 1, table.version + 1)
        try:
            actions = [action for version in versions for action in _read_actions(table, version)]
        except FileNotFoundError:
            raise InputError(
                f"the log of input {table.name} no longer has versions {versions[0]} to {versions[-1]}, so new rows "
                "cannot be identified. Its delta.logRetentionDuration is shorter than the pause between runs, or rows "
                "of it were erased. Reprocess from the first slice."
            ) from None
        added, removed = dict[int, set[str]](), dict[int, set[str]]()
        for action in actions:
            if action.is_removal:
                removed.setdefault(action.version, set()).add(action.file)
            elif action.changes_data:
                added.setdefault(action.version, set()).add(action.file)
        removals = [action for action in actions if action.changes_data and action.is_removal]
        added_files = {action.file for action in actions if not action.is_removal}
        fully_removed = frozenset(
            action.file for action in removals if action.version not in added and action.file not in added_files
        )
        return cls(
            table,
            since_version,
            added,
            removed,
            mutating_versions=tuple(sorted({action.version for action in removals})),
            mutated_files=frozenset(action.file for action in removals),
            fully_removed=fully_removed,
            touched_files=frozenset(action.file for action in actions),
        )

    def read_added_rows(self, excluded_files: Collection[str] = ()) -> DataFrame | None:
        """Read the rows added since, except those of `excluded_files`; None without any.

        Raises:
            MissingFilesError: Files of earlier versions were vacuumed.
        """
        # Other removed rows are those of rewritten files, or of files added after `since_version`. Then files do not
        # determine which rows are new.
        if not self.mutated_files <= self.fully_removed.union(excluded_files):
            rewritten = self.touched_files - self.fully_removed.union(excluded_files)
            earlier = self._read_files(self.since_version, rewritten)
            return _subtract_rows(self._read_files(self.table.version, rewritten), earlier)
        remaining = {version: files.difference(excluded_files) for version, files in self.added.items()}
        added = {version: files for version, files in remaining.items() if files}
        if not added:
            return None
        live = self._live_files
        replaced = {version: files - live for version, files in added.items() if files - live}
        parts = [self.table.read_files(live.intersection(set[str]().union(*added.values())))]
        # Files that a later rewrite replaced are read from the version that added them.
        parts += [self._read_files(version, files) for version, files in replaced.items()]
        return reduce(lambda rows, part: rows.unionByName(part, allowMissingColumns=True), parts)

    def read_removed_rows(self, excluded_files: Collection[str] = ()) -> DataFrame | None:
        """Read the rows removed since, as they were, except those of `excluded_files`; None without any.

        Raises:
            MissingFilesError: Files of earlier versions were vacuumed.
        """
        removed = self.fully_removed.difference(excluded_files)
        parts = [self._read_files(self.since_version, removed)] if removed else []
        # As in `read_added_rows`, the rows of a later commit are new rows, also if they are equal.
        if not self.mutated_files <= self.fully_removed.union(excluded_files):
            rewritten = self.touched_files - self.fully_removed.union(excluded_files)
            later = self._read_files(self.table.version, rewritten)
            parts.append(_subtract_rows(self._read_files(self.since_version, rewritten), later))
        return reduce(DataFrame.unionByName, parts) if parts else None

    def list_replaced_files(self) -> dict[int, set[str]]:
        """Return the paths of files that the table no longer has, by the last version that has them."""
        replaced = {version - 1: files - self._live_files for version, files in self.removed.items()}
        return {version: files for version, files in replaced.items() if files}

    def list_new_files(self) -> dict[int, set[str]]:
        """Return the paths of files with rows that were written since, by a version that has them."""
        new = set[str]().union(*self.added.values()) - self.mutated_files
        by_version = {self.table.version: new & self._live_files}
        by_version |= {version: new & files for version, files in self.list_replaced_files().items()}
        return {version: files for version, files in by_version.items() if files}

    def list_lost_files(self) -> frozenset[str]:
        """Return the paths of files of `since_version` whose rows were deleted or rewritten since."""
        return self.mutated_files.difference(*self.added.values())

    def _read_files(self, version: int, files: Collection[str]) -> DataFrame:
        """Read files at a version, with columns in their current types, so that widening changes no row.

        Raises:
            MissingFilesError: Files were vacuumed.
        """
        if not self._has_files(version, set(files) - self._live_files):
            raise MissingFilesError(
                f"input {self.table.name} no longer has all files of version {version}, so rows that changed since "
                "cannot be identified: its old files were removed. Reprocess from the first slice."
            )
        # Types as Spark reads them: the log also has fields that are never null, and casts to these fail.
        return cast_columns(self.table.read_files(frozenset(files), version), self.table.read().schema)

    def _has_files(self, version: int, files: Collection[str]) -> bool:
        """Return True if these files of a version exist. Files outside the table are not checked."""
        if not files or self.table.table is None:
            return True
        if self.table.open_at_version(version) is None:
            return False
        paths = set(files).intersection(self.table.list_files(version))
        infos = self.table.table.filesystem.get_file_info([path for path in paths if not is_outside_table(path)])
        return all(info.is_file for info in infos)

    @cached_property
    def _live_files(self) -> frozenset[str]:
        """Paths of the table's files."""
        return frozenset(self.table.list_files())


def _read_actions(table: DeltaInput, version: int) -> Iterator[_FileAction]:
    for action in read_log_actions(table.path, version):
        for kind in ("add", "remove"):
            if (file := action.get(kind)) is not None:
                yield _FileAction(version, unquote(file["path"]), file["dataChange"], kind == "remove")


def _subtract_rows(rows: DataFrame, subtracted: DataFrame) -> DataFrame:
    """Return the multiset difference of rows, without regard to arrival times."""
    names = [name for name in rows.columns if name in subtracted.columns and name != ARRIVAL_COLUMN]
    copies = Window.partitionBy("hash").orderBy(F.lit(0))
    counted, remainder = (
        part.select(content_hash(part, names).alias("hash"), F.struct("*").alias("row")).withColumn(
            "copy", F.row_number().over(copies)
        )
        for part in (rows, subtracted)
    )
    return counted.join(remainder, ["hash", "copy"], "anti").select("row.*")
