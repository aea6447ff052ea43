"""The state between slices, as a user meets it: shown, proven, copied and given up."""

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
from tidemark.checkpoints.verification import Verified
from tidemark.cli.app import main
from tidemark.cli.render_checkpoints import verified_view
from tidemark.config import Pipeline, load_pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaLog
from tidemark.execution.run import execute
from tidemark.integrity.check import check
from tidemark.ledger.checkpoint_files import restore
from tidemark.ledger.committed_snapshot import committed
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Request, make_plan
from tidemark.tables.run_files import run_of
from tidemark.timegrid.slices import Grid

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


def label(hour):
    return f"2024-01-01T{hour:02}:00Z"


@dataclass(frozen=True)
class Orders:
    """A lake with a pipeline."""

    lake: Path
    pipeline: Pipeline

    @property
    def tables(self):
        return PipelineTables(f"{self.lake}/orders")

    def ledger(self):
        return Ledger.read(self.tables, Grid.of(self.pipeline.slices))

    def land(self, spark, *minutes):
        """Three rows of each side for each of these minutes."""
        rows = [(key, at(0, minute - 5 * n), at(0, minute), 3 * minute + n) for minute in minutes
                for n, key in enumerate("aab")]  # fmt: skip
        for side in ("left", "right"):
            frame = spark.createDataFrame(rows, ROW)
            frame.coalesce(1).write.format("delta").mode("append").save(str(self.lake / side))

    def run(self, spark, **request):
        list(execute(spark, make_plan(spark, self.pipeline, str(self.lake), Request(**request)), lambda *_: None))

    def emissions(self, spark, as_of=None):
        rows = committed(spark, self.ledger(), "emissions", as_of).drop("_result_time")
        return Counter(map(tuple, rows.collect()))


@pytest.fixture(scope="module")
def origin(spark, tmp_path_factory):
    """Six slices from three jobs; rows landed late for slice 1, then reprocessed. What readers saw, by job."""
    lake = tmp_path_factory.mktemp("orders")
    orders, seen = Orders(lake, write_pipeline(lake / "orders.yaml")), []
    orders.land(spark, *range(10, 240, 20))
    for hour in (2, 4):
        orders.run(spark, end=at(hour))
        seen.append(orders.emissions(spark))
    orders.land(spark, 115, *range(250, 360, 20))
    orders.run(spark, end=at(6))
    seen.append(orders.emissions(spark))
    orders.run(spark, reprocess=True, start=at(1), end=at(2))
    seen.append(orders.emissions(spark))
    return orders, seen


@pytest.fixture
def orders(origin, tmp_path):
    """A copy of it."""
    copy = tmp_path / "copy"
    shutil.copytree(origin[0].lake, copy)
    return Orders(copy, load_pipeline(copy / "orders.yaml"))


