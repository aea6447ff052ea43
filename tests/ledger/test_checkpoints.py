"""Show, verify, copy, expire and export checkpoints by the command line."""

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F
from rich.console import Console

from tests.conftest import write_pipeline
from tidemark.checkpoints.verification import CheckpointVerification
from tidemark.cli.app import main
from tidemark.cli.render_checkpoints import render_verification
from tidemark.config import Pipeline, load_pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import LedgerConflictError
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.ledger.checkpoint_files import read_buffered_rows
from tidemark.ledger.committed_snapshot import read_committed_rows
from tidemark.ledger.ledger import Ledger
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.tables.run_files import parse_run
from tidemark.timegrid.slices import Grid

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def label(hour):
    return f"2024-01-01T{hour:02}:00Z"


@dataclass(frozen=True)
class Orders:
    """A lake with one pipeline."""

    lake: Path
    pipeline: Pipeline

    @property
    def tables(self):
        return PipelineTables(f"{self.lake}/orders")

    def ledger(self):
        return Ledger.read(self.tables, Grid.from_config(self.pipeline.slices))

    def append_rows(self, spark, *minutes):
        """Append three rows per side for each minute."""
        rows = [(key, at(0, minute - 5 * n), at(0, minute), 3 * minute + n) for minute in minutes
                for n, key in enumerate("aab")]  # fmt: skip
        for side in ("left", "right"):
            frame = spark.createDataFrame(rows, ROW)
            frame.coalesce(1).write.format("delta").mode("append").save(str(self.lake / side))

    def run(self, spark, **request):
        list(execute(spark, create_plan(spark, self.pipeline, str(self.lake), Request(**request)), lambda *_: None))

    def count_emissions(self, spark, as_of=None):
        rows = read_committed_rows(spark, self.ledger(), "emissions", as_of).drop("_result_time")
        return Counter(map(tuple, rows.collect()))


@pytest.fixture(scope="module")
def original(spark, tmp_path_factory):
    """Run six slices in three jobs, with late-arriving rows and a reprocess; return emissions after each job."""
    lake = tmp_path_factory.mktemp("orders")
    orders, snapshots = Orders(lake, write_pipeline(lake / "orders.yaml")), []
    orders.append_rows(spark, *range(10, 240, 20))
    for hour in (2, 4):
        orders.run(spark, end=at(hour))
        snapshots.append(orders.count_emissions(spark))
    orders.append_rows(spark, 115, *range(250, 360, 20))
    orders.run(spark, end=at(6))
    snapshots.append(orders.count_emissions(spark))
    orders.run(spark, reprocess=True, start=at(1), end=at(2))
    snapshots.append(orders.count_emissions(spark))
    return orders, snapshots


@pytest.fixture
def orders(original, tmp_path):
    """Copy the original lake."""
    copy = tmp_path / "copy"
    shutil.copytree(original[0].lake, copy)
    return Orders(copy, load_pipeline(copy / "orders.yaml"))


@pytest.fixture
def run_checkpoint_command(orders, capsys):
    """Run `tidemark checkpoint`; return exit code and JSON output, or the error."""

    def execute(*arguments):
        command, *rest = arguments
        code = main(
            ["checkpoint", command, str(orders.lake / "orders.yaml"), "--lake", str(orders.lake), *rest, "--json"]
        )
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else " ".join(printed.err.split())

    return execute


def open_checkpoint(spark, orders):
    return DeltaTable.forPath(spark, orders.tables.checkpoint)


def list_runs(orders):
    return set(map(parse_run, DeltaTableHandle.open(orders.tables.checkpoint).files["path"]))


def test_read_committed_rows_as_of_watermark_equals_earlier_snapshot(spark, original):
    orders, snapshots = original
    ledger = orders.ledger()
    watermarks = {number: entry.watermarks.combined for number, entry in ledger.entries.items()}
    assert [orders.count_emissions(spark, as_of=watermarks[number]) for number in (1, 3, 5)] == [
        snapshots[0],
        snapshots[1],
        snapshots[3],
    ]
    assert snapshots[2] != snapshots[3], "the reprocess changed rows"
    assert orders.count_emissions(spark) == snapshots[3]

    first = Counter(
        {
            row: count
            for row, count in snapshots[0].items()
            if START in [v.astimezone(UTC) for v in row if isinstance(v, datetime)]
        }
    )
    instant = datetime.fromtimestamp(watermarks[0] / 1000, UTC)
    within_job = orders.count_emissions(spark, as_of=instant)
    assert orders.count_emissions(spark, as_of=instant.replace(tzinfo=None)) == within_job
    assert 0 < within_job.total() == first.total() < snapshots[0].total()
    assert orders.count_emissions(spark, as_of=watermarks[0] - 1).total() == 0


