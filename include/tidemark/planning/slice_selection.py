"""Select the slices of a request: new, stale, changed or reprocessed ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from tidemark.config.candidate_version import format_cli_arguments
from tidemark.errors import SliceOrderError
from tidemark.ledger.config_fingerprint import describe_setting_diff, remove_later_restarts
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import find_restorable_start, find_stale_slices
from tidemark.planning.context import PlanningContext
from tidemark.planning.new_slices import select_new_slices
from tidemark.planning.plan import SliceRange, SliceSelection
from tidemark.planning.preconditions import (
    can_rerun_later_slices,
    require_continuable_settings,
    require_emitted_columns,
    require_rereadable_inputs,
    require_same_settings,
    require_same_tables,
    require_unchanged_inputs,
)
from tidemark.sources.upstream import UpstreamState, find_readable_end
from tidemark.timegrid.slices import Grid, group_consecutive


def select_slices(context: PlanningContext) -> SliceSelection:
    """Select the slices of a request, and the slices before them whose state has expired. Errors: `create_plan`."""
    if context.last and not (context.request.reprocesses_range or context.starts_from_empty_state):
        require_same_tables(context, context.last.number + 1)
    if context.request.outdated:
        selection = _select_outdated(context)
    else:
        selection = _select_for_reprocess(context) if context.request.reprocess else _select_for_run(context)
    rebuilt = list(_find_ranges_to_rebuild(context, selection.slice_ranges))
    slice_ranges = sorted((*rebuilt, *selection.slice_ranges), key=lambda part: part.slices.start)
    bounds = [map(context.grid.label, (part.slices.stop, part.slices.start)) for part in rebuilt]
    notes = [
        f"the checkpoint that slice {first} continues has expired: slices from {start} on run again"
        for first, start in bounds
    ]
    return replace(selection, slice_ranges=tuple(slice_ranges), notes=(*selection.notes, *notes))


def _select_for_run(context: PlanningContext) -> SliceSelection:
    """Select stale and changed slices, then new slices."""
    require_same_settings(context)
    selection = select_new_slices(context)
    changed = _find_ranges_with_changed_inputs(context)
    repairs = list_readable_ranges((*find_stale_ranges(context.ledger), *changed), context.upstreams)
    slice_ranges = (*repairs, *selection.slice_ranges)
    if context.last:
        rerun = _find_slices_with_changed_inputs(context)
        require_unchanged_inputs(context, min(rerun, default=context.last.number + 1))
    if slice_ranges:
        require_emitted_columns(context)
    notes = selection.notes
    if repairs:
        notes += ("later slices also run again until a slice starts from the same state as before",)
    return replace(selection, slice_ranges=slice_ranges, notes=notes)


def _select_for_reprocess(context: PlanningContext) -> SliceSelection:
    """Select the committed slices of the requested range, or those whose input rows have arrived or changed since."""
    request, grid, last = context.request, context.grid, context.last
    if last is None:
        command = f"tidemark run {format_cli_arguments(context.pipeline)}"
        raise SliceOrderError(f"no slice is committed yet, so none can be reprocessed. Use {command}.")
    if not request.reprocesses_range:
        stale_ranges = list(find_stale_ranges(context.ledger))
        if stale_ranges:
            require_same_settings(context)
        stale_slices = {number for part in stale_ranges for number in part.slices}
        outdated = [*stale_ranges, *_find_ranges_with_unread_changes(context, stale_slices)]
        slice_ranges = list_readable_ranges(outdated, context.upstreams)
        notes = [] if outdated else ["no input rows of committed slices have arrived or changed since they were read"]
        notes += _explain_stale_upstreams(context)
    else:
        slice_ranges = _find_requested_ranges(context, last)
        notes = []
    if slice_ranges:
        first = slice_ranges[0].slices[0]
        require_same_tables(context, first)
        require_continuable_settings(context, first)
        require_unchanged_inputs(context, first)
        require_rereadable_inputs(context, slice_ranges)
        notes += _note_following_slices(grid, slice_ranges[0], last)
    return _create_reprocess(context, slice_ranges, notes)


def _select_outdated(context: PlanningContext) -> SliceSelection:
    """Select the committed slices that are stale, or whose input rows have changed.

    Late-arriving rows count only if the pipeline reprocesses them: with `append` the next slice reads them.
    """
    if context.last is None:
        return SliceSelection((), ("no slice is committed yet, so none is outdated",))
    require_same_settings(context)
    slice_ranges = [*find_stale_ranges(context.ledger), *_find_ranges_with_changed_inputs(context)]
    if context.pipeline.on_late_arriving_rows == "reprocess":
        selected = {number for slice_range in slice_ranges for number in slice_range.slices}
        slice_ranges += _find_ranges_with_late_arriving_rows(context.slices_to_reprocess, selected)
    slice_ranges = list_readable_ranges(slice_ranges, context.upstreams)
    waiting = _explain_stale_upstreams(context)
    if not slice_ranges:
        return SliceSelection((), waiting or ("no committed slice is outdated",))
    require_unchanged_inputs(context, slice_ranges[0].slices.start)
    require_rereadable_inputs(context, slice_ranges)
    require_emitted_columns(context)
    notes = _note_following_slices(context.grid, slice_ranges[0], context.last)
    return _create_reprocess(context, slice_ranges, (*notes, *waiting))


def _create_reprocess(
    context: PlanningContext, slice_ranges: Sequence[SliceRange], notes: Iterable[str]
) -> SliceSelection:
    """Create the selection of a reprocess. It is atomic if slices that become stale may not be able to run."""
    is_atomic = bool(slice_ranges) and not can_rerun_later_slices(context, slice_ranges)
    if is_atomic:
        notes = (*notes, "input rows of later slices are gone: nothing is committed if one of these must run again")
    return SliceSelection(tuple(slice_ranges), tuple(notes), is_atomic=is_atomic)


def _explain_stale_upstreams(context: PlanningContext) -> tuple[str, ...]:
    """Return a note for each pipeline whose output is an input and that has a stale slice: later slices wait."""
    return tuple(state.explain(context.grid) for state in context.upstreams if state.stale_slice is not None)


def list_readable_ranges(slice_ranges: Iterable[SliceRange], upstreams: Iterable[UpstreamState]) -> list[SliceRange]:
    """Return ranges in order, up to where the pipelines are committed whose output is an input."""
    end = find_readable_end(upstreams)
    cut = (
        part if end is None else replace(part, slices=range(part.slices.start, min(part.slices.stop, end)))
        for part in slice_ranges
    )
    return sorted((part for part in cut if part.slices), key=lambda part: part.slices.start)


def _note_following_slices(grid: Grid, first: SliceRange, last: Entry) -> list[str]:
    """Return a note that slices after the first range may run again too."""
    following, end = first.slices[-1] + 1, last.number + 1
    if following >= end:
        return []
    until = f"until a slice starts from the same state as before, at the latest up to {grid.label(end)}"
    return [f"slices from {grid.label(following)} on also run again {until}"]


def _find_ranges_with_unread_changes(context: PlanningContext, excluded: Collection[int]) -> list[SliceRange]:
    """Return the committed slices whose input rows were deleted or changed, or that have late-arriving rows."""
    numbers = [number for number in context.slices_to_reprocess if number not in excluded]
    changed = context.slices_with_deleted_inputs.intersection(numbers)
    return [*_create_changed_ranges(changed), *_find_ranges_with_late_arriving_rows(numbers, changed)]


def _find_ranges_with_late_arriving_rows(numbers: Iterable[int], excluded: Collection[int]) -> list[SliceRange]:
    late_arriving = group_consecutive(number for number in numbers if number not in excluded)
    because = "rows of these slices arrived after they were committed"
    return [SliceRange(slices, "late arrival", because) for slices in late_arriving]


def _create_changed_ranges(
    numbers: Iterable[int], because: str = "rows that they have read were deleted or changed"
) -> list[SliceRange]:
    return [SliceRange(slices, "changed input", because) for slices in group_consecutive(numbers)]


def _find_requested_ranges(context: PlanningContext, last: Entry) -> list[SliceRange]:
    """Return the ranges of the request to reprocess; slices that were never committed fill a gap."""
    request, grid, entries = context.request, context.grid, context.ledger.entries
    first = grid.parse_boundary(request.start, "--from") if request.start else next(iter(entries))
    end = grid.parse_boundary(request.end, "--to") if request.end else last.number + 1
    if first > last.number:
        raise SliceOrderError(
            f"--from {grid.label(first)} is after the last committed slice, {grid.label(last.number)}. Name an earlier "
            "slice."
        )
    if end <= first:
        raise SliceOrderError(
            f"--to {grid.label(end)} is not after --from {grid.label(first)}. Use a later --to, which is exclusive."
        )
    if end > last.number + 1:
        raise SliceOrderError(
            f"the last committed slice is {grid.label(last.number)}. Reprocess up to {grid.label(last.number + 1)} "
            "at most, and run later slices."
        )
    if first > 0 and first not in entries and first - 1 not in entries:
        before = max((number for number in entries if number < first), default=-1)
        raise SliceOrderError(
            f"checkpoint before slice {grid.label(first)} is missing. Reprocess from {grid.label(before + 1)}."
        )
    requested = range(first, end)
    committed = group_consecutive(number for number in requested if number in entries)
    gaps = group_consecutive(number for number in requested if number not in entries)
    slice_ranges = [SliceRange(slices, "reprocess", "the requested range") for slices in committed]
    slice_ranges += [SliceRange(slices, "gap", "never committed") for slices in gaps]
    return sorted(slice_ranges, key=lambda slice_range: slice_range.slices[0])


def find_stale_ranges(ledger: Ledger) -> Iterator[SliceRange]:
    """Yield the stale committed slices, grouped, each group with the reason of its first slice."""
    reasons = find_stale_slices(ledger)
    for slices in group_consecutive(reasons):
        why = reasons[slices[0]]
        first = ledger.grid.label(slices[0])
        before = ledger.grid.label(slices[0] - 1)
        if why == "changed settings":
            changes = _describe_changed_settings(ledger, slices[0])
            explanation = (
                f"slice {first} ran under other settings than the pipeline file has now ({changes}). It runs again"
            )
            yield SliceRange(slices, "changed settings", explanation)
        elif why == "changed state":
            yield SliceRange(slices, "stale", f"slice {before} now ends with a different state")
        elif why == "rollback":
            yield SliceRange(slices, "stale", "an earlier version was restored after these slices ran")
        else:
            because = f"a reprocess of {before} or an earlier slice read late-arriving rows that this slice had read"
            yield SliceRange(slices, "stale", because)


def _describe_changed_settings(ledger: Ledger, number: int) -> str:
    """Describe how the settings of the previous slice differ from those under which a slice ran."""
    entry, before = ledger.entries[number], ledger.entries[number - 1]
    return describe_setting_diff(remove_later_restarts(entry.settings, ledger.grid, before.number), before.settings)


def _find_slices_with_changed_inputs(context: PlanningContext) -> set[int]:
    """Return slices to rerun because their input rows have changed.

    Changed rows were deleted. With `on_input_delete: refuse`, only a reprocess may run these slices. If an input is the
    output of another pipeline, added rows count too: a reprocess of that pipeline added them.
    """
    if context.upstreams and context.pipeline.on_late_arriving_rows == "reprocess":
        return set(context.slices_to_reprocess)
    return context.slices_with_deleted_inputs


def _find_ranges_with_changed_inputs(context: PlanningContext) -> list[SliceRange]:
    """Return the ranges of `_find_slices_with_changed_inputs`, except slices that are stale anyway."""
    numbers = _find_slices_with_changed_inputs(context).difference(find_stale_slices(context.ledger))
    if context.upstreams and context.pipeline.on_late_arriving_rows == "reprocess":
        return _create_changed_ranges(numbers, "their input rows have changed")
    return _create_changed_ranges(numbers)


def _find_ranges_to_rebuild(context: PlanningContext, slice_ranges: Iterable[SliceRange]) -> Iterator[SliceRange]:
    """Yield the slices to rerun because checkpoints that ranges continue have expired."""
    planned = set[int]()
    for part in slice_ranges:
        first = part.slices.start
        start = find_restorable_start(context.ledger, first, context.available_checkpoints, planned)
        if context.last and first <= context.last.number and start < first:
            before, since = context.grid.label(first - 1), context.grid.label(start)
            because = f"the checkpoint after {before} is rebuilt from {since} on"
            yield SliceRange(range(start, first), "expired checkpoint", because)
        planned.update(range(start, part.slices.stop))
