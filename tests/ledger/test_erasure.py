"""Erase a person's rows from everything that a pipeline stores, without other changes."""

import json
import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from tests.conftest import write_pipeline
from tests.ledger.conftest import at
from tests.ledger.lakes import OrdersLake
from tests.ledger.reader_assertions import check_every_version, check_readers_agree
from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.checkpoints.verification import verify_checkpoint as verify_state
from tidemark.config.candidate_version import to_candidate
from tidemark.delta.log_files import LogFiles
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.erasure import file_erasure
from tidemark.erasure.erased_tables import ROW_KINDS
from tidemark.errors import FaultError, LedgerConflictError
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.ledger.erasure_records import ErasureRecord
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.tables.rejected_rows import append_rejected_rows
from tidemark.tables.table_changes import TableChanges, apply_to_tables
from tidemark.timegrid.slices import Grid
from tidemark.versions.promotion import promote

HOURS, ROWS = 5, 36
ROW = "k string, happened timestamp, arrived timestamp, v int, id int, who string"
ADA = "ada.lovelace@example.org"
ERASE_OPTIONS = ("--left", "id = 7", "--right", "id = 7", "--yes")
SETTINGS = {
    "dialect": "flink-sql",
    "on_late_arriving_rows": "reprocess",
    "join__type": "full",
    "join__interval": {"lower": "-50 minutes", "upper": "0 seconds"},
    "compact": {"settled_after": "2 hours", "period": "2 hours"},
    "quality": [
        {
            "expect_column_values_to_not_be_in_set": {
                "column": "left_v",
                "value_set": [12, 13],
                "on_failure": "quarantine",
            }
        }
    ],
}
"""Settings with an expectation that fails for one row of Ada and one of another person."""
UNFINISHED = ("dropped", "killed")
"""Candidate versions without committed slices."""
ROW_TABLES = ("emissions", "late", "checkpoint", "quarantined")
OTHER_TABLES = {"ledger", "agreement", "live_query", "quality", "rejection_results", "waivers", "gx_folder"}
"""Tables and folders without rows of the inputs, or that an erasure deletes or refuses as a whole: docs/erasure.md."""


class Lake(OrdersLake):
    @property
    def ledger(self):
        return Ledger.from_pipeline(self.settings, str(self.root))

    def read_rows(self):
        """Read the rows of each table."""
        logs = {name: self.log(name) for name in ROW_TABLES}
        return {name: log.read(log.schema.names).to_pylist() for name, log in logs.items()}

    def list_files(self, name):
        return [Path(getattr(self.tables, name), path) for path in self.log(name).files["path"]]

    def list_candidate_files(self):
        folder = self.root / "orders/candidates"
        return [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]

    def find_files_with_name(self):
        """Find files in the pipeline's folder that contain Ada's address, also in Parquet values."""
        return sorted(
            str(path.relative_to(self.root)) for path in (self.root / "orders").rglob("*") if contains_name(path)
        )

    def assert_consistent(self):
        """Assert that all tables are consistent, and that a replay gives all fingerprints and the last state."""
        assert check_integrity(self.settings, str(self.root), deep=True).damages == ()
        verification = verify_state(CheckpointRef.from_ledger(self.spark, self.settings, str(self.root)))
        assert verification.is_equal, verification


def contains_name(path):
    if not path.is_file():
        return False
    content = path.read_bytes()
    if path.suffix == ".parquet" and content.endswith(b"PAR1"):
        content += json.dumps(pq.read_table(path, partitioning=None).to_pylist(), default=str).encode()
    return ADA.encode() in content


def is_adas(row):
    return ADA in str(row)


def count_rows(rows):
    return Counter(map(str, rows))


def create_row(n, offset):
    is_erased = n % 5 == 2 if not offset else n % 7 == 3
    late = timedelta(minutes=45 if n % 4 == 3 else 2)
    email = ADA if is_erased else f"nobody{n}@example.org"
    return "ab"[n % 2], at(0, 10 * n), at(0, 10 * n) + late, n + offset, 7 if is_erased else 100 + n, email


