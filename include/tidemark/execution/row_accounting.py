"""Where the rows of each slice went, and what the ledger would say of it: figures, and no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from tidemark.config.sides import SIDES
from tidemark.config.types import to_millis
from tidemark.execution.job_spec import Task
from tidemark.execution.replay import ReplayResult
from tidemark.execution.write import Written
from tidemark.joins.rules.flink_sql import HOUR_MS
from tidemark.ledger.config_fingerprint import settings_up_to_slice
from tidemark.ledger.ledger import Counts, Entry
from tidemark.ledger.state_fingerprint import digests
from tidemark.watermarks.watermarks import END_OF_INPUT, Watermarks


@dataclass(frozen=True)
class Tally:
    """What a job comes to, slice by slice."""

    facts: pd.DataFrame
    """One row per slice: values that `quality.invariants` requires to be 0, start as `slice`, number of `emissions`."""
    counts: Mapping[int, tuple[Counts, Counts]]
    """Where the rows of the left and the right input of each slice went."""
    floored: Mapping[int, int]
    """How many event times of each slice had a part finer than the dialect reckons in."""
    entries: tuple[Entry, ...]
    """What the ledger would say."""


def tally(task: Task, replayed: ReplayResult, written: Written) -> Tally:
    """Count a job's rows by what was read, and by what was written and read back; the rest was evicted."""
    carried_in = task.predecessor.carried if task.predecessor else (0, 0)
    left, right = (
        _counts_of(side, into, task.slices, replayed.row_counts, written)
        for side, into in zip(SIDES, carried_in, strict=True)
    )
    counts = {number: (left[number], right[number]) for number in task.slices}
    ends = replayed.timelines[0].end_watermarks
    facts = _facts(task, counts, ends, written)
    return Tally(
        facts,
        counts,
        {number: int(replayed.row_counts["floored"][number]) for number in task.slices},
        _entries(
            task, replayed.row_counts, counts, facts["emissions"], written.pairs, ends, digests(written.carried, ends)
        ),
    )


def _counts_of(side: str, carried_in: int, slices: range, read: pd.DataFrame, written: Written) -> dict[int, Counts]:
    late_groups = written.late[written.late["side"] == side].groupby("number")
    late, rejected = late_groups["late"].sum(), late_groups["rejected"].sum()
    carried = written.carried[written.carried["side"] == side]
    entered = carried.groupby("since")["rows"].sum().reindex(slices, fill_value=0)
    left = carried.groupby("until")["rows"].sum().reindex(slices, fill_value=0)
    remaining = (entered - left).cumsum()
    counts = {}
    for number in slices:
        counts[number] = Counts.with_remaining_evicted(
            int(read[f"{side}_rows"][number]),
            carried_in,
            int(late.get(number, 0)),
            int(rejected.get(number, 0)),
            carried_out=int(remaining[number]),
        )
        carried_in = counts[number].carried_out
    return counts


def _facts(
    task: Task, counts: Mapping[int, tuple[Counts, Counts]], ends: Mapping[int, Watermarks], written: Written
) -> pd.DataFrame:
    slices, lane, marks = task.slices, task.lane, list(ends.values())
    facts = written.emissions.reindex(slices)
    starts = pd.Series(lane.least_combined_watermarks(slices, task.plan.grid, ends), index=slices, dtype="float")
    told = [lane.newest_event_time(one) for one in marks]
    reached = [None if one is None else max(one, lane.initial_watermarks.combined) for one in told]
    newest = pd.Series(reached, index=slices, dtype="float")
    join = task.plan.pipeline.join
    # A timer of local time can be an hour apart from the result's own time, on either side.
    apart = HOUR_MS if task.plan.pipeline.window_time_zone else 0
    lateness = to_millis(join.allowed_lateness) + apart
    # A firing before its window's end has that end all the same.
    early = apart if join.has_default_firing or join.max_time_distance is None else to_millis(join.max_time_distance)
    if join.time == "processing":
        starts, newest = starts * float("nan"), newest * float("nan")
    return facts.assign(
        slice=[task.plan.grid.name(number) for number in slices],
        emissions=facts["emissions"].fillna(0).astype(int),
        pairs_out_of_bounds=facts["pairs_out_of_bounds"].fillna(0).astype(int),
        null_keys=facts["null_keys"].fillna(0).astype(int),
        results_before_watermark=(facts["oldest_result"] < starts - lateness).astype(int),
        results_after_newest_row=(facts["newest_result"] > newest + early).astype(int),
        rows_unaccounted=_unaccounted(counts, written.evicted),
        rows_not_written=int(written.emitted - facts["emissions"].sum()),
    )


def _unaccounted(counts: Mapping[int, tuple[Counts, Counts]], evicted: Mapping[str, int]) -> int:
    """How many rows the replay evicted less, or more, than were read and then not written anywhere."""
    missing = 0
    for number, side in enumerate(SIDES):
        left_over = [both[number].evicted for both in counts.values()]
        missing += abs(sum(left_over) - evicted.get(side, 0)) + sum(-rows for rows in left_over if rows < 0)
    return missing


def _entries(
    task: Task,
    read: pd.DataFrame,
    counts: Mapping[int, tuple[Counts, Counts]],
    emissions: pd.Series,
    pairs: Mapping[int, int] | None,
    ends: Mapping[int, Watermarks],
    digest_of: Mapping[int, str],
) -> tuple[Entry, ...]:
    plan, first = task.plan, task.slices[0]
    left_version, right_version = (source.table.version for source in plan.inputs)
    landed, landed_from = (read[name][first] for name in ("late_arriving_rows", "late_arriving_from"))
    before = task.predecessor.digest if task.predecessor else None
    filters = any(one.where is not None for one in (plan.pipeline.left, plan.pipeline.right))
    entries = []
    for number in task.slices:
        left, right = counts[number]
        entry = Entry(
            number=number,
            run=task.run,
            attempt=task.attempts[number],
            commit=task.commit,
            settings=settings_up_to_slice(plan.settings, plan.grid, number),
            versions=(left_version, right_version),
            watermarks=ends[number],
            read=(left.read, right.read),
            carried=(left.carried_out, right.carried_out),
            drained=ends[number].combined == END_OF_INPUT,
            digest=digest_of[number],
            carried_in_digest=before,
            landing=task.late_arrival_policy,
            landed=int(landed) if number == first else None,
            landed_from=int(landed_from) if number == first and landed else None,
            waiting=plan.slices_to_reprocess,
            counts=counts[number],
            filtered=(int(read["left_filtered"][number]), int(read["right_filtered"][number])) if filters else None,
            emissions=int(emissions[number]),
            pairs=None if pairs is None else pairs.get(number, 0),
            left_out=plan.excluded_predicates,
        )
        entries.append(entry)
        before = entry.digest
    return tuple(entries)
