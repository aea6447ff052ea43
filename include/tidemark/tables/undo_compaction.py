"""Undo a compaction that merged rows which a commit of the ledger has to remove.

`prepare_commit` splits files at slice bounds, but a compaction may merge them before the tables apply the commit. The
original files exist until vacuum, so they are referenced again. Commits never wait for maintenance, and applying them
needs no JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from deltalake.exceptions import DeltaError

from tidemark.delta.commit_history import is_data_change
from tidemark.delta.staging import read_data_files
from tidemark.delta.table import DeltaTableHandle
from tidemark.tables.run_files import classify_files
from tidemark.timegrid.slices import Grid, group_consecutive


def files_spanning_and_within(
    log: DeltaTableHandle, name: str, grid: Grid, numbers: Iterable[int]
) -> tuple[list[str], list[str]]:
    """Return the files with rows of some slices and of others, and the files with rows of these slices only."""
    items = [item for slices in group_consecutive(numbers) for item in classify_files(log, name, grid, slices).items()]
    across = [path for path, place in items if place == "across"]
    return across, [path for path, place in items if place == "inside"]


def restore_uncompacted_version(
    log: DeltaTableHandle, name: str, grid: Grid, numbers: Collection[int]
) -> DeltaTableHandle | None:
    """Restore the files of the last version in which no file had rows of these slices and of others.

    Returns:
        The table after a commit that changes no data; None if a commit since that version changed data, or if files
        were deleted.

    Raises:
        CommitConflictError: Another process has committed meanwhile.
    """
    return _restore_version(log, lambda earlier: not files_spanning_and_within(earlier, name, grid, numbers)[0])


def restore_files(log: DeltaTableHandle, paths: Collection[str]) -> DeltaTableHandle | None:
    """Restore the files of the last version that had these paths, unless the table has them.

    Returns:
        The table; None if a commit since that version changed data, or if files were deleted.

    Raises:
        CommitConflictError: Another process has committed meanwhile.
    """
    required = set(paths)
    if required <= set(log.files["path"]):
        return log
    return _restore_version(log, lambda earlier: required <= set(earlier.files["path"]))


def _restore_version(log: DeltaTableHandle, is_suitable: Callable[[DeltaTableHandle], bool]) -> DeltaTableHandle | None:
    for earlier in _versions_with_same_rows(log):
        if not is_suitable(earlier):
            continue
        earlier_paths, now = set(earlier.files["path"]), set(log.files["path"])
        try:
            restored = read_data_files(log.path, log.schema, earlier_paths - now)
        except FileNotFoundError:
            return None
        return log.commit(restored, now - earlier_paths, changes_data=False)
    return None


def _versions_with_same_rows(log: DeltaTableHandle) -> Iterator[DeltaTableHandle]:
    """Yield earlier versions, newest first, as long as rows and column types are the same."""
    dtypes = {field.name: field.dataType for field in log.schema}
    for version in range(log.version, 0, -1):
        try:
            if is_data_change(log.path, version):
                return
        except FileNotFoundError:
            return
        try:
            earlier = DeltaTableHandle.open(log.path, version - 1)
        except DeltaError:  # the log begins with `version`
            return
        if earlier is None or any(dtypes.get(field.name) != field.dataType for field in earlier.schema):
            return
        yield earlier
