"""Committed slices run again over real Delta tables: what changes, what follows, and what stays as it is."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import InputError, SliceOrderError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Request, create_plan
from tidemark.tables.run_files import run_of

START = datetime(2024, 1, 1, tzinfo=UTC)


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def row(v, arrived, happened=None, key="a"):
    return (key, happened or arrived, arrived, v)


def day(count):
    """Two rows an hour."""
    return [row(10 * hour + part, at(hour, 20 * part + 5)) for hour in range(count) for part in (1, 2)]


def runs_of(table):
    return set(map(run_of, DeltaTableHandle.open(table).files["path"]))


def files(spark, lake, ledger, slices):
    """The data files of these hours' emissions, by Delta's log."""
    runs = {ledger.entry(number).run for number in slices}
    paths = spark.read.format("delta").load(f"{lake}/orders/emissions").inputFiles()
    return {path for path in paths if any(f"run={run}/" in path for run in runs)}


def test_rows_that_land_late_go_home_and_the_ripple_stops(
    spark, lake, pipeline, land, hours, go, answer, ledger, fresh
):
    settings = pipeline(on_late_arriving_rows="reprocess")
    land(*day(8))
    hours(settings, 4)
    hours(settings, 8)
    before, untouched = answer()[0], files(spark, lake, ledger(settings), [4, 5, 6, 7])
    land(row(777, at(2, 30)))
    spark.sql(f"OPTIMIZE delta.`{lake}/left`")
    plan, ran = go(settings)
    assert (ran, plan.slices_to_reprocess) == ([], (2,)), "the row waits"
    assert plan.to_dict()["proposed"] == "tidemark reprocess orders"
    assert plan.to_dict()["waiting"] == [{"from": "2024-01-01T02:00Z", "to": "2024-01-01T03:00Z", "slices": 1}]
    assert answer()[0] == before
    plan, ran = go(settings, reprocess=True)
    assert [(segment.reason, list(segment.slices)) for segment in plan.segments] == [("late landing", [2])]
    rerun = [slice_ for result in ran for slice_ in result.slices]
    assert rerun == [2, 3], "the state after slice 3 is again what slice 4 has continued"
    changes = {number: change for result in ran for number, change in result.changes.items()}
    assert all(change.removed == 0 for change in changes.values())
    assert (changes[2].added > 0, changes[2].same > 0) == (True, True)
    assert files(spark, lake, ledger(settings), [4, 5, 6, 7]) == untouched
    assert answer() == fresh(at(8))
    plan, ran = go(settings)
    assert (ran, plan.slices_to_reprocess) == ([], ())


def test_rows_taken_by_a_later_slice_go_home_without_being_doubled_or_lost(
    pipeline, land, hours, go, answer, ledger, fresh
):
    settings = pipeline()
    land(*day(4))
    hours(settings, 4)
    land(row(777, at(1, 30)), *[row(40, at(4, 5)), row(50, at(5, 5))])
    hours(settings, 6)
    taken = ledger(settings).entry(4)
    assert (taken.landed, taken.landed_from) == (2, 1)
    assert {late[2] for late in answer()[1]} == {777, 877}, "behind the watermark, as it came in slice 4"
    plan, ran = go(settings, reprocess=True, start=at(1), end=at(2))
    assert "slices from 2024-01-01T02:00Z on follow" in plan.notes[0]
    assert {1, 2, 4} <= {number for result in ran for number in result.slices}, "slice 4 had taken the rows"
    assert answer() == fresh(at(6))
    assert ledger(settings).entry(4).landed == 0


def test_a_reprocess_that_dies_between_jobs_is_repaired_by_run(pipeline, spark, lake, land, hours, go, answer, fresh):
    settings = pipeline()
    land(*day(6))
    hours(settings, 5)
    land(row(777, at(1, 30)))
    plan = create_plan(spark, settings, str(lake), Request(reprocess=True, start=at(1), end=at(3), slices_per_job=1))
    next(execute(spark, plan, lambda *_: None))
    plan, _ = go(settings, end=at(6))
    assert [(segment.reason, segment.slices[0]) for segment in plan.segments] == [("stale", 2), ("new", 5)]
    assert "stale: 2024-01-01T01:00Z has another state now" in plan.to_dict()["why"]
    assert answer() == fresh(at(6))


@pytest.mark.slow
def test_atomic_commits_all_at_once_or_nothing(pipeline, spark, lake, land, hours, go, answer, fresh, ledger):
    settings = pipeline()
    land(*day(5))
    hours(settings, 5)
    land(row(777, at(1, 30)))
    before = answer()
    request = Request(reprocess=True, start=at(1), end=at(3), slices_per_job=1, atomic=True)
    plan = create_plan(spark, settings, str(lake), request)

    def fails_in_the_second_job(slices, step):
        if slices[0] == 2 and step == "checking":
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError):
        list(execute(spark, plan, fails_in_the_second_job))
    assert answer() == before
    number = ledger(settings).number
    ran = list(execute(spark, create_plan(spark, settings, str(lake), request), lambda *_: None))
    assert [list(result.slices) for result in ran] == [[1], [2]]
    assert ledger(settings).number == number + 1
    assert answer() == fresh(at(5))


@pytest.mark.parametrize("first", ["run", pytest.param("reprocess", marks=pytest.mark.slow)])
def test_of_a_run_and_a_reprocess_at_once_one_wins(first, spark, lake, pipeline, land, hours, go, answer, fresh):
    settings = pipeline()
    land(*day(5))
    hours(settings, 4)
    land(row(777, at(1, 30)))
    requests = {"run": Request(end=at(5)), "reprocess": Request(reprocess=True, start=at(1), end=at(2))}
    plans = {name: create_plan(spark, settings, str(lake), request) for name, request in requests.items()}
    second = next(name for name in plans if name != first)
    list(execute(spark, plans[first], lambda *_: None))
    with pytest.raises(SliceOrderError, match="another process has committed slices of .*; run the same command again"):
        list(execute(spark, plans[second], lambda *_: None))
    known = Ledger.from_pipeline(settings, str(lake))
    assert runs_of(known.tables.checkpoint) == {entry.run for entry in known.entries.values()}
    go(settings, **({"end": at(5)} if second == "run" else {"reprocess": True, "start": at(1), "end": at(2)}))
    assert answer() == fresh(at(5))


def test_rows_deleted_from_an_input_are_refused_until_reprocessed_from_there(
    spark, lake, pipeline, land, hours, go, answer, fresh
):
    settings = pipeline()
    land(*day(6))
    hours(settings, 5)
    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 121")
    told = "input right is not append-only: version 1 deleted or changed rows that slices from 2024-01-01T02:00Z on"
    with pytest.raises(InputError, match=f"{told} have read. Run tidemark reprocess orders --from 2024-01-01T02:00Z"):
        go(settings, end=at(6))
    with pytest.raises(InputError, match=told):
        go(settings, reprocess=True, start=at(4))
    _, ran = go(settings, reprocess=True, start=at(2), end=at(3))
    assert sum(change.removed for result in ran for change in result.changes.values()) > 0
    go(settings, end=at(6))
    assert answer() == fresh(at(6))


def test_rows_deleted_from_an_input_may_be_passed_over_as_a_stream_that_has_read_them_does(
    spark, lake, pipeline, land, hours, go, answer, fresh
):
    settings = pipeline(on_input_delete="ignore")
    land(*day(5))
    land(row(50, at(5, 5)))
    hours(settings, 6, slices_per_job=1)
    read = answer()
    land(row(61, at(6, 5)), row(70, at(7, 5)))
    whole = set(DeltaTableHandle.open(f"{lake}/right").files["path"])
    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 150")
    [vacuumed] = whole.difference(DeltaTableHandle.open(f"{lake}/right").files["path"])
    (lake / "right" / vacuumed).unlink()
    go(settings, end=at(7))
    land(row(62, at(6, 15)))
    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 121")
    go(settings, end=at(8))
    now = answer()
    assert read[0] <= now[0], "what was emitted stays"
    new = Counter((slice_.hour, left, right) for slice_, left, right in now[0] - read[0])
    assert new == Counter([(6, 61, 161), (7, 62, 161), (7, 62, 162), (7, 70, 170)])
    told = "input right no longer has rows that slices from 2024-01-01T0{}:00Z on have read, so rerunning these slices"
    for hour in (2, 5):
        with pytest.raises(InputError, match=told.format(hour)):
            go(settings, reprocess=True, start=at(hour), end=at(hour + 1))
    go(settings, reprocess=True, start=at(3), end=at(4))
    assert answer() == now, "of this hour all rows are there"


def test_slices_that_have_read_rows_which_were_corrected_run_again_by_themselves(
    spark, lake, pipeline, land, hours, go, answer, fresh
):
    settings = pipeline(on_input_delete="reprocess")
    land(*day(6))
    hours(settings, 5)
    spark.sql(f"UPDATE delta.`{lake}/right` SET v = 999 WHERE v = 121")
    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE v = 31")
    plan, ran = go(settings, end=at(6))
    assert [(one.reason, list(one.slices)) for one in plan.segments] == [
        ("changed input", [2, 3]),
        ("new", [5]),
    ]
    assert sum(change.removed for result in ran for change in result.changes.values()) > 0
    assert answer() == fresh(at(6))
    assert not go(settings, end=at(6))[1], "once is enough"


@pytest.mark.slow
def test_a_checkpoint_that_has_expired_is_rebuilt(spark, lake, pipeline, land, hours, go, answer, ledger, fresh):
    settings = pipeline()
    land(*day(5))
    hours(settings, 5, slices_per_job=1)
    land(row(777, at(3, 30)))
    expired = [ledger(settings).entry(number).run for number in (1, 2)]
    checkpoint = DeltaTableHandle.open(f"{lake}/orders/checkpoint")
    checkpoint.commit([], [path for path in checkpoint.files["path"] if run_of(path) in expired])
    plan, ran = go(settings, reprocess=True, start=at(3), end=at(4))
    assert [(one.reason, list(one.slices)) for one in plan.segments] == [
        ("expired checkpoint", [1, 2]),
        ("reprocess", [3]),
    ]
    assert "has expired: slices from 2024-01-01T01:00Z on run again" in plan.notes[-1]
    assert [result.entries[0].attempt for result in ran[:2]] == [2, 2]
    assert answer() == fresh(at(5))


def test_other_settings_are_taken_up_from_the_first_slice(pipeline, land, hours, go, answer, fresh):
    land(*day(4))
    hours(pipeline(), 4)
    wider = pipeline(join__interval__lower="-1 hour", select=["left_v", "right_v"], on_late_arriving_rows="reprocess")
    told = r"from 2024-01-01T00:00Z on were .* other settings \(join.interval.lower was -30 minutes, now -1 hour\)"
    with pytest.raises(SliceOrderError, match=f"{told}.* tidemark reprocess orders --from 2024-01-01T00:00Z"):
        go(wider, end=at(5))
    with pytest.raises(SliceOrderError, match="cannot be continued; reprocess from 2024-01-01T00:00Z"):
        go(wider, reprocess=True, start=at(2))
    _, ran = go(wider, reprocess=True, start=at(0), end=at(2))
    assert [number for result in ran for number in result.slices] == [0, 1, 2, 3], "until no slice has the old ones"
    assert answer() == fresh(at(4), join__interval__lower="-1 hour")


@pytest.mark.slow
def test_a_gap_is_filled_and_what_follows_is_mended(pipeline, land, hours, go, answer, fresh):
    settings = pipeline()
    land(*day(4))
    hours(settings, 1)
    go(settings, start=at(2), end=at(4), from_empty_state=True)
    plan, _ = go(settings, reprocess=True, start=at(1), end=at(2))
    assert [(one.reason, list(one.slices)) for one in plan.segments] == [("gap", [1])]
    assert answer() == fresh(at(4))


def test_a_plan_tells_what_it_reads_and_how_long_it_takes(pipeline, spark, lake, land, hours):
    settings = pipeline()
    land(*day(3))
    land(*[row(v, at(v // 10)) for v in range(30, 50)])
    first = create_plan(spark, settings, str(lake), Request(end=at(3))).to_dict()
    assert first["estimate"] is None
    left = first["inputs"]["left"]
    assert (left["files"], left["rows"], left["bytes"] > 0) == (1, 6, True)
    hours(settings, 3, slices_per_job=1)
    then = create_plan(spark, settings, str(lake), Request(end=at(5))).to_dict()
    assert then["inputs"]["left"]["rows"] == 20
    assert then["estimate"]["jobs"] == 3
    assert then["segments"][0] == {
        "from": "2024-01-01T03:00Z",
        "to": "2024-01-01T05:00Z",
        "slices": 2,
        "reason": "new",
        "because": "continues slice 2024-01-01T02:00Z",
    }
