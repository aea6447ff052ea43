"""When the rows of a table's files were first committed, whatever files they have been copied into since.

A file that others were rewritten into has rows of several commits. Which row is of which is known where all are of one,
and where the table tracks rows. Rows that were only moved, as OPTIMIZE moves them, are found in the files from before,
while these are still in the folder. Else no more is known than the latest commit that they can be of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.delta.commit_history import Commit, LoggedFile

_RESTORE, _DELETE = "RESTORE", "DELETE"
_US_PER_MS = 1000
_ROW_TRACKING_REMEDY = "turn on delta.enableRowTracking before the next"
_LOG_RETENTION_REMEDY = "keep delta.logRetentionDuration longer"


@dataclass(frozen=True)
class SourceFile:
    """A file as it stood at a version, all of whose rows arrived at once."""

    path: str
    version: int
    arrived_us: int
    """When, in microseconds since 1970 UTC."""
    deletion_vector: str | None
    """Its deletion vector then."""


@dataclass(frozen=True, eq=False)
class FileRewrite:
    """Files that hold between them just the rows of other files, which are no longer of the table."""

    files: frozenset[str]
    sources: tuple[SourceFile, ...]
    commit_label: str
    """The commit that moved the rows."""


@dataclass(frozen=True)
class FileArrival:
    """When the rows of a file arrived, in microseconds since 1970 UTC."""

    earliest_us: int
    """No row arrived before; where they cannot be told apart, none is taken to."""
    latest_us: int
    """No row arrived after."""
    by_row_commit_version: Mapping[int, int] | None = None
    """By the row commit version that a row has; None where rows have none."""
    rewrite: FileRewrite | None = None
    """Where rows of several commits are to be read from other files."""
    unknown_reason: str | None = None
    """Why only `high` is known, and what helps; None where the arrival of each row is."""

    @property
    def is_single_commit(self) -> bool:
        """Whether all rows are known to have arrived at once."""
        return self.unknown_reason is None and self.earliest_us == self.latest_us


@dataclass
class ArrivalTracker:
    """The files of a table while its commits pass by."""

    first_commit: Commit
    """The first that the log has: a file that no commit has added was there before it."""
    live_files: set[str] = field(default_factory=set)
    """Those of the files added that the table has now."""
    has_row_tracking: bool = False
    """Whether the table tracks rows, as far as its commits say."""
    _added: dict[str, tuple[LoggedFile, FileArrival]] = field(default_factory=dict)
    _loss_reasons: dict[FileRewrite, str | None] = field(default_factory=dict)

    def get_arrival(
        self, path: str, *, has_row_tracking: bool, are_present: Callable[[Collection[str]], bool]
    ) -> FileArrival:
        """What is known of a file of the table, once all commits have passed.

        `tracked` is whether its rows tell their row commit versions; `is_there` whether files of some paths are all in
        the folder.
        """
        arrival = self._look_up_arrival(path)
        if arrival.unknown_reason or arrival.is_single_commit or (arrival.by_row_commit_version and has_row_tracking):
            return arrival
        if arrival.rewrite is None:
            return _create_unknown_arrival(
                [arrival], f"the table no longer tracks the rows of {path}; {_ROW_TRACKING_REMEDY} rewrite"
            )
        if arrival.rewrite not in self._loss_reasons:
            self._loss_reasons[arrival.rewrite] = self._find_loss_reason(arrival.rewrite, are_present)
        loss_reason = self._loss_reasons[arrival.rewrite]
        return arrival if loss_reason is None else _create_unknown_arrival([arrival], loss_reason)

    def _find_loss_reason(self, rewrite: FileRewrite, are_present: Callable[[Collection[str]], bool]) -> str | None:
        """Why rows can no longer be read where they were before they were moved; None where they can."""
        if not self._is_intact(rewrite):
            return _explain_later_change(rewrite)
        if are_present([part.path for part in rewrite.sources]):
            return None
        return (
            f"{rewrite.commit_label} put rows of several commits into one file, and those from before are gone; "
            f"{_ROW_TRACKING_REMEDY} rewrite"
        )

    def apply(self, commit: Commit) -> None:
        """Let a commit pass."""
        if commit.enables_row_tracking is not None:
            self.has_row_tracking = commit.enables_row_tracking
        added_paths = {file.path for file in commit.added}
        removed_paths = {file.path for file in commit.removed}
        readded_files = [file for file in commit.added if file.path in removed_paths or file.path in self._added]
        new_files = [file for file in commit.added if file.path not in removed_paths and file.path not in self._added]
        removed_files = [file for file in commit.removed if file.path not in added_paths]
        arrivals = self._classify_new_files(commit, new_files, removed_files)
        arrivals |= {file.path: (file, self._classify_readded_file(file)) for file in readded_files}
        self._added |= arrivals
        self.live_files -= removed_paths
        self.live_files |= added_paths

    def _look_up_arrival(self, path: str) -> FileArrival:
        if path in self._added:
            return self._added[path][1]
        before_us = self.first_commit.committed_us - _US_PER_MS
        return FileArrival(
            before_us,
            before_us,
            unknown_reason=f"its log begins with version {self.first_commit.version}; {_LOG_RETENTION_REMEDY}",
        )

    def _is_intact(self, rewrite: FileRewrite) -> bool:
        return rewrite.files <= self.live_files and all(
            self._look_up_arrival(path).rewrite is rewrite for path in rewrite.files
        )

    def _classify_readded_file(self, file: LoggedFile) -> FileArrival:
        """A file that comes once more: with fewer rows, with row commit versions, or restored."""
        arrival = self._look_up_arrival(file.path)
        if arrival.rewrite and file.deletion_vector != self._added[file.path][0].deletion_vector:
            return _create_unknown_arrival([arrival], _explain_later_change(arrival.rewrite))
        return (
            _create_single_arrival(arrival.latest_us, file)
            if arrival.is_single_commit and arrival.by_row_commit_version is None
            else arrival
        )

    def _classify_new_files(
        self, commit: Commit, new_files: list[LoggedFile], removed_files: list[LoggedFile]
    ) -> dict[str, tuple[LoggedFile, FileArrival]]:
        if any(file.changes_data for file in new_files):
            return {file.path: (file, self._classify_changed_file(commit, file, removed_files)) for file in new_files}
        arrivals: dict[str, tuple[LoggedFile, FileArrival]] = {}
        for partition_values in {file.partition_values for file in new_files}:
            files = [file for file in new_files if file.partition_values == partition_values]
            arrivals |= self._classify_rewritten_files(
                commit,
                files,
                [one for one in removed_files if self._get_partition_values(one) in {partition_values, None}],
            )
        return arrivals

    def _get_partition_values(self, file: LoggedFile) -> str | None:
        return self._added[file.path][0].partition_values if file.path in self._added else file.partition_values

    def _classify_changed_file(self, commit: Commit, file: LoggedFile, removed_files: list[LoggedFile]) -> FileArrival:
        """Of a file with new rows, and with those that the commit has copied."""
        if commit.operation == _RESTORE:
            reason = (
                f"{commit.label} brought back files whose commits are no longer in the log; {_LOG_RETENTION_REMEDY}"
            )
            return FileArrival(commit.committed_us, commit.committed_us, unknown_reason=reason)
        if not removed_files or not commit.may_copy_rows:
            return _create_single_arrival(commit.committed_us, file)
        sources = [self._look_up_arrival(one.path) for one in removed_files]
        own_versions = (
            {}
            if commit.operation == _DELETE or file.row_commit_version is None
            else {file.row_commit_version: commit.committed_us}
        )
        if commit.preserves_row_commit_versions and (merged := _merge_arrivals(sources, own_versions)):
            return merged
        reason = f"{commit.label} copied rows of several commits into one file; {_ROW_TRACKING_REMEDY}"
        if commit.operation == _DELETE:
            return (
                _create_single_arrival(sources[0].latest_us, file)
                if _is_same_arrival(sources)
                else _create_unknown_arrival(sources, reason)
            )
        return FileArrival(commit.committed_us, commit.committed_us, unknown_reason=reason)

    def _classify_rewritten_files(
        self, commit: Commit, files: list[LoggedFile], removed_files: list[LoggedFile]
    ) -> dict[str, tuple[LoggedFile, FileArrival]]:
        """Of files with just the rows of those that are gone."""
        sources = [self._look_up_arrival(file.path) for file in removed_files]
        merged = _merge_arrivals(sources, {}) if commit.preserves_row_commit_versions else None
        if merged or _is_same_arrival(sources):
            return {file.path: (file, merged or _create_single_arrival(sources[0].latest_us, file)) for file in files}
        if (rewrite := self._find_rewrite(commit, files, removed_files)) is None:
            reason = next((one.unknown_reason for one in sources if one.unknown_reason), None)
            reason = reason or f"{commit.label} put rows of several commits into one file; {_ROW_TRACKING_REMEDY}"
            unknown = (
                _create_unknown_arrival(sources, reason)
                if sources
                else FileArrival(commit.committed_us, commit.committed_us, unknown_reason=reason)
            )
            return {file.path: (file, unknown) for file in files}
        arrival = FileArrival(
            min(part.arrived_us for part in rewrite.sources),
            max(part.arrived_us for part in rewrite.sources),
            rewrite=rewrite,
        )
        by_path = {file.path: file for file in files}
        return {path: (by_path.get(path) or self._added[path][0], arrival) for path in rewrite.files}

    def _find_rewrite(
        self, commit: Commit, files: list[LoggedFile], removed_files: list[LoggedFile]
    ) -> FileRewrite | None:
        """Where the rows of these files are to be read; None where that is not known."""
        sources: dict[SourceFile, None] = {}
        rewritten_paths = {file.path for file in files}
        for file in removed_files:
            arrival = self._look_up_arrival(file.path)
            if arrival.is_single_commit:
                sources[
                    SourceFile(
                        file.path, commit.version - 1, arrival.latest_us, self._added[file.path][0].deletion_vector
                    )
                ] = None
            elif arrival.rewrite and self._is_intact(arrival.rewrite):
                sources |= dict.fromkeys(arrival.rewrite.sources)
                rewritten_paths |= arrival.rewrite.files - {file.path for file in removed_files}
            else:
                return None
        return FileRewrite(frozenset(rewritten_paths), tuple(sources), commit.label) if sources else None


def _explain_later_change(rewrite: FileRewrite) -> str:
    return (
        f"{rewrite.commit_label} put rows of several commits into files that were changed since; "
        f"{_ROW_TRACKING_REMEDY} rewrite"
    )


def _create_single_arrival(arrived_us: int, file: LoggedFile) -> FileArrival:
    return FileArrival(
        arrived_us, arrived_us, None if file.row_commit_version is None else {file.row_commit_version: arrived_us}
    )


def _is_same_arrival(sources: Sequence[FileArrival]) -> bool:
    return bool(sources) and all(one.is_single_commit and one.latest_us == sources[0].latest_us for one in sources)


def _merge_arrivals(sources: Sequence[FileArrival], own_versions: Mapping[int, int]) -> FileArrival | None:
    """Of a file that keeps the row commit versions of others' rows; None where these do not tell."""
    arrived_by_version = dict(own_versions)
    for source in sources:
        if source.unknown_reason or source.by_row_commit_version is None:
            return None
        for version, arrived_us in source.by_row_commit_version.items():
            if arrived_by_version.setdefault(version, arrived_us) != arrived_us:
                return None
    return (
        FileArrival(min(arrived_by_version.values()), max(arrived_by_version.values()), arrived_by_version)
        if arrived_by_version
        else None
    )


def _create_unknown_arrival(sources: Sequence[FileArrival], reason: str) -> FileArrival:
    latest = max(one.latest_us for one in sources)
    return FileArrival(latest, latest, unknown_reason=reason)
