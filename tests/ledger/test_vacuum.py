"""What `tidemark vacuum` takes by `retention`, and that nothing which is committed or running needs it."""

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
from tidemark.delta.log_files import LogFiles, Removed
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaLog, OvertakenError
from tidemark.errors import FaultError
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance.unused_files import vacuum_tables
from tidemark.planning.plan import Request, make_plan
from tidemark.quality.gx.fast_path import kept_results
from tidemark.tables.run_files import run_of

HOURS = 4
AT_ONCE = dict.fromkeys(("superseded", "garbage", "docs", "logs"), "0 s") | {"states": "1 hour"}


def label(hour):
    return f"2024-01-01T{hour:02}:00Z"


@pytest.fixture
def command(tmp_path, lake, capsys):
    """A function that runs a command on the pipeline: its exit code, and what it printed, as JSON where it is asked."""

    def run(name, *options):
        first, *more = name.split()
        code = main([first, *more, str(tmp_path / "pipeline.yaml"), "--lake", str(lake), *options])
        told = capsys.readouterr().out
        return code, json.loads(told) if "--json" in options else told

    return run


def listed(lake):
    return {str(path.relative_to(lake)) for path in lake.rglob("*") if path.is_file()}


def rows(tables, before=None):
    """What a plain read of emissions and side output gives, without the names of runs."""
    found = {}
    for name in ("emissions", "late"):
        log = DeltaLog.open(getattr(tables, name))
        told = log.read(set(log.schema.names) - {"run", "_run"}).to_pylist()
        found[name] = Counter(str(row) for row in told if before is None or row["_slice"] < before)
    return found


def test_what_is_not_needed_goes_and_all_else_works_as_before(
    spark, lake, land, go, pipeline, command, rows_every, monkeypatch
):
    monkeypatch.setattr(maintenance, "SOONEST", timedelta(0))
    settings = pipeline(late_landing="reprocess", retention=AT_ONCE, compact={"after": "1 hour", "into": "3 hours"})
    land(*rows_every(10, 6 * HOURS))
    go(settings, end=at(HOURS), slices_per_job=2)
    go(settings, reprocess=True, start=at(1), end=at(2))
    tables = PipelineTables(f"{lake}/orders")
    garbage = lake / "orders/late/run=00000009.20240101T000000Z.1.deadbeef/0/part-0.parquet"
    garbage.parent.mkdir(parents=True)
    garbage.write_bytes(b"12345")
    before, stood = listed(lake), rows(tables)
    needed = {name: set(DeltaLog.open(getattr(tables, name)).files["path"]) for name in ("emissions", "late", "ledger")}
    runs = {number: entry.run for number, entry in Ledger.of(settings, str(lake)).entries.items()}

    code, [would] = command("vacuum", "--dry-run", "--json")
    assert (code, listed(lake)) == (0, before)
    assert would["garbage"] == {"files": [str(garbage.relative_to(lake / "orders"))], "bytes": 5}
    for kind in ("superseded", "logs", "docs", "states"):
        assert would[kind]["files"], kind
        assert would[kind]["bytes"] > 0, kind
    assert {run_of(path) for path in would["states"]["files"]} == {runs[0], runs[1]}
    newest = {name: DeltaLog.open(getattr(tables, name)).version for name in would["reach"]["readable_from"]}
    assert would["reach"] == {
        "readable_from": newest,
        "reprocess_from": label(3),
        "rebuilt_from": label(0),
        "verify_from": label(0),
        "inputs_unknown": [],
    }
    code, [status] = command("status", "--upkeep", "--json")
    assert (status["upkeep"]["vacuum_files"], status["upkeep"]["vacuum_bytes"]) == (len(would["files"]), would["bytes"])
    assert status["upkeep"]["compact_into"] > 0
    assert not any(status["oldest"].values())
    assert "vacuum would free" in command("status", "--upkeep")[1]

    code, [told] = command("vacuum", "--json")
    assert told == would | {"dry_run": False}
    after = listed(lake)
    assert {path.removeprefix("orders/") for path in before - after if not path.endswith(".crc")} == set(told["files"])
    assert all(f"orders/{name}/{path}" in after for name, paths in needed.items() for path in paths)
    assert not any(path.startswith(("orders/ledger", "left", "right")) for path in before - after)
    assert rows(tables) == stood
    assert spark.read.format("delta").load(tables.emissions).count() == stood["emissions"].total() > 0
    assert command("status", "--json")[1][0]["oldest"] == newest | {"ledger": 0}
    assert LogFiles.of(DeltaLog.open(tables.emissions)).oldest == newest["emissions"]
    assert kept_results(tables) == []
    kept = DeltaLog.open(tables.emissions).table.metadata().configuration["delta.deletedFileRetentionDuration"]
    assert kept == "interval 0 seconds", "checkpoints tell no longer of files that are gone"

    assert command("verify", "--content")[0] == 0
    code, verified = command("state verify", "--at", label(1), "--json")
    assert (code, verified["same"], verified["since"], verified["kept"]) == (0, True, label(0), False)
    land(("a", at(HOURS, 10), at(HOURS, 12), 777))
    go(settings, end=at(HOURS + 1))
    plan, _ = go(settings, reprocess=True, start=at(3), end=at(4))
    assert plan.jobs == (range(3, 4),), "its state is kept"
    before_that = make_plan(spark, settings, str(lake), Request(reprocess=True, start=at(2), end=at(3)))
    assert before_that.jobs[0].start == 0, "its state has expired"
    assert command("verify", "--content")[0] == 0
    assert rows(tables, before=at(HOURS)) == stood
    assert "reprocess can begin with any slice from" in command("vacuum")[1]


