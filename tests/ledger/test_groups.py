"""Groups of slices: how large they are, where they stop, and what the gate lets through of one."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tidemark.cli.progress import RemainingTime
from tidemark.config import Expectation
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import CheckFailedError, StoppedError
from tidemark.execution.run import execute
from tidemark.ledger import ledger as ledgers
from tidemark.planning import job_sizing
from tidemark.planning.duration_estimate import PastJob
from tidemark.planning.job_sizing import JobCapacity
from tidemark.planning.plan import Request, create_plan
from tidemark.planning.scan_estimate import InputFiles
from tidemark.quality.evaluation_scope import JobRows
from tidemark.quality.gate import validate_output
from tidemark.quality.gx import result_store
from tidemark.quality.invariants import INVARIANTS

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
BOUND = {"type": "expect_column_values_to_be_between", "column": "right_v", "max_value": 500}


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def row(v, arrived, key="a"):
    return (key, arrived, arrived, v)


@pytest.fixture
def six_hours(land, write):
    """A pair an hour, and a left row of the second hour whose only partner is a bad row of the fourth."""
    land(*[row(10 * hour, at(hour, 20)) for hour in range(6)])
    write("left", [row(1, at(1, 30), "z")], ROW)
    write("right", [row(999, at(3, 15), "z")], ROW)


@pytest.fixture
def stored(spark, lake):
    """Pairs of a table of the pipeline, whoever may see them."""

    def read(table):
        rows = spark.read.format("delta").load(f"{lake}/orders/{table}").select("_slice", "left_v", "right_v")
        return sorted((r["_slice"].hour, r["left_v"], r["right_v"]) for r in rows.collect())

    return read


def test_slices_before_the_first_that_fails_are_published_and_the_rest_follows_when_mended(
    spark, lake, pipeline, six_hours, go, answer, ledger, fresh, stored
):
    join = {"keys": ["k"], "type": "left", "interval": {"lower": "0 s", "upper": "2 hours"}}
    settings = pipeline(dialect="spark", join=join, quality=[BOUND])
    with pytest.raises(CheckFailedError) as raised:
        go(settings, end=at(6))
    told = str(raised.value)
    assert "expect_column_values_to_be_between(column right_v, max_value 500.0) found 1 of " in told
    assert (
        "in slice 2024-01-01T03:00Z; slices 2024-01-01T00:00Z to 2024-01-01T03:00Z were published, "
        "2024-01-01T03:00Z to 2024-01-01T06:00Z were not. Look at "
    ) in told
    assert "\n" not in told
    known = ledger(settings)
    assert [(entry.number, entry.run) for entry in known.entries.values()] == [
        (number, known.last.run) for number in range(3)
    ]
    assert {hour for hour, *_ in stored("emissions")} == {0, 1, 2}, "nobody sees what was refused"
    refused = stored("rejected_output")
    assert (3, 1, 999) in refused
    assert {hour for hour, *_ in refused} == {3, 4, 5}
    spark.sql(f"DELETE FROM delta.`{lake}/right` WHERE v = 999")
    plan, [ran] = go(settings, end=at(6))
    assert plan.to_dict()["carry_in"] == "2024-01-01T02:00Z"
    assert (list(ran.slices), ran.verdict.outcome) == ([3, 4, 5], "passed")
    clean = {"dialect": "spark", "join": join}
    assert answer() == fresh(at(6), **clean), "the row is padded, as if it had never met the bad one"
    assert [entry.digest for entry in ledger(settings).entries.values()] == [
        entry.digest for entry in ledger(pipeline(output="fresh", **clean)).entries.values()
    ]


def test_of_an_atomic_range_nothing_is_published(lake, pipeline, six_hours, go, ledger, stored):
    join = {"keys": ["k"], "interval": {"lower": "0 s", "upper": "2 hours"}}
    settings = pipeline(join=join, quality=[BOUND])
    with pytest.raises(CheckFailedError, match="in slice 2024-01-01T03:00Z; nothing was published, as --atomic asks"):
        go(settings, end=at(6), slices_per_job=2, atomic=True)
    assert ledger(settings).entries == {}
    assert not DeltaTableHandle.open(f"{lake}/orders/emissions")
    assert {hour for hour, *_ in stored("rejected_output")} == {2, 3}, "of the job that failed"


def facts(broken=None, name="null_keys", slices=8):
    table = pd.DataFrame(0, index=range(slices), columns=list(INVARIANTS))
    if broken is not None:
        table.loc[broken, name] = 1
    return table


def test_a_slice_is_refused_by_its_own_facts(tmp_path):
    plain, tables = SimpleNamespace(quality=[], notify=[], expose_row_values=False), PipelineTables(str(tmp_path))
    none = JobRows(range(8), {})
    found = validate_output(facts([5, 6]), none, plain, tables, "run")
    outcomes = [found.select_slices(number, number + 1).outcome for number in range(8)]
    assert (found.publishable_count, outcomes) == (5, ["passed"] * 5 + ["failed"] * 2 + ["passed"])
    whole = validate_output(facts(slice(None), "rows_unaccounted"), none, plain, tables, "run")
    assert (whole.publishable_count, len(whole.failures)) == (0, 1), "what is known of the job alone refuses all of it"


def test_an_expectation_is_judged_slice_by_slice_or_on_the_job(spark, tmp_path):
    rows = spark.createDataFrame([(at(hour), hour) for hour in (0, 1, 1, 1, 3)], "_slice timestamp, v int")
    starts = [int(at(hour).timestamp()) * 1_000_000 for hour in range(4)]
    few = {"type": "expect_table_row_count_to_be_between", "max_value": 2}
    some = {"type": "expect_table_row_count_to_be_between", "min_value": 1, "severity": "warning"}
    tables = PipelineTables(str(tmp_path))

    def outcomes(*quality):
        pipeline = SimpleNamespace(
            quality=[Expectation.model_validate(one) for one in quality], notify=[], expose_row_values=False
        )
        found = validate_output(facts(slices=4), JobRows(starts, {"emissions": rows}), pipeline, tables, "run")
        return found.publishable_count, [found.select_slices(number, number + 1).outcome for number in range(4)]

    assert outcomes(few, some) == (1, ["passed", "failed", "warned", "passed"])
    assert outcomes({**few, "per": "job"}) == (0, ["failed"] * 4)
    assert outcomes({**some, "per": "job"}) == (4, ["passed"] * 4)


def test_auto_fills_jobs_up_to_what_memory_holds_and_a_stopped_run_goes_on(
    spark, lake, pipeline, six_hours, go, answer, ledger, fresh, monkeypatch
):
    settings = pipeline()
    whole = create_plan(spark, settings, str(lake), Request(end=at(6)))
    assert whole.jobs == (range(6),)
    assert "of memory a core in 2 partitions, at 4 times 1" in whole.to_dict()["sizing"]
    told = pipeline(dialect="flink-sql", restarts=["2024-01-01T01:20Z", "2024-01-01T05:00Z", "2024-01-01T09:00Z"])
    jobs = {
        size: create_plan(spark, told, str(lake), Request(end=at(6), slices_per_job=size)).jobs for size in ("auto", 2)
    }
    assert jobs["auto"] == (range(1), range(1, 2), range(2, 5), range(5, 6)), "a slice with a restart is by itself"
    assert jobs[2] == (range(1), range(1, 2), range(2, 4), range(4, 5), range(5, 6))
    monkeypatch.setattr(job_sizing, "COPIES", job_sizing.COPIES * whole.capacity.rows / 5)
    cut = create_plan(spark, settings, str(lake), Request(end=at(6)))
    assert cut.jobs == (range(2), range(2, 4), range(4, 6)), "five rows a job, of two and a bit a slice"
    assert sum(cut.rows_of_jobs.values()) == pytest.approx(14)
    with pytest.raises(StoppedError, match="stopped before slice 2024-01-01T02:00Z; all slices before it are commit"):
        list(execute(spark, cut, lambda *_: None, lambda: bool(ledger(settings).entries)))
    assert list(ledger(settings).entries) == [0, 1]
    go(settings, end=at(6))
    assert answer() == fresh(at(6))


@pytest.mark.slow
def test_slices_one_by_one_leave_few_files_of_ledger_log_and_gate(spark, lake, pipeline, land, go, ledger, monkeypatch):
    monkeypatch.setattr(ledgers, "COMPACT_EVERY", 2)
    monkeypatch.setattr(result_store, "MAX_RESULTS", 2)
    land(*[row(hour, at(hour, 20)) for hour in range(4)])
    go(pipeline(), end=at(4), slices_per_job=1)
    assert list(ledger(pipeline()).entries) == [0, 1, 2, 3]
    assert len(spark.read.format("delta").load(f"{lake}/orders/ledger").inputFiles()) == 1
    papers = lake / "orders/gx/uncommitted"
    assert len(list((papers / "validations").rglob("*.json"))) <= 3
    assert len(list((papers / "data_docs/local_site/validations").rglob("*.html"))) <= 3


def test_a_job_takes_slices_as_long_as_their_rows_fit():
    assert list(JobCapacity(100, "").cut_jobs(range(5, 12), np.array([30, 30, 30, 30, 200, 10, 10]))) == [
        range(5, 8),
        range(8, 9),
        range(9, 10),
        range(10, 12),
    ]
    assert list(JobCapacity(100, "").cut_jobs(range(3, 3), np.array([]))) == []
    assert [len(job) for job in JobCapacity(1, "").cut_jobs(range(25_000), np.zeros(25_000))] == [10_000, 10_000, 5_000]


def test_rows_of_slices_by_the_statistics_of_files():
    files = pd.DataFrame(
        [(100, 10, 0, 4), (100, 6, 4, 4), (100, np.nan, np.nan, np.nan), (100, 20, -50, 10**9)],
        columns=["size", "rows", "first", "last"],
    )
    known = InputFiles(files, now=9)
    assert list(known.rows_per_slice(range(3, 8))) == [2 + 2 + 2, 2 + 6 + 2 + 2, 4, 4, 4]
    assert known.estimate_scan([range(4, 5)]).files == 4
    assert known.estimate_scan([range(5, 6), range(7, 8)]).bytes == 200
    assert known.estimate_scan([range(5, 6)]).rows is None
    assert InputFiles(files[:2], now=9).estimate_scan([range(1)]).rows == 10


def test_time_left_is_told_by_past_jobs_and_those_that_have_run(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    jobs = {range(n, n + 1): 100.0 for n in range(4)}
    pace = RemainingTime(SimpleNamespace(ledger=SimpleNamespace(rows=pd.DataFrame()), rows_of_jobs=jobs))
    pace.start_job(range(1))
    assert (pace.seconds, pace.describe()) == (None, "")
    clock[0] = 60.0
    pace.start_job(range(1, 2))
    assert (pace.seconds, pace.describe()) == (180.0, "about 3 min left")
    clock[0] = 100.0
    assert pace.seconds == 140.0
    clock[0] = 200.0
    assert pace.seconds == 120.0, "no less than the jobs ahead, however long this one takes"
    pace.finish_job()
    assert (pace.finished_jobs[-1], pace.seconds) == (PastJob(100.0, 140.0), 200.0)
    pace.finished_jobs = [PastJob(100.0, 9000.0)]
    assert pace.describe() == "about 5.0 h left"