def test_checkpoint_show_summarizes_buffers(spark, orders, run_checkpoint_command):
    code, output = run_checkpoint_command("show", "--rows", "3")
    last = orders.ledger().last

    assert code == 0
    assert (output["end"], output["fingerprint"], output["has_checkpoint"]) == (label(6), last.fingerprint, True)
    assert (output["left"]["rows"], output["right"]["rows"]) == last.carried != (0, 0)
    assert output["left"]["bytes"] > 0
    assert output["left"]["oldest_event_time"] < output["left"]["newest_event_time"] < output["end"]
    assert output["watermarks"]["combined"] == output["watermarks"]["left"]
    assert [row["side"] for row in output["sample_rows"]] == ["left"] * 3
    assert run_checkpoint_command("show", "--at", label(4))[1]["run"] != output["run"]
    assert run_checkpoint_command("show", "--at", label(9)) == (
        2,
        f"error: --at {label(9)}: no committed slice ends there. Name an end between {label(1)} and {label(6)}.",
    )


def test_checkpoint_verify_missing_row_is_reported(spark, orders, run_checkpoint_command):
    code, output = run_checkpoint_command("verify")
    assert (code, output["is_equal"], output["replayed_from"], output["slices"]) == (0, True, label(0), 6)

    code, output = run_checkpoint_command("verify", "--at", label(6), "--from", label(5))
    assert (code, output["is_equal"], output["slices"], output["jobs"]) == (0, True, 1, 1)

    open_checkpoint(spark, orders).delete((F.col("carried_until") == F.lit(at(6))) & (F.col("left.k") == "b"))
    code, output = run_checkpoint_command("verify", "--from", label(5))
    assert (code, output["is_equal"], output["differing_slices"], output["rows_only_stored"]) == (1, False, [], 0)
    assert output["rows_only_rebuilt"] == len(output["differing_rows"]) > 0
    assert {(row["only"], row["side"], row["row"]["k"]) for row in output["differing_rows"]} == {
        ("rebuilt", "left", "b")
    }


def test_checkpoint_verify_missing_input_version_is_rejected(spark, orders, run_checkpoint_command):
    left = str(orders.lake / "left")
    compacted = spark.read.format("delta").load(left).coalesce(1)
    compacted.write.format("delta").mode("overwrite").option("dataChange", "false").save(left)
    [live] = spark.read.format("delta").load(left).inputFiles()
    for path in Path(left).glob("*.parquet"):  # VACUUM itself takes a minute
        if not live.endswith(path.name):
            path.unlink()
    code, output = run_checkpoint_command("verify")

    assert code == 2
    assert f"version 0 of left or 0 of right, which slice {label(0)} has read, is gone" in output

    code, output = run_checkpoint_command("verify", "--at", label(1))
    assert code == 2
    assert output.endswith("Restore the version, or name another state with --at."), "no replay starts later"


def test_expired_checkpoint_is_rebuilt_and_not_needed_by_plans(spark, orders, run_checkpoint_command):
    orders.append_rows(spark, 185)
    before = [create_plan(spark, orders.pipeline, str(orders.lake), Request(**fields)).to_dict()
              for fields in ({"end": at(7)}, {"reprocess": True})]  # fmt: skip
    ledger, existing_runs = orders.ledger(), list_runs(orders)
    needed = {ledger.entry(number).run for number in (2, 5)}
    assert run_checkpoint_command("expire") == (
        2,
        "error: no checkpoints are selected. Pass --keep N, --older-than DURATION, or both.",
    )
    code, output = run_checkpoint_command("expire", "--older-than", "-1 day")
    assert (code, output) == (2, "error: --older-than: must not be negative")
    assert run_checkpoint_command("expire", "--older-than", "1 day")[1]["expired_runs"] == []

    code, output = run_checkpoint_command("expire", "--keep", "1", "--dry-run")
    assert (code, set(output["expired_runs"])) == (0, existing_runs - needed)
    assert list_runs(orders) == existing_runs
    assert run_checkpoint_command("expire", "--keep", "1")[1]["expired_runs"] == output["expired_runs"] != []
    assert list_runs(orders) == needed
    assert check_integrity(orders.pipeline, str(orders.lake)).issues == (), "expired checkpoints are no damage"

    after = [create_plan(spark, orders.pipeline, str(orders.lake), Request(**fields)).to_dict()
             for fields in ({"end": at(7)}, {"reprocess": True})]  # fmt: skip
    assert after == before
    assert after[1]["slice_ranges"][0]["from"] == label(3)

    assert run_checkpoint_command("show", "--at", label(1))[1]["has_checkpoint"] is False

    code, output = run_checkpoint_command("copy", "--at", label(1), "--to", "copy_of_1")
    assert (code, output["is_rebuilt"]) == (0, True)

    copy = spark.read.format("delta").load(str(orders.lake / "copy_of_1"))
    assert (copy.where("side = 'left'").count(), copy.where("side = 'right'").count()) == ledger.entry(0).carried
    assert run_checkpoint_command("copy", "--to", "copy_of_1")[1].endswith(
        "the table exists already. Remove it, or name another path."
    )

    code, output = run_checkpoint_command("copy", "--to", "copy_of_6")
    assert (code, output["is_rebuilt"], output["left_rows"] + output["right_rows"]) == (
        0,
        False,
        sum(ledger.last.carried),
    )
    assert spark.read.format("delta").load(str(orders.lake / "copy_of_6")).where("arrived_at < event_time").count() == 0
    assert run_checkpoint_command("verify", "--at", label(2))[1]["has_checkpoint"] is False


