"""What a session has to work with: told by the session, or reckoned from its settings before it has started."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tidemark.spark.engine import get_engine
from tidemark.spark.lazy_session import is_started
from tidemark.spark.local_session import LOCAL_SETTINGS, get_master, is_local
from tidemark.spark.memory import compute_unified_memory


@dataclass(frozen=True)
class SessionResources:
    """Memory and cores of a session."""

    memory_bytes: int
    """Bytes that executors share between execution and storage."""
    cores: int
    shuffle_partitions: int
    """Of a shuffle."""

    @classmethod
    def from_session(cls, spark: SparkSession) -> SessionResources:
        """Ask a session, unless it is one of this machine that has not started."""
        if not is_started(spark) and is_local():
            heap, shuffle_partitions = (
                LOCAL_SETTINGS[f"spark.{name}"] for name in ("driver.memory", "sql.shuffle.partitions")
            )
            cores = re.fullmatch(r"local\[(\d+)\]", get_master())
            return cls(
                compute_unified_memory(heap),
                int(cores[1]) if cores else os.cpu_count() or 1,
                int(shuffle_partitions),
            )
        engine, of_session = get_engine(spark), int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
        return cls(engine.get_execution_memory(), engine.count_cores(), of_session)
