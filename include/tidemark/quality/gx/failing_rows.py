"""Find the rows that violate an expectation, by Great Expectations' own condition.

Imports Great Expectations, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce

from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.expectation import Expectation
from great_expectations.validator.metric_configuration import MetricConfiguration
from great_expectations.validator.metrics_calculator import MetricsCalculator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config.allowed_expectations import CROSS_ROW_EXPECTATIONS
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN

_ROW, _UNIT = "_row", "_unit"

FailedExpectations = Mapping[int, Collection[tuple[str, Expectation]]]
"""Failed expectations on single rows, with their names, by unit."""


@contextmanager
def mark_failing_rows(rows: DataFrame, unit: Column, failed: FailedExpectations) -> Iterator[DataFrame]:
    """Add `FAILED_EXPECTATIONS_COLUMN` to rows: the names of the expectations that each violates, null for none.

    Args:
        rows: Rows of all units; persisted until the context is left.
        unit: A row's unit, a long.
        failed: Expectations to look for.
    """
    numbered = rows.withColumns({_ROW: F.monotonically_increasing_id(), _UNIT: unit}).persist()
    parts = [
        select_failing_rows(numbered.where(F.col(_UNIT).isin(units)), expectation).select(
            _ROW, F.lit(name).alias("name")
        )
        for units, name, expectation in _plan_queries(failed)
    ]
    names = F.sort_array(F.collect_set("name")).alias(FAILED_EXPECTATIONS_COLUMN)
    marks = reduce(DataFrame.unionByName, parts).groupBy(_ROW).agg(names)
    try:
        yield numbered.join(marks, _ROW, "left").drop(_ROW, _UNIT)
    finally:
        numbered.unpersist()


def _plan_queries(failed: FailedExpectations) -> Iterator[tuple[list[int], str, Expectation]]:
    """Yield units to query together: all of them, unless the expectation compares the rows of a unit."""
    by_name = {name: expectation for unit_failures in failed.values() for name, expectation in unit_failures}
    for name, expectation in by_name.items():
        units = [unit for unit, unit_failures in failed.items() if any(name == other for other, _ in unit_failures)]
        is_cross_row = expectation.configuration.type in CROSS_ROW_EXPECTATIONS
        groups = [[unit] for unit in units] if is_cross_row else [units]
        yield from ((group, name, expectation) for group in groups)


def select_failing_rows(rows: DataFrame, expectation: Expectation) -> DataFrame:
    """Select the rows that violate an expectation on single rows."""
    engine = SparkDFExecutionEngine(spark=rows.sparkSession, persist=False)
    engine.load_batch_data("rows", rows)
    dependencies = expectation.get_validation_dependencies(execution_engine=engine, runtime_configuration=None)
    count_name = f"{expectation.map_metric}.unexpected_count"  # type: ignore[attr-defined]
    [count] = [metric for metric in dependencies.get_metric_configurations() if metric.metric_name == count_name]
    condition = MetricConfiguration(
        f"{expectation.map_metric}.condition",  # type: ignore[attr-defined]
        count.metric_domain_kwargs,
        count.metric_value_kwargs,
    )
    calculator = MetricsCalculator(execution_engine=engine, show_progress_bars=False)
    is_unexpected, domain, accessor = calculator.get_metric(condition)
    # As in the metric `unexpected_rows`, which returns only some of the rows.
    records: DataFrame = engine.get_domain_records(domain_kwargs={**domain, **accessor})
    return records.withColumn("__unexpected", is_unexpected).where(F.col("__unexpected")).drop("__unexpected")
