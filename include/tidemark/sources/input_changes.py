"""Read the rows that an input gained or lost since a version, by its Delta log."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from urllib.parse import unquote

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidemark.delta.commit_history import get_file_name, is_outside_table, read_log_actions
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import InputError, MissingFilesError
from tidemark.ledger.row_content import content_hash
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN
from tidemark.spark.dataframe_utils import cast_columns


@dataclass(frozen=True)
class _FileAction:
    """A file that a version added or removed."""

    version: int
    file_name: str
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
    """Names of the files with new rows, by version."""
    removed: dict[int, set[str]]
    """Names of the removed files, by version, also of those that were rewritten without a change of rows."""
    mutating_versions: tuple[int, ...]
    """Versions that deleted or changed rows."""
    mutated_files: frozenset[str]
    """Names of the files that these versions removed."""
    fully_removed: frozenset[str]
    """Names of files of `since_version` that were removed with all of their rows."""
    touched_files: frozenset[str]
    """Names of all files that were added or removed."""

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
                removed.setdefault(action.version, set()).add(action.file_name)
            elif action.changes_data:
                added.setdefault(action.version, set()).add(action.file_name)
        removals = [action for action in actions if action.changes_data and action.is_removal]
        added_names = {action.file_name for action in actions if not action.is_removal}
        fully_removed = frozenset(
            action.file_name
            for action in removals
            if action.version not in added and action.file_name not in added_names
        )
        return cls(
            table,
            since_version,
            added,
            removed,
            mutating_versions=tuple(sorted({action.version for action in removals})),
            mutated_files=frozenset(action.file_name for action in removals),
            fully_removed=fully_removed,
            touched_files=frozenset(action.file_name for action in actions),
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
        remaining = {version: names.difference(excluded_files) for version, names in self.added.items()}
        added = {version: names for version, names in remaining.items() if names}
        if not added:
            return None
        live = self._live_files
        replaced = {version: names - live for version, names in added.items() if names - live}
        parts = [self.table.read_files(sorted(live & set[str]().union(*added.values())))]
        # Files that a later rewrite replaced are read from the version that added them.
        parts += [self._read_files(version, names) for version, names in replaced.items()]
        return reduce(lambda rows, part: rows.unionByName(part, allowMissingColumns=True), parts)

    def read_removed_rows(self, excluded_files: Collection[str] = ()) -> DataFrame | None:
        """Read the rows removed since, as they were, except those of `excluded_files`; None without any.

        Raises:
            MissingFilesError: Files of earlier versions were vacuumed.
        """
        files = self.touched_files.difference(excluded_files)
        if self.mutated_files.issubset(excluded_files):
            return None
        return _subtract_rows(self._read_files(self.since_version, files), self._read_files(self.table.version, files))

    def list_replaced_files(self) -> dict[int, set[str]]:
        """Return the names of files that the table no longer has, by the last version that has them."""
        replaced = {version - 1: names - self._live_files for version, names in self.removed.items()}
        return {version: names for version, names in replaced.items() if names}

    def list_new_files(self) -> dict[int, set[str]]:
        """Return the names of files with rows that were written since, by a version that has them."""
        new = set[str]().union(*self.added.values()) - self.mutated_files
        by_version = {self.table.version: new & self._live_files}
        by_version |= {version: new & names for version, names in self.list_replaced_files().items()}
        return {version: names for version, names in by_version.items() if names}

    def list_lost_files(self) -> frozenset[str]:
        """Return the names of files of `since_version` whose rows were deleted or rewritten since."""
        return self.mutated_files.difference(*self.added.values())

    def _read_files(self, version: int, names: Collection[str]) -> DataFrame:
        """Read files at a version, with columns in their current types, so that widening changes no row.

        Raises:
            MissingFilesError: Files were vacuumed.
        """
        if not self._has_files(version, set(names) - self._live_files):
            raise MissingFilesError(
                f"input {self.table.name} no longer has all files of version {version}, so rows that changed since "
                "cannot be identified: its old files were removed. Reprocess from the first slice."
            )
        # Types as Spark reads them: the log also has fields that are never null, and casts to these fail.
        return cast_columns(self.table.read_files(sorted(names), version), self.table.read().schema)

    def _has_files(self, version: int, names: Collection[str]) -> bool:
        """Return True if the files of a version with these names exist. Files outside the table are not checked."""
        if not names or self.table.table is None:
            return True
        if (table := self.table.open_at_version(version)) is None:
            return False
        paths = [unquote(path) for path in table.files["path"] if get_file_name(path) in names]
        infos = table.filesystem.get_file_info([path for path in paths if not is_outside_table(path)])
        return all(info.is_file for info in infos)

    @cached_property
    def _live_files(self) -> frozenset[str]:
        """Names of the table's files."""
        return frozenset(get_file_name(path) for path in self.table.paths)


def _read_actions(table: DeltaInput, version: int) -> Iterator[_FileAction]:
    for action in read_log_actions(table.path, version):
        for kind in ("add", "remove"):
            if (file := action.get(kind)) is not None:
                yield _FileAction(version, get_file_name(file["path"]), file["dataChange"], kind == "remove")


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
