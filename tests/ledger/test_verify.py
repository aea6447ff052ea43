"""Damage a lake in every way and let `tidemark verify` report and repair it."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.conftest import write_pipeline
from tests.ledger.conftest import ROW, at
from tidemark.cli.app import main
from tidemark.config import load_pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DataFile, DeltaTableHandle
from tidemark.errors import FaultError, UserError
from tidemark.execution import job
from tidemark.execution.run import execute
from tidemark.integrity.check import IntegrityReport, check_integrity
from tidemark.integrity.committed_files import CommittedFiles, list_current_files
from tidemark.integrity.repair import Repair, TableRepair, execute_repair, plan_repair
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.tables.run_files import list_slices_by_file, parse_run
from tidemark.timegrid.slices import Grid


@pytest.fixture(scope="module")
def undamaged_lake(spark, tmp_path_factory):
    """Run six slices, one per job, and reprocess the third as a large job; return the lake and the pipeline file."""
    root = tmp_path_factory.mktemp("consistent")
    lake, settings = root / "lake", write_pipeline(root / "pipeline.yaml", on_late_arriving_rows="reprocess")

    def append_rows(*rows):
        for side, offset in (("left", 0), ("right", 100)):
            frame = spark.createDataFrame([(k, happened, arrived, v + offset) for k, happened, arrived, v in rows], ROW)
            frame.coalesce(1).write.format("delta").mode("append").save(str(lake / side))

    def run(**request):
        list(
            execute(spark, create_plan(spark, settings, str(lake), Request(slices_per_job=1, **request)), lambda *_: 0)
        )

    append_rows(*(("a", at(0, 10 * n), at(0, 10 * n + (45 if n % 4 == 3 else 2)), n) for n in range(36)))
    run(end=at(6))
    append_rows(("a", at(2, 30), at(2, 30), 777))
    write_output = job.write_output
    with pytest.MonkeyPatch.context() as patch:
        # As a large job on several cores, of which each writes a file of late rows.
        patch.setattr(job, "write_output", lambda *arguments, **_: write_output(*arguments, file_count=8))
        run(reprocess=True, start=at(2), end=at(3))
    return lake, root / "pipeline.yaml"


@dataclass(frozen=True)
class Lake:
    """A copy of the undamaged lake, for a test to damage."""

    root: Path
    file: Path

    @property
    def tables(self) -> PipelineTables:
        return PipelineTables(f"{self.root}/orders")

    def log(self, name="emissions") -> DeltaTableHandle:
        return DeltaTableHandle.open(getattr(self.tables, name))

    def get_first_file(self, name="emissions") -> Path:
        return Path(self.log(name).path, self.log(name).files["path"][0])

    def delete_ledger_entry(self, number):
        """Delete a row of the ledger, but none of the files of its commit."""
        DeltaTable(self.tables.ledger).delete(f"slice = '{at(number):%Y-%m-%d %H:%M:%S}'")


@pytest.fixture
def damaged_lake(undamaged_lake, tmp_path):
    lake, file = undamaged_lake
    shutil.copytree(lake, tmp_path / "lake")
    return Lake(tmp_path / "lake", file)


def delete_file(lake: Lake):
    lake.get_first_file().unlink()


def delete_part_of_late_rows(lake: Lake):
    """Delete one of the files with late rows of a slice."""
    runs = Counter(map(parse_run, lake.log("late").files["path"]))
    [(run, files)] = runs.most_common(1)
    assert files > 1
    next(Path(lake.tables.late).glob(f"run={run}/**/*.parquet")).unlink()


def truncate_file(lake: Lake):
    path = lake.get_first_file()
    path.write_bytes(path.read_bytes()[:-100])


def extend_file(lake: Lake):
    with lake.get_first_file().open("ab") as file:
        file.write(b"more")


def flip_byte(lake: Lake):
    """Change a byte in the first data page of a file."""
    path = lake.get_first_file()
    column = pq.read_metadata(path).row_group(0).column(0)
    stored = bytearray(path.read_bytes())
    stored[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(stored)


def duplicate_reference(lake: Lake):
    log = lake.log()
    path = Path(log.files["path"][0])
    copy = path.with_name("copy.parquet")
    shutil.copy(Path(log.path, path), Path(log.path, copy))
    stats = next(
        json.loads(action["add"]["stats"]) for action in list_add_actions(log) if action["add"]["path"] == str(path)
    )
    size, rows = log.files["size"][0], log.files["rows"][0]
    log.commit([DataFile(str(copy), int(size), int(rows), 0, json.dumps(stats))], txn_version=log.txn_version)


def list_add_actions(log: DeltaTableHandle):
    for file in sorted(Path(log.path, "_delta_log").glob("*.json")):
        yield from (action for action in map(json.loads, file.read_text().splitlines()) if "add" in action)


def remove_reference(lake: Lake):
    log = lake.log()
    log.commit([], [log.files["path"][0]])


def remove_late_reference(lake: Lake):
    """Remove a whole file, as RESTORE or DELETE by another program can."""
    log = lake.log("late")
    log.commit([], [log.files["path"][0]])


def delete_ledger_row(lake: Lake):
    lake.delete_ledger_entry(1)


def delete_last_ledger_row(lake: Lake):
    lake.delete_ledger_entry(3)


def advance_table_commit(lake: Lake):
    log = lake.log("late")
    log.commit([], txn_version=log.txn_version + 1)


def undo_table_commit(lake: Lake):
    """Undo the last commit of a table by deleting its newest log file."""
    log = lake.log("late")
    Path(log.path, "_delta_log", f"{log.version:020d}.json").unlink()


def insert_rows(lake: Lake):
    log = lake.log()
    rows = log.read(log.schema.names).slice(0, 2)
    write_deltalake(log.path, pa.table(rows), mode="append")


def insert_rows_without_slice(lake: Lake):
    log = lake.log()
    rows = pa.table(log.read(log.schema.names).slice(0, 2))
    index = rows.column_names.index("_slice")
    nulls = pa.nulls(len(rows), rows["_slice"].type)
    write_deltalake(log.path, rows.set_column(index, "_slice", nulls), mode="append")


def delete_rows(lake: Lake):
    DeltaTable(lake.tables.emissions).delete("left_v = 5")


def optimize_table(lake: Lake):
    DeltaTable(lake.tables.emissions).optimize.compact()


def restore_table(lake: Lake):
    DeltaTable(lake.tables.emissions).restore(lake.log().version - 2)


def change_fingerprint(lake: Lake):
    DeltaTable(lake.tables.ledger).update({"fingerprint": "'0'"}, predicate=f"slice = '{at(3):%Y-%m-%d %H:%M:%S}'")


def move_watermark_back(lake: Lake):
    changes = {"left_watermark_ms": "left_watermark_ms - 86400000"}
    DeltaTable(lake.tables.ledger).update(changes, predicate=f"slice = '{at(3):%Y-%m-%d %H:%M:%S}'")


def replace_input(lake: Lake):
    shutil.rmtree(lake.root / "left")
    write_deltalake(lake.root / "left", pa.table({"k": ["a"]}))


def delete_ledger(lake: Lake):
    shutil.rmtree(lake.tables.ledger)


def delete_table(lake: Lake):
    shutil.rmtree(lake.tables.checkpoint)


def delete_late_table(lake: Lake):
    shutil.rmtree(lake.tables.late)


def damage_log(lake: Lake):
    """Delete a commit in the middle of a table's log."""
    Path(lake.tables.emissions, "_delta_log", f"{1:020d}.json").unlink()


