"""Create the Spark session of a job: with Delta, in UTC, and with memory and cores for its master."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidemark.config.cluster import CONNECT_SCHEME, SPARK_SECRET_VARIABLE, Cluster
from tidemark.errors import FaultError
from tidemark.spark.connect_session import get_connect_session
from tidemark.spark.jvm import cache_jvm_lookups, can_load, enable_warnings
from tidemark.spark.local_session import (
    AUTHENTICATION_SETTINGS,
    LOCAL_SETTINGS,
    SECRET_SETTING,
    SHUFFLE_PARTITIONS,
    SUBMITTED_SETTINGS,
    TIMEOUT_SETTINGS,
    create_java_options,
    get_event_log_location,
    get_master,
    is_local,
    is_submitted,
)
from tidemark.spark.package_archive import build_package_archive
from tidemark.spark.s3_settings import get_s3_settings

_PROJECT = Path(__file__).resolve().parents[3]

# Settings that Tidemark's queries need on every master. All can be set at run time.
_QUERY_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Otherwise Spark replaces ${env:NAME} by an environment variable, even in literals and in column names of inputs.
    "spark.sql.variable.substitute": "false",
    # From a filter over renamed columns, Spark infers a filter for each combination of old and new names. The plan of
    # `IS NOT NULL` on 20 keys took more than seven minutes.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A local relation is copied with each plan node above it, by the planner and for the tasks. A larger table is sent
    # to the tasks separately.
    "spark.sql.execution.arrow.localRelationThreshold": "64KB",
    # Shuffled hash join if the build side of every partition is small enough, otherwise sort-merge join: 1.8 times as
    # fast on interval joins, and no hash table exceeds the memory of its task (docs/performance-notes.md).
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64MB",
    "spark.sql.parquet.compression.codec": "zstd",
    # INT96, the default, is slower to write and to read, and has no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A job writes one partition, its run. With an open writer for it, Spark does not sort the rows by partition.
    "spark.sql.maxConcurrentOutputFileWriters": "1",
    # Python call sites in Spark's errors cost three JVM calls per function of a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # The default is 50. Snapshots of a pipeline's own tables are small.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Delta derives filters on generated partition columns from filters on their sources. It evaluates the generating
    # expression in this session's time zone, UTC, and loses rows whose partition was written in another zone.
    "spark.databricks.delta.generatedColumn.partitionFilterOptimization.enabled": "false",
    # Time travel (`as_of`, replays of inputs) reads any version whose files exist, whatever its age.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def get_spark_session(app_name: str, *, brief: bool = False, cluster: Cluster | None = None) -> SparkSession:
    """Return the running session, or create one on the master `TIDEMARK_MASTER` (default `local[*]`).

    If the master is a Spark Connect server, no JVM starts here. spark-submit provides master and jars; otherwise the
    jars are in the folder `TIDEMARK_JARS` (default `.jars` of the project). Executors receive this package.

    Args:
        brief: True to start faster, at the cost of throughput in long jobs.
        cluster: Resources to request on a cluster. Options of spark-submit take precedence.

    Raises:
        FaultError: Java, Delta's jars or the folder for event logs are missing, or Spark does not start.
    """
    if get_master().startswith(CONNECT_SCHEME) and not is_submitted():
        return get_connect_session(get_master(), _QUERY_SETTINGS, cluster or Cluster(), DELTA_SETTINGS)
    builder, settings = SparkSession.builder, _QUERY_SETTINGS | DELTA_SETTINGS
    if not is_submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        jars = find_delta_jars()
        settings |= LOCAL_SETTINGS | (TIMEOUT_SETTINGS if is_local() else {})
        settings |= {"spark.app.name": app_name, "spark.master": get_master(), "spark.jars": ",".join(map(str, jars))}
        settings |= {"spark.driver.defaultJavaOptions": create_java_options(jars[0].parent, brief=brief)}
    _require_java()
    settings |= get_s3_settings() | _get_cluster_settings(cluster or Cluster())
    try:
        if not is_submitted():
            _start_jvm(settings)
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    except PySparkException as error:
        raise FaultError(f"Spark did not start: {error.getMessage()}. See {_get_log_path()}.") from error
    # Tidemark prints an error in one line; Spark's log would quote the rows that caused it.
    session.sparkContext.setLogLevel("ERROR" if os.environ.get("TIDEMARK_DEBUG") else "OFF")
    # These loggers print a stack trace for each error in a user's expression; Tidemark prints one line.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    _require_delta(session)
    cache_jvm_lookups(session)
    if not str(session.sparkContext.master).startswith("local"):
        session.sparkContext.addPyFile(str(build_package_archive()))
        # This class warns about missing and lost executors, and never quotes rows.
        enable_warnings(session, "org.apache.spark.scheduler.TaskSchedulerImpl")
    return session


def _get_cluster_settings(cluster: Cluster) -> dict[str, str]:
    """Return the cluster settings of a new session, except those of spark-submit; empty if Spark already runs."""
    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        return {}
    settings: dict[str, str] = {}
    master, explicit = get_master(), SparkConf(loadDefaults=False)
    if is_submitted():
        SparkContext._ensure_initialized()  # noqa: SLF001
        explicit = SparkConf()
        master = explicit.get("spark.master", "local") or "local"
        settings |= SUBMITTED_SETTINGS
    if not master.startswith("local"):
        settings |= cluster.to_spark_config()
    elif is_submitted():
        settings |= {SHUFFLE_PARTITIONS: LOCAL_SETTINGS[SHUFFLE_PARTITIONS]}
    if master.startswith("spark://") and (secret := os.environ.get(SPARK_SECRET_VARIABLE)):
        settings |= {**AUTHENTICATION_SETTINGS, SECRET_SETTING: secret}
    if cluster.event_log and (logs := get_event_log_location()):
        settings |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": logs}
    return {name: value for name, value in settings.items() if not explicit.contains(name)}


def find_delta_jars() -> list[Path]:
    """Return the paths of Delta's jars on this machine.

    Raises:
        FaultError: The jars have not been fetched.
    """
    folder = Path(os.environ.get("TIDEMARK_JARS", _PROJECT / ".jars"))
    jars = sorted(folder.glob("*.jar"))
    if not any("delta-spark" in jar.name for jar in jars):
        raise FaultError(f"Delta's jars are not in {folder}. Run 'make setup', or set TIDEMARK_JARS to their folder.")
    return jars


def _require_delta(session: SparkSession) -> None:
    if not can_load(session, "io.delta.sql.DeltaSparkSessionExtension"):
        raise FaultError("Delta's jars were not submitted with this job. Pass them with --jars, see 'make setup'.")


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start a JVM whose standard error, a dozen lines even without errors, goes to a file."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - a process has one JVM for all sessions
        return
    # The gateway's settings are visible on the JVM's command line, so the secret is left out.
    public_settings = [(name, value) for name, value in settings.items() if name != SECRET_SETTING]
    with nullcontext() if os.environ.get("TIDEMARK_DEBUG") else _get_log_path().open("w") as log:
        gateway = launch_gateway(SparkConf(loadDefaults=False).setAll(public_settings), {"stderr": log})  # type: ignore[no-untyped-call]
        SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())), gateway=gateway)


def _get_log_path() -> Path:
    return Path(tempfile.gettempdir(), f"tidemark-spark-{os.getpid()}.log")


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and shutil.which("java") is None:
        raise FaultError("Java is not on this machine's PATH. Install Java 17, or set JAVA_HOME, and run again.")
