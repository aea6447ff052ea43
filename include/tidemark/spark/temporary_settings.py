"""Settings that a running session is given for a while, most for the sake of time: no answer depends on those."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

# Generating and compiling code for a query takes longer than interpreting it over a few rows.
_TINY_QUERY_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # Small files are read by one task, a table's log among them.
    "spark.sql.files.minPartitionNum": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_CODEGEN_SETTINGS = {
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}

INFERRED_FILTERS = {"spark.sql.constraintPropagation.enabled": "true"}
"""As Spark itself has it: live queries have the filters that it infers, where our sessions infer none."""

_ALL_CORES_SETTINGS = {
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.sql.files.minPartitionNum": str(os.cpu_count() or 1),
    "spark.sql.codegen.factoryMode": "FALLBACK",
}


@contextmanager
def tuned_for_tiny_queries(spark: SparkSession) -> Iterator[SparkSession]:
    """Halve the time of queries over a few thousand rows."""
    with override_settings(spark, _TINY_QUERY_SETTINGS):
        yield spark


@contextmanager
def with_codegen(spark: SparkSession) -> Iterator[None]:
    """Inside `tuned_for_tiny_queries`, queries over some hundred thousand rows: compiled, and by all cores."""
    with override_settings(spark, _CODEGEN_SETTINGS if _is_tuned(spark) else {}):
        yield


@contextmanager
def with_all_cores(spark: SparkSession) -> Iterator[None]:
    """Inside `tuned_for_tiny_queries`, many different queries over some ten thousand rows: by all cores.

    Their projections are compiled, and no whole stages: that would take longer than it saves.
    """
    with override_settings(spark, _ALL_CORES_SETTINGS if _is_tuned(spark) else {}):
        yield


def _is_tuned(spark: SparkSession) -> bool:
    return (
        spark.conf.get("spark.sql.codegen.factoryMode", None) == _TINY_QUERY_SETTINGS["spark.sql.codegen.factoryMode"]
    )


@contextmanager
def override_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Give a session other settings for a while, those that it does not have already: each is a call to a server."""
    known = {key: spark.conf.get(key, None) for key in settings}
    before = {key: earlier for key, earlier in known.items() if earlier != settings[key]}
    for key in before:
        spark.conf.set(key, settings[key])
    try:
        yield
    finally:
        for key, earlier in before.items():
            spark.conf.set(key, earlier) if earlier is not None else spark.conf.unset(key)
