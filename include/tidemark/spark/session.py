"""Create the Spark session of a job: with Delta, in UTC, and with memory and cores for its master."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidemark.config.cluster import (
    AUTHENTICATION_SETTINGS,
    CONNECT_SCHEME,
    MASTER_VARIABLE,
    SPARK_SECRET_VARIABLE,
    WARM_MASTER,
    Cluster,
)
from tidemark.errors import FaultError, UserError
from tidemark.spark.connect_session import get_connect_session
from tidemark.spark.delta_jars import find_delta_jars
from tidemark.spark.jvm import cache_jvm_lookups, can_load, enable_warnings
from tidemark.spark.package_archive import build_package_archive
from tidemark.spark.s3_settings import get_s3_settings
from tidemark.spark.session_settings import (
    DELTA_SETTINGS,
    LARGE_METHODS_OPTION,
    LOCAL_SETTINGS,
    QUERY_SETTINGS,
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
from tidemark.spark.warm_server import use_warm_server

_MASTER_PREFIXES = ("local[", "local-cluster[", "spark://", "k8s://", CONNECT_SCHEME)


def get_spark_session(app_name: str, *, brief: bool = False, cluster: Cluster | None = None) -> SparkSession:
    """Return the running session, or create one on the master `TIDEMARK_MASTER` (default `local[*]`).

    If the master is a Spark Connect server, no JVM starts here. `warm` stands for a server that is started on this
    machine if it does not run. spark-submit provides master and jars; otherwise the jars are in the folder
    `TIDEMARK_JARS` (default `.jars` of the project). Executors receive this package.

    Args:
        brief: True to start faster, at the cost of throughput in long jobs.
        cluster: Resources to request on a cluster. Options of spark-submit take precedence.

    Raises:
        UserError: `TIDEMARK_MASTER` is no master, or `TIDEMARK_JARS` has no jars of Delta.
        FaultError: Java, Delta's jars or the folder for event logs are missing, or Spark does not start.
    """
    if not is_submitted():
        _require_known_master(get_master())
        if get_master() == WARM_MASTER:
            use_warm_server()
        if get_master().startswith(CONNECT_SCHEME):
            return get_connect_session(get_master(), QUERY_SETTINGS, cluster or Cluster(), DELTA_SETTINGS)
    builder, settings = SparkSession.builder, QUERY_SETTINGS | DELTA_SETTINGS
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
    # It would print the stack trace of an error that the command reports in a line.
    warnings.filterwarnings("ignore", "toPandas attempted Arrow optimization")
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


def _require_known_master(master: str) -> None:
    if master not in {WARM_MASTER, "local", "yarn"} and not master.startswith(_MASTER_PREFIXES):
        raise UserError(
            f"{MASTER_VARIABLE} is {master}, which is no Spark master. Set it to local[*], spark://HOST:PORT, "
            "sc://HOST:PORT or warm, or unset it."
        )


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
        settings |= {"spark.executor.defaultJavaOptions": LARGE_METHODS_OPTION, **cluster.to_spark_config()}
    elif is_submitted():
        settings |= {SHUFFLE_PARTITIONS: LOCAL_SETTINGS[SHUFFLE_PARTITIONS]}
    if master.startswith("spark://") and (secret := os.environ.get(SPARK_SECRET_VARIABLE)):
        settings |= {**AUTHENTICATION_SETTINGS, SECRET_SETTING: secret}
    if cluster.event_log and (logs := get_event_log_location()):
        settings |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": logs}
    return {name: value for name, value in settings.items() if not explicit.contains(name)}


def _require_delta(session: SparkSession) -> None:
    if not can_load(session, "io.delta.sql.DeltaSparkSessionExtension"):
        raise FaultError(
            "Delta's jars were not submitted with this job. Pass those of the folder TIDEMARK_JARS with --jars."
        )


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
