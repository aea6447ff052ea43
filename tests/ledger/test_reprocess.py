"""Reprocess committed slices over Delta tables: changed rows, cascades, conflicts and unchanged files."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import CheckFailedError, InputError, SliceOrderError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.deleted_inputs import find_deleted_inputs
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.pending_rejections import list_pending_rejections
from tidemark.tables.run_files import parse_run

OUTDATED = Request(reprocess=True, outdated=True)
START = datetime(2024, 1, 1, tzinfo=UTC)


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def create_row(v, arrived, happened=None, key="a"):
    return (key, happened or arrived, arrived, v)


def create_hourly_rows(count):
    """Create two rows per hour."""
    return [create_row(10 * hour + part, at(hour, 20 * part + 5)) for hour in range(count) for part in (1, 2)]


def list_runs(table):
    return set(map(parse_run, DeltaTableHandle.open(table).files["path"]))


def list_emission_files(spark, lake, ledger, slices):
    """List the data files of the emissions of some slices from Delta's log."""
    runs = {ledger.entry(number).run for number in slices}
    paths = spark.read.format("delta").load(f"{lake}/orders/emissions").inputFiles()
    return {path for path in paths if any(f"run={run}/" in path for run in runs)}


def test_reprocess_of_late_arriving_rows_cascades_until_state_is_unchanged(
    spark, lake, pipeline, append_inputs, run_hours, plan_and_run, read_output, read_ledger, expected_from_scratch
):
    settings = pipeline(on_late_arriving_rows="reprocess")
    append_inputs(*create_hourly_rows(8))
    run_hours(settings, 4)
    run_hours(settings, 8)
    before, files_before = read_output()[0], list_emission_files(spark, lake, read_ledger(settings), [4, 5, 6, 7])
    append_inputs(create_row(777, at(2, 30)))
    spark.sql(f"OPTIMIZE delta.`{lake}/left`")
    plan, results = plan_and_run(settings)
    assert (results, plan.slices_to_reprocess) == ([], (2,)), "the row is not read yet"
    assert plan.to_dict()["proposed_command"] == f"tidemark reprocess {settings.command_argument}"
    assert plan.to_dict()["slices_to_reprocess"] == [
        {"from": "2024-01-01T02:00Z", "to": "2024-01-01T03:00Z", "slices": 1}
    ]
    assert read_output()[0] == before

    outdated = create_plan(spark, settings, str(lake), OUTDATED)
    assert [(slices["from"][11:13], slices["slices"]) for slices in outdated.to_dict()["may_follow"]] == [("03", 5)]

    plan, results = plan_and_run(settings, reprocess=True)
    assert outdated.slice_ranges == plan.slice_ranges
    assert [(segment.reason, list(segment.slices)) for segment in plan.slice_ranges] == [("late arrival", [2])]
    assert plan.proposed_command is None, "the plan itself reads the row"

    rerun_slices = [slice_ for result in results for slice_ in result.slices]
    assert rerun_slices == [2, 3], "the state after slice 3 is unchanged, so slice 4 stays"

    changes = {number: change for result in results for number, change in result.changes.items()}
    assert all(change.removed == 0 for change in changes.values())
    assert (changes[2].added > 0, changes[2].same > 0) == (True, True)
    assert list_emission_files(spark, lake, read_ledger(settings), [4, 5, 6, 7]) == files_before
    assert read_output() == expected_from_scratch(at(8))

    plan, results = plan_and_run(settings)
    assert (results, plan.slices_to_reprocess) == ([], ())
    assert create_plan(spark, settings, str(lake), OUTDATED).notes == ("no committed slice is outdated",)


