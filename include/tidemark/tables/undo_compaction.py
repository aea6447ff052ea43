"""Files with rows of several slices, taken apart again where a commit that is made has to let some of these go.

A commit is made ready with files that can go as a whole (`prepare`). Between that and the tables' following it other
processes may still have put files together (`compact`): that is undone, as the files before are there until they are
vacuumed. So a slice never waits for upkeep, and no JVM is needed to bring tables up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from tidemark.delta.staging import read_data_files
from tidemark.delta.table import DeltaTableHandle, is_data_change
from tidemark.tables.run_files import classify_files
from tidemark.timegrid.slices import Grid, ranges


def files_spanning_and_within(
    log: DeltaTableHandle, name: str, grid: Grid, numbers: Iterable[int]
) -> tuple[list[str], list[str]]:
    """The files of a table with rows of some slices and of others, and those with rows of these slices alone."""
    items = [item for slices in ranges(numbers) for item in classify_files(log, name, grid, slices).items()]
    across = [path for path, place in items if place == "across"]
    return across, [path for path, place in items if place == "inside"]


def restore_uncompacted_version(
    log: DeltaTableHandle, name: str, grid: Grid, numbers: Collection[int]
) -> DeltaTableHandle | None:
    """The table with the files of its last version in which none had rows of these slices and of others.

    It is a commit that changes no data, as all since that version are; None where they are not, or files are gone.

    Raises:
        OvertakenError: another process has committed meanwhile.
    """
    return _restore_version(log, lambda earlier: not files_spanning_and_within(earlier, name, grid, numbers)[0])


def restore_files(log: DeltaTableHandle, paths: Collection[str]) -> DeltaTableHandle | None:
    """The table with files that it has or, by a commit as of `taken_apart`, those of its last version that had them.

    Raises:
        OvertakenError: another process has committed meanwhile.
    """
    paths_ = set(paths)
    if paths_ <= set(log.files["path"]):
        return log
    return _restore_version(log, lambda earlier: paths_ <= set(earlier.files["path"]))


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
    """The versions before one, the newest first, from which on no row came or went, and no column changed its type."""
    dtypes = {field.name: field.dataType for field in log.schema}
    for version in range(log.version, 0, -1):
        try:
            if is_data_change(log.path, version):
                return
        except FileNotFoundError:
            return
        earlier = DeltaTableHandle.open(log.path, version - 1)
        if earlier is None or any(dtypes.get(field.name) != field.dataType for field in earlier.schema):
            return
        yield earlier