@pytest.fixture
def state(orders, capsys):
    """Run `tidemark state`; gives the exit code and what it tells scripts."""

    def run(*arguments):
        command, *rest = arguments
        code = main(["state", command, str(orders.lake / "orders.yaml"), "--lake", str(orders.lake), *rest, "--json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else " ".join(printed.err.split())

    return run


def checkpoint(spark, orders):
    return DeltaTable.forPath(spark, orders.tables.checkpoint)


def kept(orders):
    return set(map(run_of, DeltaLog.open(orders.tables.checkpoint).files["path"]))


def test_emissions_as_of_a_watermark_are_what_readers_saw(spark, origin):
    orders, seen = origin
    ledger = orders.ledger()
    marks = {number: entry.watermarks.combined for number, entry in ledger.entries.items()}
    assert [orders.emissions(spark, as_of=marks[number]) for number in (1, 3, 5)] == [seen[0], seen[1], seen[3]]
    assert seen[2] != seen[3], "reprocessing has changed something"
    assert orders.emissions(spark) == seen[3]
    first = Counter(
        {
            row: count
            for row, count in seen[0].items()
            if START in [v.astimezone(UTC) for v in row if isinstance(v, datetime)]
        }
    )
    inside_of_the_job = orders.emissions(spark, as_of=datetime.fromtimestamp(marks[0] / 1000, UTC))
    assert 0 < inside_of_the_job.total() == first.total() < seen[0].total()
    assert orders.emissions(spark, as_of=marks[0] - 1).total() == 0


def test_show(spark, orders, state):
    code, told = state("show", "--rows", "3")
    last = orders.ledger().last
    assert code == 0
    assert (told["at"], told["digest"], told["kept"]) == (label(6), last.digest, True)
    assert (told["left"]["rows"], told["right"]["rows"]) == last.carried != (0, 0)
    assert told["left"]["bytes"] > 0
    assert told["left"]["oldest"] < told["left"]["newest"] < told["at"]
    assert told["watermarks"]["combined"] == told["watermarks"]["left"]
    assert [row["side"] for row in told["sample"]] == ["left"] * 3
    assert state("show", "--at", label(4))[1]["run"] != told["run"]
    assert state("show", "--at", label(9)) == (
        2,
        f"error: --at {label(9)}: no committed slice ends there; they end at {label(1)} to {label(6)}",
    )


def test_verify_and_what_it_says_of_a_row_that_is_missing(spark, orders, state):
    code, told = state("verify")
    assert (code, told["same"], told["since"], told["slices"]) == (0, True, label(0), 6)
    code, told = state("verify", "--at", label(6), "--from", label(5))
    assert (code, told["same"], told["slices"], told["jobs"]) == (0, True, 1, 1)
    checkpoint(spark, orders).delete((F.col("carried_until") == F.lit(at(6))) & (F.col("left.k") == "b"))
    code, told = state("verify", "--from", label(5))
    assert (code, told["same"], told["first_different"], told["only_stored"]) == (1, False, None, 0)
    assert told["only_rebuilt"] == len(told["rows"]) > 0
    assert {(row["only"], row["side"], row["row"]["k"]) for row in told["rows"]} == {("rebuilt", "left", "b")}


def test_verify_says_so_when_what_was_read_is_gone(spark, orders, state):
    left = str(orders.lake / "left")
    whole = spark.read.format("delta").load(left).coalesce(1)
    whole.write.format("delta").mode("overwrite").option("dataChange", "false").save(left)
    [live] = spark.read.format("delta").load(left).inputFiles()
    for path in Path(left).glob("*.parquet"):  # as VACUUM does, which takes a minute
        if not live.endswith(path.name):
            path.unlink()
    code, told = state("verify")
    assert code == 2
    assert f"version 0 of left or 0 of right, which slice {label(0)} has read, is gone" in told


def test_what_expires_is_rebuilt_and_no_plan_has_to(spark, orders, state):
    orders.land(spark, 185)
    before = [make_plan(spark, orders.pipeline, str(orders.lake), Request(**ask)).describe()
              for ask in ({"end": at(7)}, {"reprocess": True})]  # fmt: skip
    ledger, there = orders.ledger(), kept(orders)
    needed = {ledger.entry(number).run for number in (2, 5)}
    assert state("expire") == (2, "error: say what to keep: --keep N, --older-than DURATION, or both")
    assert state("expire", "--older-than", "1 day")[1]["removed"] == []
    code, told = state("expire", "--keep", "1", "--dry-run")
    assert (code, set(told["removed"])) == (0, there - needed)
    assert kept(orders) == there
    assert state("expire", "--keep", "1")[1]["removed"] == told["removed"] != []
    assert kept(orders) == needed
    assert check(orders.pipeline, str(orders.lake)).findings == (), "what has expired is no damage"
    after = [make_plan(spark, orders.pipeline, str(orders.lake), Request(**ask)).describe()
             for ask in ({"end": at(7)}, {"reprocess": True})]  # fmt: skip
    assert after == before
    assert after[1]["segments"][0]["from"] == label(3)

    assert state("show", "--at", label(1))[1]["kept"] is False
    code, told = state("restore", "--at", label(1), "--to", "copy_of_1")
    assert (code, told["rebuilt"]) == (0, True)
    copy = spark.read.format("delta").load(str(orders.lake / "copy_of_1"))
    assert (copy.where("side = 'left'").count(), copy.where("side = 'right'").count()) == ledger.entry(0).carried
    assert state("restore", "--to", "copy_of_1")[1].endswith(
        "there is a table already; remove it, or name another place"
    )
    code, told = state("restore", "--to", "copy_of_6")
    assert (code, told["rebuilt"], told["left"] + told["right"]) == (0, False, sum(ledger.last.carried))
    assert spark.read.format("delta").load(str(orders.lake / "copy_of_6")).where("arrived_at < event_time").count() == 0
    assert state("verify", "--at", label(2))[1]["kept"] is False


def test_a_checkpoint_that_expires_while_a_job_is_at_it_is_still_read(spark, orders):
    ledger = orders.ledger()
    carried = restore(spark, orders.tables, ledger.last.number, ledger.grid)
    checkpoint(spark, orders).delete()
    assert carried.count() == sum(ledger.last.carried) > 0


def test_export_for_flink(spark, orders, state, tmp_path):
    code, told = state("export", "--to", str(tmp_path / "export"))
    entry = orders.ledger().last
    assert (code, told["query"], told["watermarks_ms"]["combined"]) == (0, None, entry.watermarks.combined)
    left = spark.read.format("delta").load(f"{told['folder']}/left")
    assert (left.columns, left.count()) == (["k", "happened", "arrived", "v", "_tidemark"], entry.carried[0])
    assert left.where("_tidemark.time <> happened").count() == 0
    assert "Not promised" in Path(told["folder"], "README.md").read_text()
    assert state("export", "--to", str(tmp_path / "export"))[1].endswith("is not empty; name a new folder")
    assert "not a folder on this machine" in state("export", "--to", "s3://bucket/export")[1]


def test_what_people_read(orders, capsys):
    arguments = [str(orders.lake / "orders.yaml"), "--lake", str(orders.lake)]
    assert main(["state", "show", *arguments, "--rows", "1"]) == 0
    shown = capsys.readouterr().out
    assert f"State of orders at {label(6)}" in shown
    assert "event times 2024-01-01T05:" in shown
    assert '"k": "' in shown
    assert main(["state", "expire", *arguments, "--keep", "1", "--dry-run"]) == 0
    assert "checkpoints would be removed, " in capsys.readouterr().out


def test_what_people_read_of_a_checkpoint_that_differs():
    row = {"only": "stored", "side": "left", "event_time": label(1), "row": {"v": 7}}
    facts = {"since": label(0), "slices": 2, "jobs": 1, "digest": "a", "rebuilt_digest": "b", "kept": True}
    told = Verified("orders", label(2), **facts, first_different=label(1), only_stored=1, only_rebuilt=0, rows=[row])
    console = Console(width=100)
    with console.capture() as shown:
        console.print(verified_view(told))
    assert "the checkpoint is not what the inputs come to" in shown.get()
    assert 'stored left {"v": 7}' in shown.get()


@pytest.mark.parametrize("command", [[], ["show"], ["verify"], ["restore"], ["expire"], ["export"]])
def test_every_command_has_an_example(command, capsys):
    assert main(["state", *command, "--help"]) == 0
    assert f"Example: tidemark state {' '.join(command)}" in capsys.readouterr().out
