"""Compute metrics of Great Expectations as aggregates, so that one query serves many units.

Its Spark engine (1.24) needs a query per metric for these. Values equal those of its metric of the same name, for units
without rows too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from great_expectations.core.id_dict import IDDict
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType, StructType

from tidemark.formatting import quote_identifier

Metric = Any
"""Great Expectations' configuration of a metric."""
Condition = tuple[Column, dict[str, Any], dict[str, Any]]
"""True for rows that violate an expectation; the domain of rows; its columns."""
_UNEXPECTED_COUNT = ".unexpected_count"
_MULTICOLUMN_PREFIXES = ("column_pair_values.", "multicolumn_", "select_column_values.", "compound_columns.")


@dataclass(frozen=True)
class GroupedMetric:
    """Aggregate over the rows of a unit, and its conversion to the metric."""

    domain: IDDict
    """Rows to aggregate, as Great Expectations' domain."""
    aggregate: Column
    convert: Callable[[Any], Any]
    """Converts the aggregate to the metric's value."""
    group_columns: tuple[str, ...] = ()
    """Columns to group rows by first. The aggregate then is over each distinct `value` of them and its count `n`."""
    skip_nulls: bool = False
    """True if values with a null are left out before grouping."""


def create_metric(metric: Metric, schema: StructType) -> GroupedMetric | None:
    """Create the aggregate of a metric by its name; None if there is none for rows of this schema."""
    create = _METRICS_BY_NAME.get(metric.metric_name)
    return create and create(metric, schema)


def is_condition_count(metric: Metric) -> bool:
    """Return True if a metric counts rows of several columns, or those that violate a condition on them."""
    name: str = metric.metric_name
    return name.startswith(_MULTICOLUMN_PREFIXES) and name.endswith((_UNEXPECTED_COUNT, ".filtered_row_count"))


def create_condition_count(metric: Metric, condition: Condition) -> GroupedMetric:
    """Create the aggregate of a metric that `is_condition_count`."""
    is_unexpected, domain, columns = condition
    is_failure_count = metric.metric_name.endswith(_UNEXPECTED_COUNT)
    count = F.count_if(is_unexpected) if is_failure_count else F.count(F.lit(1))
    # The arguments of the columns include which rows to ignore.
    return GroupedMetric(IDDict({**domain, **columns}), count, int)


def _get_domain(metric: Metric) -> IDDict:
    return IDDict({name: value for name, value in metric.metric_domain_kwargs.items() if name != "column"})


def _count_repeated() -> Column:
    return F.sum(F.when(F.col("n") > 1, F.col("n")).otherwise(0))


def _count_not_unique(metric: Metric, _: StructType) -> GroupedMetric:
    columns = (metric.metric_domain_kwargs["column"],)
    return GroupedMetric(_get_domain(metric), _count_repeated(), _replace_null, columns, skip_nulls=True)


def _count_not_unique_compound(metric: Metric, _: StructType) -> GroupedMetric:
    columns = tuple(metric.metric_domain_kwargs["column_list"])
    return GroupedMetric(_get_domain(metric), _count_repeated(), _replace_null, columns)


def _replace_null(count: int | None) -> int:
    return count or 0


def _find_most_common(metric: Metric, _: StructType) -> GroupedMetric:
    counts = F.collect_list(F.struct("n", "value"))
    maximum = F.array_max(F.transform(counts, lambda count: count["n"]))
    values = F.transform(F.filter(counts, lambda count: count["n"] == maximum), lambda count: count["value"])
    columns = (metric.metric_domain_kwargs["column"],)
    return GroupedMetric(
        _get_domain(metric), F.sort_array(values), lambda array: list(pd.Index(array)), columns, skip_nulls=True
    )


def _count_not_in_set(metric: Metric, _: StructType) -> GroupedMetric:
    column, values = F.col(metric.metric_domain_kwargs["column"]), metric.metric_value_kwargs.get("value_set")
    outside = F.when(~column.isin(list(values)), column) if values else column
    return GroupedMetric(_get_domain(metric), F.countDistinct(outside), int)


def _count_missing_from_column(metric: Metric, _: StructType) -> GroupedMetric:
    column = F.col(metric.metric_domain_kwargs["column"])
    values = list(metric.metric_value_kwargs.get("value_set") or ())
    present = F.countDistinct(F.when(column.isin(values), column))
    return GroupedMetric(_get_domain(metric), present, lambda count: len(values) - count if values else 0)


def _compute_median(metric: Metric, schema: StructType) -> GroupedMetric | None:
    if (column := _cast_to_double(metric, schema)) is None:
        return None
    # `percentile` also interpolates between the two values in the middle, and counts distinct values.
    return GroupedMetric(_get_domain(metric), F.expr(f"percentile({column}, 0.5)"), np.float64)


def _compute_quantiles(metric: Metric, schema: StructType) -> GroupedMetric | None:
    column, quantiles = _cast_to_double(metric, schema), metric.metric_value_kwargs["quantiles"]
    if column is None or metric.metric_value_kwargs.get("allow_relative_error"):
        return None
    return GroupedMetric(_get_domain(metric), F.array(*(_compute_quantile(column, share) for share in quantiles)), list)


def _cast_to_double(metric: Metric, schema: StructType) -> str | None:
    """Return the column as a double with null for NaN, as `approxQuantile` reads it; None if it is not numeric."""
    name = metric.metric_domain_kwargs["column"]
    if name not in schema.names or not isinstance(schema[name].dataType, NumericType):
        return None
    return f"nullif(CAST({quote_identifier(name)} AS DOUBLE), double('NaN'))"


def _compute_quantile(expression: str, share: float) -> Column:
    return F.expr(f"percentile_disc({float(share)!r}D) WITHIN GROUP (ORDER BY {expression})")


_METRICS_BY_NAME: Mapping[str, Callable[[Metric, StructType], GroupedMetric | None]] = {
    "column_values.unique.unexpected_count": _count_not_unique,
    "compound_columns.unique.unexpected_count": _count_not_unique_compound,
    "column.most_common_value": _find_most_common,
    "column.distinct_values.not_in_set.count": _count_not_in_set,
    "column.distinct_values.missing_from_column.count": _count_missing_from_column,
    "column.median": _compute_median,
    "column.quantile_values": _compute_quantiles,
}