def test_checkpoint_expired_after_planning_is_readable(spark, orders):
    ledger = orders.ledger()
    carried = read_buffered_rows(spark, orders.tables, ledger.last.number, ledger.grid)
    open_checkpoint(spark, orders).delete()
    assert carried.count() == sum(ledger.last.carried) > 0


def test_checkpoint_expired_after_planning_is_named_by_the_job(spark, orders):
    plan = create_plan(spark, orders.pipeline, str(orders.lake), Request(start=at(5), end=at(6), reprocess=True))
    open_checkpoint(spark, orders).delete()
    with pytest.raises(LedgerConflictError, match=f"checkpoint before slice {label(5)} .* was removed in the meantime"):
        list(execute(spark, plan, lambda *_: None))


def test_checkpoint_export_for_flink_writes_buffers(spark, orders, run_checkpoint_command, tmp_path):
    code, output = run_checkpoint_command("export", "--to", str(tmp_path / "export"))
    entry = orders.ledger().last
    assert (code, output["query"], output["watermarks_ms"]["combined"]) == (0, None, entry.watermarks.combined)

    left = spark.read.format("delta").load(f"{output['folder']}/left")
    assert (left.columns, left.count()) == (["k", "happened", "arrived", "v", "_tidemark"], entry.carried[0])
    assert left.where("_tidemark.time <> happened").count() == 0
    assert "Not guaranteed" in Path(output["folder"], "README.md").read_text()
    assert run_checkpoint_command("export", "--to", str(tmp_path / "export"))[1].endswith(
        "is not empty. Name a new folder."
    )
    assert "is not a local folder" in run_checkpoint_command("export", "--to", "s3://bucket/export")[1]


def test_checkpoint_commands_print_summaries(orders, capsys):
    arguments = [str(orders.lake / "orders.yaml"), "--lake", str(orders.lake)]
    assert main(["checkpoint", "show", *arguments, "--rows", "1"]) == 0

    captured = capsys.readouterr().out
    assert f"State of orders at {label(6)}" in captured
    assert "event times 2024-01-01T05:" in captured
    assert '"k": "' in captured
    assert main(["checkpoint", "expire", *arguments, "--keep", "1", "--dry-run"]) == 0
    assert "checkpoints would be removed, " in capsys.readouterr().out


def test_render_verification_shows_differing_rows():
    row = {"only": "stored", "side": "left", "event_time": label(1), "row": {"v": 7}}
    values = {
        "replayed_from": label(0),
        "slices": 2,
        "jobs": 1,
        "fingerprint": "a",
        "rebuilt_fingerprint": "b",
        "has_checkpoint": True,
    }
    output = CheckpointVerification(
        "orders",
        label(2),
        **values,
        differing_slices=[label(1)],
        rows_only_stored=1,
        rows_only_rebuilt=0,
        differing_rows=[row],
    )
    console = Console(width=100)
    with console.capture() as captured:
        console.print(render_verification(output))

    assert "the checkpoint differs from the rebuilt state" in captured.get()
    assert 'stored left {"v": 7}' in captured.get()


@pytest.mark.parametrize("command", [[], ["show"], ["verify"], ["copy"], ["expire"], ["export"]])
def test_checkpoint_command_help_has_example(command, capsys):
    assert main(["checkpoint", *command, "--help"]) == 0
    assert f"Example: tidemark checkpoint {' '.join(command)}" in capsys.readouterr().out
