"""Refuse plans whose inputs or settings do not fit the committed slices.

A failed check of the inputs raises `InputError`, one of the settings `SliceOrderError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidemark.config.candidate_version import format_cli_arguments, to_live
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant
from tidemark.delta.column_changes import find_column_changes
from tidemark.errors import InputError, SliceOrderError
from tidemark.joins.join_type import SEMI_ANTI_TYPES
from tidemark.ledger.config_fingerprint import find_slices_with_other_settings, serialize_settings
from tidemark.ledger.entry import Entry
from tidemark.ledger.staleness import find_compared_versions, find_stale_slices, find_start_of_chain, list_read_ranges
from tidemark.planning.context import PlanningContext
from tidemark.planning.plan import SliceRange
from tidemark.sources.late_arrivals import require_unchanged
from tidemark.timegrid.slices import LocalDayGrid


def require_same_tables(context: PlanningContext, first: int) -> None:
    """Check that the slice before `first` has read the tables that are there now.

    The log of a table that was deleted and created again does not tell which of its rows are new.

    Raises:
        InputError: A table was deleted and created again.
    """
    entry = context.ledger.entry(first - 1)
    if entry is None or entry.table_ids is None:
        return
    for source, table_id, version in zip(context.inputs, entry.table_ids, entry.versions, strict=True):
        # A table that was replaced (CREATE OR REPLACE) has a new id in the same log, which tells the changed rows.
        if source.table.table_id != table_id != source.table.find_table_id_at(version):
            start = context.grid.label(min(context.ledger.entries))
            raise InputError(
                f"input {source.table.name} was deleted and created again: it has another table id than the one that "
                f"slices up to {context.grid.label(first)} have read. Restore the old table, or run "
                f"{context.reprocess_command} --from {start}"
            )


def require_unchanged_inputs(context: PlanningContext, first: int) -> None:
    """Check that rows read by slices before `first` still exist, unless `on_input_delete: ignore`."""
    if context.pipeline.on_input_delete == "ignore":
        return
    changed = []
    for side, source in enumerate(context.inputs):
        consumed = find_compared_versions(context.ledger, side, first)
        with context.record_spark_query(f"whether rows of {source.table.name} that were read are still there"):
            changed.append(source.changes.find_changed_rows(context.grid, first, consumed))
    require_unchanged(changed, context.grid, context.reprocess_command)


def require_rereadable_inputs(context: PlanningContext, slice_ranges: Iterable[SliceRange]) -> None:
    """Check that rows of slices to reprocess still exist, with `on_input_delete: ignore`."""
    if context.pipeline.on_input_delete != "ignore":
        return
    numbers = (number for slice_range in slice_ranges for number in slice_range.slices)
    _require_rereadable(context, filter(None, map(context.ledger.entry, numbers)))


def can_rerun_later_slices(context: PlanningContext, slice_ranges: Sequence[SliceRange]) -> bool:
    """Return True if later slices can run again should a reprocess make them stale.

    With `on_input_delete: ignore`, input rows of some may be gone.
    """
    if context.pipeline.on_input_delete != "ignore":
        return True
    planned = {number for slice_range in slice_ranges for number in slice_range.slices}
    later = (
        entry
        for number, entry in context.ledger.entries.items()
        if number > slice_ranges[0].slices.start and number not in planned
    )
    try:
        _require_rereadable(context, later)
    except InputError:
        return False
    return True


def _require_rereadable(context: PlanningContext, entries: Iterable[Entry]) -> None:
    entries = list(entries)
    for side, source in enumerate(context.inputs):
        with context.record_spark_query(f"whether rows of {source.table.name} are there to be read again"):
            source.changes.require_rereadable(context.grid, list_read_ranges(entries, side))


def require_emitted_columns(context: PlanningContext) -> None:
    """Check that the inputs have all columns that earlier slices emitted, if the file does not name them."""
    pipeline, last = context.pipeline, context.last
    if last is None or (pipeline.select or pipeline.explode) is not None:
        return
    emitted_sides = 1 if pipeline.join.type in SEMI_ANTI_TYPES else len(SIDES)
    for source, version in zip(context.inputs[:emitted_sides], last.versions, strict=False):
        before = source.table.get_schema_at(version) if version != source.table.version else None
        if before is None:
            continue
        missing = [
            f"{change.name} (renamed to {change.other_name})" if change.other_name else change.name
            for change in find_column_changes(before, source.table.schema)
            if change.kind in {"renamed", "dropped"} and len(change.path) == 1
        ]
        if missing:
            raise InputError(
                f"input {source.table.name} no longer has {', '.join(missing)}, which slices up to "
                f"{context.grid.label(last.number + 1)} have emitted. Restore it, or name the columns to emit "
                "in `select`."
            )


def require_same_settings(context: PlanningContext) -> None:
    """Check that committed slices ran under the present settings, or will be rerun because they did not."""
    other = next(_find_changed_slices_of_chain(context, context.last), None)
    if other and find_stale_slices(context.ledger).get(other[0]) != "changed settings":
        start = context.grid.label(other[0])
        run = f"tidemark run {format_cli_arguments(to_live(context.pipeline))}"
        raise SliceOrderError(
            f"slices from {start} on were written under other settings ({other[1]}), whose state lacks what the "
            f"present ones need. Restore them, run {context.reprocess_command} --from {start}, or compute a candidate "
            f"version with {run} --candidate NAME."
        )


def require_continuable_settings(context: PlanningContext, first: int) -> None:
    """Check that the slices before `first` whose state leads to it ran under the present settings.

    A stale slice before `first` runs first, so its predecessor's checkpoint counts too.
    """
    changed_slices = dict(_find_changed_slices_of_chain(context, context.ledger.entry(first - 1)))
    if changed_slices:
        last = max(changed_slices)
        raise SliceOrderError(
            f"slice {context.grid.label(last)} was written under other settings ({changed_slices[last]}), so its "
            f"checkpoint cannot be continued. Reprocess from {context.grid.label(min(changed_slices))}."
        )


def require_same_local_days(context: PlanningContext) -> None:
    """Check that committed local days have the same bounds by the current time zone database."""
    ledger, grid = context.ledger, context.grid
    if not isinstance(grid, LocalDayGrid) or ledger.rows.empty:
        return
    changed_slices = dict(
        find_slices_with_other_settings(ledger.entries.values(), serialize_settings(context.pipeline), grid)
    )
    for row in ledger.rows[["number", "slice", "slice_end"]].to_dict("records"):
        number = int(row["number"])
        committed = (row["slice"], row["slice_end"])
        current = grid.datetime_of(number), grid.datetime_of(number + 1)
        if committed != current and number not in changed_slices:
            committed_day, current_day = (" to ".join(map(format_instant, bounds)) for bounds in (committed, current))
            raise SliceOrderError(
                f"a slice was committed as the day {committed_day} of {grid.zone}, which is {current_day} by Python's "
                "time zone database. Install the time zone database of that time, or set a new `output`."
            )


def _find_changed_slices_of_chain(context: PlanningContext, last: Entry | None) -> Iterator[tuple[int, str]]:
    """Return slices of the gapless chain up to `last` that ran under other settings, with the settings that differ."""
    start = find_start_of_chain(context.ledger, last)
    if start is None or last is None:
        return iter(())
    chain = (context.ledger.entries[number] for number in range(start.number, last.number + 1))
    return find_slices_with_other_settings(chain, serialize_settings(context.pipeline), context.grid)
