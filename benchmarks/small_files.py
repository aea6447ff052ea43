"""What a year of hourly slices costs a reader and a commit, with upkeep and without.

Slices are committed by reference, as a job commits them; what a job computes is left out. After each day of slices the
emissions of that day are compacted, as the upkeep DAG does it, and logs end a month back (`--neglected`: neither). The
year passes within the hour: what a table keeps for a week is kept for as long as a week's slices take. Then the
emissions are read beside a table of the same rows in daily files, and slices are committed here and in a lake of a
hundred slices by turns.

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

from tidemark.cli.status import status_of
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.sides import SIDES
from tidemark.delta.log_files import shorten
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import stage_table
from tidemark.delta.table import DeltaLog, Opened, arrow_columns, create_arrow_table, create_table
from tidemark.integrity.check import check
from tidemark.ledger.config_fingerprint import settings_text
from tidemark.ledger.ledger import Counts, Entry, Ledger
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.session import spark_session
from tidemark.tables.run_files import FOLDER, new_run
from tidemark.tables.table_changes import References, publish
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.buckets import Watermarks

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOURS = 24
YOUNG, TURNS = 100, 100
MONTH = 30 * (HOURS + 1)
"""Commits of a table, those of compaction among them."""
TIME = pa.timestamp("us", "UTC")
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
    """Commit slices, look after them, read them, commit more; print what each took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_files", description=__doc__.partition("\n")[0])
    parser.add_argument("--slices", type=int, default=2000, help="of an hour each (default: %(default)s; a year: 8760)")
    parser.add_argument("--rows", type=int, default=465, help="of a slice (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each read; the median counts (default: %(default)s)")
    parser.add_argument("--neglected", action="store_true", help="never compact, and keep all logs")
    asked = parser.parse_args()
    spark = spark_session("tidemark benchmark")
    with tempfile.TemporaryDirectory() as folder:
        young = Lived.start(f"{folder}/young", asked.rows)
        young.commit(YOUNG)
        old = Lived.start(f"{folder}/old", asked.rows)
        upkeep = grow(spark, old, asked.slices, neglected=asked.neglected)
        daily = f"{folder}/daily"
        write_daily(spark, old.tables, daily)
        day = START + (asked.slices // HOURS // 2) * DAY
        read = {"here": old.tables.emissions, "daily": daily}
        taken = reads(spark, read, day, asked.rounds)
        files = {name: len(opened(path).files) for name, path in read.items()}
        looked, kept = looks(spark, old), logs(old.tables)
        commits = by_turns(young, old)
    show(asked, taken, files)
    print_line = Console().print
    print_line(f"commit by reference: {told(commits, 'young')} after {YOUNG} slices, {told(commits, 'old')} after all")
    print_line(f"upkeep: {len(upkeep)} days in {sum(upkeep):.0f} s" if upkeep else "upkeep: none")
    for name, seconds in looked.items():
        print_line(f"{name}: {seconds:.2f} s")
    for name, size in kept.items():
        print_line(f"log of {name}: {size / asked.slices / 1024:.1f} KiB a slice")


@dataclass
class Lived:
    """A pipeline's tables, and how many slices they have."""

    pipeline: Pipeline
    tables: PipelineTables
    rows: int
    """Of each slice."""
    slices: int = 0

    @classmethod
    def start(cls, folder: str, rows: int) -> Lived:
        """Inputs without rows, and no slice yet."""
        for side in SIDES:
            columns = {"k": pa.string(), "v": pa.int64(), **dict.fromkeys(("happened", "arrived"), TIME)}
            create_arrow_table(f"{folder}/{side}", pa.schema(columns))
        file = Path(folder, "hourly.yaml")
        file.write_text(yaml.safe_dump(PIPELINE))
        return cls(load_pipeline(file), PipelineTables(f"{folder}/hourly"), rows)

    @property
    def lake(self) -> str:
        """Its folder."""
        return str(Path(self.tables.root).parent)

    def commit(self, count: int) -> list[float]:
        """Commit so many more slices: how many seconds each took."""
        self.slices += count
        return commit_slices(self.pipeline, self.tables, range(self.slices - count, self.slices), self.rows)


def grow(spark: SparkSession, lived: Lived, slices: int, *, neglected: bool) -> list[float]:
    """Commit slices day by day: how many seconds the upkeep after each day took."""
    seconds = list[float]()
    while lived.slices < slices:
        committed = lived.commit(min(HOURS, slices - lived.slices))
        if neglected:
            continue
        if not seconds:
            week = timedelta(days=7) / timedelta(hours=1) * statistics.mean(committed)
            for path in (lived.tables.emissions, lived.tables.ledger):
                opened(path).keep_removed(timedelta(seconds=ceil(week)))
        began, planned = time.monotonic(), plan_compaction(lived.pipeline, lived.lake)
        for one in planned.merges:
            assert merge_files(spark, planned, one), "nobody else commits"
        log = opened(lived.tables.emissions)
        if (first := log.version - MONTH) > 0:
            shorten(log, first)
        seconds.append(time.monotonic() - began)
    return seconds


def by_turns(young: Lived, old: Lived) -> dict[str, list[float]]:
    """Seconds of commits to both, one after the other: what else the machine does meets both.

    Each opens the tables, as an hourly job does, and they go once around from checkpoint to checkpoint.
    """
    taken = {"young": list[float](), "old": list[float]()}
    for _ in range(TURNS):
        taken["young"] += young.commit(1)
        taken["old"] += old.commit(1)
    return taken


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
    start = pa.array([grid.datetime_of(number)] * rows, TIME)
    keys = pa.array([f"key {value % 97}" for value in range(rows)])
    return pa.table({"left_k": keys, "left_v": values, "right_k": keys, "right_v": values, "_slice": start})


def entry_of(pipeline: Pipeline, number: int, run: str) -> Entry:
    """A committed slice that carries nothing over."""
    counts = Counts.of(0, 0, 0, 0, 0)
    return Entry(
        number, run, 1, number + 1, settings_text(pipeline), (0, 0), Watermarks(), (0, 0), (0, 0),
        drained=False, counts=(counts, counts),
    )  # fmt: skip


def opened(path: str) -> DeltaLog:
    """A table that is there."""
    log = DeltaLog.open(path)
    assert log is not None, path
    return log


def looks(spark: SparkSession, lived: Lived) -> dict[str, float]:
    """Seconds of what looks at all slices."""
    pipeline, lake = lived.pipeline, lived.lake
    asked = {
        "status": lambda: status_of(pipeline, lake),
        "plan": lambda: make_plan(spark, pipeline, lake, Request()),
        "verify": lambda: check(pipeline, lake),
    }
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


def reads(spark: SparkSession, paths: dict[str, str], day: datetime, rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of plain reads of all rows, by a sum that no statistics answer, and of those of a day.

    The tables are read by turns. A session of its own for each read: as the first that a reader asks, it reads the log.
    """
    within = f"_slice >= '{day:%Y-%m-%d}' AND _slice < '{day + DAY:%Y-%m-%d}'"
    taken: dict[str, dict[str, list[float]]] = {"all rows": {}, "a day": {}}
    for _ in range(rounds + 1):
        for (what, of), (name, path) in product(taken.items(), paths.items()):
            began = time.monotonic()
            rows = spark.newSession().read.format("delta").load(path)
            (rows.where(within) if what == "a day" else rows).agg({"left_v": "sum"}).collect()
            of.setdefault(name, []).append(time.monotonic() - began)
    return {what: {name: statistics.median(one[1:]) for name, one in of.items()} for what, of in taken.items()}


def median(read: Callable[[], object], rounds: int) -> float:
    """The median seconds of a call, which has been made once before."""
    taken = []
    for _ in range(rounds + 1):
        began = time.monotonic()
        read()
        taken.append(time.monotonic() - began)
    return statistics.median(taken[1:])


def show(asked: argparse.Namespace, taken: dict[str, dict[str, float]], files: dict[str, int]) -> None:
    """The reads, in seconds and as ratios to daily files."""
    table = Table("read", title=f"{asked.slices:,} slices of {asked.rows:,} rows, seconds (to daily files)")
    for name, count in files.items():
        table.add_column(f"{name}, {count:,} files", justify="right")
    for what, of in taken.items():
        table.add_row(what, *(f"{seconds:.2f} ({seconds / of['daily']:.1f})" for seconds in of.values()))
    Console().print(table)


def told(commits: dict[str, list[float]], name: str) -> str:
    """The median of commits, and how many times that of the young lake it is."""
    middle = {one: statistics.median(taken) for one, taken in commits.items()}
    return f"{middle[name] * 1000:.0f} ms ({middle[name] / middle['young']:.1f})"


if __name__ == "__main__":
    main()