def made(path, *names):
    """Files of the size of their number, and how old they are in hours."""
    for size, (name, hours) in enumerate(names, start=1):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"." * size)
        then = time.time() - 3600 * hours
        os.utime(file, (then, then))


def test_a_run_that_has_written_lately_keeps_all_of_its_files(lake, pipeline, table_of):
    table_of(lake / "orders/emissions")
    table_of(lake / "orders/late")
    made(lake / "orders/emissions/run=a/0", ("old.parquet", 50))
    made(lake / "orders/late/run=a/0", ("new.parquet", 1))
    made(lake / "orders/emissions/run=b/0", ("old.parquet", 50), (".old.parquet.crc", 50))

    def garbage(older_than=None, **retention):
        told = vacuum_tables(pipeline(retention=retention), str(lake), older_than, dry_run=True)
        return [path.split("/")[1] for path in told.garbage.files], told.recent

    assert garbage() == ([], 3)
    assert garbage(garbage="2 days") == (["run=b"], 2)
    assert garbage(timedelta(hours=1) / 2, garbage="2 days") == (["run=a", "run=b", "run=a"], 0)
    told = vacuum_tables(pipeline(retention={"garbage": "2 days"}), str(lake))
    assert told.garbage == Removed(("emissions/run=b/0/old.parquet",), 1)
    assert not list((lake / "orders/emissions/run=b").rglob("*.*"))
    assert (lake / "orders/emissions/run=a/0/old.parquet").exists()


def a_day_each(log):
    """Let versions of a table have been committed a day after each other, the last one now."""
    for version in range(log.version + 1):
        file = Path(log.path, f"_delta_log/{version:020}.json")
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = int(1000 * (time.time() - 86_400 * (log.version - version)))
        file.write_text("\n".join(map(json.dumps, actions)))


def test_logs_keep_what_the_table_was_so_long_ago_and_all_since(lake, pipeline, table_of):
    written = table_of(lake / "orders/emissions", files=5)
    written.keep_removed(timedelta(hours=1))  # else the first vacuum commits this
    a_day_each(DeltaLog.open(written.path))

    def shortened(days, *, dry_run=False):
        settings = pipeline(retention={"superseded": "1 hour", "logs": f"{days} days"})
        told = vacuum_tables(settings, str(lake), dry_run=dry_run)
        return [int(path.rsplit("/", 1)[1].split(".")[0]) for path in told.logs.files], told.readable_from["emissions"]

    assert shortened(7) == ([], 0)
    before = listed(lake)
    assert shortened(4, dry_run=True) == ([0, 1], 2)
    assert listed(lake) == before
    assert shortened(4) == ([0, 1], 2)
    assert shortened(4) == ([], 2)
    files = written.files["path"]
    for version in range(2, 6):
        log = DeltaLog.open(written.path, version)
        assert (len(log.files), log.commit_number) == (version, version)
    assert DeltaLog.open(written.path, 1) is None
    assert len(DeltaLog.open(written.path).table.history()) == 5
    early = DeltaLog.open(written.path, 2)
    assert shortened(2) == ([2, 2, 3], 4), "the checkpoint of version 2 is one of them"
    with pytest.raises(OvertakenError):
        early.commit([], early.files["path"][:1])
    assert DeltaLog.open(written.path).version == 6
    now = DeltaLog.open(written.path).append(written.read(["v"]), 6)
    assert (now.version, now.commit_number, set(now.files["path"]) > set(files)) == (7, 6, True)


def test_a_log_that_cannot_do_without_a_commit_stays(lake, pipeline, table_of, monkeypatch):
    a_day_each(table_of(lake / "orders/emissions", files=3))
    settings, before = pipeline(retention={"superseded": "1 hour", "logs": "1 day"}), listed(lake)
    monkeypatch.setattr(log_files, "write_checkpoint", lambda *_: False)
    with pytest.raises(FaultError, match="has other files than that version, so that its log is left as it is"):
        vacuum_tables(settings, str(lake))
    assert listed(lake) == before
