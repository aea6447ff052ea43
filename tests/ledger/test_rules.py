"""The rules over ledger entries, without Spark: what is stale, what has been taken, what a digest tells."""

from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd
import pyarrow as pa
import pytest

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import create_internal_table
from tidemark.errors import UserError
from tidemark.ledger.committed_snapshot import attempts_visible_before
from tidemark.ledger.config_fingerprint import settings_up_to_slice, slices_with_other_settings
from tidemark.ledger.ledger import FORMAT, SCHEMA, Entry, Ledger
from tidemark.ledger.staleness import ConsumedVersions, consumed_versions, repaired_until, restorable, stale, waiting
from tidemark.ledger.state_fingerprint import digests
from tidemark.maintenance.recovery_horizon import find_first_reprocessable, find_first_verifiable
from tidemark.planning.duration_estimate import estimate_duration, list_past_jobs
from tidemark.timegrid.slices import Grid, group_consecutive
from tidemark.watermarks.watermarks import Watermarks

HOUR = 3_600_000_000


def entry(number, version=1, *, commit=1, landed=None, landed_from=None, landing="append", digest=None, **more):
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
        digest=digest or f"after {number}",
        carried_in_digest=f"after {number - 1}" if number else None,
        landing=landing,
        landed=landed,
        landed_from=landed_from,
        **more,
    )


def ledger(*entries):
    return Ledger(None, Grid(0, HOUR), pd.DataFrame(), {}, frozenset(), 0).with_entries(entries)


def test_ledger_of_other_format_is_refused(tmp_path):
    tables, grid = PipelineTables(str(tmp_path)), Grid(0, HOUR)
    row = {"slice": datetime(2024, 1, 1, tzinfo=UTC), "run": "run 1", "attempt": 1, "commit": 1, "format": FORMAT + 1}
    create_internal_table(tables.ledger, SCHEMA).append(pa.Table.from_pylist([row], SCHEMA), 1)

    with pytest.raises(UserError, match=f"has format {FORMAT + 1} and this version reads format {FORMAT}"):
        Ledger.read(tables, grid)


def test_without_reprocessing_all_earlier_slices_are_seen_up_to_the_last_job():
    entries = [entry(0, landed=0), entry(1, landed=None), entry(2, 4, landed=1, landed_from=0), entry(3, 4)]
    assert consumed_versions(entries, 0) == ConsumedVersions(((None, 4),), 4)
    assert consumed_versions([], 0) == ConsumedVersions((), None)


def test_a_slice_that_ran_again_has_seen_more_than_those_behind_it():
    entries = [entry(0, 2, landed=0), entry(1, 9, landed=0, commit=5), entry(2, 9, commit=5), entry(3, 4, landed=0)]
    assert consumed_versions(entries, 0) == ConsumedVersions(((None, 9), (3, 4)), 9)


def test_under_reprocess_a_slice_has_seen_what_was_there_when_it_ran():
    took = {"landed": 0, "landing": "reprocess"}
    entries = [entry(0, 1, landed=0, landing="start"), entry(1, 2, **took), entry(2, 3, **took)]
    assert consumed_versions(entries, 0) == ConsumedVersions(((None, 1), (1, 2), (2, 3)), 3)


def test_slices_of_a_gap_have_been_left_out_by_the_start_behind_it():
    entries = [entry(0, 1, landed=0), entry(5, 3, landed=0, landing="start"), entry(6, 4, landed=None)]
    assert consumed_versions(entries, 0) == ConsumedVersions(((None, 3), (6, 4)), 3)


def test_a_slice_is_stale_when_it_continued_another_state():
    known = ledger(*(entry(n, landed=0) for n in range(4)))
    assert stale(known) == {}
    again = known.with_entries([replace(entry(1, landed=0, commit=2), digest="another")])
    assert stale(again) == {2: "another state"}
    assert stale(again, after=2) == {}


def test_a_slice_is_stale_when_the_rows_that_it_took_may_have_gone_home():
    known = ledger(*(entry(n, landed=0) for n in range(3)), entry(3, commit=2, landed=2, landed_from=1))
    assert stale(known) == {}
    assert stale(known.with_entries([entry(0, commit=3, landed=0)])) == {}
    assert stale(known.with_entries([entry(2, commit=3, landed=0)])) == {3: "landed rows went home"}


def test_a_slice_is_stale_when_the_one_before_ran_under_other_settings():
    known = ledger(entry(0, landed=0), entry(1))
    assert stale(known.with_entries([replace(entry(0), settings='{"a": 1}')])) == {1: "changed settings"}


def test_a_restart_behind_a_slice_is_none_of_its_settings():
    told = '{"delay": "1 s", "restarts": ["1970-01-01T00:00Z", "1970-01-01T01:59Z", "1970-01-01T02:00Z"]}'
    met = '{"delay": "1 s", "restarts": ["1970-01-01T01:59Z"]}'
    grid = Grid(0, HOUR)
    assert [settings_up_to_slice(told, grid, n) for n in range(2)] == ['{"delay": "1 s"}', met]
    assert settings_up_to_slice(told, grid, 2) == met.replace('59Z"', '59Z", "1970-01-01T02:00Z"')
    known = [replace(entry(n, landed=0), settings=settings_up_to_slice(told, grid, n)) for n in range(4)]
    assert stale(ledger(*known)) == {}
    assert list(slices_with_other_settings(known, told, grid)) == []
    late = told.replace("02:00Z", "02:59Z")
    apart = "restarts.1 was 1970-01-01T02:00Z, now 1970-01-01T02:59Z"
    assert list(slices_with_other_settings(known, late, grid)) == [(2, apart), (3, apart)]
    known[2] = replace(known[2], settings=settings_up_to_slice(late, grid, 2))
    assert stale(ledger(*known)) == {3: "changed settings"}


