"""Fetch Flink's Parquet format, which its packages on PyPI lack, by Spark's resolver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

PACKAGE = "org.apache.flink:flink-sql-parquet:2.3.0"
IVY = Path(__file__).resolve().parents[1] / ".cache" / "ivy"


def fetch_parquet_format() -> Path:
    """Return the jar; fetch it once.

    Raises:
        CalledProcessError: The download failed.
    """
    jar = IVY / "jars" / f"{PACKAGE.replace(':', '_', 1).replace(':', '-')}.jar"
    if not jar.exists():
        command = [sys.executable, "-m", "benchmarks.flink_format"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - ours
    return jar


def main() -> None:
    """Let Spark resolve the package without its dependencies."""
    (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars.ivy", str(IVY))
        .config("spark.jars.packages", PACKAGE)
        .config("spark.jars.excludes", "com.*:*,org.slf4j:*")
        .getOrCreate()
        .stop()
    )


if __name__ == "__main__":
    main()
