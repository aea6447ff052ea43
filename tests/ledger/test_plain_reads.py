"""Plain reads give committed rows at every version, after runs, reprocesses, kills and vacuum."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.ledger.reader_assertions import (
    check_every_version,
    check_readers_agree,
    count_rows_by_slice,
    list_existing_tables,
)
from tidemark.config.maintenance import Retention
from tidemark.config.quality import create_default_expectations
from tidemark.delta.log_files import RemovedFiles
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import CommitConflictError, DeltaTableHandle, create_internal_table
from tidemark.errors import SliceOrderError
from tidemark.execution import run as run_module
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.ledger import transaction
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import SCHEMA
from tidemark.maintenance.vacuum import vacuum
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.lazy_session import create_lazy_session
from tidemark.tables.table_changes import FOLLOWING, TableChanges
from tidemark.timegrid.slices import Grid

START = datetime(2024, 1, 1, tzinfo=UTC)


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


class KilledError(BaseException):
    pass


@pytest.fixture
def history(spark, lake, pipeline, append_inputs, create_rows, run_hours, plan_and_run, monkeypatch):
    """Run four slices in a job, reprocess one, reprocess three atomically, and kill runs around their commit."""
    min_single_row = {"type": "expect_table_row_count_to_be_between", "min_value": 1, "severity": "warning"}
    settings = pipeline(on_late_arriving_rows="reprocess", quality=[min_single_row])
    append_inputs(*create_rows(minutes=7, count=60))
    run_hours(settings, 4)
    append_inputs(("a", at(1, 30), at(1, 30), 777))
    plan_and_run(settings, reprocess=True, start=at(1), end=at(2))
    append_inputs(("a", at(0, 30), at(0, 30), 778))
    plan_and_run(settings, reprocess=True, start=at(0), end=at(3), slices_per_job=1, atomic=True)

    def kill(*_, **__):
        raise KilledError

    for step in ("prepare_commit", "apply_to_tables"):
        with monkeypatch.context() as patch:
            patch.setattr(transaction, step, kill)
            with pytest.raises(KilledError):
                run_hours(settings, 5)
    return settings, PipelineTables(f"{lake}/orders"), Grid.from_config(settings.slices)


def test_every_version_has_complete_committed_slices(spark, lake, history):
    settings, tables, grid = history
    commits_before = {
        name: DeltaTableHandle.open(getattr(tables, name)).txn_version for name in list_existing_tables(tables)
    }
    check_every_version(tables, grid)
    ledger = Ledger.read(tables, grid)
    assert set(commits_before.values()) == {ledger.number - 1}, (
        "the process was killed before it applied its last commit"
    )
    assert {DeltaTableHandle.open(getattr(tables, name)).txn_version for name in list_existing_tables(tables)} == {
        ledger.number
    }

    quality_counts = count_rows_by_slice(DeltaTableHandle.open(tables.quality), "quality", grid)
    expected = 1 + len(create_default_expectations())
    assert quality_counts == {number: {entry.run: expected} for number, entry in ledger.entries.items()}
    assert check_readers_agree(spark, tables, grid) > 0
    assert check_integrity(settings, str(lake), deep=True).issues == (), "groups, splits and kills are no damage"
    assert check_every_version(tables, grid) >= 3 * ledger.number

    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    changes = feed.load(tables.emissions).groupBy("_commit_version", "_change_type", "_slice").count().collect()
    deleted = {(row["_commit_version"], grid.number_at(int(row["_slice"].timestamp() * 1e6))) for row in changes
            if row["_change_type"] == "delete"}  # fmt: skip
    reprocessed = {entry.number for entry in ledger.entries.values() if entry.attempt > 1}
    assert {number for _, number in deleted} == reprocessed, "rewriting a file changes no row"

    log = DeltaTableHandle.open(tables.emissions)
    log.commit([], [log.files["path"][0]])
    with pytest.raises(AssertionError, match="emissions version"):
        check_every_version(tables, grid)


def test_vacuum_removes_only_uncommitted_then_replaced_files(spark, lake, history):
    settings, tables, grid = history
    Ledger.read(tables, grid)
    files = {path for name in FOLLOWING for path in (lake / "orders" / name).glob("run=*/**/*.parquet")}
    counts_before = [spark.read.format("delta").option("versionAsOf", version).load(tables.emissions).count()
            for version in range(DeltaTableHandle.open(tables.emissions).version + 1)]  # fmt: skip
    result = vacuum(settings, str(lake), timedelta(hours=1))
    assert (result.uncommitted_files.files, result.recent_files > 0) == ((), True), "an active run may need them"

    result = vacuum(settings, str(lake), timedelta(0), dry_run=True)
    assert {path for path in files if path.exists()} == files
    assert vacuum(settings, str(lake), timedelta(0)).uncommitted_files.files == result.uncommitted_files.files != ()

    committed = {path for path in files if path.exists()}
    assert {str(path.relative_to(lake / "orders")) for path in files - committed} == set(result.uncommitted_files.files)
    assert result.uncommitted_files.bytes > 0

    counts_after = [spark.read.format("delta").option("versionAsOf", version).load(tables.emissions).count()
             for version in range(DeltaTableHandle.open(tables.emissions).version + 1)]  # fmt: skip
    assert counts_after == counts_before, "time travel still works for all versions"
    assert vacuum(settings, str(lake), timedelta(0)).uncommitted_files.files == ()

    without_retention = settings.model_copy(
        update={"retention": Retention.model_construct(replaced_files=timedelta(0))}
    )
    result = vacuum(without_retention, str(lake), timedelta(0), dry_run=True)
    assert {path for path in files if path.exists()} == committed
    assert vacuum(without_retention, str(lake), timedelta(0)).replaced_files == result.replaced_files != RemovedFiles()
    assert {str(path.relative_to(lake / "orders")) for path in committed if not path.exists()} == set(
        result.replaced_files.files
    )

    oldest = result.recovery_horizon.readable_from["emissions"]
    rows = [
        spark.read.format("delta").option("versionAsOf", version).load(tables.emissions)
        for version in range(oldest - 1, len(counts_before))
    ]
    assert [len(frame.collect()) for frame in rows[1:]] == counts_before[oldest:]
    with pytest.raises((PySparkException, Py4JJavaError), match="FILE_NOT_EXIST"):
        rows[0].collect()
    assert vacuum(without_retention, str(lake), timedelta(0)).replaced_files == RemovedFiles()


def test_concurrent_commits_of_same_number_have_single_winner(tmp_path, pipeline):
    grid = Grid.from_config(pipeline().slices)
    tables = PipelineTables(str(tmp_path / "orders"))
    create_internal_table(tables.ledger, SCHEMA)
    row = {"slice": START, "format": 3, "run": "", "attempt": 1}
    for number in range(1, 21):
        ledgers = [Ledger(tables, grid, None, {}, frozenset(), number - 1) for _ in range(4)]

        def commit(ledger, number=number):
            try:
                ledger.commit([{**row, "commit": number}], number, TableChanges({}), {}, {})
            except SliceOrderError:
                return 0
            return 1

        with ThreadPoolExecutor(len(ledgers)) as pool:
            assert sum(pool.map(commit, random.sample(ledgers, len(ledgers)))) == 1
    assert len(DeltaTableHandle.open(tables.ledger).read(["run"])) == 20


@pytest.mark.parametrize("changes_data", [True, False])
def test_commit_on_outdated_version_raises_conflict(tmp_path, changes_data):
    log = create_internal_table(str(tmp_path / "table"), pa.schema({"n": pa.int64()}))
    rows, outdated = pa.table({"n": [1]}), DeltaTableHandle.open(log.path)
    log.append(rows, 1)
    with pytest.raises(CommitConflictError):
        outdated.append(rows, 1)

    opened = DeltaTableHandle.open(log.path)
    [path] = opened.files["path"]
    DeltaTableHandle.open(log.path).commit([], [path], changes_data=changes_data)
    for outdated, number in ((opened, None), (DeltaTableHandle.open(log.path, opened.version), 2)):
        with pytest.raises(CommitConflictError):
            outdated.commit([], [path], number)


def test_atomic_commit_of_slice_run_twice_counts_once(spark, lake, pipeline, append_inputs, create_rows):
    """Commit a slice twice, which no plan does; the published rows must be correct all the same."""
    settings = pipeline()
    append_inputs(*create_rows(minutes=11, count=20))
    plan = create_plan(spark, settings, str(lake), Request(end=at(3), slices_per_job=3, atomic=True))
    work = run_module._PlanExecution(spark, plan, plan.ledger, list(plan.jobs), set(), lambda *_: None)
    work.run(plan.jobs[0])
    work.run(range(1, 2))
    work.commit(list(work.uncommitted))
    tables, grid = plan.tables, plan.grid

    assert check_every_version(tables, grid) >= 3
    assert check_readers_agree(spark, tables, grid) > 0


def test_create_plan_runs_no_spark_query(lake, pipeline, append_inputs, create_rows, run_hours):
    settings = pipeline()
    append_inputs(*create_rows(minutes=11, count=20))
    run_hours(settings, 3)

    def fail_to_create_session():
        raise AssertionError("a Spark session was created")

    def plan(**request):
        return create_plan(
            create_lazy_session(fail_to_create_session), settings, str(lake), Request(slices_per_job=1, **request)
        )

    rerun = {"reprocess": True, "start": at(1), "end": at(2)}

    assert [len(plan(**request).jobs) for request in ({"end": at(3)}, {}, rerun, {"reprocess": True})] == [0, 1, 1, 0]
    assert plan().spark_queries == ()
    assert list(execute(create_lazy_session(fail_to_create_session), plan(end=at(3)), lambda *_: None)) == []
