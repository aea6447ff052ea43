"""Inputs whose rows arrive when the version of the table that first had them was committed, as its log tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote, unquote

import pyarrow.fs as pafs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from tidemark.config import Commits
from tidemark.delta.commit_history import Commit, commits_up_to
from tidemark.delta.filesystem import file_system
from tidemark.delta.pipeline_tables import DeltaInput, bare_rows
from tidemark.delta.row_commit_times import FileArrival, Moved, Passage
from tidemark.delta.table import DeltaLog, is_elsewhere
from tidemark.errors import InputError
from tidemark.formatting import quoted
from tidemark.sources.streaming_checkpoint_source import ARRIVAL
from tidemark.spark.dataframe_utils import of_file
from tidemark.spark.lazy_session import awake

_FILE, _KNOWN = f"{ARRIVAL}_file", f"{ARRIVAL}_known"
_TABLE = f"{_FILE} string, {_KNOWN} struct<wanted: boolean, at: long, by_commit: map<long, long>>"
_Entry = tuple[bool, int | None, Mapping[int, int] | None]
_PATH_OF_A_URI = "/-_.!~*'()@:&=+$,;"
"""What Java leaves as it is in the path of a URI, beside letters, digits, and what is no ASCII."""


@dataclass(frozen=True)
class CommittedInput(DeltaInput):
    """A table whose rows have their commit's time beside them: `read` gives it as `ARRIVAL`, a timestamp."""

    def check(self, settings: Commits) -> None:
        """See that nothing in the table could be meant or overwritten.

        Raises:
            InputError: it has a column that the bare word could name, or one that is called as ours.
        """
        if settings.by_word and "commit" in self.schema.names:
            raise InputError(
                f"input {self.name} has a column commit: for this write arrival: {{column: commit}}, or arrival: "
                "{commit: true} for the time at which a row's version was committed"
            )
        if taken := [name for name in self.schema.names if name.lower() in {ARRIVAL, _FILE, _KNOWN}]:
            raise InputError(
                f"input {self.name} has a column {taken[0]}, which is what Tidemark calls when a row was committed; "
                "rename it, or name an arrival column"
            )

    @cached_property
    @override
    def schema(self) -> T.StructType:
        """The table's columns, without `ARRIVAL`."""
        return self.log.schema if self.log else super().read().schema

    @cached_property
    @override
    def bytes_per_row(self) -> float:
        """As that of the table itself, whose log has the number of its rows."""
        return DeltaInput(self.spark, self.name, self.path, pinned=self.version, lake=self.lake).bytes_per_row

    @override
    def read(self, version: int | None = None, paths: Collection[str] | None = None) -> DataFrame:
        """Rows of a version's files, by default of all, with `ARRIVAL`.

        Raises:
            InputError: its log does not tell which files it has.
        """
        at = self.version if version is None else version
        return self._rows(at, self.arrivals(at) if paths is None else map(unquote, paths))

    def _rows(self, at: int, paths: Iterable[str]) -> DataFrame:
        """The rows of some files of a version, by their decoded paths; those that were moved with all that moved."""
        arrivals = self.arrivals(at)
        asked = {path: arrivals[path] for path in paths}
        groups = list(dict.fromkeys(one.moved for one in asked.values() if one.moved))
        own = {path: one for path, one in asked.items() if one.moved is None}
        if (bare := self._bare(at, own, groups)) is not None:
            return bare
        tracked = any(not one.is_one and one.untold is None for one in own.values())
        wanted = {path: _entry(own[path]) if path in own else _OTHER for path in arrivals}
        rows = self._arrived(self._by_spark(at) if tracked else super().read(at), wanted, tracked=tracked)
        kinds = {field.name: field.dataType for field in rows.schema}
        for moved in self._originals(groups):
            present = [F.col(quoted(name)).cast(kinds[name]).alias(name) for name in moved.columns if name in kinds]
            rows = rows.unionByName(moved.select(*present), allowMissingColumns=True)
        return rows

    @override
    def of_files(self, names: Collection[str], version: int | None = None) -> DataFrame:
        at = self.version if version is None else version
        chosen = [path for path in self.arrivals(at) if path.rsplit("/", 1)[-1] in names]
        for path in chosen:
            moved = self.arrivals(at)[path].moved
            if moved and not moved.files <= set(chosen):
                raise InputError(
                    f"input {self.name}: {moved.by} put rows of several commits into one file, and only some of its "
                    "files were changed since, so that rows which landed cannot be told; turn on "
                    "delta.enableRowTracking before the next, and reprocess from the first slice"
                )
        return self._rows(at, chosen)

    def arrivals(self, version: int | None = None) -> Mapping[str, FileArrival]:
        """What is known of the files of a version, by default the one that is read, by their paths, decoded.

        Raises:
            InputError: its log does not tell which files it has.
        """
        at = self.version if version is None else version
        if at not in self._arrivals:
            self._arrivals[at] = self._found(at)
        return self._arrivals[at]

    def untold(self, *versions: int) -> FileArrival | None:
        """The latest arrival up to which rows of these versions, by default of the one read, are not told apart."""
        files = (file for at in versions or (self.version,) for file in self.arrivals(at).values() if file.untold)
        return max(files, key=lambda file: file.high, default=None)

    @cached_property
    def _arrivals(self) -> dict[int, Mapping[str, FileArrival]]:
        return {}

    @cached_property
    def _commits(self) -> tuple[Commit, ...]:
        try:
            return commits_up_to(self.path, self.version)
        except InputError as error:
            raise InputError(f"input {self.name}: {error}") from None

    def _found(self, version: int) -> Mapping[str, FileArrival]:
        passed = [one for one in self._commits if one.version <= version]
        if not passed:
            raise InputError(
                f"the log of input {self.name} no longer has version {version}, so that nothing tells when its rows "
                "were committed; keep delta.logRetentionDuration longer, or name an arrival column"
            )
        passage = Passage(passed[0])
        for commit in passed:
            passage.apply(commit)
        log = self._log_at(version)
        paths = [unquote(path) for path in log.files["path"]] if log else sorted(passage.live)
        if log is None and passed[0].version > 0:
            raise InputError(
                f"the log of input {self.name} begins with version {passed[0].version}, and the table has something "
                "that keeps its checkpoints from being read without Spark; name an arrival column"
            )
        tracked = log.tracks_rows if log else passage.tracks_rows
        return {path: passage.arrival(path, tracked=tracked, is_there=self._are_there) for path in paths}

    def _are_there(self, paths: Collection[str]) -> bool:
        if any(map(is_elsewhere, paths)):
            return False
        infos = file_system(self.path).get_file_info(sorted(paths))
        return all(info.type is pafs.FileType.File for info in infos)

    def _bare(self, version: int, own: Mapping[str, FileArrival], groups: Iterable[Moved]) -> DataFrame | None:
        """The rows where files are all that there is to them; None where they are not."""
        log = self._log_at(version)
        parts = [part for group in groups for part in group.parts]
        if log is None or any(part.deleted for part in parts):
            return None
        if any(not one.is_one and one.untold is None for one in own.values()):
            return None  # Parquet alone has no row commit versions
        wanted = {path: _entry(one) for path, one in own.items()} | {part.path: (True, part.at, None) for part in parts}
        rows = bare_rows(self.spark, log, list(wanted))
        return None if rows is None else self._arrived(rows, wanted, tracked=False)

    def _originals(self, groups: Iterable[Moved]) -> Iterator[DataFrame]:
        """The rows that were moved, in the files from before, by the version that still had these."""
        by_version: dict[int, dict[str, _Entry]] = {}
        for part in (part for group in groups for part in group.parts):
            by_version.setdefault(part.version, {})[part.path] = (True, part.at, None)
        for version, wanted in sorted(by_version.items()):
            entries = {path: wanted.get(path, _OTHER) for path in self.arrivals(version)}
            yield self._arrived(super().read(version), entries, tracked=False)

    def _arrived(self, rows: DataFrame, wanted: Mapping[str, _Entry], *, tracked: bool) -> DataFrame:
        """The rows of the files that are wanted, with `ARRIVAL`; a row of a file that is not named stops the query."""
        if not wanted:  # rows that are of no file have no metadata
            return rows.withColumn(ARRIVAL, F.lit(None).cast("timestamp"))
        entries = [(uri, entry) for path, entry in wanted.items() for uri in self._uris(path)]
        table = F.broadcast(awake(self.spark).createDataFrame(entries, _TABLE))
        file = [of_file(rows, "file_path").alias(_FILE)]
        if tracked:
            file.append(of_file(rows, "row_commit_version").alias(ARRIVAL))
        known = F.col(_KNOWN)
        at = known["at"]
        if tracked:
            at = F.coalesce(at, known["by_commit"][F.col(ARRIVAL)])
        lost = F.raise_error(F.concat(F.lit("nothing tells when rows were committed of file "), F.col(_FILE)))
        found = rows.select("*", *file).join(table, _FILE, "left").where(known.isNull() | known["wanted"])
        arrival = F.timestamp_micros(F.coalesce(at, lost.cast("long"))).alias(ARRIVAL)
        return found.select(*(F.col(quoted(name)) for name in rows.columns), arrival)

    def _uris(self, path: str) -> list[str]:
        """How Spark names a file in `_metadata.file_path`, in each way that it may."""
        whole = path if is_elsewhere(path) and not path.startswith("..") else f"{self.path}/{path}"
        scheme, _, rest = whole.rpartition("://") if "://" in whole else ("file", "", whole.removeprefix("file:"))
        encoded = "".join(quote(sign, safe=_PATH_OF_A_URI) if sign.isascii() else sign for sign in rest)
        if scheme == "file":
            return [f"file:/{encoded.lstrip('/')}", f"file:///{encoded.lstrip('/')}"]
        return [f"{scheme}://{encoded}", *([f"s3a://{encoded}"] if scheme == "s3" else [])]


_OTHER: _Entry = (False, None, None)


def _entry(arrival: FileArrival) -> _Entry:
    if arrival.is_one or arrival.untold:
        return (True, arrival.high, None)
    return (True, None, arrival.by_commit)


def committed_input(table: DeltaInput, settings: Commits) -> CommittedInput:
    """A table whose rows arrive with its commits.

    Raises:
        InputError: it has columns that this could be taken for.
    """
    found = CommittedInput(table.spark, table.name, table.path, pinned=table.pinned, lake=table.lake)
    found.check(settings)
    return found


def newest_commit(log: DeltaLog) -> int | None:
    """When rows were last committed to a table, in microseconds as they arrive; None where its log knows of none."""
    written = (one.at for one in commits_up_to(log.path, log.version) if any(file.changes_data for file in one.added))
    return max(written, default=None)
