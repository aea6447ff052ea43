"""Find stale slices, and the input versions that committed slices have read.

Nothing here reads a table. Rules: docs/decisions/0004-fingerprints-and-cascade.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tidemark.ledger.config_fingerprint import remove_later_restarts
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger

StaleReason = Literal["changed state", "late-arriving rows reprocessed", "changed settings", "rollback"]


@dataclass(frozen=True)
class ConsumedVersions:
    """Versions of one input up to which rows were read before a job, by the rows' slice."""

    by_slice: tuple[tuple[int | None, int], ...]
    """Pairs (first slice, version): the version applies from that slice on; None is the start of the grid. In order;
    empty if rows of earlier slices are not read."""
    unplaced: int | None
    """Version for rows without a usable clock; None if none were read."""

    def get_version(self, number: int) -> int:
        """Return the version up to which rows of a slice were read."""
        return next(version for first, version in reversed(self.by_slice) if first is None or first <= number)


NOTHING_CONSUMED = ConsumedVersions((), None)
"""Consumed versions before the first slice."""


def compute_consumed_versions(entries: Iterable[Entry], side: int) -> ConsumedVersions:
    """Compute the versions of an input that slices have read.

    A row belongs to the slice of its clock. It was read with that slice, or by a later one that read all late-arriving
    rows.

    Args:
        entries: Slices, in order.
        side: 0 for the left input, 1 for the right one.
    """
    by_slice: list[tuple[int | None, int]] = []
    consumed = -1
    next_number = None
    unplaced = None

    def add(first: int | None, version: int) -> None:
        if by_slice and by_slice[-1][1] == version:
            by_slice.pop()
        by_slice.append((first, version))

    for entry in reversed(list(entries)):
        version = entry.versions[side]
        if next_number is not None and entry.number + 1 < next_number:
            add(entry.number + 1, consumed)
        add(entry.number, max(version, consumed))
        if entry.consumes_late_arrivals:
            consumed = max(consumed, version)
        if entry.late_arriving_rows is not None:
            unplaced = version if unplaced is None else max(unplaced, version)
        next_number = entry.number
    if by_slice:
        add(None, consumed)
    return ConsumedVersions(tuple(reversed(by_slice)), unplaced)


def list_read_ranges(entries: Iterable[Entry], side: int) -> Iterator[tuple[range, int]]:
    """Yield, for each entry, a range of slices that has all slices of its rows, and the input version it read.

    Args:
        entries: Committed slices.
        side: 0 for the left input, 1 for the right one.
    """
    for entry in entries:
        first = entry.number if entry.late_arriving_from is None else min(entry.late_arriving_from, entry.number)
        yield range(first, entry.number + 1), entry.versions[side]


def find_stale_slices(ledger: Ledger, after: int = -1) -> dict[int, StaleReason]:
    """Find committed slices after slice `after` (exclusive) that do not follow from their predecessors any more.

    Returns:
        The reason by number of the slice.
    """
    reasons: dict[int, StaleReason] = {}
    # Monotonic stack of earlier slices: each was committed after all slices between it and the current one.
    newer: list[Entry] = []
    for number, entry in ledger.entries.items():
        while newer and newer[-1].commit <= entry.commit:
            newer.pop()
        before = ledger.entry(number - 1)
        newest = newer[-1].number if newer else None
        if number > after and (why := _why_stale(ledger, before, entry, newest)):
            reasons[number] = why
        newer.append(entry)
    return reasons


def find_start_of_chain(ledger: Ledger, entry: Entry | None = None) -> Entry | None:
    """Find the first slice of the gapless chain that ends with a committed slice, by default the last."""
    entry = entry or ledger.last
    while entry and (before := ledger.entry(entry.number - 1)):
        entry = before
    return entry


