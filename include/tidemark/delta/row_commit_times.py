"""Find when the rows of a table's files were first committed, although later commits copied them to other files.

A rewritten file can have rows of several commits. A row's commit is known if all rows are of one commit, or by row
tracking. Rows that were only moved, as by OPTIMIZE, are read from their original files while these exist. Otherwise,
only the latest possible commit is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.delta.commit_history import Commit, LoggedFile

_RESTORE, _DELETE = "RESTORE", "DELETE"
_US_PER_MS = 1000
_ROW_TRACKING_REMEDY = "turn on delta.enableRowTracking before the next rewrite"
_LOG_RETENTION_REMEDY = "keep delta.logRetentionDuration longer"


@dataclass(frozen=True)
class SourceFile:
    """A file whose rows were all added by one commit, and which later commits replaced."""

    path: str
    version: int
    """Last version with the file."""
    arrived_us: int
    """Commit time of the rows in microseconds since 1970 UTC."""
    deletion_vector: str | None
    """Deletion vector of the file in that version."""


@dataclass(frozen=True, eq=False)
class FileRewrite:
    """A group of files whose rows are exactly the rows of earlier files, which they replaced."""

    files: frozenset[str]
    """Paths of the new files."""
    sources: tuple[SourceFile, ...]
    """The earlier files."""
    commit_label: str
    """Label of the commit that moved the rows."""


@dataclass(frozen=True)
class FileArrival:
    """The commit times of a file's rows, in microseconds since 1970 UTC."""

    earliest_us: int
    """Earliest commit time; equal to `latest_us` if the rows' commits are ambiguous."""
    latest_us: int
    """Latest commit time."""
    us_by_row_commit_version: Mapping[int, int] | None = None
    """Commit time by row commit version; None without row commit versions."""
    rewrite: FileRewrite | None = None
    """Rewrite that moved rows of several commits; these are read from the earlier files."""
    ambiguity_reason: str | None = None
    """Reason why only `latest_us` is known, with a remedy; None if each row's commit time is known."""

    @property
    def is_single_commit(self) -> bool:
        """True if all rows are known to be of one commit."""
        return self.ambiguity_reason is None and self.earliest_us == self.latest_us


