"""Find the slices that a run commits for the first time."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemark.config.types import to_micros
from tidemark.errors import IncompleteInputError, SliceOrderError
from tidemark.formatting import format_count
from tidemark.planning.context import PlanningContext
from tidemark.planning.plan import SliceRange, SliceSelection
from tidemark.sources.stored_input import get_query_trace
from tidemark.timegrid.slices import Grid


def select_new_slices(context: PlanningContext) -> SliceSelection:
    """Select the new slices of a request.

    By default, these are the slices after the last committed one, up to the end of the rows or of complete inputs.
    """
    request, grid, last = context.request, context.grid, context.last
    first, next_slice = context.first_requested, context.next_slice
    start = max(first, next_slice)
    end, notes = _find_end(context)
    end = _limit_to_pipeline_end(context, end, notes)
    end = _limit_to_upstreams(context, start, end, notes)
    end = _limit_to_complete_inputs(context, start, end, notes)
    if request.start and request.end and end <= first:
        raise SliceOrderError(
            f"--to {grid.label(end)} is not after --from {grid.label(first)}. Use a later --to, which is exclusive."
        )
    if first > next_slice and not request.from_empty_state:
        committed = f"the last committed slice is {grid.label(last.number)}" if last else "no slice is committed yet"
        raise SliceOrderError(
            f"checkpoint before slice {grid.label(first)} is missing: {committed}. "
            f"Run from {grid.label(next_slice)}, or pass --from-empty-state."
        )
    if last and first == next_slice and request.from_empty_state:
        raise SliceOrderError(
            f"slice {grid.label(first)} continues the state of the committed slice before it. "
            "Remove --from-empty-state, or give the pipeline a new `output`."
        )
    if last and last.is_end_of_input and end > start:
        raise SliceOrderError(
            f"the input was drained at slice {grid.label(last.number)}, so no slice can follow it. "
            "Give the pipeline a new `output` to run it again without --drain."
        )
    if end <= start:
        notes += _explain_nothing_to_run(context, start, end, has_notes=bool(notes))
    return SliceSelection(
        (SliceRange(range(start, end), "new", _explain_start(context, start)),) if end > start else (),
        tuple(notes),
        already_committed=max(0, min(start, end) - first),
        drain_after=end - 1 if request.drain and end > start else None,
    )


def _explain_nothing_to_run(context: PlanningContext, start: int, end: int, *, has_notes: bool) -> list[str]:
    """Return a note on why no slice from `start` on runs, unless earlier notes explain it."""
    request, grid, last = context.request, context.grid, context.last
    if last and start == last.number + 1:
        committed = f"all slices up to {grid.label(start)} are committed"
        if request.drain and not last.drained:
            bound = context.pipeline.slices.end
            next_end = grid.label(start + 1)
            is_beyond_bound = bound is not None and start + 1 > grid.number_at(to_micros(bound))
            first_step = f"raise slices.end to {next_end} and " if is_beyond_bound else ""
            committed += f" without --drain. To end the inputs after one more slice, {first_step}pass --to {next_end}"
        return [committed]
    if request.end:
        return [f"no slice from {grid.label(start)} on ends by --to {grid.label(end)}"]
    return [] if has_notes else [f"the inputs have no rows from {grid.label(start)} on"]


def _explain_start(context: PlanningContext, start: int) -> str:
    last = context.last
    if last is None and start == 0:
        return "no slice is committed yet"
    if last and start == last.number + 1:
        return f"continues slice {context.grid.label(last.number)}"
    return "starts from empty state"


def _find_end(context: PlanningContext) -> tuple[int, list[str]]:
    """Find the end of the last slice: the requested one, else that of the trace or of the rows, and not after now."""
    request, grid = context.request, context.grid
    trace, now = get_query_trace(context.inputs), grid.number_at(to_micros(datetime.now(UTC)))
    requested_end = grid.parse_boundary(request.end, "--to") if request.end else None
    if trace:
        if request.drain:
            raise SliceOrderError(
                "--drain: has no effect with a streaming checkpoint, which has all batches of the query. Remove it."
            )
        trace_end = trace.find_end_slice(grid)
        if requested_end is None:
            notes = [_explain_wait(grid, now, trace_end - 1, "batches")] if now < trace_end else []
            return max(0, min(trace_end, now)), notes
        if requested_end > trace_end:
            raise SliceOrderError(
                f"--to {grid.label(requested_end)} is after the batches of {trace.checkpoint}. Use --to "
                f"{grid.label(trace_end)} or earlier."
            )
    return _find_end_of_rows(context, now) if requested_end is None else (requested_end, [])


def _find_end_of_rows(context: PlanningContext, now: int) -> tuple[int, list[str]]:
    """Find the end of the last slice with rows, before the slice that contains the current time."""
    grid = context.grid
    notes = list[str]()
    last = -1
    first_waiting = max(now, context.last.number + 1 if context.last else 0)
    newest_waiting: dict[str, int] = {}
    for source in context.inputs:
        extent = source.measure_extent(grid, count_before=context.last is None)
        newest, before = extent.newest_slice, extent.rows_before_start
        if not extent.is_from_statistics:
            context.spark_queries.append(f"how far {source.table.name} reaches")
        if before:
            rows = format_count(before, "row")
            notes.append(f"{rows} of {source.table.name} before the first slice, without part in the join")
        if newest is not None and newest >= first_waiting:
            newest_waiting[source.table.name] = newest
        last = max(last, -1 if newest is None else min(newest, now - 1))
    if newest_waiting:
        first_new = context.last.number + 1 if context.last else 0
        if context.request.drain and last >= first_new:
            raise SliceOrderError(
                f"--drain: {' and '.join(newest_waiting)} has rows in slice {grid.label(first_waiting)}, which is not "
                f"over. Pass --to {grid.label(max(newest_waiting.values()) + 1)} to read them before the inputs end."
            )
        rows = f"rows of {' and '.join(newest_waiting)}"
        notes.append(_explain_wait(grid, first_waiting, max(newest_waiting.values()), rows))
    return last + 1, notes


def _explain_wait(grid: Grid, first: int, newest: int, rows: str) -> str:
    """Return a note on slices that are not over: when the first one ends, and how to run it before.

    Args:
        grid: Grid of the slices.
        first: First slice that is neither over nor committed.
        newest: Slice with the newest row.
        rows: Name of the rows.
    """
    start, end = grid.label(first), grid.label(first + 1)
    later = f" or in later slices up to {grid.label(newest)}" if newest > first else ""
    return (
        f"slice {start} is not over until {end}, so {rows} in it{later} do not run yet. Run again after {end}, or pass "
        f"--to {end} to run it now"
    )


def _limit_to_pipeline_end(context: PlanningContext, end: int, notes: list[str]) -> int:
    """Limit the end to that of the pipeline's last slice, with a note; refuse a later requested end."""
    grid, bound = context.grid, context.pipeline.slices.end
    if bound is None or end <= (last_end := grid.number_at(to_micros(bound))):
        return end
    if context.request.end:
        raise SliceOrderError(
            f"--to {grid.label(end)} is after the pipeline's last slice (slices.end is {grid.label(last_end)}). Use "
            f"--to {grid.label(last_end)}."
        )
    notes.append(f"rows lie after slices.end, {grid.label(last_end)}, and take no part")
    return last_end