def write_late_rows_without_id(lake, path):
    """Write a file of late rows from before the inputs had the column of the predicate."""
    table = pq.read_table(next(file for file in lake.list_files("late") if contains_name(file)), partitioning=None)
    schema = pa.schema(
        [
            field.with_type(pa.struct([part for part in field.type if part.name != "id"]))
            if field.name in {"left", "right"}
            else field
            for field in table.schema
        ]
    )
    file = Path(lake.tables.late, path)
    file.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(table.to_pylist(), schema), file)


@pytest.fixture(scope="module")
def original_lake(spark, tmp_path_factory):
    """Run five hours with compaction, a reprocess, quarantine, rejected output and a candidate."""
    root = tmp_path_factory.mktemp("whole")
    settings = write_pipeline(root / "pipeline.yaml", **SETTINGS)
    lake = Lake(spark, root / "lake", root / "pipeline.yaml", settings)
    for name, offset in (("left", 0), ("right", 100)):
        frame = spark.createDataFrame([create_row(n, offset) for n in range(ROWS)], ROW).coalesce(1)
        frame.write.format("delta").save(str(lake.root / name))
    lake.run(end=at(3), slices_per_job=3)
    lake.run(end=at(HOURS), slices_per_job=2)
    plan = plan_compaction(settings, str(lake.root))
    assert all(merge_files(spark, plan, path) for path in plan.merges)
    lake.run(reprocess=True, start=at(0), end=at(1))
    rows = spark.read.format("delta").load(lake.tables.emissions).withColumn("_run", F.lit("old"))
    append_rejected_rows(rows, lake.tables.rejected_output, "old")
    # Rejected before the output had the column of the predicate.
    append_rejected_rows(rows.drop("left_id", "right_id"), lake.tables.rejected_output, "older")
    lake.run(to_candidate(settings, "wide"), end=at(2), slices_per_job=2)
    for name in ("emissions", "checkpoint"):  # files of killed runs
        leftover = Path(getattr(lake.tables, name), "run=00000099.20240101T000000Z.1.0a1b2c3d", "0")
        leftover.mkdir(parents=True)
        shutil.copy(next(path for path in lake.list_files(name) if contains_name(path)), leftover / "part-0.parquet")
        (leftover / "part-1.parquet").write_bytes(f"cut short {ADA}".encode())
    write_late_rows_without_id(lake, "run=00000099.20240101T000000Z.1.0a1b2c3d/0/part-0.parquet")
    # Files of runs that were killed before a table or a candidate had its first commit, and of a killed deletion.
    folders = [Path(lake.tables.output_stream), *(lake.root / f"orders/candidates/{name}/late" for name in UNFINISHED)]
    for folder in folders:
        leftover = folder / "run=00000099.20240101T000000Z.1.0a1b2c3d/0"
        leftover.mkdir(parents=True)
        (leftover / "part-0.parquet").write_bytes(f"cut short {ADA}".encode())
    (lake.root / "orders/candidates/dropped/dropped").touch()
    assert all(map(any, ([is_adas(row) for row in lake.read_rows()[name]] for name in ROW_TABLES)))
    return lake


@pytest.fixture(scope="module")
def erased_rows_lake(spark, original_lake, tmp_path_factory):
    """Erase Ada's rows but keep the bytes; return the lake and the version of emissions before."""
    root = tmp_path_factory.mktemp("erased")
    shutil.copytree(original_lake.root, root / "lake")
    lake = Lake(spark, root / "lake", original_lake.file, original_lake.settings)
    assert lake.command("tables erase", *ERASE_OPTIONS, "--user", "lena", "--keep-files") == 0
    return lake, original_lake.log().version


@pytest.fixture(scope="module")
def erased_lake(spark, erased_rows_lake, tmp_path_factory):
    root = tmp_path_factory.mktemp("erased")
    shutil.copytree(erased_rows_lake[0].root, root / "lake")
    lake = Lake(spark, root / "lake", erased_rows_lake[0].file, erased_rows_lake[0].settings)
    assert lake.command("tables erase", *ERASE_OPTIONS) == 0
    return lake