def damage_ledger_log(lake: Lake):
    """Let a log name a checkpoint that does not exist."""
    Path(lake.tables.ledger, "_delta_log", "_last_checkpoint").write_text('{"version":1,"size":5}')


def remove_checkpoint(lake: Lake):
    """Remove all files of the checkpoint, which the next slice needs."""
    log = lake.log("checkpoint")
    log.commit([], log.files["path"])


def restore_ledger(lake: Lake):
    """Restore the ledger as it was before its last commits, but none of the tables."""
    DeltaTable(lake.tables.ledger).restore(2)


Issues = set[tuple[str, str]]
DAMAGES: dict[Callable[[Lake], None], Issues] = {
    delete_file: {("missing file", "emissions")},
    delete_part_of_late_rows: {("missing file", "late")},
    truncate_file: {("truncated file", "emissions")},
    extend_file: {("changed file", "emissions")},
    flip_byte: {("changed file", "emissions")},
    duplicate_reference: {("duplicate reference", "emissions")},
    remove_reference: {("missing rows", "emissions")},
    remove_late_reference: {("missing rows", "late")},
    delete_ledger_row: {
        ("missing ledger row", "ledger"),
        ("unexpected rows", "emissions"),
        ("external commit", "ledger"),
    },
    delete_last_ledger_row: {
        ("table ahead of ledger", "emissions"),
        ("unexpected rows", "emissions"),
        ("missing ledger row", "ledger"),
    },
    advance_table_commit: {("table ahead of ledger", "late")},
    undo_table_commit: {("table lags ledger", "late")},
    insert_rows: {("external commit", "emissions"), ("unexpected rows", "emissions")},
    insert_rows_without_slice: {("external commit", "emissions"), ("unexpected rows", "emissions")},
    delete_rows: {("external commit", "emissions"), ("unexpected rows", "emissions")},
    optimize_table: {("external commit", "emissions"), ("unexpected rows", "emissions")},
    restore_table: {("external commit", "emissions")},
    change_fingerprint: {("state mismatch", "ledger")},
    move_watermark_back: {("watermark regression", "ledger")},
    replace_input: {("missing input version", "left")},
    delete_ledger: {("missing table", "ledger")},
    delete_table: {("missing table", "checkpoint")},
    delete_late_table: {("missing table", "late")},
    damage_log: {("unreadable log", "emissions")},
    damage_ledger_log: {("unreadable log", "ledger")},
    remove_checkpoint: {("missing rows", "checkpoint")},
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_verify_reports_each_damage(damaged_lake, damage, capsys):
    arguments = ["tables", "verify", str(damaged_lake.file), "--lake", str(damaged_lake.root), "--json"]
    arguments += ["--deep"] if damage is flip_byte else []
    damage(damaged_lake)
    assert main(arguments) == 1

    output = json.loads(capsys.readouterr().out)
    issues = {(issue["damage"], issue["table"]) for issue in output["issues"]}
    assert issues >= DAMAGES[damage]
    assert not output["is_consistent"]


def test_verify_without_committed_slice_is_refused(tmp_path, capsys):
    write_pipeline(tmp_path / "pipeline.yaml")
    assert main(["tables", "verify", str(tmp_path / "pipeline.yaml"), "--lake", str(tmp_path / "typo")]) == 2
    assert "orders has committed no slice in" in capsys.readouterr().err


def test_verify_undamaged_lake_reports_nothing_and_changes_nothing(damaged_lake, capsys):
    before = {path: path.stat().st_mtime_ns for path in damaged_lake.root.rglob("*")}
    assert main(["tables", "verify", str(damaged_lake.file), "--lake", str(damaged_lake.root), "--deep", "--json"]) == 0

    output = json.loads(capsys.readouterr().out)
    assert output["issues"] == []
    assert output["slices"] == 6
    assert output["files"] >= 6 * 3
    assert {path: path.stat().st_mtime_ns for path in damaged_lake.root.rglob("*")} == before


def test_verify_foreign_commit_without_row_changes_only_warns(damaged_lake, capsys):
    DeltaTable(damaged_lake.tables.emissions).restore(damaged_lake.log().version - 1)
    DeltaTable(damaged_lake.tables.emissions).restore(damaged_lake.log().version - 1)
    assert main(["tables", "verify", str(damaged_lake.file), "--lake", str(damaged_lake.root)]) == 0
    assert "RESTORE" in capsys.readouterr().out


def test_verify_expired_checkpoints_are_damage_only_after_external_data_change(damaged_lake):
    settings, log = load_pipeline(damaged_lake.file), damaged_lake.log("checkpoint")
    slices_by_path = list_slices_by_file(log, "checkpoint", Grid.from_config(settings.slices))
    log = log.commit([], [path for path, slices in slices_by_path.items() if 5 not in slices])
    for version, operation in enumerate(("VACUUM START", "VACUUM END"), log.version + 1):
        commit = {"commitInfo": {"timestamp": 1704067200000, "operation": operation}}
        Path(log.path, "_delta_log", f"{version:020d}.json").write_text(json.dumps(commit))
    report = check_integrity(settings, str(damaged_lake.root))
    assert [issue.damage for issue in report.issues] == ["external commit", "external commit"]

    rows = log.read(log.schema.names)
    write_deltalake(log.path, pa.table(rows), mode="overwrite")
    damages = {issue.damage for issue in check_integrity(settings, str(damaged_lake.root)).damages}
    assert damages == {"unexpected rows", "missing rows"}


REPAIRED_BY_REFERENCE = (
    duplicate_reference,
    remove_reference,
    remove_late_reference,
    insert_rows,
    insert_rows_without_slice,
    delete_rows,
    optimize_table,
    restore_table,
    remove_checkpoint,
    undo_table_commit,
)
REPAIRED_BY_RERUN = (delete_file, delete_part_of_late_rows, truncate_file, change_fingerprint)
UNREPAIRABLE = (
    *(delete_ledger_row, advance_table_commit, replace_input, delete_ledger, delete_table, delete_late_table),
    *(damage_log, damage_ledger_log),
)


def read_rows(root):
    """Read the emissions and the late rows."""
    tables = PipelineTables(f"{root}/orders")
    columns = {tables.emissions: ["_slice", "left_v", "right_v"], tables.late: ["_slice", "reason", "left", "right"]}
    return [sorted(map(str, DeltaTableHandle.open(path).read(names).to_pylist())) for path, names in columns.items()]


@pytest.mark.parametrize("damage", REPAIRED_BY_REFERENCE, ids=lambda damage: damage.__name__)
def test_repair_restores_file_references_from_ledger(undamaged_lake, damaged_lake, damage):
    damage(damaged_lake)
    assert main(["tables", "repair", str(damaged_lake.file), "--lake", str(damaged_lake.root), "--yes"]) == 0
    assert read_rows(damaged_lake.root) == read_rows(undamaged_lake[0])


def test_repair_of_a_table_that_has_changed_since_its_plan_is_refused(create_table, tmp_path):
    log = create_table(tmp_path / "late", files=2)
    [path, *_] = log.files["path"]
    planned = DeltaTableHandle.open(log.path)
    log.commit((), [path])
    repair = Repair(
        (TableRepair(planned, "late", (), (path,)),), applies_commits=False, slices_to_rerun=(), unrepairable=()
    )

    with pytest.raises(FaultError, match="another process has written to .*late. Run the command again."):
        execute_repair(None, "", repair, None)


def test_list_current_files_omits_files_that_were_published_again_or_released(pipeline):
    grid = Grid.from_config(pipeline().slices)

    def create_file(run, folder, *hours):
        bounds = {
            kind: {"_slice": at(hour).isoformat()} for kind, hour in zip(("minValues", "maxValues"), hours, strict=True)
        }
        return DataFile(f"run={run}/{folder}/0.parquet", 1, 1, 0, json.dumps(bounds))

    def create_commit(*files, released=()):
        slices_by_run = {} if released else {parse_run(file.path): (0, 1) for file in files}
        return CommittedFiles(slices_by_run, dict.fromkeys(("emissions", "quarantined"), files), released)

    live, candidate, copy = (create_file(*file, 0, 1) for file in (("a", "0"), ("b", "0"), ("b", "1")))
    promotions = [create_commit(file) for file in (live, candidate, live, copy)]
    assert list_current_files(promotions, "emissions", grid) == [live, copy]

    releases = [create_commit(live), create_commit(rest := create_file("a", "1", 1, 1), released=(1,))]
    assert list_current_files(releases, "quarantined", grid) == [rest]
    assert list_current_files(releases, "emissions", grid) == [live, rest], "the released rows"


@pytest.mark.parametrize("damage", REPAIRED_BY_RERUN, ids=lambda damage: damage.__name__)
def test_repair_reruns_slices_with_missing_rows(spark, undamaged_lake, damaged_lake, damage):
    damage(damaged_lake)
    assert main(["tables", "repair", str(damaged_lake.file), "--lake", str(damaged_lake.root), "--yes"]) == 0
    assert read_rows(damaged_lake.root) == read_rows(undamaged_lake[0])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"slices__every": "30 minutes"}, "has other slices than the pipeline file"),
        ({"name": "other"}, "belongs to pipeline orders"),
    ],
)
def test_verify_and_repair_with_other_slices_or_name_change_nothing(damaged_lake, tmp_path, capsys, changes, problem):
    insert_rows(damaged_lake)
    settings = write_pipeline(tmp_path / "changed.yaml", **{"output": "orders", **changes})
    before = sorted(damaged_lake.root.rglob("*"))
    for command in (("verify",), ("repair", "--yes")):
        assert main(["tables", *command, str(tmp_path / "changed.yaml"), "--lake", str(damaged_lake.root)]) == 2
        assert problem in " ".join(capsys.readouterr().err.split())
    with pytest.raises(UserError, match=problem):
        plan_repair(settings, str(damaged_lake.root), IntegrityReport("orders", 0, 0, 0, ()), deep=False)
    assert sorted(damaged_lake.root.rglob("*")) == before


