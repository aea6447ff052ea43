"""Faults that break the rules of chains. `test_simulation_detects_fault_of_chain` checks that a schedule finds each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from tidemark.config import Pipeline
from tidemark.maintenance.unused_files import _TableFiles
from tidemark.planning import new_slices, planner
from tidemark.planning.context import PlanningContext
from tidemark.planning.plan import SliceRange
from tidemark.sources import upstream
from tidemark.sources.late_arrivals import ChangeDetector
from tidemark.sources.upstream import UpstreamState, read_upstreams


def ignore_versions_read(patch: pytest.MonkeyPatch) -> None:
    """Never compare the version of an input that slices have read with the current one."""
    patch.setattr(PlanningContext, "slices_to_reprocess", ())


def run_ahead_of_upstream(patch: pytest.MonkeyPatch) -> None:
    """Run new slices that the previous join has not committed."""
    patch.setattr(new_slices, "_limit_to_upstreams", lambda _context, _start, end, _notes: end)


def read_stale_slices(patch: pytest.MonkeyPatch) -> None:
    """Read slices of the previous join that are stale."""
    patch.setattr(upstream, "find_stale_slices", lambda _ledger: {})


def read_unapplied_tables(patch: pytest.MonkeyPatch) -> None:
    """Read an output stream that may lack the last commit of its ledger."""

    def read(pipeline: Pipeline, lake: str, **_: object) -> list[UpstreamState]:
        return read_upstreams(pipeline, lake, applies_commits=False)

    patch.setattr(planner, "read_upstreams", read)


def open_inputs_first(patch: pytest.MonkeyPatch) -> None:
    """Open the inputs of a plan before its ledger, and before the ledger of the previous join."""
    opened: dict[int, Any] = {}
    open_inputs, thread = planner.open_inputs, threading.get_ident

    def open_and_read(pipeline: Pipeline, lake: str, **options: Any) -> list[UpstreamState]:
        if all(state.end for state in read_upstreams(pipeline, lake, applies_commits=False)):
            opened[thread()] = open_inputs(None, pipeline)
        return read_upstreams(pipeline, lake, **options)

    patch.setattr(planner, "read_upstreams", open_and_read)
    patch.setattr(planner, "open_inputs", lambda *arguments: opened.pop(thread(), None) or open_inputs(*arguments))


def forget_slices_of_full_reprocess(patch: pytest.MonkeyPatch) -> None:
    """Record no changed slices if a plan runs all slices again, though it may be killed before it does."""
    find_slices = planner._find_slices_to_reprocess

    def find(context: PlanningContext, slice_ranges: Sequence[SliceRange]) -> tuple[int, ...] | None:
        planned = {number for part in slice_ranges for number in part.slices}
        found = find_slices(context, slice_ranges)
        return () if found and planned >= context.ledger.entries.keys() else found

    patch.setattr(planner, "_find_slices_to_reprocess", find)


def read_replaced_files_of_later_slices(patch: pytest.MonkeyPatch) -> None:
    """Read replaced files of slices that were not run yet, to find changes of others: a vacuum may delete them."""

    def read_before(detector: ChangeDetector, end: int, read: Callable[[Collection[str]], Any], _: object) -> Any:
        return read(detector.statistics.select_paths_from(end))

    patch.setattr(ChangeDetector, "_read_before", read_before)


def vacuum_at_any_age(patch: pytest.MonkeyPatch) -> None:
    """Delete replaced files at once, with which a reader compares what it has read."""
    patch.setattr(
        _TableFiles,
        "list_replaced",
        lambda files, _before: [files.disk_files[path] for path in files.removals if path in files.disk_files],
    )


CHAIN_MUTANTS = (
    ignore_versions_read,
    run_ahead_of_upstream,
    read_stale_slices,
    read_unapplied_tables,
    open_inputs_first,
    forget_slices_of_full_reprocess,
    read_replaced_files_of_later_slices,
    vacuum_at_any_age,
)
