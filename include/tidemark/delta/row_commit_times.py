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
_MILLISECOND = 1000
_TRACK = "turn on delta.enableRowTracking before the next"
_KEEP = "keep delta.logRetentionDuration longer"


@dataclass(frozen=True)
class Part:
    """A file as it stood at a version, all of whose rows arrived at once."""

    path: str
    version: int
    at: int
    """When, in microseconds since 1970 UTC."""
    deleted: str | None
    """Its deletion vector then."""


@dataclass(frozen=True, eq=False)
class Moved:
    """Files that hold between them just the rows of other files, which are no longer of the table."""

    files: frozenset[str]
    parts: tuple[Part, ...]
    by: str
    """The commit that moved the rows."""


@dataclass(frozen=True)
class FileArrival:
    """When the rows of a file arrived, in microseconds since 1970 UTC."""

    low: int
    """No row arrived before; where they cannot be told apart, none is taken to."""
    high: int
    """No row arrived after."""
    by_commit: Mapping[int, int] | None = None
    """By the row commit version that a row has; None where rows have none."""
    moved: Moved | None = None
    """Where rows of several commits are to be read from other files."""
    untold: str | None = None
    """Why only `high` is known, and what helps; None where the arrival of each row is."""

    @property
    def is_one(self) -> bool:
        """Whether all rows are known to have arrived at once."""
        return self.untold is None and self.low == self.high


