"""Which of the two ways a session answers what DataFrames do not."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidemark.spark.asked import Engine
from tidemark.spark.classic import ClassicEngine
from tidemark.spark.connect import ConnectEngine
from tidemark.spark.deferred import awake


def engine_of(spark: SparkSession) -> Engine:
    """The engine behind a session, which starts if need be."""
    session = awake(spark)
    # A session of Connect is no subclass of the other.
    return ClassicEngine(session) if isinstance(session, SparkSession) else ConnectEngine(session)
