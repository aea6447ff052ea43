"""What Great Expectations' Spark engine finds by a query over some rows, as an aggregate, so that many units share one.

Each gives the value of the metric of that name (of Great Expectations 1.24), and of rows of which there are none.
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

from tidemark.formatting import quoted

Metric = Any
"""Great Expectations' configuration of a metric."""
Condition = tuple[Column, dict[str, Any], dict[str, Any]]
"""Which rows break an expectation, the rows that it is about, and its columns."""


@dataclass(frozen=True)
class Grouped:
    """An aggregate over the rows of a unit."""

    domain: IDDict
    """Which rows, as Great Expectations says it."""
    column: Column
    made: Callable[[Any], Any]
    """Makes the metric of the aggregate."""
    each: tuple[str, ...] = ()
    """Columns by which rows are counted first: the aggregate is over each `value` of them, and `n`, how often it is."""
    present: bool = False
    """Whether these have to be there."""


def by_name(metric: Metric, schema: StructType) -> Grouped | None:
    """A metric of rows of this schema as an aggregate, where its name says it all; None where it does not."""
    found = _BY_NAME.get(metric.metric_name)
    return found and found(metric, schema)


def is_by_condition(metric: Metric) -> bool:
    """Whether a metric counts rows of several columns, by which of them break a condition."""
    name: str = metric.metric_name
    return name.startswith(_OF_SEVERAL_COLUMNS) and name.endswith((_BROKEN, ".filtered_row_count"))


def by_condition(metric: Metric, condition: Condition) -> Grouped:
    """Such a metric as an aggregate."""
    broken, rows, columns = condition
    counted = F.count_if(broken) if metric.metric_name.endswith(_BROKEN) else F.count(F.lit(1))
    # What is told of the columns is also which rows are passed over.
    return Grouped(IDDict({**rows, **columns}), counted, int)


_BROKEN = ".unexpected_count"
_OF_SEVERAL_COLUMNS = ("column_pair_values.", "multicolumn_", "select_column_values.", "compound_columns.")


def _domain(metric: Metric) -> IDDict:
    return IDDict({name: value for name, value in metric.metric_domain_kwargs.items() if name != "column"})


def _repeated() -> Column:
    return F.sum(F.when(F.col("n") > 1, F.col("n")).otherwise(0))


def _unique(metric: Metric, _: StructType) -> Grouped:
    return Grouped(_domain(metric), _repeated(), _or_none, (metric.metric_domain_kwargs["column"],), present=True)


def _unique_together(metric: Metric, _: StructType) -> Grouped:
    return Grouped(_domain(metric), _repeated(), _or_none, tuple(metric.metric_domain_kwargs["column_list"]))


def _or_none(count: int | None) -> int:
    return count or 0


def _most_common(metric: Metric, _: StructType) -> Grouped:
    counted = F.collect_list(F.struct("n", "value"))
    most = F.array_max(F.transform(counted, lambda one: one["n"]))
    values = F.transform(F.filter(counted, lambda one: one["n"] == most), lambda one: one["value"])
    each = (metric.metric_domain_kwargs["column"],)
    return Grouped(_domain(metric), F.sort_array(values), lambda found: list(pd.Index(found)), each, present=True)


def _not_in_set(metric: Metric, _: StructType) -> Grouped:
    column, values = F.col(metric.metric_domain_kwargs["column"]), metric.metric_value_kwargs.get("value_set")
    other = F.when(~column.isin(list(values)), column) if values else column
    return Grouped(_domain(metric), F.countDistinct(other), int)


def _missing_of_set(metric: Metric, _: StructType) -> Grouped:
    column, values = (
        F.col(metric.metric_domain_kwargs["column"]),
        list(metric.metric_value_kwargs.get("value_set") or ()),
    )
    found = F.countDistinct(F.when(column.isin(values), column))
    return Grouped(_domain(metric), found, lambda count: len(values) - count if values else 0)


def _median(metric: Metric, schema: StructType) -> Grouped | None:
    if (column := _number(metric, schema)) is None:
        return None
    # It is the mean of the two in the middle, too, and counts the values once.
    return Grouped(_domain(metric), F.expr(f"percentile({column}, 0.5)"), np.float64)


def _quantiles(metric: Metric, schema: StructType) -> Grouped | None:
    column, quantiles = _number(metric, schema), metric.metric_value_kwargs["quantiles"]
    if column is None or metric.metric_value_kwargs.get("allow_relative_error"):
        return None
    return Grouped(_domain(metric), F.array(*(_quantile(column, one) for one in quantiles)), list)


def _number(metric: Metric, schema: StructType) -> str | None:
    """The column as a fraction, null for NaN, as `approxQuantile` takes it; None where it is not one of numbers."""
    name = metric.metric_domain_kwargs["column"]
    if name not in schema.names or not isinstance(schema[name].dataType, NumericType):
        return None
    return f"nullif(CAST({quoted(name)} AS DOUBLE), double('NaN'))"


def _quantile(order: str, share: float) -> Column:
    return F.expr(f"percentile_disc({float(share)!r}D) WITHIN GROUP (ORDER BY {order})")


_BY_NAME: Mapping[str, Callable[[Metric, StructType], Grouped | None]] = {
    "column_values.unique.unexpected_count": _unique,
    "compound_columns.unique.unexpected_count": _unique_together,
    "column.most_common_value": _most_common,
    "column.distinct_values.not_in_set.count": _not_in_set,
    "column.distinct_values.missing_from_column.count": _missing_of_set,
    "column.median": _median,
    "column.quantile_values": _quantiles,
}
