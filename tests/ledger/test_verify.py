"""Each damage that a lake can take, put in by hand, is named by `tidemark verify`."""

import json
import os
import shutil
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
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DataFile, DeltaTableHandle
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, create_plan


@pytest.fixture(scope="module")
def sound(spark, tmp_path_factory):
    """A lake of six slices, each with rows and files of its own, the third reprocessed."""
    root = tmp_path_factory.mktemp("sound")
    lake, settings = root / "lake", write_pipeline(root / "pipeline.yaml", on_late_arriving_rows="reprocess")

    def land(*rows):
        for side, more in (("left", 0), ("right", 100)):
            frame = spark.createDataFrame([(k, happened, came, v + more) for k, happened, came, v in rows], ROW)
            frame.coalesce(1).write.format("delta").mode("append").save(str(lake / side))

    def run(**request):
        list(
            execute(spark, create_plan(spark, settings, str(lake), Request(slices_per_job=1, **request)), lambda *_: 0)
        )

    land(*(("a", at(0, 10 * n), at(0, 10 * n + (45 if n % 4 == 3 else 2)), n) for n in range(36)))
    run(end=at(6))
    land(("a", at(2, 30), at(2, 30), 777))
    run(reprocess=True, start=at(2), end=at(3))
    return lake, root / "pipeline.yaml"


@dataclass(frozen=True)
class Lake:
    """A copy to damage."""

    root: Path
    file: Path

    @property
    def tables(self) -> PipelineTables:
        return PipelineTables(f"{self.root}/orders")

    def log(self, name="emissions") -> DeltaTableHandle:
        return DeltaTableHandle.open(getattr(self.tables, name))

    def first(self, name="emissions") -> Path:
        return Path(self.log(name).path, self.log(name).files["path"][0])

    def forget(self, number):
        """Remove a row of the ledger, with whatever tells of a commit left alone."""
        DeltaTable(self.tables.ledger).delete(f"slice = '{at(number):%Y-%m-%d %H:%M:%S}'")


@pytest.fixture
def damaged(sound, tmp_path):
    lake, file = sound
    shutil.copytree(lake, tmp_path / "lake")
    return Lake(tmp_path / "lake", file)


def gone(lake: Lake):
    lake.first().unlink()


def cut_short(lake: Lake):
    path = lake.first()
    path.write_bytes(path.read_bytes()[:-100])


def longer(lake: Lake):
    with lake.first().open("ab") as file:
        file.write(b"more")


