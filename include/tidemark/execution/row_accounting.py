"""Account for each row of a job, in the invariants and the ledger entries of its slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from tidemark.config.sides import SIDES
from tidemark.config.types import to_millis
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.replay import ReplayResult
from tidemark.execution.write import WrittenOutput
from tidemark.joins.rules.flink_sql import HOUR_MS
from tidemark.ledger.config_fingerprint import remove_later_restarts
from tidemark.ledger.entry import Counts, Entry
from tidemark.ledger.state_fingerprint import compute_fingerprints
from tidemark.watermarks.values import Watermarks

CountsBySlice = Mapping[int, tuple[Counts, Counts]]
"""Counts of left and right rows by slice."""


@dataclass(frozen=True)
class RowAccounting:
    """Counts of a job's rows by slice. Computing them needs no Spark."""

    invariants: pd.DataFrame
    """One row per slice: values that `quality.invariants` requires to be 0, start as `slice`, number of `emissions`."""
    counts: CountsBySlice
    floored_counts: Mapping[int, int]
    """Number of event times by slice that were rounded down to the dialect's tick."""
    entries: tuple[Entry, ...]
    """Entries for the ledger, one per slice."""


def account_for_rows(spec: JobSpec, replayed: ReplayResult, written: WrittenOutput) -> RowAccounting:
    """Count rows that were read, and rows in the written files. The difference was evicted."""
    carried_in = spec.predecessor.carried if spec.predecessor else (0, 0)
    left, right = (
        _count_side(side, side_carried_in, spec.slices, replayed.row_counts, written)
        for side, side_carried_in in zip(SIDES, carried_in, strict=True)
    )
    counts = {number: (left[number], right[number]) for number in spec.slices}
    invariants = _compute_invariants(spec, counts, replayed.timelines[0].end_watermarks, written)
    floored_counts = {number: int(replayed.row_counts["floored"][number]) for number in spec.slices}
    entries = _create_entries(spec, replayed, written, counts, invariants["emissions"])
    return RowAccounting(invariants, counts, floored_counts, entries)


def _count_side(
    side: str, carried_in: int, slices: range, row_counts: pd.DataFrame, written: WrittenOutput
) -> dict[int, Counts]:
    late_groups = written.late_counts[written.late_counts["side"] == side].groupby("number")
    late, rejected = late_groups["late"].sum(), late_groups["rejected"].sum()
    carried = written.state_parts[written.state_parts["side"] == side]
    added = carried.groupby("since")["rows"].sum().reindex(slices, fill_value=0)
    removed = carried.groupby("until")["rows"].sum().reindex(slices, fill_value=0)
    remaining = (added - removed).cumsum()
    counts = {}
    for number in slices:
        counts[number] = Counts.with_remaining_evicted(
            int(row_counts[f"{side}_rows"][number]),
            carried_in,
            int(late.get(number, 0)),
            int(rejected.get(number, 0)),
            carried_out=int(remaining[number]),
        )
        carried_in = counts[number].carried_out
    return counts


def _compute_invariants(
    spec: JobSpec, counts: CountsBySlice, end_watermarks: Mapping[int, Watermarks], written: WrittenOutput
) -> pd.DataFrame:
    slices, lane, grid, join = spec.slices, spec.lane, spec.plan.grid, spec.plan.pipeline.join
    statistics = written.emission_statistics.reindex(slices)
    least_watermarks = lane.least_combined_watermarks(slices, grid, end_watermarks)
    newest_times = [lane.newest_event_time(watermarks) for watermarks in end_watermarks.values()]
    initial = lane.initial_watermarks.combined
    # Bounds of the results' times, ms: the watermark at the slice's start, and the newest row that had arrived.
    oldest_bound = pd.Series(least_watermarks, index=slices, dtype="float")
    newest_bound = pd.Series(
        [None if time is None else max(time, initial) for time in newest_times], index=slices, dtype="float"
    )
    # A timer in local time can fire an hour before or after the time of its result.
    zone_shift = HOUR_MS if spec.plan.pipeline.window_time_zone else 0
    oldest_bound -= to_millis(join.allowed_lateness) + zone_shift
    # A window that fires early has results with its end as their time, which may be later than any row.
    earliness = None if join.has_default_firing else join.max_time_distance
    newest_bound += zone_shift if earliness is None else to_millis(earliness)
    if join.time == "processing":  # no bounds in event time: comparisons with NaN are False
        oldest_bound, newest_bound = oldest_bound * float("nan"), newest_bound * float("nan")
    return statistics.assign(
        slice=[grid.label(number) for number in slices],
        emissions=statistics["emissions"].fillna(0).astype(int),
        pairs_out_of_bounds=statistics["pairs_out_of_bounds"].fillna(0).astype(int),
        null_keys=statistics["null_keys"].fillna(0).astype(int),
        results_before_watermark=(statistics["oldest_result"] < oldest_bound).astype(int),
        results_after_newest_row=(statistics["newest_result"] > newest_bound).astype(int),
        rows_unaccounted=_count_unaccounted_rows(counts, written.evicted_counts),
        rows_not_written=int(written.emission_count - statistics["emissions"].sum()),
    )