def test_as_of_a_watermark_nothing_stands_that_came_after_it_was_passed():
    stored = pd.DataFrame({"commit": [1, 1, 2, 2, 2, 3], "number": [0, 1, 1, 2, 3, 4]})
    beyond = pd.Series([False, False, False, True, False, False])  # by a restart in the fourth slice
    assert attempts_visible_before(stored, beyond).to_numpy().tolist() == [[1, 0], [2, 1]]
    assert attempts_visible_before(stored, pd.Series([*[False] * 5, True])).to_numpy().tolist() == [
        [1, 0],
        [2, 1],
        [2, 2],
        [2, 3],
    ]


def test_a_repair_stops_where_the_old_slices_are_right_again():
    known = ledger(*(entry(n, landed=0) for n in range(6)))
    again = [replace(entry(n, commit=2), digest=f"other {n}") for n in (1, 2)]
    again += [replace(entry(n, commit=2)) for n in (3, 4)]
    for before, after in zip(range(3), range(1, 4), strict=True):
        again[after] = replace(again[after], carried_in_digest=again[before].digest)
    assert repaired_until(known, again) == 3
    assert repaired_until(known, again[:2]) == 2


def test_slices_wait_for_rows_until_they_run_again():
    known = ledger(entry(0, 1, landed=0), entry(1, 1), entry(2, 3, commit=2, landed=0, waiting=(0, 1)))
    assert waiting(known) == ((3, 3), (0, 1))
    assert waiting(known.with_entries([entry(0, 3, commit=3, waiting=(0, 1))])) == ((3, 3), (1,))
    assert waiting(ledger(entry(0, landed=0))) is None


def test_an_expired_checkpoint_is_rebuilt_from_the_nearest_one_that_is_kept():
    known = ledger(*(entry(n, commit=n + 1) for n in range(5)))
    assert restorable(known, 4, {"run 2", "run 4"}) == 4
    assert restorable(known, 4, {"run 2"}) == 2
    assert restorable(known, 4, set()) == 0


def test_how_far_back_slices_run_again_and_states_are_verified():
    known = ledger(*(entry(n, n, commit=n + 1) for n in range(5)))
    every = {f"run {n}" for n in range(1, 6)}
    assert (find_first_reprocessable(known, every), find_first_verifiable(known, every, (0, 0))) == (0, 0)
    assert (find_first_reprocessable(known, every - {"run 2"}), find_first_verifiable(known, every, (2, 0))) == (3, 2)
    assert find_first_verifiable(known, every - {"run 1", "run 2"}, (1, 0)) == 3, (
        "the states before 1 and 2 have expired"
    )
    assert (find_first_reprocessable(known, {"run 5"}), find_first_verifiable(known, set(), (1, 1))) == (None, None)
    assert find_first_verifiable(known, every, (5, 0)) is None
    gap = ledger(entry(0), entry(5), entry(6))
    assert (find_first_reprocessable(gap, {"run 1"}), find_first_verifiable(gap, set(), (-1, 0))) == (5, 5)
    assert (find_first_reprocessable(ledger(), every), find_first_verifiable(ledger(), every, (0, 0))) == (None, None)


def test_ranges():
    assert group_consecutive([]) == []
    assert group_consecutive([5, 1, 2]) == [range(1, 3), range(5, 6)]


def test_a_digest_is_of_what_is_held_and_of_the_watermarks():
    def parts(*rows):
        return pd.DataFrame(rows, columns=["since", "until", "high", "low"])

    marks = {n: Watermarks(left=7) for n in range(3)}
    told = digests(parts((0, 2, 1, 5), (1, 3, 0, 9)), marks)
    assert told[0] != told[1] != told[2]
    assert told[2] == digests(parts((2, 3, 0, 9)), {2: Watermarks(left=7)})[2], "whatever was there before"
    assert told[1] == digests(parts((1, 3, 1, 5), (1, 9, 0, 9)), {1: Watermarks(left=7)})[1]
    assert told[2] != digests(parts((2, 3, 0, 9)), {2: Watermarks(left=8)})[2]


@pytest.mark.parametrize("jobs", [1, 4])
def test_an_estimate_needs_three_jobs_and_shrugs_off_an_outlier(jobs):
    def job(number, rows, seconds):
        counts = {"read": rows, "carried_in": 0}
        return {"run": str(number), "left": counts, "right": {**counts, "read": 0}, "job_seconds": seconds,
                "committed_at": number, "job_slices": 1}  # fmt: skip

    ran = [job(n, rows, 2 + rows / 100) for n, rows in enumerate((100, 200, 400, 800))] + [job(9, 300, 500.0)]
    assert estimate_duration(list_past_jobs(pd.DataFrame(ran[:2])), 200, jobs) is None
    ran += [{**job(n, 1, 90.0), "job_slices": 2} for n in range(10, 20)]  # slices of theirs did not come to count
    told = estimate_duration(list_past_jobs(pd.DataFrame(ran)), 1000, jobs)
    assert told.seconds == pytest.approx(2 * jobs + 10, abs=0.5)
    assert told.jobs == 5