def find_slices_to_reprocess(ledger: Ledger) -> tuple[tuple[int, int], tuple[int, ...]] | None:
    """Find slices with late-arriving rows that a reprocess has to read (policy `reprocess`).

    Returns:
        The input versions up to which late-arriving rows were detected, and the slices; None if no commit recorded any.
    """
    newest = _find_newest_run(ledger)
    if newest is None or newest.slices_to_reprocess is None:
        return None
    unread = (number for number in newest.slices_to_reprocess if not _has_read(ledger.entries[number], newest.versions))
    return newest.versions, tuple(unread)


def find_compared_versions(
    ledger: Ledger, side: int, first: int, own_versions: Collection[int] = ()
) -> ConsumedVersions:
    """Find the versions of an input since which rows of slices before `first` are searched for changes.

    With policy `reprocess`, each commit records the slices with changes up to its version, so only later changes count.
    That record does not include slices that a rollback returned to an earlier run since.

    Args:
        ledger: The ledger.
        side: 0 for the left input, 1 for the right one.
        first: The slice.
        own_versions: Slices that are compared with the version that they have read, in spite of the record.
    """
    entries = [entry for number, entry in ledger.entries.items() if number < first]
    consumed = compute_consumed_versions(entries, side)
    newest = _find_newest_run(ledger)
    if newest is None or newest.slices_to_reprocess is None or not consumed.by_slice:
        return consumed
    by_slice: list[tuple[int | None, int]] = [(None, newest.versions[side])]
    for entry in entries:
        changed = entry.last_change_commit or 0
        was_changed = changed > newest.commit and changed != newest.last_change_commit
        if was_changed or entry.number in own_versions:
            if by_slice[-1][0] == entry.number:
                by_slice.pop()
            by_slice += [(entry.number, consumed.get_version(entry.number)), (entry.number + 1, newest.versions[side])]
    return replace(consumed, by_slice=tuple(by_slice))


def find_restorable_start(
    ledger: Ledger, first: int, available_runs: Collection[str], rerun_slices: Collection[int] = ()
) -> int:
    """Find the last slice up to `first` (inclusive) whose state before it can be restored.

    Args:
        ledger: The ledger.
        first: The slice to begin with.
        available_runs: Runs whose checkpoints have not expired.
        rerun_slices: Slices that run again before, and so have new checkpoints.
    """
    while (before := ledger.entry(first - 1)) and any(before.carried):
        if before.run in available_runs or before.number in rerun_slices:
            break
        first -= 1
    return first


def count_slices_until_valid(ledger: Ledger, entries: Sequence[Entry], first_stale: int) -> int:
    """Count the slices that a job that reruns stale slices has to commit, until the next committed one is not stale.

    Args:
        ledger: The ledger before the job.
        entries: Slices of the job.
        first_stale: The first stale slice of the job, which may begin before it to rebuild a checkpoint.
    """
    for count, entry in enumerate(entries[:-1], start=1):
        following = ledger.entry(entry.number + 1)
        if entry.number >= first_stale and following and _why_stale(ledger, entry, following, entry.number) is None:
            return count
    return len(entries)


def _why_stale(ledger: Ledger, before: Entry | None, entry: Entry, newer: int | None) -> StaleReason | None:
    """Return why a slice is stale; `newer` is the nearest earlier slice that was committed after it."""
    if before and before.settings != remove_later_restarts(entry.settings, ledger.grid, before.number):
        return "changed settings"
    if before and before.fingerprint != entry.carried_in_fingerprint:
        return "changed state"
    if (
        entry.late_arriving_rows
        and entry.late_arriving_from is not None
        and newer is not None
        and entry.late_arriving_from <= newer
    ):
        return "late-arriving rows reprocessed"
    if any(commit > entry.commit and entry.number not in slices for commit, slices in ledger.rollbacks.items()):
        # Its job has read the input versions and late-arriving rows that were new after the other version.
        return "rollback"
    return None


def _find_newest_run(ledger: Ledger) -> Entry | None:
    return max(ledger.entries.values(), key=lambda entry: entry.commit, default=None)


def _has_read(entry: Entry, versions: tuple[int, int]) -> bool:
    return all(read >= version for read, version in zip(entry.versions, versions, strict=True))
