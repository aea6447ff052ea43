"""Files with rows of several slices, taken apart again where a commit that is made has to let some of these go.

A commit is made ready with files that can go as a whole (`prepare`). Between that and the tables' following it other
processes may still have put files together (`compact`): that is undone, as the files before are there until they are
vacuumed. So a slice never waits for upkeep, and no JVM is needed to bring tables up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from tidemark.delta.staging import described
from tidemark.delta.table import DeltaLog, changes_data
from tidemark.tables.run_files import places
from tidemark.timegrid.slices import Grid, ranges


def parted(log: DeltaLog, name: str, grid: Grid, numbers: Iterable[int]) -> tuple[list[str], list[str]]:
    """The files of a table with rows of some slices and of others, and those with rows of these slices alone."""
    found = [item for slices in ranges(numbers) for item in places(log, name, grid, slices).items()]
    across = [path for path, place in found if place == "across"]
    return across, [path for path, place in found if place == "inside"]


def taken_apart(log: DeltaLog, name: str, grid: Grid, numbers: Collection[int]) -> DeltaLog | None:
    """The table with the files of its last version in which none had rows of these slices and of others.

    It is a commit that changes no data, as all since that version are; None where they are not, or files are gone.

    Raises:
        OvertakenError: another process has committed meanwhile.
    """
    return _put_back(log, lambda earlier: not parted(earlier, name, grid, numbers)[0])


def with_files(log: DeltaLog, paths: Collection[str]) -> DeltaLog | None:
    """The table with files that it has or, by a commit as of `taken_apart`, those of its last version that had them.

    Raises:
        OvertakenError: another process has committed meanwhile.
    """
    wanted = set(paths)
    if wanted <= set(log.files["path"]):
        return log
    return _put_back(log, lambda earlier: wanted <= set(earlier.files["path"]))


def _put_back(log: DeltaLog, fits: Callable[[DeltaLog], bool]) -> DeltaLog | None:
    for earlier in _with_the_same_rows(log):
        if not fits(earlier):
            continue
        was, now = set(earlier.files["path"]), set(log.files["path"])
        try:
            back = described(log.path, log.schema, was - now)
        except FileNotFoundError:
            return None
        return log.commit(back, now - was, changes_data=False)
    return None


def _with_the_same_rows(log: DeltaLog) -> Iterator[DeltaLog]:
    """The versions before one, the newest first, from which on no row came or went, and no column changed its type."""
    kinds = {field.name: field.dataType for field in log.schema}
    for version in range(log.version, 0, -1):
        try:
            if changes_data(log.path, version):
                return
        except FileNotFoundError:
            return
        earlier = DeltaLog.open(log.path, version - 1)
        if earlier is None or any(kinds.get(field.name) != field.dataType for field in earlier.schema):
            return
        yield earlier
