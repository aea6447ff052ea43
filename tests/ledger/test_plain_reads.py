"""Plain reads give committed rows at every version, after runs, reprocesses, kills and vacuum."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
from tidemark.config.sides import SIDES
from tidemark.delta.log_files import RemovedFiles
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import stage_arrow_table
from tidemark.delta.table import CommitConflictError, DeltaTableHandle, create_internal_table
from tidemark.errors import FaultError, SliceOrderError
from tidemark.execution import run as run_module
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.ledger import transaction
from tidemark.ledger.entry import Counts, Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import SCHEMA
from tidemark.maintenance.vacuum import vacuum
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.lazy_session import create_lazy_session
from tidemark.tables import table_changes
from tidemark.tables.table_changes import (
    LEDGER_MANAGED_TABLES,
    OPTIONAL_TABLES,
    TableChanges,
    apply_to_tables,
    list_applied_commits,
)
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.values import Watermarks

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
    assert set(commits_before.values()) == {ledger.last_commit - 1}, (
        "the process was killed before it applied its last commit"
    )
    assert {DeltaTableHandle.open(getattr(tables, name)).txn_version for name in list_existing_tables(tables)} == {
        ledger.last_commit
    }

    quality_counts = count_rows_by_slice(DeltaTableHandle.open(tables.quality), "quality", grid)
    expected = 1 + len(create_default_expectations())
    assert quality_counts == {number: {entry.run: expected} for number, entry in ledger.entries.items()}
    assert check_readers_agree(spark, tables, grid) > 0
    assert check_integrity(settings, str(lake), deep=True).issues == (), "groups, splits and kills are no damage"
    assert check_every_version(tables, grid) >= 3 * ledger.last_commit

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
    files = {path for name in LEDGER_MANAGED_TABLES for path in (lake / "orders" / name).glob("run=*/**/*.parquet")}
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


@pytest.mark.parametrize("killed_at", LEDGER_MANAGED_TABLES)
def test_tables_that_lack_a_commit_are_found_though_it_is_the_first_of_optional_tables(
    tmp_path, pipeline, create_table, monkeypatch, killed_at
):
    grid, tables = Grid.from_config(pipeline().slices), PipelineTables(str(tmp_path / "orders"))
    for name in LEDGER_MANAGED_TABLES:
        log = create_table(getattr(tables, name))
        if name not in OPTIONAL_TABLES:
            log.commit((), txn_version=1)
    assert min(list_applied_commits(tables).values()) == 1

    apply_to_table = table_changes._apply_to_table

    def apply_or_kill(name, *arguments):
        if name == killed_at:
            raise KilledError
        apply_to_table(name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(table_changes, "_apply_to_table", apply_or_kill)
        with pytest.raises(KilledError):
            apply_to_tables(tables, grid, 2, TableChanges({}))
    assert min(list_applied_commits(tables).values()) == 1

    apply_to_tables(tables, grid, 2, TableChanges({}))
    assert {DeltaTableHandle.open(getattr(tables, name)).txn_version for name in LEDGER_MANAGED_TABLES} == {2}


@pytest.mark.parametrize("damage", ["delete", "truncate"])
def test_commit_of_file_that_is_gone_publishes_nothing(tmp_path, pipeline, damage):
    grid, tables = Grid.from_config(pipeline().slices), PipelineTables(str(tmp_path / "orders"))
    staged = stage_arrow_table(pa.table({"n": [1]}), tables.late, "run=a/0")
    file = Path(tables.late, staged.files[0].path)
    content = file.read_bytes()
    file.unlink() if damage == "delete" else file.write_bytes(content[:-1])
    ledger, row = Ledger.empty(tables, grid), {"slice": START, "format": 1, "run": "a", "attempt": 1, "commit": 1}
    with pytest.raises(FaultError, match=r"part-0.parquet is gone or not complete, so nothing was committed"):
        ledger.commit([row], 1, TableChanges({"late": staged.files}), {}, {})
    assert len(DeltaTableHandle.open(tables.ledger).files) == 0

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    ledger.commit([row], 1, TableChanges({"late": staged.files}), {}, {})
    assert DeltaTableHandle.open(tables.ledger).txn_version == 1


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


def test_commit_of_other_slices_is_not_applied_to_tables(tmp_path, pipeline, create_table):
    grid, tables = Grid.from_config(pipeline().slices), PipelineTables(str(tmp_path / "orders"))
    create_table(tables.emissions)
    counts = (Counts(0, 0, 0, 0, 0, 0),) * 2
    entry = Entry(2, "run", 1, 1, "{}", (0, 0), Watermarks(), (0, 0), (0, 0), drained=False, counts=counts, emissions=0)
    row = entry.to_row(grid) | dict(zip(SIDES, map(asdict, counts), strict=True)) | {"emissions": 0}
    Ledger.empty(tables, grid).commit([row], 1, TableChanges({}), {}, {})
    half_hours = Grid.from_config(pipeline(slices__every="30 minutes").slices)
    with pytest.raises(SliceOrderError, match="lack a commit of the slice 2024-01-01T02:00Z to 2024-01-01T03:00Z"):
        Ledger.read(tables, half_hours)
    assert min(list_applied_commits(tables).values()) == 0

    assert list(Ledger.read(tables, grid).entries) == [2]
    assert min(list_applied_commits(tables).values()) == 1
    assert list(Ledger.read(tables, half_hours).entries) == [4], "the plan explains which settings differ"


def test_overwrite_after_compaction_in_between_raises_conflict(tmp_path, create_table):
    outdated = create_table(tmp_path / "table", files=3)
    DeltaTableHandle.open(outdated.path).compact()
    rows = pa.table({"v": [0, 1, 2]})
    with pytest.raises(CommitConflictError):
        outdated.overwrite(rows)

    current = DeltaTableHandle.open(outdated.path)
    current.overwrite(rows)
    assert sorted(DeltaTableHandle.open(outdated.path).read(["v"])["v"].to_pylist()) == [0, 1, 2]


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
