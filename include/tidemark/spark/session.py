"""The Spark session that every job runs in: Delta-enabled, UTC, sized for where it runs."""

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

# Settings that Tidemark's queries rely on, local or on a cluster; all can be set at run time.
_QUERY_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Else ${env:NAME} is the environment's, in literals and in the names of an input's columns too.
    "spark.sql.variable.substitute": "false",
    # Of a filter over columns that are renamed Spark infers another for each set of them: that none of 20 keys is null
    # took it more than seven minutes to plan.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A table of the driver's that is a part of the plan is written out with each step above it, by the planner and for
    # the tasks; a larger one goes to tasks by itself.
    "spark.sql.execution.arrow.localRelationThreshold": "64KB",
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
    # A version whose files are all there is read, whatever its age: `as_of`, a replay of inputs.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def get_spark_session(app_name: str, *, brief: bool = False, cluster: Cluster | None = None) -> SparkSession:
    """The running session, or a new one on `TIDEMARK_MASTER` (default `local[*]`), ready for Delta.

    Under spark-submit the master and the jars come from there. Delta's jars are looked for in `TIDEMARK_JARS`, else in
    `.jars` of the project. A session that has `brief` work to do starts sooner and is slower in the long run. `cluster`
    is what it takes of one, unless spark-submit was told otherwise; this package goes to the executors with it. Where
    the master is a Spark Connect server, the session is one of that, and no JVM starts here.

    Raises:
        FaultError: Java or Delta's jars are missing, or the folder for event logs.
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
        raise FaultError(f"Spark did not start: {error.getMessage()}; see {_get_log_path()}") from error
    # What fails is told in a line; the log would quote the rows that it failed on.
    session.sparkContext.setLogLevel("ERROR" if os.environ.get("TIDEMARK_DEBUG") else "OFF")
    # They print the stack of each error in a user's expression, which is told in one line.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    _require_delta(session)
    cache_jvm_lookups(session)
    if not str(session.sparkContext.master).startswith("local"):
        session.sparkContext.addPyFile(str(build_package_archive()))
        # It says that no executor has come, or that one is gone, and has seen no row.
        enable_warnings(session, "org.apache.spark.scheduler.TaskSchedulerImpl")
    return session


def _get_cluster_settings(cluster: Cluster) -> dict[str, str]:
    """What a session has of its cluster's settings; none where one runs already."""
    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        return {}
    settings: dict[str, str] = {}
    where, told = get_master(), SparkConf(loadDefaults=False)
    if is_submitted():
        SparkContext._ensure_initialized()  # noqa: SLF001
        told = SparkConf()
        where = told.get("spark.master", "local") or "local"
        settings |= SUBMITTED_SETTINGS
    if not where.startswith("local"):
        settings |= cluster.to_spark_config()
    elif is_submitted():
        settings |= {SHUFFLE_PARTITIONS: LOCAL_SETTINGS[SHUFFLE_PARTITIONS]}
    if where.startswith("spark://") and (secret := os.environ.get(SPARK_SECRET_VARIABLE)):
        settings |= {**AUTHENTICATION_SETTINGS, SECRET_SETTING: secret}
    if cluster.event_log and (logs := get_event_log_location()):
        settings |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": logs}
    return {name: value for name, value in settings.items() if not told.contains(name)}


def find_delta_jars() -> list[Path]:
    """Delta's jars on this machine.

    Raises:
        FaultError: they have not been fetched.
    """
    folder = Path(os.environ.get("TIDEMARK_JARS", _PROJECT / ".jars"))
    jars = sorted(folder.glob("*.jar"))
    if not any("delta-spark" in jar.name for jar in jars):
        raise FaultError(f"Delta's jars are not in {folder}; run 'make setup', or point TIDEMARK_JARS at them")
    return jars


def _require_delta(session: SparkSession) -> None:
    if not can_load(session, "io.delta.sql.DeltaSparkSessionExtension"):
        raise FaultError("Delta's jars were not submitted with this job; pass them with --jars, see 'make setup'")


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start a JVM that writes its standard error to a file: it greets with a dozen lines about itself."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - a process has one JVM, whatever sessions come and go
        return
    # The gateway's settings stand on the JVM's command line.
    shown = [(name, value) for name, value in settings.items() if name != SECRET_SETTING]
    with nullcontext() if os.environ.get("TIDEMARK_DEBUG") else _get_log_path().open("w") as log:
        gateway = launch_gateway(SparkConf(loadDefaults=False).setAll(shown), {"stderr": log})  # type: ignore[no-untyped-call]
        SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())), gateway=gateway)


def _get_log_path() -> Path:
    return Path(tempfile.gettempdir(), f"tidemark-spark-{os.getpid()}.log")


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and shutil.which("java") is None:
        raise FaultError("Java is not on this machine's PATH; install Java 17 (or set JAVA_HOME) and run again")
