"""A session that is this process's own, unless the environment says otherwise."""

from __future__ import annotations

import os

from pyspark import SparkContext

LOCAL_SETTINGS = {
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
PATIENCE = {
    "spark.sql.broadcastTimeout": "3600",
    "spark.network.timeout": "3600s",
    "spark.executor.heartbeatInterval": "60s",
}

# The second compiler takes a core for longer than it saves in a job of one slice; without it the code cache is small.
BRIEF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
}


def master() -> str:
    """Where a session that is started now would run."""
    return os.environ.get("TIDEMARK_MASTER", "local[*]")


def is_submitted() -> bool:
    """Whether this process has Spark already, or spark-submit has begun one: its settings hold."""
    # A session is active in its thread alone.
    running = SparkContext._active_spark_context is not None  # noqa: SLF001
    return "PYSPARK_GATEWAY_PORT" in os.environ or running


def is_local() -> bool:
    """Whether a session that is started now would be this process's own."""
    return not is_submitted() and master().startswith("local")
