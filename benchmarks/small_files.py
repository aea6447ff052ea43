"""Measure readers and commits after a year of hourly slices, with maintenance and without.

Slices are committed by reference, as by a job, but nothing is computed. After each day of slices the emissions of that
day are compacted, as by the maintenance DAG, and log files older than a month are removed (`--neglected`: neither). The
year passes within an hour, so retention of a week is reduced to the time that a week's slices take. Then the emissions
and a table of the same rows in daily files are read in turns, and slices are committed in turns here and in a lake of a
hundred slices.

Usage: python -m benchmarks.small_files [--slices 2000] [--rows 465] [--rounds 3] [--neglected]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from math import ceil
from pathlib import Path

import pyarrow as pa
import yaml
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from tidemark.cli.status_summary import summarize_status
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.sides import SIDES
from tidemark.delta.log_files import truncate_log
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.schemas import to_spark_schema
from tidemark.delta.staging import stage_arrow_table
from tidemark.delta.table import DeltaTableHandle, OpenTables, create_internal_table, create_table
from tidemark.integrity.check import check_integrity
from tidemark.ledger.config_fingerprint import serialize_settings
from tidemark.ledger.entry import Counts, Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.transaction import LedgerTransaction
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.session import get_spark_session
from tidemark.tables.run_files import FOLDER, create_run_name
from tidemark.tables.table_changes import TableChanges
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.values import Watermarks

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOURS = 24
YOUNG_LAKE_SLICES, COMMIT_TURNS = 100, 100
COMMITS_PER_MONTH = 30 * (HOURS + 1)
"""Commits of a table in a month, compaction included."""
TIME = pa.timestamp("us", "UTC")
_TIMES = {"event_time": "happened", "arrival": "arrived", "watermark_delay": "1 minute"}
PIPELINE = {
    "name": "hourly",
    "dialect": "flink-datastream",
    "left": {"table": "left", **_TIMES},
    "right": {"table": "right", **_TIMES},
    "join": {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "0 seconds"}},
    "slices": {"every": "1 hour", "start": "2024-01-01T00:00:00Z"},
    "compact": {"settled_after": "0 seconds", "period": "1 day"},
}


def main() -> None:
    """Commit slices, maintain and read the tables, commit more; print the seconds of each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_files", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--slices", type=int, default=2000, help="slices of an hour (default: %(default)s; a year: 8760)"
    )
    parser.add_argument("--rows", type=int, default=465, help="rows per slice (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of each read; the median counts (default: %(default)s)"
    )
    parser.add_argument("--neglected", action="store_true", help="without compaction, with all log files")
    arguments = parser.parse_args()
    spark = get_spark_session("tidemark benchmark")
    with tempfile.TemporaryDirectory() as folder:
        young = TestLake.create(f"{folder}/young", arguments.rows)
        young.commit(YOUNG_LAKE_SLICES)
        old = TestLake.create(f"{folder}/old", arguments.rows)
        maintenance_seconds = add_days(spark, old, arguments.slices, neglected=arguments.neglected)
        daily = f"{folder}/daily"
        write_daily(spark, old.tables, daily)
        day = START + (arguments.slices // HOURS // 2) * DAY
        table_paths = {"here": old.tables.emissions, "daily": daily}
        read_seconds = time_reads(spark, table_paths, day, arguments.rounds)
        files = {name: len(open_table(path).files) for name, path in table_paths.items()}
        command_seconds, log_sizes = time_commands(spark, old), measure_logs(old.tables)
        commits = commit_in_turns(young, old)
    print_reads(arguments, read_seconds, files)
    print_line = Console().print
    print_line(
        f"commit by reference: {format_commits(commits, 'young')} after {YOUNG_LAKE_SLICES} slices, "
        f"{format_commits(commits, 'old')} after all"
    )
    print_line(
        f"maintenance: {len(maintenance_seconds)} days in {sum(maintenance_seconds):.0f} s"
        if maintenance_seconds
        else "maintenance: none"
    )
    for name, seconds in command_seconds.items():
        print_line(f"{name}: {seconds:.2f} s")
    for name, size in log_sizes.items():
        print_line(f"log of {name}: {size / arguments.slices / 1024:.1f} KiB a slice")


@dataclass
class TestLake:
    """A pipeline's tables, with a number of committed slices."""

    pipeline: Pipeline
    tables: PipelineTables
    rows: int
    """Rows per slice."""
    slices: int = 0

    @classmethod
    def create(cls, folder: str, rows: int) -> TestLake:
        """Create inputs without rows, and no slices."""
        for side in SIDES:
            columns = {"k": pa.string(), "v": pa.int64(), **dict.fromkeys(("happened", "arrived"), TIME)}
            create_internal_table(f"{folder}/{side}", pa.schema(columns))
        file = Path(folder, "hourly.yaml")
        file.write_text(yaml.safe_dump(PIPELINE))
        return cls(load_pipeline(file), PipelineTables(f"{folder}/hourly"), rows)

    @property
    def lake(self) -> str:
        """Folder of the lake."""
        return str(Path(self.tables.root).parent)

    def commit(self, count: int) -> list[float]:
        """Commit further slices, and return the seconds of each."""
        self.slices += count
        return commit_slices(self.pipeline, self.tables, range(self.slices - count, self.slices), self.rows)


def add_days(spark: SparkSession, lake: TestLake, slices: int, *, neglected: bool) -> list[float]:
    """Commit slices day by day, and return the seconds of maintenance after each day."""
    seconds = list[float]()
    while lake.slices < slices:
        committed = lake.commit(min(HOURS, slices - lake.slices))
        if neglected:
            continue
        if not seconds:
            week = timedelta(days=7) / timedelta(hours=1) * statistics.mean(committed)
            for path in (lake.tables.emissions, lake.tables.ledger):
                open_table(path).set_removed_file_retention(timedelta(seconds=ceil(week)))
        began, plan = time.monotonic(), plan_compaction(lake.pipeline, lake.lake)
        for merge in plan.merges:
            assert merge_files(spark, plan, merge), "no other process commits"
        table = open_table(lake.tables.emissions)
        if (first_version := table.version - COMMITS_PER_MONTH) > 0:
            truncate_log(table, first_version)
        seconds.append(time.monotonic() - began)
    return seconds


def commit_in_turns(young: TestLake, old: TestLake) -> dict[str, list[float]]:
    """Commit to both lakes in turns, so that other load affects both, and return the seconds.

    Each commit opens the tables, as an hourly job does. The commits span one interval between log checkpoints.
    """
    seconds = {"young": list[float](), "old": list[float]()}
    for _ in range(COMMIT_TURNS):
        seconds["young"] += young.commit(1)
        seconds["old"] += old.commit(1)
    return seconds


def commit_slices(pipeline: Pipeline, tables: PipelineTables, slices: range, rows: int) -> list[float]:
    """Commit slices one by one, and return the seconds of each commit to ledger and tables."""
    grid, seconds = Grid.from_config(pipeline.slices), []
    ledger = Ledger.read(tables, grid)
    if ledger.last is None:
        create_table(tables.emissions, to_spark_schema(create_emissions(grid, 0, rows).schema), change_feed=True)
    open_tables: OpenTables = {}
    for number in slices:
        run = create_run_name(grid, number, 1, ledger.number + 1)
        staged = stage_arrow_table(create_emissions(grid, number, rows), tables.emissions, f"{FOLDER}{run}/0")
        entry = create_entry(pipeline, number, run)
        began = time.monotonic()
        changes = TableChanges({"emissions": staged.files})
        columns = {
            "pipeline": pipeline.name,
            "committed_at": datetime.now(UTC),
            "emissions": rows,
            "quality_results": "[]",
        }
        row = entry.to_row(grid) | columns
        counts = {"read": rows, "carried_in": 0, "late": 0, "rejected": 0, "evicted": rows, "carried_out": 0}
        transaction = LedgerTransaction(ledger, number + 1, changes, {}, open_tables)
        transaction.commit([row | {"left": counts, "right": counts}])
        seconds.append(time.monotonic() - began)
        ledger = ledger.with_entries([entry])
    return seconds


def create_emissions(grid: Grid, number: int, rows: int) -> pa.Table:
    """Create the emissions of a slice."""
    values = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
    start = pa.array([grid.datetime_of(number)] * rows, TIME)
    keys = pa.array([f"key {value % 97}" for value in range(rows)])
    return pa.table({"left_k": keys, "left_v": values, "right_k": keys, "right_v": values, "_slice": start})


def create_entry(pipeline: Pipeline, number: int, run: str) -> Entry:
    """Create the entry of a committed slice without carried rows."""
    counts = Counts.with_remaining_evicted(0, 0, 0, 0, 0)
    return Entry(
        number, run, 1, number + 1, serialize_settings(pipeline), (0, 0), Watermarks(), (0, 0), (0, 0),
        drained=False, counts=(counts, counts),
    )  # fmt: skip


def open_table(path: str) -> DeltaTableHandle:
    """Open an existing table."""
    handle = DeltaTableHandle.open(path)
    assert handle is not None, path
    return handle


def time_commands(spark: SparkSession, test_lake: TestLake) -> dict[str, float]:
    """Measure the commands that read all slices."""
    pipeline, lake = test_lake.pipeline, test_lake.lake
    commands = {
        "status": lambda: summarize_status(pipeline, lake),
        "plan": lambda: create_plan(spark, pipeline, lake, Request()),
        "verify": lambda: check_integrity(pipeline, lake),
    }
    return {name: time_call(command, 1) for name, command in commands.items()}


def measure_logs(tables: PipelineTables) -> dict[str, int]:
    """Return the bytes of the Delta logs, commits and checkpoints."""
    paths = {"emissions": tables.emissions, "the ledger": tables.ledger}
    return {
        name: sum(file.stat().st_size for file in Path(path, "_delta_log").iterdir()) for name, path in paths.items()
    }


def write_daily(spark: SparkSession, tables: PipelineTables, path: str) -> None:
    """Write the same rows with a file per day."""
    rows = spark.read.format("delta").load(tables.emissions)
    daily = rows.selectExpr("*", "date(_slice) AS day").repartition("day").sortWithinPartitions("_slice", "left_k")
    daily.write.format("delta").partitionBy("day").save(path)


def time_reads(spark: SparkSession, paths: dict[str, str], day: datetime, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of plain reads of all rows and of a day, by a sum that statistics cannot answer.

    The tables are read in turns, each time in a new session, so that it reads the log as a first query does.
    """
    is_in_day = f"_slice >= '{day:%Y-%m-%d}' AND _slice < '{day + DAY:%Y-%m-%d}'"
    seconds: dict[str, dict[str, list[float]]] = {"all rows": {}, "a day": {}}
    for _ in range(rounds + 1):
        for (read, by_table), (name, path) in product(seconds.items(), paths.items()):
            began = time.monotonic()
            rows = spark.newSession().read.format("delta").load(path)
            (rows.where(is_in_day) if read == "a day" else rows).agg({"left_v": "sum"}).collect()
            by_table.setdefault(name, []).append(time.monotonic() - began)
    return {
        read: {name: statistics.median(values[1:]) for name, values in by_table.items()}
        for read, by_table in seconds.items()
    }


def time_call(read: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of a call, after a warm-up call."""
    seconds = []
    for _ in range(rounds + 1):
        began = time.monotonic()
        read()
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds[1:])


def print_reads(
    arguments: argparse.Namespace, seconds_by_read: dict[str, dict[str, float]], files: dict[str, int]
) -> None:
    """Print the reads, in seconds and as ratios to daily files."""
    table = Table("read", title=f"{arguments.slices:,} slices of {arguments.rows:,} rows, seconds (to daily files)")
    for name, count in files.items():
        table.add_column(f"{name}, {count:,} files", justify="right")
    for read, seconds in seconds_by_read.items():
        table.add_row(read, *(f"{value:.2f} ({value / seconds['daily']:.1f})" for value in seconds.values()))
    Console().print(table)


def format_commits(commits: dict[str, list[float]], name: str) -> str:
    """Format the median of commits, and its ratio to the young lake."""
    medians = {lake: statistics.median(seconds) for lake, seconds in commits.items()}
    return f"{medians[name] * 1000:.0f} ms ({medians[name] / medians['young']:.1f})"


if __name__ == "__main__":
    main()
