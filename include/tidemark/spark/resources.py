"""Determine the memory and cores of a session, if possible without starting it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tidemark.spark.engine import get_engine
from tidemark.spark.heap_memory import compute_unified_memory
from tidemark.spark.lazy_session import is_started
from tidemark.spark.session_settings import LOCAL_SETTINGS, SHUFFLE_PARTITIONS, get_master, is_local


@dataclass(frozen=True)
class SessionResources:
    """Memory and cores of a session."""

    memory_bytes: int
    """Bytes that executors share between execution and storage."""
    cores: int
    """Number of tasks that can run at once."""
    shuffle_partitions: int

    @classmethod
    def from_session(cls, spark: SparkSession) -> SessionResources:
        """Read the resources from a session, or from the settings of a local session that has not started."""
        if not is_started(spark) and is_local():
            cores = re.fullmatch(r"local\[(\d+)\]", get_master())
            return cls(
                compute_unified_memory(LOCAL_SETTINGS["spark.driver.memory"]),
                int(cores[1]) if cores else os.cpu_count() or 1,
                int(LOCAL_SETTINGS[SHUFFLE_PARTITIONS]),
            )
        engine, shuffle_partitions = get_engine(spark), int(spark.conf.get(SHUFFLE_PARTITIONS) or 0)
        return cls(engine.get_execution_memory(), engine.count_cores(), shuffle_partitions)