@pytest.mark.promise("A reprocess of slices gives the rows that a run from scratch gives.")
def test_reprocess_moves_late_arriving_rows_to_their_slice(
    pipeline, append_inputs, run_hours, plan_and_run, read_output, read_ledger, expected_from_scratch
):
    settings = pipeline()
    append_inputs(*create_hourly_rows(4))
    run_hours(settings, 4)
    append_inputs(create_row(777, at(1, 30)))
    plan, _ = plan_and_run(settings)
    arrived = "about 2 rows of committed slices arrived after the commit"
    assert plan.notes[-1] == f"{arrived}: they wait for slice 2024-01-01T04:00Z, which reads them"
    append_inputs(create_row(40, at(4, 5)), create_row(50, at(5, 5)))
    plan, _ = plan_and_run(settings, end=at(6))
    assert plan.notes[-1] == f"{arrived}: slice 2024-01-01T04:00Z reads them"
    assert sum(plan.rows_by_job.values()) == 6, "with the late-arriving rows"
    entry = read_ledger(settings).entry(4)
    assert (entry.late_arriving_rows, entry.late_arriving_from) == (2, 1)
    assert {row[2] for row in read_output()[1]} == {777, 877}, "late for the watermark, because slice 4 read it"

    plan, results = plan_and_run(settings, reprocess=True, start=at(1), end=at(2))
    assert "slices from 2024-01-01T02:00Z on also run again" in plan.notes[0]
    assert {1, 2, 4} <= {number for result in results for number in result.slices}, "slice 4 had read the rows"
    assert read_output() == expected_from_scratch(at(6))
    assert read_ledger(settings).entry(4).late_arriving_rows == 0


def test_reprocess_killed_between_jobs_is_repaired_by_run(
    pipeline, spark, lake, append_inputs, run_hours, plan_and_run, read_output, expected_from_scratch
):
    settings = pipeline()
    append_inputs(*create_hourly_rows(6))
    run_hours(settings, 5)
    append_inputs(create_row(777, at(1, 30)))
    plan = create_plan(spark, settings, str(lake), Request(reprocess=True, start=at(1), end=at(3), slices_per_job=1))
    next(execute(spark, plan, lambda *_: None))
    outdated = create_plan(spark, settings, str(lake), OUTDATED)
    assert [(segment.reason, segment.slices[0]) for segment in outdated.slice_ranges] == [("stale", 2)]
    plan, _ = plan_and_run(settings, end=at(6))

    assert [(segment.reason, segment.slices[0]) for segment in plan.slice_ranges] == [("stale", 2), ("new", 5)]
    assert "stale: slice 2024-01-01T01:00Z now ends with a different state" in plan.to_dict()["explanation"]
    assert read_output() == expected_from_scratch(at(6))


@pytest.mark.slow
def test_atomic_reprocess_commits_all_slices_or_none(
    pipeline, spark, lake, append_inputs, run_hours, plan_and_run, read_output, expected_from_scratch, read_ledger
):
    settings = pipeline()
    append_inputs(*create_hourly_rows(5))
    run_hours(settings, 5)
    append_inputs(create_row(777, at(1, 30)))
    before = read_output()
    request = Request(reprocess=True, start=at(1), end=at(3), slices_per_job=1, atomic=True)
    plan = create_plan(spark, settings, str(lake), request)

    def fail_in_second_job(slices, step):
        if slices[0] == 2 and step == "checking":
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError):
        list(execute(spark, plan, fail_in_second_job))
    assert read_output() == before

    number = read_ledger(settings).last_commit
    results = list(execute(spark, create_plan(spark, settings, str(lake), request), lambda *_: None))
    assert [list(result.slices) for result in results] == [[1], [2]]
    assert read_ledger(settings).last_commit == number + 1
    assert read_output() == expected_from_scratch(at(5))


