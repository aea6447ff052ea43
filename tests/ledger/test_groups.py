"""Size jobs of several slices, stop them, and publish the slices that pass the quality gate."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from tidemark.cli.progress import RemainingTime
from tidemark.cli.render_plan import render_plan
from tidemark.config import Expectation
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import CheckFailedError, StoppedError
from tidemark.execution.run import execute
from tidemark.ledger import ledger as ledgers
from tidemark.planning import job_sizing
from tidemark.planning.duration_estimate import PastJob
from tidemark.planning.job_sizing import JobCapacity
from tidemark.planning.planner import create_plan
from tidemark.planning.replay_strategy import ReplayLimits
from tidemark.planning.request import Request
from tidemark.planning.scan_estimate import InputFiles
from tidemark.quality.evaluation_scope import ValidationRows
from tidemark.quality.gx import result_store
from tidemark.quality.invariants import INVARIANTS
from tidemark.quality.validation import validate_output

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
BOUND = {"type": "expect_column_values_to_be_between", "column": "right_v", "max_value": 500}


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def row(v, arrived, key="a"):
    return (key, arrived, arrived, v)


@pytest.fixture
def six_hours(append_inputs, write):
    """Write a pair per hour, and a left row of the second hour whose only match is a bad row of the fourth."""
    append_inputs(*[row(10 * hour, at(hour, 20)) for hour in range(6)])
    write("left", [row(1, at(1, 30), "z")], ROW)
    write("right", [row(999, at(3, 15), "z")], ROW)


@pytest.fixture
def read_pairs(spark, lake):
    """Read the pairs of a table of the pipeline, published or not."""

    def read(table):
        rows = spark.read.format("delta").load(f"{lake}/orders/{table}").select("_slice", "left_v", "right_v")
        return sorted((r["_slice"].hour, r["left_v"], r["right_v"]) for r in rows.collect())

    return read


def test_failed_slice_blocks_later_ones_until_rows_are_corrected(
    spark, lake, pipeline, six_hours, plan_and_run, read_output, read_ledger, expected_from_scratch, read_pairs
):
    join = {"keys": ["k"], "type": "left", "interval": {"lower": "0 s", "upper": "2 hours"}}
    settings = pipeline(dialect="spark", join=join, quality=[BOUND])
    with pytest.raises(CheckFailedError) as raised:
        plan_and_run(settings, end=at(6))

    message = str(raised.value)
    assert "expect_column_values_to_be_between(column right_v, max_value 500.0) found 1 of " in message
    assert (
        "in slice 2024-01-01T03:00Z; slices 2024-01-01T00:00Z to 2024-01-01T03:00Z were published, "
        "2024-01-01T03:00Z to 2024-01-01T06:00Z were not. Look at "
    ) in message
    assert "\n" not in message

    ledger = read_ledger(settings)
    assert [(entry.number, entry.run) for entry in ledger.entries.values()] == [
        (number, ledger.last.run) for number in range(3)
    ]
    assert {hour for hour, *_ in read_pairs("emissions")} == {0, 1, 2}, "failed slices are not published"

    rejected = read_pairs("rejected_output")
    assert (3, 1, 999) in rejected
    assert {hour for hour, *_ in rejected} == {3, 4, 5}

    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 999")
    plan, [result] = plan_and_run(settings, end=at(6))
    assert plan.to_dict()["continues"] == "2024-01-01T02:00Z"
    assert (list(result.slices), result.validation_result.outcome) == ([3, 4, 5], "passed")

    settings_without_quality = {"dialect": "spark", "join": join}
    assert read_output() == expected_from_scratch(at(6), **settings_without_quality), (
        "the left row is padded, as without the bad row"
    )
    assert [entry.fingerprint for entry in read_ledger(settings).entries.values()] == [
        entry.fingerprint
        for entry in read_ledger(pipeline(output="fresh", **settings_without_quality)).entries.values()
    ]


def test_atomic_range_with_failed_slice_publishes_nothing(
    lake, pipeline, six_hours, plan_and_run, read_ledger, read_pairs
):
    join = {"keys": ["k"], "interval": {"lower": "0 s", "upper": "2 hours"}}
    settings = pipeline(join=join, quality=[BOUND])
    with pytest.raises(CheckFailedError, match="in slice 2024-01-01T03:00Z; nothing was published because of --atomic"):
        plan_and_run(settings, end=at(6), slices_per_job=2, atomic=True)
    assert read_ledger(settings).entries == {}
    assert not DeltaTableHandle.open(f"{lake}/orders/emissions")
    assert {hour for hour, *_ in read_pairs("rejected_output")} == {2, 3}, "rows of the failed job"


def create_invariant_counts(broken=None, name="null_keys", slices=8):
    counts = pd.DataFrame(0, index=range(slices), columns=list(INVARIANTS))
    if broken is not None:
        counts.loc[broken, name] = 1
    return counts


def test_validate_output_broken_invariant_fails_only_its_slices(tmp_path):
    settings, tables = SimpleNamespace(quality=[], notify=[], expose_row_values=False), PipelineTables(str(tmp_path))
    rows = ValidationRows(range(8), {})
    validation = validate_output(create_invariant_counts([5, 6]), rows, settings, tables, "run")
    outcomes = [validation.select_slices(number, number + 1).outcome for number in range(8)]
    assert (validation.publishable_count, outcomes) == (5, ["passed"] * 5 + ["failed"] * 2 + ["passed"])

    job_validation = validate_output(
        create_invariant_counts(slice(None), "rows_unaccounted"), rows, settings, tables, "run"
    )
    assert (job_validation.publishable_count, len(job_validation.failures)) == (0, 1), (
        "an invariant of the whole job fails all slices"
    )


def test_validate_output_evaluates_expectations_per_slice_or_job(spark, tmp_path):
    rows = spark.createDataFrame([(at(hour), hour) for hour in (0, 1, 1, 1, 3)], "_slice timestamp, v int")
    starts = [int(at(hour).timestamp()) * 1_000_000 for hour in range(4)]
    max_two = {"type": "expect_table_row_count_to_be_between", "max_value": 2}
    min_single = {"type": "expect_table_row_count_to_be_between", "min_value": 1, "severity": "warning"}
    tables = PipelineTables(str(tmp_path))

    def outcomes(*quality):
        pipeline = SimpleNamespace(
            quality=[Expectation.model_validate(expectation) for expectation in quality],
            notify=[],
            expose_row_values=False,
        )
        validation = validate_output(
            create_invariant_counts(slices=4), ValidationRows(starts, {"emissions": rows}), pipeline, tables, "run"
        )
        return validation.publishable_count, [
            validation.select_slices(number, number + 1).outcome for number in range(4)
        ]

    assert outcomes(max_two, min_single) == (1, ["passed", "failed", "warned", "passed"])
    assert outcomes({**max_two, "per": "job"}) == (0, ["failed"] * 4)
    assert outcomes({**min_single, "per": "job"}) == (4, ["passed"] * 4)


def test_auto_sized_jobs_fill_memory_and_stopped_run_is_resumable(
    spark, lake, pipeline, six_hours, plan_and_run, read_output, read_ledger, expected_from_scratch, monkeypatch
):
    settings = pipeline()
    single_job = create_plan(spark, settings, str(lake), Request(end=at(6)))
    assert single_job.jobs == (range(6),)
    assert "of memory a core in 2 partitions, at 4 times 1" in single_job.to_dict()["job_size_reason"]

    with_restarts = pipeline(
        dialect="flink-sql", restarts=["2024-01-01T01:20Z", "2024-01-01T05:00Z", "2024-01-01T09:00Z"]
    )
    jobs = {
        size: create_plan(spark, with_restarts, str(lake), Request(end=at(6), slices_per_job=size)).jobs
        for size in ("auto", 2)
    }
    assert jobs["auto"] == (range(1), range(1, 2), range(2, 5), range(5, 6)), "a slice with a restart has its own job"
    assert jobs[2] == (range(1), range(1, 2), range(2, 4), range(4, 5), range(5, 6))

    monkeypatch.setattr(job_sizing, "COPIES", job_sizing.COPIES * single_job.capacity.rows / 5)
    split = create_plan(spark, settings, str(lake), Request(end=at(6)))
    assert split.jobs == (range(2), range(2, 4), range(4, 6)), "a job fits five rows, a slice has a little over two"
    assert sum(split.rows_by_job.values()) == pytest.approx(14)
    with pytest.raises(StoppedError, match="stopped before slice 2024-01-01T02:00Z; all slices before it are commit"):
        list(execute(spark, split, lambda *_: None, lambda: bool(read_ledger(settings).entries)))
    assert list(read_ledger(settings).entries) == [0, 1]

    plan_and_run(settings, end=at(6))
    assert read_output() == expected_from_scratch(at(6))


def test_plan_shows_replay_strategy_of_each_job(spark, lake, pipeline, six_hours):
    with_restart = pipeline(dialect="flink-sql", restarts=["2024-01-01T01:20Z"])
    plan = create_plan(spark, with_restart, str(lake), Request(end=at(6)))
    assert plan.jobs == (range(1), range(1, 2), range(2, 6))

    plan = replace(plan, replay_limits=ReplayLimits(max_cached_rows=5))
    console = Console(width=200, record=True)
    console.print(render_plan(plan))

    cached, scanned = "rows cached", "large job, rows scanned once per output"
    assert [job["replay"] for job in plan.to_dict()["jobs"]] == [cached, cached, scanned]
    assert f"2 jobs: {cached}; 1 job: {scanned}" in console.export_text()


@pytest.mark.slow
def test_single_slice_jobs_keep_number_of_ledger_and_result_files_small(
    spark, lake, pipeline, append_inputs, plan_and_run, read_ledger, monkeypatch
):
    monkeypatch.setattr(ledgers, "COMPACT_EVERY", 2)
    monkeypatch.setattr(result_store, "MAX_RESULTS", 2)
    append_inputs(*[row(hour, at(hour, 20)) for hour in range(4)])
    plan_and_run(pipeline(), end=at(4), slices_per_job=1)
    assert list(read_ledger(pipeline()).entries) == [0, 1, 2, 3]
    assert len(spark.read.format("delta").load(f"{lake}/orders/ledger").inputFiles()) == 1

    gx = lake / "orders/gx/uncommitted"
    assert len(list((gx / "validations").rglob("*.json"))) <= 3
    assert len(list((gx / "data_docs/local_site/validations").rglob("*.html"))) <= 3


def test_cut_jobs_fills_each_job_to_capacity():
    assert list(JobCapacity(100, "").cut_jobs(range(5, 12), np.array([30, 30, 30, 30, 200, 10, 10]))) == [
        range(5, 8),
        range(8, 9),
        range(9, 10),
        range(10, 12),
    ]
    assert list(JobCapacity(100, "").cut_jobs(range(3, 3), np.array([]))) == []
    assert [len(job) for job in JobCapacity(1, "").cut_jobs(range(25_000), np.zeros(25_000))] == [10_000, 10_000, 5_000]


def test_rows_per_slice_follow_file_statistics():
    files = pd.DataFrame(
        [(100, 10, 0, 4), (100, 6, 4, 4), (100, np.nan, np.nan, np.nan), (100, 20, -50, 10**9)],
        columns=["size", "rows", "first", "last"],
    )
    input_files = InputFiles(files, now=9)

    assert list(input_files.rows_per_slice(range(3, 8))) == [2 + 2 + 2, 2 + 6 + 2 + 2, 4, 4, 4]
    assert input_files.estimate_scan([range(4, 5)]).files == 4
    assert input_files.estimate_scan([range(5, 6), range(7, 8)]).bytes == 200
    assert input_files.estimate_scan([range(5, 6)]).rows is None
    assert InputFiles(files[:2], now=9).estimate_scan([range(1)]).rows == 10


def test_remaining_time_follows_past_and_finished_jobs(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    jobs = {range(n, n + 1): 100.0 for n in range(4)}
    remaining = RemainingTime(SimpleNamespace(ledger=SimpleNamespace(rows=pd.DataFrame()), rows_by_job=jobs))
    remaining.start_job(range(1))
    assert (remaining.seconds, remaining.describe()) == (None, "")

    clock[0] = 60.0
    remaining.start_job(range(1, 2))
    assert (remaining.seconds, remaining.describe()) == (180.0, "about 3 min left")

    clock[0] = 100.0
    assert remaining.seconds == 140.0

    clock[0] = 200.0
    assert remaining.seconds == 120.0, "at least the time of the jobs ahead, however long this job takes"

    remaining.finish_job()
    assert (remaining.finished_jobs[-1], remaining.seconds) == (PastJob(100.0, 140.0), 200.0)

    remaining.finished_jobs = [PastJob(100.0, 9000.0)]
    assert remaining.describe() == "about 5.0 h left"