@pytest.fixture
def copy_lake(spark, tmp_path):
    def copy(lake, **changes):
        shutil.copytree(lake.root, tmp_path / "lake")
        settings = write_pipeline(tmp_path / "pipeline.yaml", **SETTINGS | changes)
        return Lake(spark, tmp_path / "lake", tmp_path / "pipeline.yaml", settings)

    return copy


def test_every_table_of_a_pipeline_is_classified_for_erasure():
    names = {name for name, member in vars(PipelineTables).items() if isinstance(member, property)}
    assert names == ROW_KINDS.keys() | OTHER_TABLES


def test_erase_dry_run_counts_rows_and_changes_nothing(original_lake, capsys):
    before = {path: path.stat().st_mtime for path in original_lake.root.rglob("*")}
    assert original_lake.command("tables erase", *ERASE_OPTIONS, "--dry-run", "--json") == 0

    live, candidate, *unfinished = json.loads(capsys.readouterr().out)
    rows = original_lake.read_rows()
    erased_emissions = sum(map(is_adas, rows["emissions"]))
    assert live["row_counts"] == {name: sum(map(is_adas, rows[name])) for name in ROW_TABLES} | {
        "rejected_output": erased_emissions + len(rows["emissions"])
    }, "of the file without the column, all rows"
    assert candidate["pipeline"] == "orders --candidate wide"
    assert candidate["row_counts"]["emissions"] > 0
    assert sum("00000099" in path for path in live["deleted_files"]["files"]) == 6
    assert [result["pipeline"] for result in unfinished] == [f"orders --candidate {name}" for name in UNFINISHED]
    assert [len(result["deleted_files"]["files"]) for result in unfinished] == [2, 1], "with the mark of the deletion"
    assert original_lake.command("tables erase", *ERASE_OPTIONS, "--dry-run") == 0

    output = capsys.readouterr().out
    assert f"orders: would be erased: {erased_emissions} rows of emissions, " in output
    assert "in slices 2024-01-01T00:00Z to 2024-01-01T05:00Z" in output
    assert {path: path.stat().st_mtime for path in original_lake.root.rglob("*")} == before


def test_erase_keeps_all_other_rows_and_passes_integrity_check(spark, original_lake, erased_rows_lake):
    lake, _ = erased_rows_lake
    before, after = original_lake.read_rows(), lake.read_rows()

    for name in ROW_TABLES:
        assert count_rows(after[name]) == count_rows(row for row in before[name] if not is_adas(row)), name
    assert check_readers_agree(spark, lake.tables, lake.grid)
    assert check_every_version(lake.tables, lake.grid)
    assert (
        sum(row["carried_from"] < row["carried_until"] for row in after["checkpoint"]) == len(after["checkpoint"]) > 0
    )

    lake.assert_consistent()


def test_erase_change_feed_has_only_deletes_of_erased_rows(spark, original_lake, erased_rows_lake):
    lake, before = erased_rows_lake
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", before + 1)
    rows = [row.asDict() for row in feed.load(lake.tables.emissions).collect()]
    assert {row["_change_type"] for row in rows} == {"delete"}

    expected_rows = [row for row in original_lake.read_rows()["emissions"] if is_adas(row)]
    deleted = Counter((row["left_v"], row["right_v"]) for row in rows)
    assert deleted == Counter((row["left_v"], row["right_v"]) for row in expected_rows)


def test_erase_is_recorded_in_ledger(erased_rows_lake, capsys):
    lake, _ = erased_rows_lake
    assert lake.command("status") == 0
    assert "erased by lena at 2" in capsys.readouterr().out
    assert lake.command("status", "--json") == 0

    [output] = json.loads(capsys.readouterr().out)[0]["erasures"]
    assert (output["predicates"], output["user"]) == ({"left": "id = 7", "right": "id = 7"}, "lena")
    assert output["row_counts"].keys() == set(ROW_TABLES)

    stored = lake.log("ledger").read(["slice", "emissions", "left", "right", "format"]).to_pylist()
    assert {row["format"] for row in stored} == {1}
    for entry in lake.ledger.entries.values():
        for counts in entry.counts:
            assert counts.read + counts.carried_in == sum(
                (counts.late, counts.rejected, counts.evicted, counts.carried_out)
            )
            assert min(vars(counts).values()) >= 0


