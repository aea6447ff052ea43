"""The Spark session that every job runs in: Delta-enabled, UTC, sized for where it runs."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.errors import FaultError
from tidemark.spark.jvm import can_load

_PROJECT = Path(__file__).resolve().parents[3]

# Settings that Tidemark's queries rely on, local or on a cluster; all can be set at run time.
_QUERY_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Shuffled hash join where every partition's build side is small enough, sort-merge elsewhere: 1.8x on interval
    # joins, without the risk that a hash table outgrows its task (docs/decisions/0003-binned-join.md).
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64MB",
    "spark.sql.parquet.compression.codec": "zstd",
    # INT96, the default, takes longer to write and to read, and has no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A writer for the one run that a job writes, instead of sorting its rows by run.
    "spark.sql.maxConcurrentOutputFileWriters": "1",
    # Python call sites in Spark's errors cost three calls to the JVM for each function of a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # 50 by default; a snapshot of a pipeline's own table is small.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without the interface nobody reads what it would remember of a thousand jobs and a hundred thousand tasks.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.driver.memory": "4g",
    # Small hash tables stay in the processor's caches; Spark merges what is small.
    "spark.sql.shuffle.partitions": str(16 * (os.cpu_count() or 1)),
}

# On a busy machine a broadcast may wait minutes for a core, and a heartbeat too. Where the executor is this process,
# nothing is lost by patience; on a cluster it would take an hour to see that one is gone.
_PATIENCE = {
    "spark.sql.broadcastTimeout": "3600",
    "spark.network.timeout": "3600s",
    "spark.executor.heartbeatInterval": "60s",
}


def spark_session(app_name: str) -> SparkSession:
    """The running session, or a new one on `TIDEMARK_MASTER` (default `local[*]`), ready for Delta.

    Under spark-submit the master and the jars come from there. Delta's jars are looked for in `TIDEMARK_JARS`, else in
    `.jars` of the project.

    Raises:
        FaultError: Java or Delta's jars are missing.
    """
    builder = SparkSession.builder
    if not _submitted():
        builder = builder.appName(app_name)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        master = os.environ.get("TIDEMARK_MASTER", "local[*]")
        builder = builder.master(master)
        builder = builder.config("spark.jars", ",".join(map(str, delta_jars())))
        for key, value in (_LOCAL_SETTINGS | (_PATIENCE if master.startswith("local") else {})).items():
            builder = builder.config(key, value)
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
        "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    )
    for key, value in _QUERY_SETTINGS.items():
        builder = builder.config(key, value)
    _need_java()
    try:
        with _quiet_start():
            session = builder.getOrCreate()
    except PySparkException as error:
        raise FaultError(f"Spark did not start: {error.getMessage()}; see {_spark_log()}") from error
    session.sparkContext.setLogLevel("ERROR")
    # They print the stack of each error in a user's expression, which is told in one line.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    _need_delta(session)
    return session


def delta_jars() -> list[Path]:
    """Delta's jars on this machine.

    Raises:
        FaultError: they have not been fetched.
    """
    folder = Path(os.environ.get("TIDEMARK_JARS", _PROJECT / ".jars"))
    jars = sorted(folder.glob("*.jar"))
    if not any("delta-spark" in jar.name for jar in jars):
        raise FaultError(f"Delta's jars are not in {folder}; run 'make setup', or point TIDEMARK_JARS at them")
    return jars


def _need_delta(session: SparkSession) -> None:
    if not can_load(session, "io.delta.sql.DeltaSparkSessionExtension"):
        raise FaultError("Delta's jars were not submitted with this job; pass them with --jars, see 'make setup'")


def _submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkSession.getActiveSession() is not None


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Let a JVM that starts now write its standard error to a file: it greets with a dozen lines about itself."""
    if _submitted() or os.environ.get("TIDEMARK_DEBUG"):
        yield
        return
    with _spark_log().open("w") as log:
        terminal = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def _spark_log() -> Path:
    return Path(tempfile.gettempdir(), f"tidemark-spark-{os.getpid()}.log")


def _need_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and shutil.which("java") is None:
        raise FaultError("Java is not on this machine's PATH; install Java 17 (or set JAVA_HOME) and run again")