def another_value(lake: Lake):
    """One byte of a page, the first of the file's data."""
    path = lake.first()
    column = pq.read_metadata(path).row_group(0).column(0)
    stored = bytearray(path.read_bytes())
    stored[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(stored)


def doubled(lake: Lake):
    log = lake.log()
    path = Path(log.files["path"][0])
    copy = path.with_name("copy.parquet")
    shutil.copy(Path(log.path, path), Path(log.path, copy))
    told = next(json.loads(one["add"]["stats"]) for one in added(log) if one["add"]["path"] == str(path))
    size, rows = log.files["size"][0], log.files["rows"][0]
    log.commit([DataFile(str(copy), int(size), int(rows), 0, json.dumps(told))], txn_version=log.txn_version)


def added(log: DeltaTableHandle):
    for file in sorted(Path(log.path, "_delta_log").glob("*.json")):
        yield from (one for one in map(json.loads, file.read_text().splitlines()) if "add" in one)


def reference_gone(lake: Lake):
    log = lake.log()
    log.commit([], [log.files["path"][0]])


def row_removed(lake: Lake):
    lake.forget(1)


def last_commit_removed(lake: Lake):
    lake.forget(3)


def ahead(lake: Lake):
    log = lake.log("late")
    log.commit([], txn_version=log.txn_version + 1)


def behind(lake: Lake):
    """The last commit of a table undone: its newest file of the log."""
    log = lake.log("late")
    Path(log.path, "_delta_log", f"{log.version:020d}.json").unlink()


def inserted(lake: Lake):
    log = lake.log()
    rows = log.read(log.schema.names).slice(0, 2)
    write_deltalake(log.path, pa.table(rows), mode="append")


def deleted(lake: Lake):
    DeltaTable(lake.tables.emissions).delete("left_v = 5")


def optimized(lake: Lake):
    DeltaTable(lake.tables.emissions).optimize.compact()


def restored(lake: Lake):
    DeltaTable(lake.tables.emissions).restore(lake.log().version - 2)


def other_state(lake: Lake):
    DeltaTable(lake.tables.ledger).update({"digest": "'0'"}, predicate=f"slice = '{at(3):%Y-%m-%d %H:%M:%S}'")


def watermark_back(lake: Lake):
    moved = {"left_watermark_ms": "left_watermark_ms - 86400000"}
    DeltaTable(lake.tables.ledger).update(moved, predicate=f"slice = '{at(3):%Y-%m-%d %H:%M:%S}'")


def input_restored(lake: Lake):
    shutil.rmtree(lake.root / "left")
    write_deltalake(lake.root / "left", pa.table({"k": ["a"]}))


def ledger_gone(lake: Lake):
    shutil.rmtree(lake.tables.ledger)


def table_gone(lake: Lake):
    shutil.rmtree(lake.tables.checkpoint)


def state_gone(lake: Lake):
    """The checkpoint that the next slice continues."""
    log = lake.log("checkpoint")
    log.commit([], log.files["path"])


Named = set[tuple[str, str]]
DAMAGES: dict[Callable[[Lake], None], Named] = {
    gone: {("file gone", "emissions")},
    cut_short: {("file cut short", "emissions")},
    longer: {("file changed", "emissions")},
    another_value: {("file changed", "emissions")},
    doubled: {("reference doubled", "emissions")},
    reference_gone: {("rows missing", "emissions")},
    row_removed: {("ledger row gone", "ledger"), ("rows unknown", "emissions"), ("foreign commit", "ledger")},
    last_commit_removed: {("table ahead", "emissions"), ("rows unknown", "emissions"), ("ledger row gone", "ledger")},
    ahead: {("table ahead", "late")},
    behind: {("table behind", "late")},
    inserted: {("foreign commit", "emissions"), ("rows unknown", "emissions")},
    deleted: {("foreign commit", "emissions"), ("rows unknown", "emissions")},
    optimized: {("foreign commit", "emissions"), ("rows unknown", "emissions")},
    restored: {("foreign commit", "emissions")},
    other_state: {("state does not follow", "ledger")},
    watermark_back: {("watermark went back", "ledger")},
    input_restored: {("input behind", "left")},
    ledger_gone: {("table gone", "ledger")},
    table_gone: {("table gone", "checkpoint")},
    state_gone: {("rows missing", "checkpoint")},
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damage_put_in_by_hand_is_named(damaged, damage, capsys):
    arguments = ["verify", str(damaged.file), "--lake", str(damaged.root), "--json"]
    arguments += ["--deep"] if damage is another_value else []
    damage(damaged)
    assert main(arguments) == 1
    told = json.loads(capsys.readouterr().out)
    named = {(one["damage"], one["table"]) for one in told["issues"]}
    assert named >= DAMAGES[damage]
    assert not told["sound"]


def test_what_was_committed_is_sound_and_is_left_alone(damaged, capsys):
    before = {path: path.stat().st_mtime_ns for path in damaged.root.rglob("*")}
    assert main(["verify", str(damaged.file), "--lake", str(damaged.root), "--deep", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["issues"] == []
    assert told["slices"] == 6
    assert told["files"] >= 6 * 3
    assert {path: path.stat().st_mtime_ns for path in damaged.root.rglob("*")} == before


def test_a_foreign_commit_that_changes_no_row_is_told_and_fails_nothing(damaged, capsys):
    DeltaTable(damaged.tables.emissions).restore(damaged.log().version - 1)
    DeltaTable(damaged.tables.emissions).restore(damaged.log().version - 1)
    assert main(["verify", str(damaged.file), "--lake", str(damaged.root)]) == 0
    assert "RESTORE" in capsys.readouterr().out


BY_REFERENCE = (doubled, reference_gone, inserted, deleted, optimized, restored, state_gone, behind)
BY_RUNNING_AGAIN = (gone, cut_short, other_state)
BEYOND = (row_removed, ahead, input_restored, ledger_gone, table_gone)


def emissions_of(root):
    rows = DeltaTableHandle.open(PipelineTables(f"{root}/orders").emissions).read(["_slice", "left_v", "right_v"])
    return sorted(map(str, rows.to_pylist()))


@pytest.mark.parametrize("damage", BY_REFERENCE, ids=lambda damage: damage.__name__)
def test_references_are_put_right_from_the_ledger(sound, damaged, damage):
    damage(damaged)
    assert main(["verify", str(damaged.file), "--lake", str(damaged.root), "--repair"]) == 0
    assert emissions_of(damaged.root) == emissions_of(sound[0])


@pytest.mark.parametrize("damage", BY_RUNNING_AGAIN, ids=lambda damage: damage.__name__)
def test_slices_whose_rows_are_gone_run_again(spark, sound, damaged, damage):
    damage(damaged)
    assert main(["verify", str(damaged.file), "--lake", str(damaged.root), "--repair"]) == 0
    assert emissions_of(damaged.root) == emissions_of(sound[0])


@pytest.mark.parametrize("damage", BEYOND, ids=lambda damage: damage.__name__)
def test_what_cannot_be_repaired_is_said_to_be_lost_and_left_alone(damaged, damage, capsys):
    damage(damaged)
    before = sorted(damaged.root.rglob("*"))
    assert main(["verify", str(damaged.file), "--lake", str(damaged.root), "--repair"]) == 1
    assert "left as it is" in capsys.readouterr().err
    assert sorted(damaged.root.rglob("*")) == before


def test_in_airflow_a_task_fails_where_tables_are_damaged_and_another_removes_what_was_left_behind(
    damaged, monkeypatch
):
    from airflow.sdk.exceptions import AirflowFailException

    from tidemark.airflow import Project, VacuumTables, VerifyTables

    monkeypatch.setenv("TIDEMARK_LAKE", str(damaged.root))
    project = Project(damaged.file.parent)
    vacuum, verify = (kind(task_id="t", file=damaged.file, project=project) for kind in (VacuumTables, VerifyTables))
    left = damaged.first().with_name("left.parquet")
    shutil.copy(damaged.first(), left)
    vacuum.execute({})
    assert left.exists(), "it may be of a run that goes on"
    os.utime(left, (0, 0))
    vacuum.execute({})
    assert not left.exists()
    verify.execute({})
    gone(damaged)
    with pytest.raises(AirflowFailException, match=r"orders is not as it was committed; .* --repair .*; file gone"):
        verify.execute({})
