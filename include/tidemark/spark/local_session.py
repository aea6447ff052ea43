"""A session that is this process's own, unless the environment says otherwise."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark import SparkContext

from tidemark.errors import FaultError

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without the interface nobody reads what it would remember of a thousand jobs and a hundred thousand tasks.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.driver.memory": "4g",
    # A job has some 130 generated classes, and 100 is what Spark keeps: a long process would compile each of them again
    # in every job, and the JVM after it.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Small hash tables stay in the processor's caches; Spark merges what is small.
    SHUFFLE_PARTITIONS: str(16 * (os.cpu_count() or 1)),
}

SUBMITTED_SETTINGS = {
    name: value for name, value in LOCAL_SETTINGS.items() if ".retained" in name or name.endswith(".maxEntries")
}
"""Those that serve wherever a job was submitted to."""
AUTHENTICATION_SETTINGS = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
SECRET_SETTING = "spark.authenticate.secret"  # noqa: S105 - a name
EVENT_LOGS_VARIABLE = "TIDEMARK_EVENT_LOGS"
"""The environment variable with the folder, a path or a URI, that Spark's history server reads."""

# On a busy machine a broadcast may wait minutes for a core, and a heartbeat too. Where the executor is this process,
# nothing is lost by patience; on a cluster it would take an hour to see that one is gone.
TIMEOUT_SETTINGS = {
    "spark.sql.broadcastTimeout": "3600",
    "spark.network.timeout": "3600s",
    "spark.executor.heartbeatInterval": "60s",
}

# The second compiler takes a core for longer than it saves in a job of one slice; without it the code cache is small.
# What it makes is garbage once a query is over, so half of a heap that begins large is for what is new.
_BRIEF_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:InitialRAMPercentage=8 -XX:NewRatio=1"
# Beside a job over many rows G1's threads take a tenth of the processor's time.
_COLLECTOR_OPTION = {True: "-XX:+UseSerialGC", False: "-XX:+UseParallelGC"}
CLASS_ARCHIVE = "classes.jsa"
"""Beside Delta's jars: the JVM's classes, as `bin/archive-classes` has kept them."""


def create_java_options(jars: Path, *, brief: bool) -> str:
    """What a JVM of this machine is started with; options of the user's own come behind and count."""
    options = [_BRIEF_OPTIONS] if brief else []
    if not re.search(r"-XX:\+Use\w+GC", os.environ.get("JDK_JAVA_OPTIONS", "")):  # a JVM starts with one alone
        options.append(_COLLECTOR_OPTION[brief])
    if (jars / CLASS_ARCHIVE).exists():
        # One that does not fit, of another Java say, is left aside, and not worth a word.
        options += [f'"-XX:SharedArchiveFile={jars / CLASS_ARCHIVE}"', "-Xshare:auto", "-Xlog:cds*=off"]
    return " ".join(options)


def get_event_log_location() -> str | None:
    """Where Spark's history server reads; None where the operator has set no place for it.

    Raises:
        FaultError: it is a folder of this machine, and there is none.
    """
    place = os.environ.get(EVENT_LOGS_VARIABLE)
    local = urlsplit(place or "")
    if place and local.scheme in {"", "file"} and not Path(unquote(local.path) if local.scheme else place).is_dir():
        raise FaultError(f"{EVENT_LOGS_VARIABLE} is {place}, which is no folder here; make it, or unset the variable")
    return place or None


def get_master() -> str:
    """Where a session that is started now would run."""
    return os.environ.get("TIDEMARK_MASTER", "local[*]")


def is_submitted() -> bool:
    """Whether this process has Spark already, or spark-submit has begun one: its settings hold."""
    # A session is active in its thread alone.
    running = SparkContext._active_spark_context is not None  # noqa: SLF001
    return "PYSPARK_GATEWAY_PORT" in os.environ or running


def is_local() -> bool:
    """Whether a session that is started now would be this process's own."""
    return not is_submitted() and get_master().startswith("local")
