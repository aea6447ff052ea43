"""Flink SQL from PyPI, in its own virtual environment, over the Parquet files of the same Delta tables."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow.parquet as pq
import pyspark

from benchmarks.cases import DELAY
from benchmarks.data import COLUMNS
from benchmarks.flink_format import fetch_parquet_format
from benchmarks.peers.peer import Peer, Work
from jobs.flink_java import FLINK, PROJECT
from tidemark.config.sides import SIDES

TYPES = {"key": "BIGINT", "at": "TIMESTAMP_LTZ(6)", "value": "DOUBLE", "id": "BIGINT", "seen": "TIMESTAMP_LTZ(6)"}
SPARK_JARS = ("hadoop-client-api", "hadoop-client-runtime", "zstd-jni")
FILES = (
    "WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true', "
    "'parquet.write.int64.timestamp' = 'true', 'parquet.compression' = 'ZSTD')"
)
INPUT = (
    "CREATE TABLE {side}_rows ({columns}, ts AS CAST(`at` AS TIMESTAMP_LTZ(3)), "
    "WATERMARK FOR ts AS ts - {delay}) {files}"
)
QUERY = (
    "INSERT INTO answer SELECT {columns} FROM left_rows l JOIN right_rows r ON l.`key` = r.`key` "
    "AND r.ts BETWEEN l.ts - {low} AND l.ts + {high}"
)


class Flink(Peer):
    """An interval join in one of Flink's execution modes."""

    uses_spark, has_own_process = False, True

    def __init__(self, mode: Literal["batch", "streaming"]) -> None:
        self.mode = mode
        self.name = f"flink {mode}"
        self.description = f"Flink 2.3 SQL in {mode} mode" + (
            ", rows in order of arrival" if mode == "streaming" else ""
        )

    def prepare(self, work: Work) -> None:
        """Fetch the format once. For a stream, sort the rows by arrival into a file per side, which one task reads."""
        fetch_parquet_format()
        if self.mode == "streaming":
            for side in SIDES:
                path = Path(self._input_path(work, side))
                path.mkdir()
                pl.scan_delta(work.get_input_path(side)).sort("seen").sink_parquet(path / "rows.parquet")

    def run(self, work: Work) -> None:
        """Run the query to its end, Flink's start included.

        Raises:
            RuntimeError: Flink failed.
        """
        query = {"mode": self.mode, "settings": self._settings(), "statements": list(self._statements(work))}
        path = work.lake / f"{work.output}.json"
        path.write_text(json.dumps(query), encoding="utf-8")
        command = [FLINK, PROJECT / "jobs" / "flink_process.py", path]
        process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the project's own
        if process.returncode:
            causes = [line for line in process.stderr.splitlines() if line.startswith("Caused by: ")]
            raise RuntimeError(causes[-1] if causes else f"Flink ended with exit code {process.returncode}")

    def count_output(self, work: Work) -> dict[str, float]:
        """Count the rows of the written files."""
        files = (path for path in Path(work.output_path).iterdir() if not path.name.startswith((".", "_")))
        return {"rows": sum(pq.read_metadata(path).num_rows for path in files)}

    def _settings(self) -> dict[str, str]:
        jar_folder = Path(pyspark.__file__).parent / "jars"
        # Flink's format lacks Hadoop's classes and the compression; Spark has both.
        spark_jars = [next(jar_folder.glob(f"{name}-*.jar")) for name in SPARK_JARS]
        return {
            "pipeline.jars": ";".join(path.as_uri() for path in (fetch_parquet_format(), *spark_jars)),
            "parallelism.default": str(os.cpu_count()),
            "table.local-time-zone": "UTC",
            "taskmanager.memory.managed.size": "1g",
        }

    def _statements(self, work: Work) -> Iterator[str]:
        columns = ", ".join(f"`{name}` {TYPES[name]}" for name in COLUMNS)
        for side in SIDES:
            files = FILES.format(path=self._input_path(work, side))
            yield INPUT.format(
                side=side, columns=columns, delay=_format_interval(DELAY // timedelta(milliseconds=1)), files=files
            )
        columns = ", ".join(f"{side}_{name} {TYPES[name]}" for side in SIDES for name in COLUMNS)
        yield f"CREATE TABLE answer ({columns}) {FILES.format(path=work.output_path)}"
        low, high = work.case.shape.interval_ms
        columns = ", ".join(f"{side[0]}.`{name}`" for side in SIDES for name in COLUMNS)
        yield QUERY.format(columns=columns, low=_format_interval(-low), high=_format_interval(high))

    def _input_path(self, work: Work, side: str) -> str:
        return work.get_input_path(f"{side}_by_arrival" if self.mode == "streaming" else side)


def _format_interval(ms: int) -> str:
    """Format an interval of less than a day in SQL."""
    return f"INTERVAL '0 {timedelta(seconds=ms // 1000)}.{ms % 1000:03}' DAY TO SECOND(3)"
