"""Measure what a chain of two joins costs, as a multiple of two joins of tables.

The joins of tables read the same inputs, and each has a process. The chain runs by two commands, and by one command
with --upstream. All runs of a round follow one another, and ratios are those of one round.

Usage: python -m benchmarks.chain [--rows 1000000] [--rounds 2]
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.data import START, Shape, generate_rows
from benchmarks.measure import measure
from tidemark.config.types import format_duration, format_instant
from tidemark.spark.session import get_spark_session

TABLES = "orders", "payments", "shipments"
JOIN_TYPES = {"flink-datastream": "inner", "flink-sql": "left"}
RUNS = {
    "two joins of tables": (("table_first",), ("table_second",)),
    "chain, two commands": (("first",), ("second",)),
    "chain, --upstream": (("second", "--upstream"),),
}
"""Commands of each run: the pipeline and options."""


def write_tables(lake: Path, shape: Shape) -> None:
    """Write the inputs."""
    spark = get_spark_session("benchmark")
    for seed, table in enumerate(TABLES):
        generate_rows(spark, shape, 10 * seed).write.format("delta").save(str(lake / table))
    spark.stop()


def write_pipelines(lake: Path, shape: Shape, dialect: str) -> None:
    """Write the pipeline files of all runs."""
    lower, upper = (format_duration(timedelta(milliseconds=ms)) for ms in shape.interval_ms)
    join = {"type": JOIN_TYPES[dialect], "keys": ["key"], "interval": {"lower": lower, "upper": upper}}
    orders, payments, shipments = (
        {"table": table, "event_time": "at", "arrival": "seen", "tiebreak": "id", "watermark_delay": "1 minute"}
        for table in TABLES
    )
    upstream = {"pipeline": "first", **({"event_time": "left"} if dialect == "flink-sql" else {})}
    second_join = {**join, "keys": [{"left": "left_key", "right": "key"}]}
    pipelines: dict[str, dict[str, Any]] = {
        "table_first": {"left": orders, "right": payments, "join": join},
        "table_second": {"left": orders, "right": shipments, "join": join},
        "first": {"left": orders, "right": payments, "join": join, "output_stream": True},
        "second": {"left": upstream, "right": shipments, "join": second_join},
    }
    slices = {"every": "1 hour", "start": format_instant(START)}
    for name, settings in pipelines.items():
        content = {"name": name, "dialect": dialect, "slices": slices, **settings}
        (lake / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def run_commands(lake: Path, commands: tuple[tuple[str, ...], ...], end: str) -> None:
    """Run pipelines from their beginning, a process each."""
    for pipeline in ("table_first", "table_second", "first", "second"):
        shutil.rmtree(lake / pipeline, ignore_errors=True)
    environment = os.environ | {"TIDEMARK_PIPELINES": str(lake)}
    for command in commands:
        arguments = ["tidemark", "run", *command, "--lake", str(lake), "--to", end]
        subprocess.run(arguments, env=environment, check=True, capture_output=True)  # noqa: S603 - the project's own


def main() -> None:
    """Measure chains of both dialects of Flink."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows per input (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds (default: %(default)s)")
    arguments = parser.parse_args()
    shape = Shape(arguments.rows)
    end = format_instant(START + shape.span)
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder)
        write_tables(lake, shape)
        for dialect in JOIN_TYPES:
            write_pipelines(lake, shape, dialect)
            figures: dict[str, list[dict[str, float]]] = {name: [] for name in RUNS}
            for _ in range(arguments.rounds):
                for name, commands in RUNS.items():
                    figures[name].append(measure(partial(run_commands, lake, commands, end)))
            baseline = figures["two joins of tables"]
            for name, runs in figures.items():
                seconds, cpu = (
                    median(run[unit] / first[unit] for run, first in zip(runs, baseline, strict=True))
                    for unit in ("seconds", "cpu_seconds")
                )
                wall = median(run["seconds"] for run in runs)
                print(f"{dialect:17} {name:20} {wall:6.1f} s, ratio {seconds:.2f}; CPU ratio {cpu:.2f}", flush=True)


if __name__ == "__main__":
    main()