@pytest.mark.parametrize("first", ["run", pytest.param("reprocess", marks=pytest.mark.slow)])
def test_concurrent_run_and_reprocess_have_single_winner(
    first, spark, lake, pipeline, append_inputs, run_hours, plan_and_run, read_output, expected_from_scratch
):
    settings = pipeline()
    append_inputs(*create_hourly_rows(5))
    run_hours(settings, 4)
    append_inputs(create_row(777, at(1, 30)))
    requests = {"run": Request(end=at(5)), "reprocess": Request(reprocess=True, start=at(1), end=at(2))}
    plans = {name: create_plan(spark, settings, str(lake), request) for name, request in requests.items()}
    second = next(name for name in plans if name != first)
    list(execute(spark, plans[first], lambda *_: None))
    with pytest.raises(SliceOrderError, match="another process committed slices of .* Run the same command again"):
        list(execute(spark, plans[second], lambda *_: None))

    ledger = Ledger.from_pipeline(settings, str(lake))
    assert list_runs(ledger.tables.checkpoint) == {entry.run for entry in ledger.entries.values()}

    plan_and_run(settings, **({"end": at(5)} if second == "run" else {"reprocess": True, "start": at(1), "end": at(2)}))
    assert read_output() == expected_from_scratch(at(5))


def test_input_with_deleted_rows_requires_reprocess(
    spark, lake, pipeline, append_inputs, run_hours, plan_and_run, read_output, expected_from_scratch
):
    settings = pipeline()
    append_inputs(*create_hourly_rows(6))
    run_hours(settings, 5)
    files_before = set(DeltaTableHandle.open(f"{lake}/right").files["path"])
    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 121")
    [replaced] = files_before - set(DeltaTableHandle.open(f"{lake}/right").files["path"])
    content = (lake / "right" / replaced).read_bytes()
    (lake / "right" / replaced).write_bytes(b"damaged")
    with pytest.raises((PySparkException, Py4JJavaError), match="FAILED_READ_FILE"):  # which rows are gone is unknown
        plan_and_run(settings, end=at(6))
    (lake / "right" / replaced).write_bytes(content)
    message = "input right: version 1 deleted or changed rows that slices from 2024-01-01T02:00Z on"
    with pytest.raises(
        InputError, match=f"{message} have read. Run tidemark reprocess .*yaml --from 2024-01-01T02:00Z"
    ):
        plan_and_run(settings, end=at(6))
    for request in ({"end": at(5)}, {"reprocess": True, "start": at(4)}):
        with pytest.raises(InputError, match=message):
            plan_and_run(settings, **request)
    assert "files of an input were rewritten" in find_deleted_inputs(settings, str(lake)).description

    by_default = create_plan(spark, settings, str(lake), Request(reprocess=True))
    plan, results = plan_and_run(settings, reprocess=True, outdated=True)
    assert [(segment.reason, list(segment.slices)) for segment in plan.slice_ranges] == [("changed input", [2])]
    assert by_default.slice_ranges == plan.slice_ranges
    assert sum(change.removed for result in results for change in result.changes.values()) > 0

    plan_and_run(settings, end=at(6))
    assert read_output() == expected_from_scratch(at(6))


def test_deleted_input_rows_are_ignored_by_new_slices_when_configured(
    spark, lake, pipeline, append_inputs, run_hours, plan_and_run, read_output, expected_from_scratch
):
    settings = pipeline(on_input_delete="ignore")
    append_inputs(*create_hourly_rows(5))
    append_inputs(create_row(50, at(5, 5)))
    run_hours(settings, 6, slices_per_job=1)
    before = read_output()
    append_inputs(create_row(61, at(6, 5)), create_row(70, at(7, 5)))
    files_before = set(DeltaTableHandle.open(f"{lake}/right").files["path"])
    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 150")
    [vacuumed] = files_before.difference(DeltaTableHandle.open(f"{lake}/right").files["path"])
    (lake / "right" / vacuumed).unlink()
    plan_and_run(settings, end=at(7))
    append_inputs(create_row(62, at(6, 15)))
    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 121")
    plan_and_run(settings, end=at(8))
    after = read_output()
    assert before[0] <= after[0], "emitted rows are unchanged"

    new_pairs = Counter((slice_.hour, left, right) for slice_, left, right in after[0] - before[0])
    assert new_pairs == Counter([(6, 61, 161), (7, 62, 161), (7, 62, 162), (7, 70, 170)])

    message = (
        "input right no longer has rows that slices from 2024-01-01T0{}:00Z on have read, so rerunning these slices"
    )
    for hour in (2, 5):
        with pytest.raises(InputError, match=message.format(hour)):
            plan_and_run(settings, reprocess=True, start=at(hour), end=at(hour + 1))

    plan_and_run(settings, reprocess=True, start=at(3), end=at(4))
    assert read_output() == after, "no row of this hour was deleted"

    append_inputs(create_row(777, at(4, 50)))
    with pytest.raises(InputError, match=message.format(5)):
        plan_and_run(settings, reprocess=True, start=at(4), end=at(5))
    assert read_output() == after, "the next slice had to run again, so nothing is committed"


