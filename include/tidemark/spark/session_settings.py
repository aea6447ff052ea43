"""Define Spark settings and JVM options of sessions, and read from the environment where a session runs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark import SparkContext

from tidemark.config.cluster import MASTER_VARIABLE
from tidemark.errors import FaultError

QUERY_SETTINGS = {
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
"""Settings that Tidemark's queries need on every master. All can be set at run time."""
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings of Delta's extension. They can only be set when Spark starts."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without the UI, nobody reads the history that it keeps, by default of 1,000 jobs and 100,000 tasks.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.driver.memory": "4g",
    # A job has some 130 generated classes, but Spark caches only 100 by default. In a process with several jobs, Spark
    # and the JVM's JIT would compile all of them again in each job.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Many partitions keep hash tables small enough for the CPU caches. Spark coalesces small partitions.
    SHUFFLE_PARTITIONS: str(16 * (os.cpu_count() or 1)),
}
"""Settings of a session whose driver this process starts."""

SUBMITTED_SETTINGS = {
    name: value for name, value in LOCAL_SETTINGS.items() if ".retained" in name or name.endswith(".maxEntries")
}
"""Local settings that are also useful on the cluster of a submitted job."""
SECRET_SETTING = "spark.authenticate.secret"  # noqa: S105 - a name
EVENT_LOGS_VARIABLE = "TIDEMARK_EVENT_LOGS"
"""Environment variable with the folder, a path or a URI, that Spark's history server reads."""

# On a busy machine, broadcasts and heartbeats can wait minutes for a core. Long timeouts are harmless if the executor
# is this process. On a cluster, a lost executor would remain unnoticed for an hour.
TIMEOUT_SETTINGS = {
    "spark.sql.broadcastTimeout": "3600",
    "spark.network.timeout": "3600s",
    "spark.executor.heartbeatInterval": "60s",
}

# In a job of one slice, the JIT compiler C2 costs more CPU time than it saves; without it, a small code cache suffices.
# Most objects are garbage after a query, so the heap starts large, and half of it is the young generation.
_BRIEF_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:InitialRAMPercentage=8 -XX:NewRatio=1"
# In a job over many rows, the concurrent threads of G1, the JVM's default, take a tenth of the CPU time.
_COLLECTOR_OPTION = {True: "-XX:+UseSerialGC", False: "-XX:+UseParallelGC"}
# The JVM never compiles methods of more than 8,000 bytes, unless told to. Methods that Spark generates for a row of
# some 20 columns are larger.
LARGE_METHODS_OPTION = "-XX:-DontCompileHugeMethods"
CLASS_ARCHIVE = "classes.jsa"
"""Name of the JVM's class data archive, which `bin/archive-classes` writes to the folder of Delta's jars."""


def create_java_options(jar_folder: Path, *, brief: bool) -> str:
    """Create the options of a local JVM, for a `brief` job or for throughput. Options of the user take precedence."""
    options = [LARGE_METHODS_OPTION, *([_BRIEF_OPTIONS] if brief else [])]
    if not re.search(r"-XX:\+Use\w+GC", os.environ.get("JDK_JAVA_OPTIONS", "")):  # a JVM refuses two
        options.append(_COLLECTOR_OPTION[brief])
    if (jar_folder / CLASS_ARCHIVE).exists():
        # The JVM ignores an archive that does not fit, for example of another Java version, without a warning.
        options += [f'"-XX:SharedArchiveFile={jar_folder / CLASS_ARCHIVE}"', "-Xshare:auto", "-Xlog:cds*=off"]
    return " ".join(options)


def get_event_log_location() -> str | None:
    """Return the folder for event logs, a path or a URI; None if the environment has none.

    Raises:
        FaultError: It is a local folder that does not exist.
    """
    location = os.environ.get(EVENT_LOGS_VARIABLE)
    url = urlsplit(location or "")
    if location and url.scheme in {"", "file"} and not Path(unquote(url.path) if url.scheme else location).is_dir():
        raise FaultError(
            f"{EVENT_LOGS_VARIABLE} is {location}, which is not a folder. Create it, or unset the variable."
        )
    return location or None


def get_master() -> str:
    """Return the Spark master of a new session, or `cluster.WARM_MASTER`."""
    return os.environ.get(MASTER_VARIABLE, "local[*]")


def is_submitted() -> bool:
    """Return True if spark-submit started this process, or if Spark runs in it: its settings apply."""
    # SparkSession.getActiveSession() would look at this thread only.
    running = SparkContext._active_spark_context is not None  # noqa: SLF001
    return "PYSPARK_GATEWAY_PORT" in os.environ or running


def is_local() -> bool:
    """Return True if a new session would run in this process, on a local master."""
    return not is_submitted() and get_master().startswith("local")