@pytest.mark.parametrize("damage", UNREPAIRABLE, ids=lambda damage: damage.__name__)
def test_repair_of_unrepairable_damage_changes_nothing(damaged_lake, damage, capsys):
    damage(damaged_lake)
    before = sorted(damaged_lake.root.rglob("*"))
    assert main(["tables", "repair", str(damaged_lake.file), "--lake", str(damaged_lake.root), "--yes"]) == 1
    message = capsys.readouterr().err
    assert "nothing is repaired" in message
    assert f"Run tidemark tables repair {damaged_lake.file} --dry-run" in message
    assert sorted(damaged_lake.root.rglob("*")) == before


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (delete_ledger, "ledger is gone"),
        (restore_ledger, "ledger ends with commit "),
        (delete_table, "checkpoint is gone, and slices have rows in it"),
        (delete_late_table, "late is gone, and slices have rows in it"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run", "reprocess", "tables vacuum --yes"])
def test_commands_refuse_tables_that_do_not_follow_the_ledger(damaged_lake, damage, problem, command, capsys):
    damage(damaged_lake)
    before = sorted(damaged_lake.root.rglob("*"))
    assert main([*command.split(), str(damaged_lake.file), "--lake", str(damaged_lake.root)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert problem in message
    assert "from one backup, or remove the folder" in message or "from a backup, or remove the folder" in message
    assert sorted(damaged_lake.root.rglob("*")) == before


def test_airflow_tasks_verify_tables_and_vacuum_uncommitted_files(damaged_lake, monkeypatch):
    from airflow.sdk.exceptions import AirflowFailException

    from tidemark.airflow import Project, VacuumTables, VerifyTables

    monkeypatch.setenv("TIDEMARK_LAKE", str(damaged_lake.root))
    project = Project(damaged_lake.file.parent)
    vacuum, verify = (
        operator(task_id="t", file=damaged_lake.file, project=project) for operator in (VacuumTables, VerifyTables)
    )
    uncommitted = Path(damaged_lake.tables.emissions, "run=uncommitted/part-0.parquet")
    uncommitted.parent.mkdir()
    shutil.copy(damaged_lake.get_first_file(), uncommitted)
    vacuum.execute({})
    assert uncommitted.exists(), "an active run may need it"

    os.utime(uncommitted, (0, 0))
    vacuum.execute({})
    assert not uncommitted.exists()

    verify.execute({})
    delete_file(damaged_lake)
    message = (
        f"orders is not as it was committed; tidemark tables repair {damaged_lake.file} may repair it; missing file"
    )
    with pytest.raises(AirflowFailException, match=message):
        verify.execute({})