@dataclass
class Passage:
    """The files of a table while its commits pass by."""

    first: Commit
    """The first that the log has: a file that no commit has added was there before it."""
    live: set[str] = field(default_factory=set)
    """Those of the files added that the table has now."""
    tracks_rows: bool = False
    """Whether the table tracks rows, as far as its commits say."""
    _seen: dict[str, tuple[LoggedFile, FileArrival]] = field(default_factory=dict)
    _lost: dict[Moved, str | None] = field(default_factory=dict)

    def arrival(self, path: str, *, tracked: bool, is_there: Callable[[Collection[str]], bool]) -> FileArrival:
        """What is known of a file of the table, once all commits have passed.

        `tracked` is whether its rows tell their row commit versions; `is_there` whether files of some paths are all in
        the folder.
        """
        found = self._of(path)
        if found.untold or found.is_one or (found.by_commit and tracked):
            return found
        if found.moved is None:
            return _untold([found], f"the table no longer tracks the rows of {path}; {_TRACK} rewrite")
        if found.moved not in self._lost:
            self._lost[found.moved] = self._why_lost(found.moved, is_there)
        why = self._lost[found.moved]
        return found if why is None else _untold([found], why)

    def _why_lost(self, moved: Moved, is_there: Callable[[Collection[str]], bool]) -> str | None:
        """Why rows can no longer be read where they were before they were moved; None where they can."""
        if not self._is_whole(moved):
            return _changed_since(moved)
        if is_there([part.path for part in moved.parts]):
            return None
        return f"{moved.by} put rows of several commits into one file, and those from before are gone; {_TRACK} rewrite"

    def apply(self, commit: Commit) -> None:
        """Let a commit pass."""
        if commit.tracks_rows is not None:
            self.tracks_rows = commit.tracks_rows
        came = {file.path for file in commit.added}
        went = {file.path for file in commit.removed}
        again = [file for file in commit.added if file.path in went or file.path in self._seen]
        fresh = [file for file in commit.added if file.path not in went and file.path not in self._seen]
        gone = [file for file in commit.removed if file.path not in came]
        found = self._fresh(commit, fresh, gone)
        found |= {file.path: (file, self._again(file)) for file in again}
        self._seen |= found
        self.live -= went
        self.live |= came

    def _of(self, path: str) -> FileArrival:
        if path in self._seen:
            return self._seen[path][1]
        before = self.first.at - _MILLISECOND
        return FileArrival(before, before, untold=f"its log begins with version {self.first.version}; {_KEEP}")

    def _is_whole(self, moved: Moved) -> bool:
        return moved.files <= self.live and all(self._of(path).moved is moved for path in moved.files)

    def _again(self, file: LoggedFile) -> FileArrival:
        """A file that comes once more: with fewer rows, with row commit versions, or restored."""
        arrival = self._of(file.path)
        if arrival.moved and file.deleted != self._seen[file.path][0].deleted:
            return _untold([arrival], _changed_since(arrival.moved))
        return _one(arrival.high, file) if arrival.is_one and arrival.by_commit is None else arrival

    def _fresh(
        self, commit: Commit, fresh: list[LoggedFile], gone: list[LoggedFile]
    ) -> dict[str, tuple[LoggedFile, FileArrival]]:
        if any(file.changes_data for file in fresh):
            return {file.path: (file, self._changed(commit, file, gone)) for file in fresh}
        found: dict[str, tuple[LoggedFile, FileArrival]] = {}
        for partition in {file.partition for file in fresh}:
            files = [file for file in fresh if file.partition == partition]
            found |= self._rewritten(commit, files, [one for one in gone if self._partition(one) in {partition, None}])
        return found

    def _partition(self, file: LoggedFile) -> str | None:
        return self._seen[file.path][0].partition if file.path in self._seen else file.partition

    def _changed(self, commit: Commit, file: LoggedFile, gone: list[LoggedFile]) -> FileArrival:
        """Of a file with new rows, and with those that the commit has copied."""
        if commit.operation == _RESTORE:
            why = f"{commit.name} brought back files whose commits are no longer in the log; {_KEEP}"
            return FileArrival(commit.at, commit.at, untold=why)
        if not gone or not commit.copies:
            return _one(commit.at, file)
        sources = [self._of(one.path) for one in gone]
        own = {} if commit.operation == _DELETE or file.row_commit is None else {file.row_commit: commit.at}
        if commit.keeps_row_commits and (merged := _merged(sources, own)):
            return merged
        why = f"{commit.name} copied rows of several commits into one file; {_TRACK}"
        if commit.operation == _DELETE:
            return _one(sources[0].high, file) if _are_one(sources) else _untold(sources, why)
        return FileArrival(commit.at, commit.at, untold=why)

    def _rewritten(
        self, commit: Commit, files: list[LoggedFile], gone: list[LoggedFile]
    ) -> dict[str, tuple[LoggedFile, FileArrival]]:
        """Of files with just the rows of those that are gone."""
        sources = [self._of(file.path) for file in gone]
        merged = _merged(sources, {}) if commit.keeps_row_commits else None
        if merged or _are_one(sources):
            return {file.path: (file, merged or _one(sources[0].high, file)) for file in files}
        if (moved := self._moved(commit, files, gone)) is None:
            why = next((one.untold for one in sources if one.untold), None)
            why = why or f"{commit.name} put rows of several commits into one file; {_TRACK}"
            found = _untold(sources, why) if sources else FileArrival(commit.at, commit.at, untold=why)
            return {file.path: (file, found) for file in files}
        arrival = FileArrival(min(part.at for part in moved.parts), max(part.at for part in moved.parts), moved=moved)
        by_path = {file.path: file for file in files}
        return {path: (by_path.get(path) or self._seen[path][0], arrival) for path in moved.files}

    def _moved(self, commit: Commit, files: list[LoggedFile], gone: list[LoggedFile]) -> Moved | None:
        """Where the rows of these files are to be read; None where that is not known."""
        parts: dict[Part, None] = {}
        left = {file.path for file in files}
        for one in gone:
            arrival = self._of(one.path)
            if arrival.is_one:
                parts[Part(one.path, commit.version - 1, arrival.high, self._seen[one.path][0].deleted)] = None
            elif arrival.moved and self._is_whole(arrival.moved):
                parts |= dict.fromkeys(arrival.moved.parts)
                left |= arrival.moved.files - {file.path for file in gone}
            else:
                return None
        return Moved(frozenset(left), tuple(parts), commit.name) if parts else None


def _changed_since(moved: Moved) -> str:
    return f"{moved.by} put rows of several commits into files that were changed since; {_TRACK} rewrite"


def _one(at: int, file: LoggedFile) -> FileArrival:
    return FileArrival(at, at, None if file.row_commit is None else {file.row_commit: at})


def _are_one(sources: Sequence[FileArrival]) -> bool:
    return bool(sources) and all(one.is_one and one.high == sources[0].high for one in sources)


def _merged(sources: Sequence[FileArrival], own: Mapping[int, int]) -> FileArrival | None:
    """Of a file that keeps the row commit versions of others' rows; None where these do not tell."""
    found = dict(own)
    for one in sources:
        if one.untold or one.by_commit is None:
            return None
        for version, at in one.by_commit.items():
            if found.setdefault(version, at) != at:
                return None
    return FileArrival(min(found.values()), max(found.values()), found) if found else None


def _untold(sources: Sequence[FileArrival], why: str) -> FileArrival:
    latest = max(one.high for one in sources)
    return FileArrival(latest, latest, untold=why)
