"""Define the expectation `rows`: an SQL condition that a share of the rows must meet.

Of Great Expectations' own, `UnexpectedRowsExpectation` has no `mostly`, and its query runs once per slice. A map
expectation is evaluated, grouped and searched for failing rows like all others on single rows.

Imports Great Expectations, which takes seconds.
"""

from __future__ import annotations

from typing import Any, ClassVar

from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.expectation import ColumnMapExpectation
from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import (
    column_condition_partial,
)
from great_expectations.expectations.metrics.map_metric_provider.column_map_metric_provider import (
    ColumnMapMetricProvider,
)
from pyspark.sql import Column
from pyspark.sql import functions as F

_METRIC = "column_values.tidemark_rule"


class Rows(ColumnMapExpectation):  # type: ignore[misc, unused-ignore]
    """Expect a condition to be true in each row. As in a CHECK constraint, null is no violation.

    Its type in Great Expectations, `rows`, follows from the name of the class.
    """

    column: str = "_slice"
    """Column that every row has and that is never null, because Great Expectations leaves out rows where it is."""
    that: str
    """SQL condition, after `spark.expression_sandbox` has checked it."""

    map_metric: ClassVar[str | None] = _METRIC
    success_keys: ClassVar[tuple[str, ...]] = ("that", "mostly")
    args_keys: ClassVar[tuple[str, ...]] = ("that", "mostly")


class _RowRule(ColumnMapMetricProvider):  # type: ignore[misc, unused-ignore]
    """Metric that Great Expectations counts and lists the failing rows by."""

    condition_metric_name = _METRIC
    condition_value_keys = ("that",)

    @column_condition_partial(engine=SparkDFExecutionEngine)
    def _evaluate(cls, _column: Column, that: str, **_: Any) -> Column:  # noqa: N805 - as the decorator calls it
        return F.coalesce(F.expr(that), F.lit(True))
