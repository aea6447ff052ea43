"""What committed slices say about each other: which no longer hold, and what of the inputs has been taken.

Nothing here reads a table; docs/decisions/0012-attempts-and-ripple.md has the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tidemark.ledger.config_fingerprint import settings_up_to_slice
from tidemark.ledger.ledger import Entry, Ledger
from tidemark.timegrid.slices import Grid

Why = Literal["another state", "landed rows went home", "changed settings"]


@dataclass(frozen=True)
class ConsumedVersions:
    """The version of one input up to which rows were taken before a job starts, by the slice that they belong to."""

    by_slice: tuple[tuple[int | None, int], ...]
    """First slice (None for any before) and version, in order; empty where rows of earlier slices are not taken."""
    unplaced: int | None
    """The same for rows without a usable clock; None where none has been taken."""


NOTHING_CONSUMED = ConsumedVersions((), None)
"""Before the first slice."""


def consumed_versions(entries: Iterable[Entry], side: int) -> ConsumedVersions:
    """What slices, in order, have taken of an input (0: left, 1: right).

    A row belongs to the slice of its clock. It has been taken with that slice, or by a later one that took all that had
    landed for earlier slices.
    """
    by_slice: list[tuple[int | None, int]] = []
    taken, above, unplaced = -1, None, None

    def add(home: int | None, version: int) -> None:
        if by_slice and by_slice[-1][1] == version:
            by_slice.pop()
        by_slice.append((home, version))

    for entry in reversed(list(entries)):
        version = entry.versions[side]
        if above is not None and entry.number + 1 < above:
            add(entry.number + 1, taken)
        add(entry.number, max(version, taken))
        if entry.consumes_late_arrivals:
            taken = max(taken, version)
        if entry.landed is not None:
            unplaced = version if unplaced is None else max(unplaced, version)
        above = entry.number
    if by_slice:
        add(None, taken)
    return ConsumedVersions(tuple(reversed(by_slice)), unplaced)


def reads(entries: Iterable[Entry], side: int) -> Iterator[tuple[range, int]]:
    """The slices whose rows of an input (0: left, 1: right) each entry has taken, at least, and at which version."""
    for entry in entries:
        first = entry.number if entry.landed_from is None else min(entry.landed_from, entry.number)
        yield range(first, entry.number + 1), entry.versions[side]


def stale(ledger: Ledger, after: int = -1) -> dict[int, Why]:
    """Committed slices behind slice `after` whose answer no longer follows from what stands before them, and why."""
    found: dict[int, Why] = {}
    newer: list[Entry] = []  # those before the slice at hand that no later one of them was committed after
    for number, entry in ledger.entries.items():
        while newer and newer[-1].commit <= entry.commit:
            newer.pop()
        before, newest = ledger.entry(number - 1), newer[-1].number if newer else None
        if number > after and (why := _why_stale(ledger.grid, before, entry, newest)):
            found[number] = why
        newer.append(entry)
    return found


def start_of_chain(ledger: Ledger, entry: Entry | None = None) -> Entry | None:
    """The slice from which a committed one, by default the last, can be reached without a gap."""
    entry = entry or ledger.last
    while entry and (before := ledger.entry(entry.number - 1)):
        entry = before
    return entry


def waiting(ledger: Ledger) -> tuple[tuple[int, int], tuple[int, ...]] | None:
    """Under policy `reprocess`: the input versions up to which late rows are known, and the slices that wait for them.

    None where no commit has told.
    """
    newest = max(ledger.entries.values(), key=lambda entry: entry.commit, default=None)
    if newest is None or newest.waiting is None:
        return None
    known = newest.versions
    behind = (number for number in newest.waiting if not _read(ledger.entries[number], known))
    return known, tuple(behind)


def restorable(ledger: Ledger, first: int, kept: Collection[str]) -> int:
    """The nearest slice up to `first` whose predecessor had no state, or a checkpoint among the runs that are kept."""
    while (before := ledger.entry(first - 1)) and any(before.carried) and before.run not in kept:
        first -= 1
    return first


def repaired_until(ledger: Ledger, entries: Sequence[Entry]) -> int:
    """How many slices of a job that repairs stale ones to commit: up to where the old ones are right again."""
    known = dict(ledger.entries)
    for count, entry in enumerate(entries[:-1], start=1):
        known[entry.number] = entry
        behind = known.get(entry.number + 1)
        if behind and _why_stale(ledger.grid, entry, behind, entry.number) is None:
            return count
    return len(entries)


def _why_stale(grid: Grid, before: Entry | None, entry: Entry, newer: int | None) -> Why | None:
    """Why a slice is stale; `newer` is the nearest one before it that was committed after it."""
    if before and before.settings != settings_up_to_slice(entry.settings, grid, before.number):
        return "changed settings"
    if before and before.digest != entry.carried_in_digest:
        return "another state"
    if entry.landed and entry.landed_from is not None and newer is not None and entry.landed_from <= newer:
        return "landed rows went home"
    return None


def _read(entry: Entry, versions: tuple[int, int]) -> bool:
    return all(mine >= known for mine, known in zip(entry.versions, versions, strict=True))
