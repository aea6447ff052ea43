"""Vacuum deletes what `retention` lets go, and nothing that committed or active runs need."""

import json
import os
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tests.ledger.conftest import at
from tidemark.cli.app import main
from tidemark.config import maintenance
from tidemark.delta import log_files
from tidemark.delta.log_files import LogFiles, RemovedFiles
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import CommitConflictError, DeltaTableHandle
from tidemark.errors import FaultError
from tidemark.ledger import ledger
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance.vacuum import vacuum
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.gx.result_store import list_results
from tidemark.tables.run_files import parse_run

HOURS = 4
NO_RETENTION = dict.fromkeys(("replaced_files", "uncommitted_files", "data_docs", "log_files"), "0 s") | {
    "checkpoints": "1 hour"
}


def label(hour):
    return f"2024-01-01T{hour:02}:00Z"


@pytest.fixture
def run_command(tmp_path, lake, capsys):
    """Return a function that runs a command on the pipeline and returns exit code and output."""

    def execute(name, *options):
        first, *more = name.split()
        code = main([first, *more, str(tmp_path / "pipeline.yaml"), "--lake", str(lake), *options])
        output = capsys.readouterr().out
        return code, json.loads(output) if "--json" in options else output

    return execute


def list_files(lake):
    return {str(path.relative_to(lake)) for path in lake.rglob("*") if path.is_file()}


def count_rows(tables, before=None):
    """Count the rows of emissions and late rows, without names of runs."""
    counts = {}
    for name in ("emissions", "late"):
        log = DeltaTableHandle.open(getattr(tables, name))
        output = log.read(set(log.schema.names) - {"run", "_run"}).to_pylist()
        counts[name] = Counter(str(row) for row in output if before is None or row["_slice"] < before)
    return counts


def test_vacuum_deletes_unneeded_files_and_all_commands_still_work(
    spark, lake, append_inputs, plan_and_run, pipeline, run_command, create_rows, monkeypatch
):
    monkeypatch.setattr(maintenance, "MIN_RETENTION", timedelta(0))
    settings = pipeline(
        on_late_arriving_rows="reprocess",
        retention=NO_RETENTION,
        compact={"settled_after": "1 hour", "period": "3 hours"},
    )
    append_inputs(*create_rows(10, 6 * HOURS))
    plan_and_run(settings, end=at(HOURS), slices_per_job=2)
    plan_and_run(settings, reprocess=True, start=at(1), end=at(2))
    tables = PipelineTables(f"{lake}/orders")
    uncommitted = lake / "orders/late/run=00000009.20240101T000000Z.1.deadbeef/0/part-0.parquet"
    uncommitted.parent.mkdir(parents=True)
    uncommitted.write_bytes(b"12345")
    before, rows_before = list_files(lake), count_rows(tables)
    needed = {
        name: set(DeltaTableHandle.open(getattr(tables, name)).files["path"])
        for name in ("emissions", "late", "ledger")
    }
    runs = {number: entry.run for number, entry in Ledger.from_pipeline(settings, str(lake)).entries.items()}

    code, [dry_run_result] = run_command("tables vacuum", "--dry-run", "--json")
    assert (code, list_files(lake)) == (0, before)
    assert dry_run_result["uncommitted_files"] == {"files": [str(uncommitted.relative_to(lake / "orders"))], "bytes": 5}
    for kind in ("replaced_files", "log_files", "data_docs", "checkpoints"):
        assert dry_run_result[kind]["files"], kind
        assert dry_run_result[kind]["bytes"] > 0, kind
    assert {parse_run(path) for path in dry_run_result["checkpoints"]["files"]} == {runs[0], runs[1]}

    newest = {
        name: DeltaTableHandle.open(getattr(tables, name)).version
        for name in dry_run_result["recovery_horizon"]["readable_from"]
    }
    assert dry_run_result["recovery_horizon"] == {
        "readable_from": newest,
        "reprocess_from": label(3),
        "full_reprocess_from": label(0),
        "verify_from": label(0),
        "unverified_inputs": [],
    }

    [status] = run_command("status", "--json")[1]
    assert not any(status["oldest_versions"].values())

    code, [output] = run_command("tables vacuum", "--yes", "--json")
    assert output == dry_run_result | {"dry_run": False}

    after = list_files(lake)
    assert {path.removeprefix("orders/") for path in before - after if not path.endswith(".crc")} == set(
        output["files"]
    )
    assert all(f"orders/{name}/{path}" in after for name, paths in needed.items() for path in paths)
    assert not any(path.startswith(("orders/ledger", "left", "right")) for path in before - after)
    assert count_rows(tables) == rows_before
    assert spark.read.format("delta").load(tables.emissions).count() == rows_before["emissions"].total() > 0
    assert run_command("status", "--json")[1][0]["oldest_versions"] == newest | {"ledger": 0}
    assert LogFiles.from_table(DeltaTableHandle.open(tables.emissions)).oldest_version == newest["emissions"]
    assert list_results(tables) == []

    retention = (
        DeltaTableHandle.open(tables.emissions).table.metadata().configuration["delta.deletedFileRetentionDuration"]
    )
    assert retention == "interval 0 seconds", "Delta's checkpoints no longer contain deleted files"

    assert run_command("tables verify", "--deep")[0] == 0

    code, verified = run_command("checkpoint verify", "--at", label(1), "--json")
    assert (code, verified["is_equal"], verified["replayed_from"], verified["has_checkpoint"]) == (
        0,
        True,
        label(0),
        False,
    )

    append_inputs(("a", at(HOURS, 10), at(HOURS, 12), 777))
    plan_and_run(settings, end=at(HOURS + 1))
    plan, _ = plan_and_run(settings, reprocess=True, start=at(3), end=at(4))
    assert plan.jobs == (range(3, 4),), "its checkpoint exists"

    reprocess_plan = create_plan(spark, settings, str(lake), Request(reprocess=True, start=at(2), end=at(3)))
    assert reprocess_plan.jobs[0].start == 0, "its checkpoint has expired"
    assert run_command("tables verify", "--deep")[0] == 0
    assert count_rows(tables, before=at(HOURS)) == rows_before
    assert "reprocess can begin at any slice from" in run_command("tables vacuum", "--yes")[1]


