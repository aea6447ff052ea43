"""Columns of DataFrames, in ways that every kind of session has."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame


def with_columns(rows: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Rows with more columns, or with none: Spark Connect takes no empty mapping. For `DataFrame.transform`."""
    return rows.withColumns(dict(columns)) if columns else rows