@dataclass
class ArrivalTracker:
    """Commit times of a table's files, derived by applying the log's commits in order."""

    first_commit: Commit
    """Oldest commit in the log. A file that no commit added is older."""
    live_files: set[str] = field(default_factory=set)
    """Paths of the added files that no later commit removed."""
    has_row_tracking: bool = False
    """True if the last commit that set table properties enabled row tracking."""
    _added: dict[str, tuple[LoggedFile, FileArrival]] = field(default_factory=dict)
    _loss_reasons: dict[FileRewrite, str | None] = field(default_factory=dict)

    def get_arrival(
        self, path: str, *, has_row_tracking: bool, are_present: Callable[[Collection[str]], bool]
    ) -> FileArrival:
        """Return the commit times of a file's rows, after all commits were applied.

        Args:
            path: Decoded path of the file.
            has_row_tracking: True if the rows' row commit versions can be read.
            are_present: Tests that the files at some paths all exist.
        """
        arrival = self._look_up_arrival(path)
        if (
            arrival.ambiguity_reason
            or arrival.is_single_commit
            or (arrival.us_by_row_commit_version and has_row_tracking)
        ):
            return arrival
        if arrival.rewrite is None:
            return _create_ambiguous_arrival(
                [arrival], f"the table no longer tracks the rows of {path} ({_ROW_TRACKING_REMEDY})"
            )
        if arrival.rewrite not in self._loss_reasons:
            self._loss_reasons[arrival.rewrite] = self._find_loss_reason(arrival.rewrite, are_present)
        loss_reason = self._loss_reasons[arrival.rewrite]
        return arrival if loss_reason is None else _create_ambiguous_arrival([arrival], loss_reason)

    def _find_loss_reason(self, rewrite: FileRewrite, are_present: Callable[[Collection[str]], bool]) -> str | None:
        """Return the reason why moved rows cannot be read from the earlier files; None if they can."""
        if not self._is_intact(rewrite):
            return _explain_later_change(rewrite)
        if are_present([source.path for source in rewrite.sources]):
            return None
        return (
            f"{rewrite.commit_label} put rows of several commits into one file, and the earlier files are deleted "
            f"({_ROW_TRACKING_REMEDY})"
        )

    def apply_commit(self, commit: Commit) -> None:
        """Apply the add and remove actions of the next commit."""
        if commit.enables_row_tracking is not None:
            self.has_row_tracking = commit.enables_row_tracking
        added_paths = {file.path for file in commit.added}
        removed_paths = {file.path for file in commit.removed}
        readded_files = [file for file in commit.added if file.path in removed_paths or file.path in self._added]
        new_files = [file for file in commit.added if file.path not in removed_paths and file.path not in self._added]
        removed_files = [file for file in commit.removed if file.path not in added_paths]
        arrivals = self._find_new_file_arrivals(commit, new_files, removed_files)
        arrivals |= {file.path: (file, self._find_readded_file_arrival(file)) for file in readded_files}
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
            ambiguity_reason=f"its log begins with version {self.first_commit.version} ({_LOG_RETENTION_REMEDY})",
        )

    def _is_intact(self, rewrite: FileRewrite) -> bool:
        """Return True if the table still has all new files of a rewrite, unchanged."""
        return rewrite.files <= self.live_files and all(
            self._look_up_arrival(path).rewrite is rewrite for path in rewrite.files
        )

    def _find_readded_file_arrival(self, file: LoggedFile) -> FileArrival:
        """Find the commit times of a file that is added again: with deletions, row commit versions, or by RESTORE."""
        arrival = self._look_up_arrival(file.path)
        if arrival.rewrite and file.deletion_vector != self._added[file.path][0].deletion_vector:
            return _create_ambiguous_arrival([arrival], _explain_later_change(arrival.rewrite))
        return (
            _create_single_arrival(arrival.latest_us, file)
            if arrival.is_single_commit and arrival.us_by_row_commit_version is None
            else arrival
        )

    def _find_new_file_arrivals(
        self, commit: Commit, new_files: list[LoggedFile], removed_files: list[LoggedFile]
    ) -> dict[str, tuple[LoggedFile, FileArrival]]:
        if any(file.changes_data for file in new_files):
            return {
                file.path: (file, self._find_changed_file_arrival(commit, file, removed_files)) for file in new_files
            }
        arrivals: dict[str, tuple[LoggedFile, FileArrival]] = {}
        for partition_values in {file.partition_values for file in new_files}:
            files = [file for file in new_files if file.partition_values == partition_values]
            sources = [file for file in removed_files if self._get_partition_values(file) in {partition_values, None}]
            arrivals |= self._find_rewritten_file_arrivals(commit, files, sources)
        return arrivals

    def _get_partition_values(self, file: LoggedFile) -> str | None:
        return self._added[file.path][0].partition_values if file.path in self._added else file.partition_values

    def _find_changed_file_arrival(
        self, commit: Commit, file: LoggedFile, removed_files: list[LoggedFile]
    ) -> FileArrival:
        """Find the commit times of a file with new rows, and possibly with rows that the commit copied."""
        if commit.operation == _RESTORE:
            reason = f"{commit.label} restored files whose commits are no longer in the log ({_LOG_RETENTION_REMEDY})"
            return FileArrival(commit.committed_us, commit.committed_us, ambiguity_reason=reason)
        if not removed_files or not commit.may_copy_rows:
            return _create_single_arrival(commit.committed_us, file)
        sources = [self._look_up_arrival(removed.path) for removed in removed_files]
        own_versions = (
            {}
            if commit.operation == _DELETE or file.row_commit_version is None
            else {file.row_commit_version: commit.committed_us}
        )
        if commit.preserves_row_commit_versions and (merged := _merge_arrivals(sources, own_versions)):
            return merged
        reason = f"{commit.label} copied rows of several commits into one file ({_ROW_TRACKING_REMEDY})"
        if commit.operation == _DELETE:
            return (
                _create_single_arrival(sources[0].latest_us, file)
                if _is_same_arrival(sources)
                else _create_ambiguous_arrival(sources, reason)
            )
        return FileArrival(commit.committed_us, commit.committed_us, ambiguity_reason=reason)

    def _find_rewritten_file_arrivals(
        self, commit: Commit, files: list[LoggedFile], removed_files: list[LoggedFile]
    ) -> dict[str, tuple[LoggedFile, FileArrival]]:
        """Find the commit times of files that have exactly the rows of the removed files."""
        sources = [self._look_up_arrival(file.path) for file in removed_files]
        merged = _merge_arrivals(sources, {}) if commit.preserves_row_commit_versions else None
        if merged or _is_same_arrival(sources):
            return {file.path: (file, merged or _create_single_arrival(sources[0].latest_us, file)) for file in files}
        if (rewrite := self._find_rewrite(commit, files, removed_files)) is None:
            reason = next((source.ambiguity_reason for source in sources if source.ambiguity_reason), None)
            reason = reason or f"{commit.label} put rows of several commits into one file ({_ROW_TRACKING_REMEDY})"
            ambiguous = (
                _create_ambiguous_arrival(sources, reason)
                if sources
                else FileArrival(commit.committed_us, commit.committed_us, ambiguity_reason=reason)
            )
            return {file.path: (file, ambiguous) for file in files}
        arrival = FileArrival(
            min(source.arrived_us for source in rewrite.sources),
            max(source.arrived_us for source in rewrite.sources),
            rewrite=rewrite,
        )
        by_path = {file.path: file for file in files}
        return {path: (by_path.get(path) or self._added[path][0], arrival) for path in rewrite.files}

    def _find_rewrite(
        self, commit: Commit, files: list[LoggedFile], removed_files: list[LoggedFile]
    ) -> FileRewrite | None:
        """Find the earlier files from which the rows of rewritten files can be read; None if these are ambiguous."""
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
        f"{rewrite.commit_label} put rows of several commits into files that were changed since "
        f"({_ROW_TRACKING_REMEDY})"
    )