def test_erase_deletes_all_bytes_and_rerun_changes_nothing(erased_rows_lake, erased_lake, capsys):
    assert erased_rows_lake[0].find_files_with_name(), "otherwise the test proves nothing"
    assert erased_lake.find_files_with_name() == []
    candidates = {path.parts[0] for path in erased_lake.list_candidate_files()}
    assert candidates == {"wide"}

    erased_lake.assert_consistent()
    version = erased_lake.log().version

    assert erased_lake.command("tables erase", *ERASE_OPTIONS) == 0
    assert "orders: erased: no row" in capsys.readouterr().out
    assert erased_lake.log().version == version


def test_delete_files_truncates_log_of_table_whose_old_files_were_vacuumed(create_table, tmp_path, monkeypatch):
    monkeypatch.setattr(file_erasure, "_scrub_ledger", lambda _: None)
    log = create_table(tmp_path / "orders/late", files=3)
    record = ErasureRecord({"left": "id = 7"}, "lena", "2100-01-01T00:00:00Z", {}, {})
    leftover = file_erasure.LeftoverFiles("late", log.path, log, ())
    file_erasure.delete_files(PipelineTables(str(tmp_path / "orders")), [leftover], record)
    assert LogFiles.from_table(DeltaTableHandle.open(log.path)).commit_versions == range(3, 4)


class KilledError(BaseException):
    pass


@pytest.mark.slow
def test_erase_killed_while_deleting_is_resumable(erased_rows_lake, copy_lake, monkeypatch):
    lake = copy_lake(erased_rows_lake[0])

    def fail_at(count, step):
        def fail_or_call(*arguments):
            nonlocal count
            count -= 1
            if not count:
                raise KilledError
            return step(*arguments)

        return fail_or_call

    for owner, name, count in ((file_erasure, "delete_file", 9), (DeltaTableHandle, "overwrite", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail_at(count, getattr(owner, name)))
            with pytest.raises(KilledError):
                lake.command("tables erase", *ERASE_OPTIONS)
        assert lake.find_files_with_name()
        assert check_integrity(lake.settings, str(lake.root), deep=True).damages == ()
    assert lake.command("tables erase", *ERASE_OPTIONS) == 0
    assert lake.find_files_with_name() == []
    assert check_integrity(lake.settings, str(lake.root), deep=True).damages == ()


def test_run_and_reprocess_after_erasure_exclude_rows(original_lake, erased_lake, copy_lake):
    lake = copy_lake(erased_lake)
    lake.run(end=at(HOURS + 1))
    lake.assert_consistent()
    assert not any(map(is_adas, lake.read_rows()["emissions"]))

    later = [row for row in lake.read_rows()["emissions"] if row["_slice"] >= at(HOURS)]
    expected_lake = Lake(
        original_lake.spark, original_lake.root.parent / "next", original_lake.file, original_lake.settings
    )
    shutil.copytree(original_lake.root, expected_lake.root)
    expected_lake.run(end=at(HOURS + 1))
    expected_rows = [
        row for row in expected_lake.read_rows()["emissions"] if row["_slice"] >= at(HOURS) and not is_adas(row)
    ]
    assert count_rows(later) == count_rows(expected_rows)
    assert any(row["left_v"] and row["right_v"] for row in later)

    lake.run(reprocess=True, start=at(1), end=at(2))
    lake.assert_consistent()
    assert lake.find_files_with_name() == []
    assert lake.ledger.entries[1].excluded_predicates == json.dumps({"left": ["id = 7"], "right": ["id = 7"]})


@pytest.mark.slow
def test_run_after_deleting_erased_rows_from_input_is_accepted(erased_lake, copy_lake):
    lake = copy_lake(erased_lake)
    lake.spark.sql(f"DELETE FROM delta.`{lake.root}/left` WHERE id = 7")
    assert [result.slices for result in lake.run(end=at(HOURS + 1))] == [range(HOURS, HOURS + 1)]
    lake.run(reprocess=True, start=at(4), end=at(5))
    lake.assert_consistent()


@pytest.mark.slow
def test_erase_covers_candidates_and_blocks_rollback(spark, erased_lake, copy_lake, capsys):
    lake = copy_lake(erased_lake)
    lake.run(to_candidate(lake.settings, "wide"), end=at(HOURS))
    promote(spark, lake.settings, str(lake.root), "wide", "lena")
    assert lake.find_files_with_name() == []

    lake.assert_consistent()
    assert lake.command("tables erase", "--left", "id = 101", "--keep-files", "--yes") == 0
    assert lake.command("version rollback", "wide") == 2
    assert "rows were erased since candidate wide was promoted" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["checkpoint", "late"])
