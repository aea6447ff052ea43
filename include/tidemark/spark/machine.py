"""What a session has to work with: told by the session, or reckoned from its settings before it has started."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tidemark.spark.deferred import awake, is_awake
from tidemark.spark.jvm import execution_memory
from tidemark.spark.local import LOCAL_SETTINGS, is_local, master

_RESERVED = 300 << 20
"""Bytes of a heap that Spark leaves to everything else."""
_SHARE = 0.6
"""The part of the others that execution and storage share."""
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


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
                int((_bytes(heap) - _RESERVED) * _SHARE),
                int(cores[1]) if cores else os.cpu_count() or 1,
                int(partitions),
            )
        spark = awake(spark)
        of_session = int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
        return cls(execution_memory(spark), spark.sparkContext.defaultParallelism, of_session)


def _bytes(text: str) -> int:
    return int(text[:-1]) << _UNITS[text[-1].lower()]
