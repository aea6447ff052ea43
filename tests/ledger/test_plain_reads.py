"""Anyone's SELECT is the committed answer, at every version, whatever was run, reprocessed, killed or left behind."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.ledger.reader_assertions import every_version_is_whole, readers_agree, rows_by_slice, there
from tidemark.config.maintenance import Retention
from tidemark.config.quality import create_default_expectations
from tidemark.delta.log_files import RemovedFiles
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import CommitConflictError, DeltaTableHandle, create_internal_table
from tidemark.errors import SliceOrderError
from tidemark.execution import run as running
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.ledger.ledger import SCHEMA, Ledger
from tidemark.maintenance.vacuum import vacuum
from tidemark.planning.plan import Request, create_plan
from tidemark.spark.lazy_session import create_lazy_session
from tidemark.tables.table_changes import FOLLOWING, TableChanges
from tidemark.timegrid.slices import Grid

START = datetime(2024, 1, 1, tzinfo=UTC)


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


class Killed(BaseException):
    pass


@pytest.fixture
def history(spark, lake, pipeline, land, rows_every, hours, go, monkeypatch):
    """A group of slices, a reprocess in the midst of it, one that is atomic, and kills at the worst moments."""
    some = {"type": "expect_table_row_count_to_be_between", "min_value": 1, "severity": "warning"}
    settings = pipeline(on_late_arriving_rows="reprocess", quality=[some])
    land(*rows_every(minutes=7, count=60))
    hours(settings, 4)
    land(("a", at(1, 30), at(1, 30), 777))
    go(settings, reprocess=True, start=at(1), end=at(2))
    land(("a", at(0, 30), at(0, 30), 778))
    go(settings, reprocess=True, start=at(0), end=at(3), slices_per_job=1, atomic=True)

    def killed(*_, **__):
        raise Killed

    for place in ("prepare_commit", "apply_to_tables"):
        with monkeypatch.context() as patch:
            patch.setattr(running, place, killed)
            with pytest.raises(Killed):
                hours(settings, 5)
    return settings, PipelineTables(f"{lake}/orders"), Grid.from_config(settings.slices)


def test_each_version_is_a_union_of_whole_committed_slices(spark, lake, history):
    settings, tables, grid = history
    stood = {name: DeltaTableHandle.open(getattr(tables, name)).txn_version for name in there(tables)}
    every_version_is_whole(tables, grid)
    ledger = Ledger.read(tables, grid)
    assert set(stood.values()) == {ledger.number - 1}, "the last commit's process was killed before they followed"
    assert {DeltaTableHandle.open(getattr(tables, name)).txn_version for name in there(tables)} == {ledger.number}
    judged = rows_by_slice(DeltaTableHandle.open(tables.quality), "quality", grid)
    expected = 1 + len(create_default_expectations())
    assert judged == {number: {entry.run: expected} for number, entry in ledger.entries.items()}
    assert readers_agree(spark, tables, grid) > 0
    assert check_integrity(settings, str(lake), deep=True).issues == (), "groups, splits and kills are no damage"
    assert every_version_is_whole(tables, grid) >= 3 * ledger.number

    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    changes = feed.load(tables.emissions).groupBy("_commit_version", "_change_type", "_slice").count().collect()
    gone = {(row["_commit_version"], grid.number_at(int(row["_slice"].timestamp() * 1e6))) for row in changes
            if row["_change_type"] == "delete"}  # fmt: skip
    reprocessed = {entry.number for entry in ledger.entries.values() if entry.attempt > 1}
    assert {number for _, number in gone} == reprocessed, "a file that is only written again changes nothing"

    log = DeltaTableHandle.open(tables.emissions)
    log.commit([], [log.files["path"][0]])
    with pytest.raises(AssertionError, match="emissions version"):
        every_version_is_whole(tables, grid)


def test_what_was_never_committed_is_removed_and_nothing_else(spark, lake, history):
    settings, tables, grid = history
    Ledger.read(tables, grid)
    files = {path for name in FOLLOWING for path in (lake / "orders" / name).glob("run=*/**/*.parquet")}
    kept = [spark.read.format("delta").option("versionAsOf", version).load(tables.emissions).count()
            for version in range(DeltaTableHandle.open(tables.emissions).version + 1)]  # fmt: skip
    told = vacuum(settings, str(lake), timedelta(hours=1))
    assert (told.uncommitted_files.files, told.recent_files > 0) == ((), True), "they may be of a run that goes on"
    told = vacuum(settings, str(lake), timedelta(0), dry_run=True)
    assert {path for path in files if path.exists()} == files
    assert vacuum(settings, str(lake), timedelta(0)).uncommitted_files.files == told.uncommitted_files.files != ()
    left = {path for path in files if path.exists()}
    assert {str(path.relative_to(lake / "orders")) for path in files - left} == set(told.uncommitted_files.files)
    assert told.uncommitted_files.bytes > 0
    again = [spark.read.format("delta").option("versionAsOf", version).load(tables.emissions).count()
             for version in range(DeltaTableHandle.open(tables.emissions).version + 1)]  # fmt: skip
    assert again == kept, "time travel reaches back as before"
    assert vacuum(settings, str(lake), timedelta(0)).uncommitted_files.files == ()

    at_once = settings.model_copy(update={"retention": Retention.model_construct(replaced_files=timedelta(0))})
    told = vacuum(at_once, str(lake), timedelta(0), dry_run=True)
    assert {path for path in files if path.exists()} == left
    assert vacuum(at_once, str(lake), timedelta(0)).replaced_files == told.replaced_files != RemovedFiles()
    assert {str(path.relative_to(lake / "orders")) for path in left if not path.exists()} == set(
        told.replaced_files.files
    )
    oldest = told.recovery_horizon.readable_from["emissions"]
    rows = [
        spark.read.format("delta").option("versionAsOf", version).load(tables.emissions)
        for version in range(oldest - 1, len(kept))
    ]
    assert [len(one.collect()) for one in rows[1:]] == kept[oldest:]
    with pytest.raises((PySparkException, Py4JJavaError), match="FILE_NOT_EXIST"):
        rows[0].collect()
    assert vacuum(at_once, str(lake), timedelta(0)).replaced_files == RemovedFiles()


def test_of_many_who_commit_the_same_number_one_wins(tmp_path, pipeline):
    grid = Grid.from_config(pipeline().slices)
    tables = PipelineTables(str(tmp_path / "orders"))
    create_internal_table(tables.ledger, SCHEMA)
    row = {"slice": START, "format": 3, "run": "", "attempt": 1}
    for number in range(1, 21):
        ledgers = [Ledger(tables, grid, None, {}, frozenset(), number - 1) for _ in range(4)]

        def commit(one, number=number):
            try:
                one.commit([{**row, "commit": number}], number, TableChanges({}), {}, {})
            except SliceOrderError:
                return 0
            return 1

        with ThreadPoolExecutor(len(ledgers)) as pool:
            assert sum(pool.map(commit, random.sample(ledgers, len(ledgers)))) == 1
    assert len(DeltaTableHandle.open(tables.ledger).read(["run"])) == 20


@pytest.mark.parametrize("changes_data", [True, False])
def test_a_commit_on_top_of_what_is_no_longer_so_is_refused(tmp_path, changes_data):
    log = create_internal_table(str(tmp_path / "table"), pa.schema({"n": pa.int64()}))
    rows, late = pa.table({"n": [1]}), DeltaTableHandle.open(log.path)
    log.append(rows, 1)
    with pytest.raises(CommitConflictError):
        late.append(rows, 1)
    opened = DeltaTableHandle.open(log.path)
    [path] = opened.files["path"]
    DeltaTableHandle.open(log.path).commit([], [path], changes_data=changes_data)
    for late, number in ((opened, None), (DeltaTableHandle.open(log.path, opened.version), 2)):
        with pytest.raises(CommitConflictError):
            late.commit([], [path], number)


def test_slices_run_twice_in_one_atomic_commit_count_once(spark, lake, pipeline, land, rows_every):
    """No plan does so today; what is published would be right all the same."""
    settings = pipeline()
    land(*rows_every(minutes=11, count=20))
    plan = create_plan(spark, settings, str(lake), Request(end=at(3), slices_per_job=3, atomic=True))
    work = running._Work(spark, plan, plan.ledger, list(plan.jobs), set(), lambda *_: None)
    work.run(plan.jobs[0])
    work.run(range(1, 2))
    work.commit(list(work.uncommitted))
    tables, grid = plan.tables, plan.grid
    assert every_version_is_whole(tables, grid) >= 3
    assert readers_agree(spark, tables, grid) > 0


def test_to_plan_is_to_read_logs(lake, pipeline, land, rows_every, hours):
    settings = pipeline()
    land(*rows_every(minutes=11, count=20))
    hours(settings, 3)

    def never():
        raise AssertionError("Spark was asked")

    def plan(**request):
        return create_plan(create_lazy_session(never), settings, str(lake), Request(slices_per_job=1, **request))

    again = {"reprocess": True, "start": at(1), "end": at(2)}
    assert [len(plan(**request).jobs) for request in ({"end": at(3)}, {}, again, {"reprocess": True})] == [0, 1, 1, 0]
    assert plan().spark_queries == ()
    assert list(execute(create_lazy_session(never), plan(end=at(3)), lambda *_: None)) == []