def write_aged_files(path, *names):
    """Write files with given ages in hours; the n-th file has n bytes."""
    for size, (name, hours) in enumerate(names, start=1):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"." * size)
        modified = time.time() - 3600 * hours
        os.utime(file, (modified, modified))


def test_vacuum_keeps_all_uncommitted_files_of_active_runs(lake, pipeline, create_table):
    create_table(lake / "orders/emissions")
    create_table(lake / "orders/late")
    write_aged_files(lake / "orders/emissions/run=a/0", ("old.parquet", 50))
    write_aged_files(lake / "orders/late/run=a/0", ("new.parquet", 1))
    write_aged_files(lake / "orders/emissions/run=b/0", ("old.parquet", 50), (".old.parquet.crc", 50))

    def uncommitted(older_than=None, **retention):
        output = vacuum(pipeline(retention=retention), str(lake), older_than, dry_run=True)
        return [path.split("/")[1] for path in output.uncommitted_files.files], output.recent_files

    assert uncommitted() == ([], 3)
    assert uncommitted(uncommitted_files="2 days") == (["run=b"], 2)
    assert uncommitted(timedelta(hours=1) / 2, uncommitted_files="2 days") == (["run=a", "run=b", "run=a"], 0)

    output = vacuum(pipeline(retention={"uncommitted_files": "2 days"}), str(lake))
    assert output.uncommitted_files == RemovedFiles(("emissions/run=b/0/old.parquet",), 1)
    assert not list((lake / "orders/emissions/run=b").rglob("*.*"))
    assert (lake / "orders/emissions/run=a/0/old.parquet").exists()


def test_vacuum_after_failed_first_run_removes_files_of_tables_that_do_not_exist(lake, pipeline):
    write_aged_files(lake / "orders/late/run=a/0", ("old.parquet", 200), (".old.parquet.crc", 200))
    write_aged_files(lake / "orders/quality/run=b/0", ("new.parquet", 1))

    output = vacuum(pipeline(), str(lake))
    assert output.uncommitted_files == RemovedFiles(("late/run=a/0/old.parquet",), 1)
    assert (output.recent_files, output.recovery_horizon.readable_from) == (1, {})
    assert list_files(lake) == {"orders/quality/run=b/0/new.parquet"}


def set_daily_commit_times(log):
    """Set the commit times of a table to one version per day, the last one now."""
    for version in range(log.version + 1):
        file = Path(log.path, f"_delta_log/{version:020}.json")
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = int(1000 * (time.time() - 86_400 * (log.version - version)))
        file.write_text("\n".join(map(json.dumps, actions)))


@pytest.fixture
def without_ledger(monkeypatch):
    """Let commands read tables whose ledger is missing."""
    monkeypatch.setattr(ledger, "_require_commits", lambda *_: None)


@pytest.mark.usefixtures("without_ledger")
def test_vacuum_log_files_keeps_versions_within_retention(lake, pipeline, create_table):
    table = create_table(lake / "orders/emissions", files=5)
    table.set_removed_file_retention(timedelta(hours=1))  # otherwise the first vacuum commits this setting
    set_daily_commit_times(DeltaTableHandle.open(table.path))

    def vacuum_log(days, *, dry_run=False):
        settings = pipeline(retention={"replaced_files": "1 hour", "log_files": f"{days} days"})
        output = vacuum(settings, str(lake), dry_run=dry_run)
        return [
            int(path.rsplit("/", 1)[1].split(".")[0]) for path in output.log_files.files
        ], output.recovery_horizon.readable_from["emissions"]

    assert vacuum_log(7) == ([], 0)

    before = list_files(lake)
    assert vacuum_log(4, dry_run=True) == ([0, 1], 2)
    assert list_files(lake) == before
    assert vacuum_log(4) == ([0, 1], 2)
    assert vacuum_log(4) == ([], 2)

    files = table.files["path"]
    for version in range(2, 6):
        log = DeltaTableHandle.open(table.path, version)
        assert (len(log.files), log.txn_version) == (version, version)
    assert DeltaTableHandle.open(table.path, 1) is None
    assert len(DeltaTableHandle.open(table.path).table.history()) == 5

    early = DeltaTableHandle.open(table.path, 2)
    assert vacuum_log(2) == ([2, 2, 3], 4), "including the checkpoint of version 2"
    with pytest.raises(CommitConflictError):
        early.commit([], early.files["path"][:1])
    assert DeltaTableHandle.open(table.path).version == 6

    appended = DeltaTableHandle.open(table.path).append(table.read(["v"]), 6)
    assert (appended.version, appended.txn_version, set(appended.files["path"]) > set(files)) == (7, 6, True)


@pytest.mark.usefixtures("without_ledger")
def test_vacuum_log_without_valid_checkpoint_is_unchanged(lake, pipeline, create_table, monkeypatch):
    set_daily_commit_times(create_table(lake / "orders/emissions", files=3))
    settings, before = pipeline(retention={"replaced_files": "1 hour", "log_files": "1 day"}), list_files(lake)
    monkeypatch.setattr(log_files, "ensure_checkpoint", lambda *_: False)
    with pytest.raises(FaultError, match="has other files than that version, so the log was not truncated"):
        vacuum(settings, str(lake))
    assert list_files(lake) == before