def _limit_to_complete_inputs(context: PlanningContext, first: int, end: int, notes: list[str]) -> int:
    """Limit the end to slices whose inputs are complete, with a note; refuse a later requested end."""
    request, grid = context.request, context.grid
    if end <= first:
        return end
    incomplete = [input_ for input_ in context.input_completeness if not input_.covers(grid.datetime_of(end))]
    if not incomplete or request.ignore_completeness:
        return end
    reached = min(0 if input_.until is None else grid.number_at(to_micros(input_.until)) for input_ in incomplete)
    details = "; ".join(input_.explain() for input_ in incomplete)
    if request.end:
        alternative = f"Run up to {grid.label(reached)}" if reached > first else "Wait for it"
        raise IncompleteInputError(
            f"slices up to {grid.label(end)} are not complete yet: {details}. {alternative}, or pass "
            "--ignore-completeness."
        )
    notes.append(f"slices from {grid.label(max(reached, first))} on wait: {details}")
    return max(reached, first)


def _limit_to_upstreams(context: PlanningContext, start: int, end: int, notes: list[str]) -> int:
    """Limit the slices to those that all pipelines have committed whose output is an input.

    Raises:
        IncompleteInputError: The request names a later end.
        SliceOrderError: The inputs of one of the two pipelines are to end, and those of the other one do not end there.
    """
    grid, request = context.grid, context.request
    for upstream in context.upstreams:
        if upstream.end is None or upstream.end < end:
            if request.end and end > start:
                raise IncompleteInputError(f"slices up to {grid.label(end)} need their input: {upstream.explain(grid)}")
            notes.append(f"waits for its input: {upstream.explain(grid)}")
            end = min(end, upstream.end or 0)
        if request.drain and end > start and upstream.drained_slice != end - 1:
            raise SliceOrderError(
                f"--drain: the inputs of {upstream.pipeline} have not ended after slice {grid.label(end - 1)}. Run "
                f"tidemark run {upstream.cli_arguments} with --drain and the same end first."
            )
        drained = upstream.drained_slice
        if not request.drain and drained is not None and start <= drained < end:
            remedy = f"Pass --drain and --to {grid.label(drained + 1)}, to end those of this pipeline too."
            explanation = f"the inputs of {upstream.pipeline} have ended after slice {grid.label(drained)}. {remedy}"
            if request.end:
                raise SliceOrderError(explanation)
            notes.append(explanation)
            end = drained
    return end
