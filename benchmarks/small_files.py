"""What thousands of small files cost a reader and a commit, and what `tidemark compact` gives back.

Slices are committed by reference, as a job commits them; what a job computes is left out. Then the emissions are read
as they are, after compaction, and beside a table of the same rows in daily files, and more slices are committed.

Usage: python -m benchmarks.small_files [--slices 2000] [--rows 465] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import yaml
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from tidemark.cli.status import status_of
from tidemark.clock.slices import Grid
from tidemark.commits.compact import merge_files, plan_compaction
from tidemark.commits.ledger import Counts, Entry, Ledger
from tidemark.commits.references import References, publish
from tidemark.commits.runs import FOLDER, new_run
from tidemark.commits.sound import check
from tidemark.delta.lake import PipelineTables
from tidemark.delta.log import DeltaLog, Opened, arrow_columns, create_table
from tidemark.delta.staging import stage_table
from tidemark.settings import Pipeline, load_pipeline
from tidemark.spark.session import spark_session
from tidemark.watermarks.buckets import Watermarks

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOURS = 24
AROUND = 5
"""The commits whose median counts, before and after a slice."""
_TIMES = {"event_time": "happened", "arrival": "arrived", "watermark_delay": "1 minute"}
PIPELINE = {
    "name": "hourly",
    "dialect": "flink-datastream",
    "left": {"table": "left", **_TIMES},
    "right": {"table": "right", **_TIMES},
    "join": {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "0 seconds"}},
    "slices": {"every": "1 hour", "start": "2024-01-01T00:00:00Z"},
    "compact": {"after": "0 seconds", "into": "1 day"},
}


def main() -> None:
    """Commit slices, read them, compact them, read them again; print what each took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_files", description=__doc__.partition("\n")[0])
    parser.add_argument("--slices", type=int, default=2000, help="of an hour each (default: %(default)s; a year: 8760)")
    parser.add_argument("--rows", type=int, default=465, help="of a slice (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each read; the median counts (default: %(default)s)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "hourly.yaml")
        file.write_text(yaml.safe_dump(PIPELINE))
        pipeline, tables = load_pipeline(file), PipelineTables(f"{folder}/hourly")
        commits = commit_slices(pipeline, tables, range(asked.slices), asked.rows)
        looked = looks(pipeline, folder)
        spark = spark_session("tidemark benchmark")
        daily = f"{folder}/daily"
        write_daily(spark, tables, daily)
        day = START + (asked.slices // HOURS // 2) * DAY
        before = reads(spark, tables.emissions, day, asked.rounds)
        beside = reads(spark, daily, day, asked.rounds)
        began, planned = time.monotonic(), plan_compaction(pipeline, folder)
        for one in planned.merges:
            assert merge_files(spark, planned, one), "nobody else commits"
        compacted = time.monotonic() - began
        after = reads(spark, tables.emissions, day, asked.rounds)
        files = {path: len(opened(path).files) for path in (tables.emissions, daily)}
        looked_after, kept = looks(pipeline, folder), logs(tables)
        more = commit_slices(pipeline, tables, range(asked.slices, asked.slices + 2 * AROUND), asked.rows)
    show(asked, before, after, beside, (asked.slices, *files.values()))
    show_commits(commits, more)
    Console().print(f"compaction: {len(planned.merges)} merges in {compacted:.1f} s")
    for name, seconds in looked.items():
        Console().print(f"{name}: {seconds:.2f} s, and {looked_after[name]:.2f} s once compacted")
    for name, size in kept.items():
        Console().print(f"log of {name}: {size / asked.slices / 1024:.1f} KiB a slice")


def commit_slices(pipeline: Pipeline, tables: PipelineTables, slices: range, rows: int) -> list[float]:
    """Commit slices one by one; how many seconds each commit took, the ledger's and the tables'."""
    grid, seconds = Grid.of(pipeline.slices), []
    known = Ledger.read(tables, grid)
    if known.last is None:
        create_table(tables.emissions, arrow_columns(emitted(grid, 0, rows).schema), change_feed=True)
    open_ones: Opened = {}
    for number in slices:
        run = new_run(grid, number, 1, known.number + 1)
        staged = stage_table(emitted(grid, number, rows), tables.emissions, f"{FOLDER}{run}/0")
        entry = entry_of(pipeline, number, run)
        began = time.monotonic()
        references = References({"emissions": staged.files})
        told = {"pipeline": pipeline.name, "committed_at": datetime.now(UTC), "emissions": rows, "findings": "[]"}
        row = known.row(entry) | told
        counts = {"read": rows, "carried_in": 0, "late": 0, "rejected": 0, "evicted": rows, "carried_out": 0}
        known.commit([row | {"left": counts, "right": counts}], number + 1, references, {}, open_ones)
        publish(tables, grid, number + 1, references, open_ones)
        seconds.append(time.monotonic() - began)
        known = known.after([entry])
    return seconds


def emitted(grid: Grid, number: int, rows: int) -> pa.Table:
    """The emissions of a slice."""
    values = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
    start = pa.array([grid.datetime_of(number)] * rows, pa.timestamp("us", "UTC"))
    keys = pa.array([f"key {value % 97}" for value in range(rows)])
    return pa.table({"left_k": keys, "left_v": values, "right_k": keys, "right_v": values, "_slice": start})


def entry_of(pipeline: Pipeline, number: int, run: str) -> Entry:
    """A committed slice that carries nothing over."""
    counts = Counts.of(0, 0, 0, 0, 0)
    return Entry(
        number, run, 1, number + 1, str(pipeline.semantic_settings()), (0, 0), Watermarks(), (0, 0), (0, 0),
        drained=False, counts=(counts, counts),
    )  # fmt: skip


def opened(path: str) -> DeltaLog:
    """A table that is there."""
    log = DeltaLog.open(path)
    assert log is not None, path
    return log


def looks(pipeline: Pipeline, lake: str) -> dict[str, float]:
    """Seconds of what looks at all slices without a JVM."""
    asked = {"status": lambda: status_of(pipeline, lake), "verify": lambda: check(pipeline, lake)}
    return {name: median(look, 1) for name, look in asked.items()}


def logs(tables: PipelineTables) -> dict[str, int]:
    """Bytes of the logs, commits and checkpoints."""
    found = {"emissions": tables.emissions, "the ledger": tables.ledger}
    return {
        name: sum(file.stat().st_size for file in Path(path, "_delta_log").iterdir()) for name, path in found.items()
    }


def write_daily(spark: SparkSession, tables: PipelineTables, path: str) -> None:
    """The same rows in a file a day."""
    rows = spark.read.format("delta").load(tables.emissions)
    daily = rows.selectExpr("*", "date(_slice) AS day").repartition("day").sortWithinPartitions("_slice", "left_k")
    daily.write.format("delta").partitionBy("day").save(path)


def reads(spark: SparkSession, path: str, day: datetime, rounds: int) -> dict[str, float]:
    """Median seconds of a plain read of all rows, by a sum that no statistics answer, and of those of a day."""

    def everything() -> None:
        spark.read.format("delta").load(path).agg({"left_v": "sum"}).collect()

    def one_day() -> None:
        within = f"_slice >= '{day:%Y-%m-%d}' AND _slice < '{day + DAY:%Y-%m-%d}'"
        spark.read.format("delta").load(path).where(within).agg({"left_v": "sum"}).collect()

    return {"all rows": median(everything, rounds), "a day": median(one_day, rounds)}


def median(read: Callable[[], None], rounds: int) -> float:
    """The median seconds of a call, which has been made once before."""
    taken = []
    for _ in range(rounds + 1):
        began = time.monotonic()
        read()
        taken.append(time.monotonic() - began)
    return statistics.median(taken[1:])


def show(
    asked: argparse.Namespace,
    before: dict[str, float],
    after: dict[str, float],
    beside: dict[str, float],
    files: tuple[int, ...],
) -> None:
    """The reads, in seconds and as ratios to daily files."""
    table = Table("read", title=f"{asked.slices:,} slices of {asked.rows:,} rows, seconds (to daily files)")
    small, merged, daily = files
    for head in (f"{small:,} files", f"compacted, {merged:,}", f"daily, {daily:,}"):
        table.add_column(head, justify="right")
    for name, least in beside.items():
        table.add_row(name, *(f"{one[name]:.2f} ({one[name] / least:.1f})" for one in (before, after)), f"{least:.2f}")
    Console().print(table)


def show_commits(before: list[float], after: list[float]) -> None:
    """How commits grow, by the medians of the ten around each, and what they take once the tables are compacted."""
    around = before[100 - AROUND : 100 + AROUND], before[-2 * AROUND :], after
    hundredth, last, then = (statistics.median(one or before) * 1000 for one in around)
    Console().print(
        f"commit by reference: {hundredth:.0f} ms at the hundredth slice, {last:.0f} ms at the last "
        f"({last / hundredth:.1f}), {then:.0f} ms once compacted ({then / hundredth:.1f})"
    )


if __name__ == "__main__":
    main()
