"""Which rows break an expectation, by Great Expectations' own condition for it.

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

from tidemark.config.allowed_expectations import OF_OTHER_ROWS
from tidemark.quality.quarantine import EXPECTATIONS

_ROW, _UNIT = "_row", "_unit"


Failed = Mapping[int, Collection[tuple[str, Expectation]]]
"""By unit, the expectations that do not hold for it, with their names; they are on single rows."""


@contextmanager
def broken_rows(rows: DataFrame, unit: Column, failed: Failed) -> Iterator[DataFrame]:
    """The rows with what each breaks, in `EXPECTATIONS`: a list of names, null for none. They are kept meanwhile."""
    told = rows.withColumns({_ROW: F.monotonically_increasing_id(), _UNIT: unit}).persist()
    parts = [
        unexpected(told.where(F.col(_UNIT).isin(units)), one).select(_ROW, F.lit(name).alias("name"))
        for units, name, one in _queries(failed)
    ]
    marks = (
        reduce(DataFrame.unionByName, parts).groupBy(_ROW).agg(F.sort_array(F.collect_set("name")).alias(EXPECTATIONS))
    )
    try:
        yield told.join(marks, _ROW, "left").drop(_ROW, _UNIT)
    finally:
        told.unpersist()


def _queries(failed: Failed) -> Iterator[tuple[list[int], str, Expectation]]:
    """What to ask at once: of the rows of several units only where no other row has a say in it."""
    named = {name: one for found in failed.values() for name, one in found}
    for name, expectation in named.items():
        units = [unit for unit, found in failed.items() if any(name == other for other, _ in found)]
        parts = [[unit] for unit in units] if expectation.configuration.type in OF_OTHER_ROWS else [units]
        yield from ((part, name, expectation) for part in parts)


def unexpected(rows: DataFrame, expectation: Expectation) -> DataFrame:
    """The rows that break an expectation on single rows, as Great Expectations lists them."""
    engine = SparkDFExecutionEngine(spark=rows.sparkSession, persist=False)
    engine.load_batch_data("rows", rows)
    needed = expectation.get_validation_dependencies(execution_engine=engine, runtime_configuration=None)
    about = f"{expectation.map_metric}.unexpected_count"  # type: ignore[attr-defined]
    [count] = [one for one in needed.get_metric_configurations() if one.metric_name == about]
    condition = MetricConfiguration(
        f"{expectation.map_metric}.condition",  # type: ignore[attr-defined]
        count.metric_domain_kwargs,
        count.metric_value_kwargs,
    )
    calculator = MetricsCalculator(execution_engine=engine, show_progress_bars=False)
    found, domain, accessor = calculator.get_metric(condition)
    # As its metric `unexpected_rows` does, of which it gives only some.
    among: DataFrame = engine.get_domain_records(domain_kwargs={**domain, **accessor})
    return among.withColumn("__unexpected", found).where(F.col("__unexpected")).drop("__unexpected")