def test_cascade_ignores_failed_checks_of_slices_that_need_not_run(
    pipeline, append_inputs, run_hours, plan_and_run, read_output, read_ledger, expected_from_scratch
):
    """The job of slices 3 and 4 finds that slice 3 ends with the state that slice 4 continued before."""
    append_inputs(*create_hourly_rows(6))
    run_hours(pipeline(), 6)
    append_inputs(create_row(777, at(1, 30), happened=at(3)))
    no_row_of_slice_4 = {"type": "expect_column_values_to_not_be_in_set", "column": "left_v", "value_set": [42]}
    settings = pipeline(quality=[{**no_row_of_slice_4, "severity": "critical"}])

    _, results = plan_and_run(settings, reprocess=True, start=at(1), end=at(2))

    assert [list(result.slices) for result in results] == [[1], [2], [3]]
    assert list_pending_rejections(read_ledger(settings)) == []
    assert read_output() == expected_from_scratch(at(6))
    with pytest.raises(CheckFailedError, match="slice 2024-01-01T04:00Z"):
        plan_and_run(settings, reprocess=True, start=at(4), end=at(5))


def test_corrected_input_rows_are_reprocessed_when_configured(
    spark, lake, pipeline, append_inputs, run_hours, plan_and_run, read_output, expected_from_scratch
):
    settings = pipeline(on_input_delete="reprocess")
    append_inputs(create_row(900, None, happened=at(0)), *create_hourly_rows(6))
    run_hours(settings, 5)
    spark.sql(f"UPDATE delta.`{lake}/right` SET v = 999 WHERE v = 121")
    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE v = 31 OR arrived IS NULL")
    plan = create_plan(spark, settings, str(lake), Request(end=at(6), slices_per_job=1))
    assert [(segment.reason, list(segment.slices)) for segment in plan.slice_ranges] == [
        ("changed input", [0]),  # for the row without an arrival
        ("changed input", [2, 3]),
        ("new", [5]),
    ]
    jobs = execute(spark, plan, lambda *_: None)
    interrupted = [next(jobs) for _ in range(2)]
    _, results = plan_and_run(settings, end=at(6))

    assert [list(result.slices) for result in interrupted] == [[0], [2]]
    assert sum(change.removed for result in (*interrupted, *results) for change in result.changes.values()) > 0
    assert read_output() == expected_from_scratch(at(6))
    assert not plan_and_run(settings, end=at(6))[1], "all slices are up to date"


def test_changed_rows_before_first_slice_take_no_part(
    spark, lake, pipeline, append_inputs, run_hours, plan_and_run, read_output, read_ledger, expected_from_scratch
):
    settings = pipeline()
    append_inputs(create_row(901, at(-30)), *create_hourly_rows(4))
    run_hours(settings, 4)
    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 1001")
    append_inputs(create_row(902, at(-20), happened=at(3, 50)), create_row(40, at(4, 5)))

    for policy in ({"on_late_arriving_rows": "reprocess"}, {"on_input_delete": "reprocess"}):
        plan = create_plan(spark, pipeline(**policy), str(lake), Request(end=at(5)))
        assert not plan.slices_to_reprocess
        assert [(segment.reason, list(segment.slices)) for segment in plan.slice_ranges] == [("new", [4])]

    plan_and_run(settings, end=at(5))
    assert read_ledger(settings).entry(4).late_arriving_rows == 0
    assert read_output() == expected_from_scratch(at(5))


