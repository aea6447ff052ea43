"""What a session has to work with: told by the session, or reckoned from its settings before it has started."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tidemark.spark.engine import engine_of
from tidemark.spark.lazy_session import is_awake
from tidemark.spark.local_session import LOCAL_SETTINGS, is_local, master
from tidemark.spark.memory import shared_of


@dataclass(frozen=True)
class Machine:
    """Memory and cores of a session."""

    memory: int
    """Bytes that executors share between execution and storage."""
    cores: int
    partitions: int
    """Of a shuffle."""

    @classmethod
    def of(cls, spark: SparkSession) -> Machine:
        """Ask a session, unless it is one of this machine that has not started."""
        if not is_awake(spark) and is_local():
            heap, partitions = (LOCAL_SETTINGS[f"spark.{name}"] for name in ("driver.memory", "sql.shuffle.partitions"))
            cores = re.fullmatch(r"local\[(\d+)\]", master())
            return cls(
                shared_of(heap),
                int(cores[1]) if cores else os.cpu_count() or 1,
                int(partitions),
            )
        engine, of_session = engine_of(spark), int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
        return cls(engine.memory(), engine.cores(), of_session)
