"""How far back one can go: to old versions of tables, with slices that run again, with states that are verified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from deltalake.exceptions import DeltaError

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.delta.log_files import oldest_whole
from tidemark.delta.paths import place
from tidemark.delta.table import DeltaLog
from tidemark.errors import UserError
from tidemark.ledger.checkpoint_files import kept_runs
from tidemark.ledger.ledger import Entry, Ledger
from tidemark.ledger.staleness import restorable, start_of_chain


@dataclass(frozen=True)
class Reach:
    """How far back a pipeline reaches."""

    readable_from: Mapping[str, int]
    """The oldest version of each table from which on all can be read, 0 the first."""
    reprocess_from: str | None
    """The first slice from which on each can run again by itself, its state being kept; None where none can."""
    rebuilt_from: str | None
    """The slice with which a reprocess of any slice before that begins; None where nothing is committed."""
    verify_from: str | None
    """The first slice from which on `state verify` can replay; None where versions that slices have read are gone."""
    inputs_unknown: tuple[str, ...]
    """Inputs whose logs cannot be asked without Spark: `verify_from` takes them to be whole."""


def reach_of(
    pipeline: Pipeline, lake: str, readable_from: Mapping[str, int], given_up: Collection[str] = frozenset()
) -> Reach:
    """How far back a pipeline reaches, once the states of some runs have been given up."""
    ledger = Ledger.of(pipeline, lake)
    chain = _chain(ledger)
    if not chain:
        return Reach(readable_from, None, None, None, ())
    kept = kept_runs(ledger.tables, ledger.entries.values(), ledger.grid) - frozenset(given_up)
    whole = {side: _whole_since(pipeline, lake, side, chain) for side in SIDES}
    least = tuple(-1 if version is None else version for version in whole.values())
    again, replayed = reprocessed_from(ledger, kept), verified_from(ledger, kept, least)
    return Reach(
        readable_from,
        None if again is None else ledger.grid.name(again),
        ledger.grid.name(chain[0].number),
        None if replayed is None else ledger.grid.name(replayed),
        tuple(getattr(pipeline, side).table for side, version in whole.items() if version is None),
    )


def reprocessed_from(ledger: Ledger, kept: Collection[str]) -> int | None:
    """The first slice from which on each can run again from a state that is kept, to the last of the chain."""
    by_itself = (entry.number for entry in _back_to(_chain(ledger), partial(_begins, ledger, kept)))
    return next(by_itself, None)


def verified_from(ledger: Ledger, kept: Collection[str], least: Sequence[int]) -> int | None:
    """The first slice with which a replay to the last can begin: its state is kept, and so is what was read from it on.

    `least` has the oldest version of each input that can be read.
    """

    def is_whole(entry: Entry) -> bool:
        return all(read >= oldest for read, oldest in zip(entry.versions, least, strict=True))

    replayed = _back_to(_chain(ledger), is_whole)
    return next((entry.number for entry in replayed if _begins(ledger, kept, entry)), None)


def _chain(ledger: Ledger) -> list[Entry]:
    """The slices without a gap up to the last."""
    start = start_of_chain(ledger)
    return [entry for number, entry in ledger.entries.items() if start and number >= start.number]


def _begins(ledger: Ledger, kept: Collection[str], entry: Entry) -> bool:
    return restorable(ledger, entry.number, kept) == entry.number


def _back_to(chain: Sequence[Entry], holds: Callable[[Entry], bool]) -> list[Entry]:
    """The end of a chain of each of whose slices something holds."""
    return list(takewhile(holds, reversed(chain)))[::-1]


def _whole_since(pipeline: Pipeline, lake: str, side: SideName, chain: Sequence[Entry]) -> int | None:
    """The oldest version of an input that can be read, of those that slices have read; None where it is not known."""
    least = min(entry.versions[SIDES.index(side)] for entry in chain)
    with suppress(DeltaError, UserError):
        log = DeltaLog.open(place(lake, getattr(pipeline, side).table))
        return None if log is None else oldest_whole(log, least)
    return None