def _count_unaccounted_rows(counts: CountsBySlice, evicted_counts: Mapping[str, int]) -> int:
    """Count rows by which evictions that the replay reports differ from rows that were read but not written."""
    unaccounted = 0
    for index, side in enumerate(SIDES):
        missing = [side_counts[index].evicted for side_counts in counts.values()]
        unaccounted += abs(sum(missing) - evicted_counts.get(side, 0)) + sum(-rows for rows in missing if rows < 0)
    return unaccounted


def _get_rows_ahead(row_counts: pd.DataFrame, number: int) -> tuple[int, int]:
    """Return how many left and right rows of a slice are far ahead of their arrival."""
    return int(row_counts["left_rows_ahead"][number]), int(row_counts["right_rows_ahead"][number])


def _create_entries(
    spec: JobSpec, replayed: ReplayResult, written: WrittenOutput, counts: CountsBySlice, emission_counts: pd.Series
) -> tuple[Entry, ...]:
    plan, first, row_counts, pair_counts = spec.plan, spec.slices[0], replayed.row_counts, written.pair_counts
    end_watermarks = replayed.timelines[0].end_watermarks
    fingerprints = compute_fingerprints(written.state_parts, end_watermarks)
    left_version, right_version = (source.table.version for source in plan.inputs)
    left_table_id, right_table_id = (source.table.table_id for source in plan.inputs)
    late_arriving_rows = int(row_counts["late_arriving_rows"][first])
    earliest_slice = int(row_counts["late_arriving_from"][first]) if late_arriving_rows else None
    carried_in_fingerprint = spec.predecessor.fingerprint if spec.predecessor else None
    can_be_ahead = any(plan.pipeline.get_allowed_clock_skew(side) is not None for side in SIDES)
    has_filter = any(side.where is not None for side in (plan.pipeline.left, plan.pipeline.right))
    entries = []
    for number in spec.slices:
        left, right = counts[number]
        filtered = int(row_counts["left_filtered"][number]), int(row_counts["right_filtered"][number])
        entry = Entry(
            number=number,
            run=spec.run,
            attempt=spec.attempts[number],
            commit=spec.commit,
            settings=remove_later_restarts(plan.settings_json, plan.grid, number),
            versions=(left_version, right_version),
            table_ids=(left_table_id, right_table_id),
            watermarks=end_watermarks[number],
            read=(left.read, right.read),
            carried=(left.carried_out, right.carried_out),
            drained=spec.lane.is_drained(number),
            fingerprint=fingerprints[number],
            carried_in_fingerprint=carried_in_fingerprint,
            late_arrival_policy=spec.late_arrival_policy,
            late_arriving_rows=late_arriving_rows if number == first else None,
            late_arriving_from=earliest_slice if number == first else None,
            slices_to_reprocess=plan.slices_to_reprocess,
            counts=counts[number],
            filtered=filtered if has_filter else None,
            rows_ahead=_get_rows_ahead(row_counts, number) if can_be_ahead else None,
            emissions=None if number in spec.adopted_from else int(emission_counts[number]),
            pairs=None if pair_counts is None or number in spec.adopted_from else pair_counts.get(number, 0),
            excluded_predicates=plan.excluded_predicates_json,
            adopted_from=spec.adopted_from.get(number),
        )
        entries.append(entry)
        carried_in_fingerprint = entry.fingerprint
    return tuple(entries)