def test_erasure_is_applied_to_checkpoints_that_have_expired(create_table, tmp_path, name):
    tables = PipelineTables(str(tmp_path))
    log = create_table(getattr(tables, name), files=3)
    first, second, _ = log.files["path"]
    log.commit((), [first])

    changes = TableChanges({}, removed_files={name: (first, second)})
    if name == "checkpoint":
        apply_to_tables(tables, Grid(0, 3_600_000_000), 9, changes)
        assert set(DeltaTableHandle.open(log.path).files["path"]).isdisjoint({first, second})
    else:
        with pytest.raises(FaultError, match="a program other than Tidemark has rewritten it"):
            apply_to_tables(tables, Grid(0, 3_600_000_000), 9, changes)


def test_candidate_planned_before_an_erasure_publishes_no_erased_row(spark, original_lake, copy_lake):
    lake = copy_lake(original_lake)
    candidate = to_candidate(lake.settings, "late")
    plan = create_plan(spark, candidate, str(lake.root), Request(end=at(1)))
    assert lake.command("tables erase", *ERASE_OPTIONS, "--keep-files") == 0

    with pytest.raises(LedgerConflictError, match="rows were erased from orders since this run began"):
        list(execute(spark, plan, lambda *_: None))
    assert [result.slices[0] for result in lake.run(candidate, end=at(1))] == [0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "no rows are named"),
        (("--left", "idd = 7"), "idd is not a column of the input. Did you mean id?"),
        (("--left", "id = "), "is not an SQL expression"),
        (("--left", "v"), "--left: "),
        (("--left", "id = 7 AND rand() < 2"), "rand() returns another value"),
    ],
)
def test_erase_invalid_predicate_is_rejected(original_lake, capsys, options, message):
    assert original_lake.command("tables erase", *options, "--yes") == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_erase_without_needed_columns_or_with_live_query_is_rejected(original_lake, copy_lake, capsys):
    lake = copy_lake(original_lake, output="narrow", select=["left_v", "right_v"])
    assert lake.command("tables erase", "--left", "id = 7", "--yes") == 2
    assert "orders has committed no slice" in capsys.readouterr().err

    lake.run(end=at(1))
    assert lake.command("tables erase", "--left", "id = 7", "--yes") == 2
    assert "not all rows of" in capsys.readouterr().err

    narrow = {**SETTINGS, "output": "narrow"}
    write_pipeline(lake.file, **narrow, select={"left_v": "right_v", "right_v": "left_v"})
    assert lake.command("tables erase", "--left", "v = 2", "--yes") == 2
    assert "from 2024-01-01T00:00Z on ran with another `select`" in " ".join(capsys.readouterr().err.split())
    write_pipeline(lake.file, **narrow, select={"left_v": "left_v", "right_v": "right_v"})
    assert lake.command("tables erase", "--left", "v = 2", "--yes") == 0

    live_query_file = Path(f"{lake.root}/narrow/live_query/emissions/part-0.parquet")
    live_query_file.parent.mkdir(parents=True)
    live_query_file.write_bytes(b"rows")
    assert lake.command("tables erase", "--left", "v = 2", "--yes") == 2
    assert "has a live query" in capsys.readouterr().err
