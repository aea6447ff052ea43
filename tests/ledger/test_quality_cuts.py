"""Quality results of a slice do not depend on how slices are grouped into jobs."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.quality.fake_receivers import webhooks
from tidemark.errors import CheckFailedError

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
HALF_DAYS = {"every": "12 hours", "start": "2024-01-01T00:00:00Z"}


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


BOUND = {"type": "expect_column_values_to_be_between", "on": "history", "severity": "warning"}


def limit_rows(count, severity="warning", **options):
    return {"type": "expect_table_row_count_to_be_between", "max_value": count, "severity": severity, **options}


@pytest.fixture
def two_days(append_inputs, write):
    """Write 1, 2, 3 and 4 pairs in the halves of two days, and a late row in each second half."""
    times = [(half, at(12 * half + 2, n)) for half in range(4) for n in range(half + 1)]
    append_inputs(*[(f"{half} {time}", time, time, half) for half, time in times])
    write("left", [("z", at(12 * half - 6), at(12 * half + 8), 9) for half in (1, 3)], ROW)


@pytest.fixture
def run_with_expectations(plan_and_run, read_ledger, pipeline):
    """Run expectations; return their failed slices, the committed slices, and the message of a failed job."""

    def run_pipeline(per_job, *quality, notify=(), **request):
        settings = pipeline(output=f"of_{per_job}", slices=HALF_DAYS, quality=list(quality), notify=list(notify))
        message = ""
        try:
            plan_and_run(settings, end=at(48), slices_per_job=per_job, **request)
        except CheckFailedError as error:
            message = str(error)
        failed_slices = {}
        for row in read_ledger(settings).rows.to_dict("records"):
            for result in json.loads(row["quality_results"]):
                failed_slices.setdefault(result["expectation"].partition(")")[2].strip(), []).append(row["number"])
        return failed_slices, list(read_ledger(settings).entries), message

    return run_pipeline


@pytest.mark.parametrize(("per_job", "atomic"), [(4, False), (1, False), pytest.param(1, True, marks=pytest.mark.slow)])
def test_quality_results_are_independent_of_slices_per_job(two_days, run_with_expectations, per_job, atomic):
    expectations = [
        limit_rows(3, per="day"),
        limit_rows(3, on="pairs"),
        limit_rows(0, on="late"),
        limit_rows(0, on="late", per="day"),
        limit_rows(3, on="left"),
        # The rows of a half arrive two hours after its start, and those of the half before are evicted.
        {**BOUND, "column": "oldest_carried_hours", "min_value": 10, "max_value": 10},
        {**BOUND, "column": "carried_rows", "max_value": 5},
    ]
    failed_slices, published, _ = run_with_expectations(per_job, *expectations, atomic=atomic)
    assert published == [0, 1, 2, 3]
    assert failed_slices == {
        "per day": [3],
        "on pairs": [3],
        "on late": [1, 3],
        "on late per day": [1, 3],
        "on left": [3],
        "on history": [2, 3],
    }


def test_expectation_on_late_rows_after_rerun_of_all_slices_without_any(spark, lake, pipeline, write, plan_and_run):
    """The job of the new slice finds neither committed nor staged late rows."""
    settings = pipeline(on_input_delete="reprocess", quality=[limit_rows(0, on="late")])
    for hour in (0, 1):
        rows = [("a", at(hour, minute), at(hour, minute), 10 * hour + minute) for minute in (1, 2)]
        for side in ("left", "right"):
            write(side, rows, ROW)
        if hour == 0:
            plan_and_run(settings, end=at(1))
            spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE v = 2")

    _, results = plan_and_run(settings, end=at(2), slices_per_job=1)

    assert [list(result.slices) for result in results] == [[0], [1]]


@pytest.mark.parametrize("per_job", [4, 1])
def test_critical_input_failure_skips_join_and_commits_earlier_slices(
    two_days, run_with_expectations, lake, monkeypatch, per_job
):
    with webhooks() as (url, requests):
        monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_PAGER", json.dumps({"conn_type": "http", "host": url}))
        notify = {"webhook": {"connection": "tidemark_pager"}, "when": "always"}
        expectation = limit_rows(2, "critical", on="left")
        _, published, message = run_with_expectations(per_job, expectation, notify=[notify])
    assert published == [0]
    outcomes = [(content["outcome"], content["start"], content["slice_count"]) for _, _, content in requests]
    first, second = "2024-01-01T00:00Z", "2024-01-01T12:00Z"
    assert outcomes == ([("failed", first, 4)] if per_job == 4 else [("passed", first, 1), ("failed", second, 1)])
    assert "(max_value 2) on left found 3 before the join in slice 2024-01-01T12:00Z" in message
    assert not (lake / f"of_{per_job}" / "rejected_output").exists(), "no row was written"


def test_critical_daily_failure_is_in_last_slice_of_day(two_days, run_with_expectations):
    _, published, message = run_with_expectations(2, limit_rows(2, "critical", per="day"))
    assert published == [0]
    assert "(max_value 2) per day found 3 in slice 2024-01-01T12:00Z" in message


def test_daily_check_counts_rows_in_quarantine_in_any_job(two_days, run_with_expectations):
    quarantined = {"type": "expect_column_values_to_be_between", "column": "left_v", "max_value": 1}
    expectations = [{**quarantined, "on_failure": "quarantine"}, limit_rows(6, per="day")]

    failed_slices, published, _ = run_with_expectations(1, *expectations)

    assert published == [0, 1, 2, 3]
    assert failed_slices["per day"] == [3]
