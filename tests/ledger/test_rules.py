"""Rules over ledger entries, without Spark: staleness, consumed versions, fingerprints, recovery and estimates."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pytest

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import create_internal_table
from tidemark.errors import UserError
from tidemark.ledger.committed_snapshot import select_visible_attempts
from tidemark.ledger.config_fingerprint import find_slices_with_other_settings, remove_later_restarts
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import FORMAT, SCHEMA
from tidemark.ledger.staleness import (
    ConsumedVersions,
    compute_consumed_versions,
    count_slices_until_valid,
    find_compared_versions,
    find_restorable_start,
    find_slices_to_reprocess,
    find_stale_slices,
)
from tidemark.ledger.state_fingerprint import compute_fingerprints
from tidemark.maintenance.recovery_horizon import find_first_reprocessable, find_first_verifiable
from tidemark.planning.duration_estimate import estimate_duration, list_past_jobs
from tidemark.planning.plan import SliceRange
from tidemark.planning.slice_selection import _find_ranges_to_rebuild, find_stale_ranges
from tidemark.timegrid.slices import Grid, group_consecutive
from tidemark.watermarks.values import Watermarks

HOUR = 3_600_000_000


def create_entry(
    number,
    version=1,
    *,
    commit=1,
    late_arriving=None,
    late_arriving_from=None,
    policy="append",
    fingerprint=None,
    **more,
):
    return Entry(
        number=number,
        run=f"run {commit}",
        attempt=1,
        commit=commit,
        settings="{}",
        versions=(version, version),
        watermarks=Watermarks(),
        read=(1, 1),
        carried=(1, 1),
        drained=False,
        fingerprint=fingerprint or f"after {number}",
        carried_in_fingerprint=f"after {number - 1}" if number else None,
        late_arrival_policy=policy,
        late_arriving_rows=late_arriving,
        late_arriving_from=late_arriving_from,
        **more,
    )


def create_ledger(*entries):
    return Ledger(None, Grid(0, HOUR), pd.DataFrame(), {}, frozenset(), 0).with_entries(entries)


def test_ledger_of_other_format_is_refused(tmp_path):
    tables, grid = PipelineTables(str(tmp_path)), Grid(0, HOUR)
    row = {"slice": datetime(2024, 1, 1, tzinfo=UTC), "run": "run 1", "attempt": 1, "commit": 1, "format": FORMAT + 1}
    create_internal_table(tables.ledger, SCHEMA).append(pa.Table.from_pylist([row], SCHEMA), 1)

    with pytest.raises(UserError, match=f"has format {FORMAT + 1} and this version reads format {FORMAT}"):
        Ledger.read(tables, grid)


def test_consumed_versions_without_reprocess_are_those_of_last_job():
    entries = [
        create_entry(0, late_arriving=0),
        create_entry(1, late_arriving=None),
        create_entry(2, 4, late_arriving=1, late_arriving_from=0),
        create_entry(3, 4),
    ]
    assert compute_consumed_versions(entries, 0) == ConsumedVersions(((None, 4),), 4)
    assert compute_consumed_versions([], 0) == ConsumedVersions((), None)


def test_consumed_versions_after_reprocess_are_newer_for_earlier_slices():
    entries = [
        create_entry(0, 2, late_arriving=0),
        create_entry(1, 9, late_arriving=0, commit=5),
        create_entry(2, 9, commit=5),
        create_entry(3, 4, late_arriving=0),
    ]
    assert compute_consumed_versions(entries, 0) == ConsumedVersions(((None, 9), (3, 4)), 9)


def test_consumed_versions_under_reprocess_are_those_of_each_run():
    reprocess = {"late_arriving": 0, "policy": "reprocess"}
    entries = [
        create_entry(0, 1, late_arriving=0, policy="exclude"),
        create_entry(1, 2, **reprocess),
        create_entry(2, 3, **reprocess),
    ]
    assert compute_consumed_versions(entries, 0) == ConsumedVersions(((None, 1), (1, 2), (2, 3)), 3)


def test_consumed_versions_of_gap_are_those_of_start_after_it():
    entries = [
        create_entry(0, 1, late_arriving=0),
        create_entry(5, 3, late_arriving=0, policy="exclude"),
        create_entry(6, 4, late_arriving=None),
    ]
    assert compute_consumed_versions(entries, 0) == ConsumedVersions(((None, 3), (6, 4)), 3)


def test_slice_after_changed_state_is_stale():
    committed = create_ledger(*(create_entry(n, late_arriving=0) for n in range(4)))
    assert find_stale_slices(committed) == {}
    after_rerun = committed.with_entries([replace(create_entry(1, late_arriving=0, commit=2), fingerprint="another")])
    assert find_stale_slices(after_rerun) == {2: "changed state"}
    assert find_stale_slices(after_rerun, after=2) == {}


def test_slice_with_late_arriving_rows_of_rerun_slice_is_stale():
    committed = create_ledger(
        *(create_entry(n, late_arriving=0) for n in range(3)),
        create_entry(3, commit=2, late_arriving=2, late_arriving_from=1),
    )
    assert find_stale_slices(committed) == {}
    assert find_stale_slices(committed.with_entries([create_entry(0, commit=3, late_arriving=0)])) == {}
    assert find_stale_slices(committed.with_entries([create_entry(2, commit=3, late_arriving=0)])) == {
        3: "late-arriving rows reprocessed"
    }


def test_slice_after_changed_settings_is_stale():
    committed = create_ledger(create_entry(0, late_arriving=0), create_entry(1))
    assert find_stale_slices(committed.with_entries([replace(create_entry(0), settings='{"a": 1}')])) == {
        1: "changed settings"
    }


def test_stale_range_after_rollback_names_slices_and_settings():
    wide, narrow = '{"join": {"upper": "2 h"}}', '{"join": {"upper": "1 h"}}'
    entries = [replace(create_entry(n, late_arriving=0), settings=wide if n else narrow) for n in range(3)]

    (stale_range,) = find_stale_ranges(create_ledger(*entries))

    assert (stale_range.slices, stale_range.reason) == (range(1, 2), "changed settings")
    assert stale_range.explanation == (
        "slice 1970-01-01T01:00Z ran under other settings than the pipeline file has now (join.upper was 2 h, now 1 h)."
        " It runs again"
    )


def test_remove_later_restarts_keeps_earlier_ones():
    settings = '{"delay": "1 s", "restarts": ["1970-01-01T00:00Z", "1970-01-01T01:59Z", "1970-01-01T02:00Z"]}'
    with_single_restart = '{"delay": "1 s", "restarts": ["1970-01-01T01:59Z"]}'
    grid = Grid(0, HOUR)
    assert [remove_later_restarts(settings, grid, n) for n in range(2)] == ['{"delay": "1 s"}', with_single_restart]
    assert remove_later_restarts(settings, grid, 2) == with_single_restart.replace('59Z"', '59Z", "1970-01-01T02:00Z"')

    entries = [
        replace(create_entry(n, late_arriving=0), settings=remove_later_restarts(settings, grid, n)) for n in range(4)
    ]
    assert find_stale_slices(create_ledger(*entries)) == {}
    assert list(find_slices_with_other_settings(entries, settings, grid)) == []

    later = settings.replace("02:00Z", "02:59Z")
    difference = "restarts.1 was 1970-01-01T02:00Z, now 1970-01-01T02:59Z"
    assert list(find_slices_with_other_settings(entries, later, grid)) == [(2, difference), (3, difference)]

    entries[2] = replace(entries[2], settings=remove_later_restarts(later, grid, 2))
    assert find_stale_slices(create_ledger(*entries)) == {3: "changed settings"}


def test_select_visible_attempts_excludes_later_commits():
    stored = pd.DataFrame({"commit": [1, 1, 2, 2, 2, 3], "number": [0, 1, 1, 2, 3, 4]})
    beyond = pd.Series(
        [False, False, False, True, False, False]
    )  # the watermark of the fourth slice went back at a restart
    assert select_visible_attempts(stored, beyond).to_numpy().tolist() == [[1, 0], [2, 1]]
    assert select_visible_attempts(stored, pd.Series([*[False] * 5, True])).to_numpy().tolist() == [
        [1, 0],
        [2, 1],
        [2, 2],
        [2, 3],
    ]


def test_cascade_stops_at_unchanged_state():
    committed = create_ledger(*(create_entry(n, late_arriving=0) for n in range(6)))
    rerun = [replace(create_entry(n, commit=2), fingerprint=f"other {n}") for n in (1, 2)]
    rerun += [replace(create_entry(n, commit=2)) for n in (3, 4)]
    for before, after in zip(range(3), range(1, 4), strict=True):
        rerun[after] = replace(rerun[after], carried_in_fingerprint=rerun[before].fingerprint)
    assert count_slices_until_valid(committed, rerun, first_stale=1) == 3
    assert count_slices_until_valid(committed, rerun[:2], first_stale=1) == 2


def test_cascade_that_rebuilds_a_checkpoint_reaches_its_first_stale_slice():
    committed = create_ledger(*(create_entry(n, late_arriving=0) for n in range(6)))
    rebuilt = [create_entry(n, commit=2) for n in range(1, 5)]
    assert count_slices_until_valid(committed, rebuilt, first_stale=3) == 3


def test_slices_that_ran_between_promotion_and_rollback_are_stale():
    committed = create_ledger(
        create_entry(0, late_arriving=0), create_entry(1), create_entry(2, commit=3), create_entry(3, commit=5)
    )
    assert find_stale_slices(committed) == {}

    rolled_back = replace(committed, rollbacks={4: frozenset({0, 1})})
    assert find_stale_slices(rolled_back) == {2: "rollback"}
    assert find_stale_slices(rolled_back.with_entries([create_entry(2, commit=6)])) == {}


def test_slices_to_reprocess_shrink_when_rerun():
    committed = create_ledger(
        create_entry(0, 1, late_arriving=0),
        create_entry(1, 1),
        create_entry(2, 3, commit=2, late_arriving=0, slices_to_reprocess=(0, 1)),
    )
    assert find_slices_to_reprocess(committed) == ((3, 3), (0, 1))
    assert find_slices_to_reprocess(
        committed.with_entries([create_entry(0, 3, commit=3, slices_to_reprocess=(0, 1))])
    ) == (
        (3, 3),
        (1,),
    )
    assert find_slices_to_reprocess(create_ledger(create_entry(0, late_arriving=0))) is None


def test_compared_versions_are_recorded_ones_except_for_slices_of_a_rollback():
    policies = "exclude", "reprocess", "reprocess", "reprocess"
    runs = [create_entry(n, n + 1, commit=n + 1, late_arriving=0, policy=policies[n]) for n in range(4)]
    recorded = [*runs[:3], replace(runs[3], slices_to_reprocess=(0,))]
    assert find_compared_versions(create_ledger(*runs), 0, 4).by_slice == ((None, 1), (1, 2), (2, 3), (3, 4))
    assert find_compared_versions(create_ledger(*recorded), 0, 4).by_slice == ((None, 4),)
    assert find_compared_versions(create_ledger(*recorded), 0, 4, {1}).by_slice == ((None, 4), (1, 2), (2, 4))

    rolled_back = [replace(entry, last_change_commit=5) for entry in recorded[:2]]
    by_slice = ((None, 4), (0, 1), (1, 2), (2, 4))
    assert find_compared_versions(create_ledger(*rolled_back, *recorded[2:]), 0, 4).by_slice == by_slice
    all_changed = [replace(entry, last_change_commit=5) for entry in recorded]
    assert find_compared_versions(create_ledger(*all_changed), 0, 4).by_slice == ((None, 4),)


def test_nearest_slice_with_checkpoint_is_restorable():
    committed = create_ledger(*(create_entry(n, commit=n + 1) for n in range(5)))
    assert find_restorable_start(committed, 4, {"run 2", "run 4"}) == 4
    assert find_restorable_start(committed, 4, {"run 2"}) == 2
    assert find_restorable_start(committed, 4, set()) == 0
    assert find_restorable_start(committed, 4, set(), {1}) == 2


def test_expired_checkpoints_are_rebuilt_before_each_range():
    committed = create_ledger(*(create_entry(n, commit=n + 1) for n in range(8)))
    context = SimpleNamespace(
        ledger=committed, grid=committed.grid, last=committed.last, available_checkpoints={"run 1", "run 8"}
    )
    ranges = [SliceRange(slices, "late arrival", "") for slices in (range(2, 3), range(4, 5), range(5, 6), range(7, 9))]
    rebuilt = [part.slices for part in _find_ranges_to_rebuild(context, ranges)]
    assert rebuilt == [range(1, 2), range(3, 4), range(6, 7)]


def test_recovery_horizon_follows_checkpoints_and_input_versions():
    committed = create_ledger(*(create_entry(n, n, commit=n + 1) for n in range(5)))
    all_runs = {f"run {n}" for n in range(1, 6)}
    assert (find_first_reprocessable(committed, all_runs), find_first_verifiable(committed, all_runs, (0, 0))) == (0, 0)
    assert (
        find_first_reprocessable(committed, all_runs - {"run 2"}),
        find_first_verifiable(committed, all_runs, (2, 0)),
    ) == (3, 2)
    assert find_first_verifiable(committed, all_runs - {"run 1", "run 2"}, (1, 0)) == 3, (
        "the states before 1 and 2 have expired"
    )
    assert (find_first_reprocessable(committed, {"run 5"}), find_first_verifiable(committed, set(), (1, 1))) == (
        None,
        None,
    )
    assert find_first_verifiable(committed, all_runs, (5, 0)) is None

    gap = create_ledger(create_entry(0), create_entry(5), create_entry(6))
    assert (find_first_reprocessable(gap, {"run 1"}), find_first_verifiable(gap, set(), (-1, 0))) == (5, 5)
    assert (
        find_first_reprocessable(create_ledger(), all_runs),
        find_first_verifiable(create_ledger(), all_runs, (0, 0)),
    ) == (None, None)


def test_group_consecutive_gives_sorted_ranges():
    assert group_consecutive([]) == []
    assert group_consecutive([5, 1, 2]) == [range(1, 3), range(5, 6)]


def test_fingerprints_depend_on_carried_rows_and_watermarks():
    def create_parts(*rows):
        return pd.DataFrame(rows, columns=["since", "until", "high", "low"])

    watermarks = {n: Watermarks(left=7) for n in range(3)}
    fingerprints = compute_fingerprints(create_parts((0, 2, 1, 5), (1, 3, 0, 9)), watermarks)

    assert fingerprints[0] != fingerprints[1] != fingerprints[2]
    assert fingerprints[2] == compute_fingerprints(create_parts((2, 3, 0, 9)), {2: Watermarks(left=7)})[2], (
        "independent of earlier rows"
    )
    assert fingerprints[1] == compute_fingerprints(create_parts((1, 3, 1, 5), (1, 9, 0, 9)), {1: Watermarks(left=7)})[1]
    assert fingerprints[2] != compute_fingerprints(create_parts((2, 3, 0, 9)), {2: Watermarks(left=8)})[2]


@pytest.mark.parametrize("jobs", [1, 4])
def test_estimate_duration_needs_three_jobs_and_ignores_outlier(jobs):
    def job(number, rows, seconds):
        counts = {"read": rows, "carried_in": 0}
        return {"run": str(number), "left": counts, "right": {**counts, "read": 0}, "job_seconds": seconds,
                "committed_at": number, "job_slices": 1}  # fmt: skip

    past_jobs = [job(n, rows, 2 + rows / 100) for n, rows in enumerate((100, 200, 400, 800))] + [job(9, 300, 500.0)]
    assert estimate_duration(list_past_jobs(pd.DataFrame(past_jobs[:2])), 200, jobs) is None

    past_jobs += [
        {**job(n, 1, 90.0), "job_slices": 2} for n in range(10, 20)
    ]  # jobs with uncommitted slices are ignored
    estimate = estimate_duration(list_past_jobs(pd.DataFrame(past_jobs)), 1000, jobs)
    assert estimate.seconds == pytest.approx(2 * jobs + 10, abs=0.5)
    assert estimate.jobs == 5