def _create_single_arrival(arrived_us: int, file: LoggedFile) -> FileArrival:
    return FileArrival(
        arrived_us, arrived_us, None if file.row_commit_version is None else {file.row_commit_version: arrived_us}
    )


def _is_same_arrival(sources: Sequence[FileArrival]) -> bool:
    return bool(sources) and all(
        source.is_single_commit and source.latest_us == sources[0].latest_us for source in sources
    )


def _merge_arrivals(sources: Sequence[FileArrival], own_versions: Mapping[int, int]) -> FileArrival | None:
    """Merge the commit times of files whose rows were copied with their row commit versions.

    Args:
        sources: Commit times of the earlier files.
        own_versions: Commit time by row commit version of the file's new rows.

    Returns:
        None if the row commit versions of an earlier file are unknown, or if one version has two commit times.
    """
    arrived_by_version = dict(own_versions)
    for source in sources:
        if source.ambiguity_reason or source.us_by_row_commit_version is None:
            return None
        for version, arrived_us in source.us_by_row_commit_version.items():
            if arrived_by_version.setdefault(version, arrived_us) != arrived_us:
                return None
    return (
        FileArrival(min(arrived_by_version.values()), max(arrived_by_version.values()), arrived_by_version)
        if arrived_by_version
        else None
    )


def _create_ambiguous_arrival(sources: Sequence[FileArrival], reason: str) -> FileArrival:
    latest_us = max(source.latest_us for source in sources)
    return FileArrival(latest_us, latest_us, ambiguity_reason=reason)
