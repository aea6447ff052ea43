"""Change settings of a running session temporarily, mostly to make queries of a known size faster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tidemark.spark.dataframe_utils import iterate_types

# Generating and compiling code takes longer than interpreting a query over few rows. Results are the same.
_TINY_QUERY_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # One task reads all small files, including those of a table's log.
    "spark.sql.files.minPartitionNum": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_CODEGEN_SETTINGS = {
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}

FILTER_INFERENCE_SETTINGS = {"spark.sql.constraintPropagation.enabled": "true"}
"""Spark's default: live queries run with inferred filters, while Tidemark's sessions infer none."""

_COLUMN_MAPPING = {"spark.databricks.delta.properties.defaults.columnMapping.mode": "name"}
_CHARACTERS_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
"""Characters that Delta accepts in names of columns and fields only with column mapping."""

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
    """Within `tuned_for_tiny_queries`, compile queries and use all cores, for some 100,000 rows."""
    with override_settings(spark, _CODEGEN_SETTINGS if _is_tuned(spark) else {}):
        yield


@contextmanager
def with_all_cores(spark: SparkSession) -> Iterator[None]:
    """Within `tuned_for_tiny_queries`, use all cores, for many different queries over some 10,000 rows.

    Projections are compiled, but no whole stages, which would cost more time than it saves.
    """
    with override_settings(spark, _ALL_CORES_SETTINGS if _is_tuned(spark) else {}):
        yield


def list_column_mapping_settings(schema: T.StructType) -> dict[str, str]:
    """List the settings with which Spark writes a new Delta table with any names of columns and fields.

    >>> [list_column_mapping_settings(T.StructType([T.StructField(name, T.LongType())])) for name in ("a.b", "a b")]
    [{}, {'spark.databricks.delta.properties.defaults.columnMapping.mode': 'name'}]
    """
    structs = (part for part in iterate_types(schema) if isinstance(part, T.StructType))
    needs_mapping = any(_CHARACTERS_NOT_IN_NAMES.intersection(name) for struct in structs for name in struct.names)
    return dict(_COLUMN_MAPPING) if needs_mapping else {}


def _is_tuned(spark: SparkSession) -> bool:
    return (
        spark.conf.get("spark.sql.codegen.factoryMode", None) == _TINY_QUERY_SETTINGS["spark.sql.codegen.factoryMode"]
    )


@contextmanager
def override_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings, and restore them at the end; equal ones are skipped, because on a server each takes a request."""
    current = {key: spark.conf.get(key, None) for key in settings}
    changed = {key: earlier for key, earlier in current.items() if earlier != settings[key]}
    for key in changed:
        spark.conf.set(key, settings[key])
    try:
        yield
    finally:
        for key, earlier in changed.items():
            spark.conf.set(key, earlier) if earlier is not None else spark.conf.unset(key)
