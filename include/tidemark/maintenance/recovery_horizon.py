"""Compute how far back a pipeline can be read, reprocessed and verified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from deltalake.exceptions import DeltaError

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.delta.log_files import find_oldest_readable_version
from tidemark.delta.paths import resolve_path
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import UserError
from tidemark.ledger.checkpoint_files import list_available_checkpoints
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import find_restorable_start, find_start_of_chain
from tidemark.tables.table_changes import open_tables


@dataclass(frozen=True)
class RecoveryHorizon:
    """The oldest versions and slices that can be read, reprocessed and verified."""

    readable_from: Mapping[str, int]
    """First version of each table from which all later ones can be read, starting with 0."""
    reprocess_from: str | None
    """First slice from which each can be reprocessed alone, as its checkpoint exists; None without any."""
    full_reprocess_from: str | None
    """First slice of a reprocess of any slice before `reprocess_from`; None if nothing is committed."""
    verify_from: str | None
    """First slice from which `checkpoint verify` can replay; None if versions that slices have read are gone."""
    unverified_inputs: tuple[str, ...]
    """Inputs whose logs cannot be read without Spark; `verify_from` assumes that they are complete."""


def compute_recovery_horizon(
    pipeline: Pipeline, lake: str, readable_from: Mapping[str, int], expired_runs: Collection[str] = frozenset()
) -> RecoveryHorizon:
    """Compute the horizon after the checkpoints of some runs have expired."""
    ledger = Ledger.from_pipeline(pipeline, lake)
    chain = _list_chain(ledger)
    if not chain:
        return RecoveryHorizon(readable_from, None, None, None, ())
    runs_with_checkpoint = list_available_checkpoints(ledger.tables, ledger.entries.values(), ledger.grid) - frozenset(
        expired_runs
    )
    oldest_by_side = {side: _find_oldest_readable(pipeline, lake, side, chain) for side in SIDES}
    oldest_versions = tuple(-1 if version is None else version for version in oldest_by_side.values())
    reprocess_from = find_first_reprocessable(ledger, runs_with_checkpoint)
    verify_from = find_first_verifiable(ledger, runs_with_checkpoint, oldest_versions)
    return RecoveryHorizon(
        readable_from,
        None if reprocess_from is None else ledger.grid.label(reprocess_from),
        ledger.grid.label(chain[0].number),
        None if verify_from is None else ledger.grid.label(verify_from),
        tuple(getattr(pipeline, side).table for side, version in oldest_by_side.items() if version is None),
    )


def find_first_reprocessable(ledger: Ledger, runs_with_checkpoint: Collection[str]) -> int | None:
    """Find the first slice from which each, to the last of the chain, can be reprocessed from a checkpoint."""
    reprocessable = _take_last_while(_list_chain(ledger), partial(_can_start_at, ledger, runs_with_checkpoint))
    return next((entry.number for entry in reprocessable), None)


def find_first_verifiable(
    ledger: Ledger, runs_with_checkpoint: Collection[str], oldest_versions: Sequence[int]
) -> int | None:
    """Find the first slice from which a replay to the last can start.

    Args:
        runs_with_checkpoint: Runs whose checkpoints have not expired.
        oldest_versions: Oldest readable version of each input.
    """

    def has_inputs(entry: Entry) -> bool:
        return all(read >= oldest for read, oldest in zip(entry.versions, oldest_versions, strict=True))

    replayable = _take_last_while(_list_chain(ledger), has_inputs)
    return next((entry.number for entry in replayable if _can_start_at(ledger, runs_with_checkpoint, entry)), None)


def _list_chain(ledger: Ledger) -> list[Entry]:
    """List the slices without a gap up to the last."""
    start = find_start_of_chain(ledger)
    return [entry for number, entry in ledger.entries.items() if start and number >= start.number]


def _can_start_at(ledger: Ledger, runs_with_checkpoint: Collection[str], entry: Entry) -> bool:
    return find_restorable_start(ledger, entry.number, runs_with_checkpoint) == entry.number


def _take_last_while(chain: Sequence[Entry], condition: Callable[[Entry], bool]) -> list[Entry]:
    """Return the last slices of a chain that all meet a condition."""
    return list(takewhile(condition, reversed(chain)))[::-1]


def _find_oldest_readable(pipeline: Pipeline, lake: str, side: SideName, chain: Sequence[Entry]) -> int | None:
    """Find the oldest readable version of an input among those that slices have read; None if unknown."""
    oldest_read = min(entry.versions[SIDES.index(side)] for entry in chain)
    with suppress(DeltaError, UserError):
        log = DeltaTableHandle.open(resolve_path(lake, getattr(pipeline, side).table))
        return None if log is None else find_oldest_readable_version(log, oldest_read)
    return None


def find_oldest_readable_versions(pipeline: Pipeline, lake: str) -> dict[str, int]:
    """Return the first version of each table from which all later ones can be read, starting with 0."""
    tables = PipelineTables.from_config(pipeline, lake)
    return {name: find_oldest_readable_version(log) for name, log in open_tables(tables).items()}