@pytest.mark.slow
def test_reprocess_rebuilds_expired_checkpoint(
    spark, lake, pipeline, append_inputs, run_hours, plan_and_run, read_output, read_ledger, expected_from_scratch
):
    settings = pipeline()
    append_inputs(*create_hourly_rows(5))
    run_hours(settings, 5, slices_per_job=1)
    append_inputs(create_row(777, at(3, 30)))
    expired = [read_ledger(settings).entry(number).run for number in (1, 2)]
    checkpoint = DeltaTableHandle.open(f"{lake}/orders/checkpoint")
    checkpoint.commit([], [path for path in checkpoint.files["path"] if parse_run(path) in expired])
    plan, results = plan_and_run(settings, reprocess=True, start=at(3), end=at(4))

    assert [(segment.reason, list(segment.slices)) for segment in plan.slice_ranges] == [
        ("expired checkpoint", [1, 2]),
        ("reprocess", [3]),
    ]
    assert "has expired: slices from 2024-01-01T01:00Z on run again" in plan.notes[-1]
    assert [result.entries[0].attempt for result in results[:2]] == [2, 2]
    assert read_output() == expected_from_scratch(at(5))


def test_changed_settings_require_reprocess_from_first_slice(
    pipeline, append_inputs, run_hours, plan_and_run, read_output, expected_from_scratch
):
    append_inputs(*create_hourly_rows(4))
    run_hours(pipeline(), 4)
    wider = pipeline(join__interval__lower="-1 hour", select=["left_v", "right_v"], on_late_arriving_rows="reprocess")
    message = r"from 2024-01-01T00:00Z on were .* other settings \(join.interval.lower was -30 minutes, now -1 hour\)"
    with pytest.raises(SliceOrderError, match=f"{message}.* tidemark reprocess .*yaml --from 2024-01-01T00:00Z"):
        plan_and_run(wider, end=at(5))
    with pytest.raises(SliceOrderError, match="cannot be continued. Reprocess from 2024-01-01T00:00Z"):
        plan_and_run(wider, reprocess=True, start=at(2))

    _, results = plan_and_run(wider, reprocess=True, start=at(0), end=at(2))
    assert [number for result in results for number in result.slices] == [0, 1, 2, 3], (
        "until all slices have the new settings"
    )
    assert read_output() == expected_from_scratch(at(4), join__interval__lower="-1 hour")


@pytest.mark.slow
def test_reprocess_fills_gap_and_updates_later_slices(
    pipeline, append_inputs, run_hours, plan_and_run, read_output, expected_from_scratch
):
    settings = pipeline()
    append_inputs(*create_hourly_rows(4))
    run_hours(settings, 1)
    plan_and_run(settings, start=at(2), end=at(4), from_empty_state=True)
    plan, _ = plan_and_run(settings, reprocess=True, start=at(1), end=at(2))

    assert [(segment.reason, list(segment.slices)) for segment in plan.slice_ranges] == [("gap", [1])]
    assert read_output() == expected_from_scratch(at(4))


def test_plan_estimates_input_size_and_duration(pipeline, spark, lake, append_inputs, run_hours):
    settings = pipeline()
    append_inputs(*create_hourly_rows(3))
    append_inputs(*[create_row(v, at(v // 10)) for v in range(30, 50)])
    first = create_plan(spark, settings, str(lake), Request(end=at(3))).to_dict()
    assert first["estimate"] is None

    left = first["inputs"]["left"]
    assert (left["files"], left["rows"], left["bytes"] > 0) == (1, 6, True)

    run_hours(settings, 3, slices_per_job=1)
    second = create_plan(spark, settings, str(lake), Request(end=at(5))).to_dict()
    assert second["inputs"]["left"]["rows"] == 20
    assert second["estimate"]["jobs"] == 3
    assert second["slice_ranges"][0] == {
        "from": "2024-01-01T03:00Z",
        "to": "2024-01-01T05:00Z",
        "slices": 2,
        "reason": "new",
        "explanation": "continues slice 2024-01-01T02:00Z",
    }
