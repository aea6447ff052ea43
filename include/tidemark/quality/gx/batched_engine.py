"""Evaluate expectations on many units of rows, such as slices, by a few grouped queries.

An expectation needs metrics. Metrics that are aggregates over rows (Great Expectations' own, or a `GroupedMetric`), and
metrics that follow from these or from the columns, are computed by queries grouped by unit. Great Expectations then
evaluates each unit as if it had only that unit's rows. Expectations with other metrics, for example on the order of
rows, are evaluated on the rows of each unit.

Imports Great Expectations, which takes seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from math import inf
from operator import and_
from typing import Any

from great_expectations.core.id_dict import IDDict
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.expectation import Expectation
from great_expectations.expectations.registry import get_metric_provider
from great_expectations.util import convert_to_json_serializable
from great_expectations.validator.metrics_calculator import MetricsCalculator
from great_expectations.validator.validation_graph import ValidationGraph
from great_expectations.validator.validator import Validator
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.quality.gx.grouped_metrics import (
    GroupedMetric,
    create_condition_count,
    create_metric,
    is_condition_count,
)
from tidemark.quality.gx.result_parsing import parse_observed_value
from tidemark.spark.temporary_settings import override_settings

_AGGREGATE_SUFFIX = ".aggregate_fn"
_RESULT_FORMAT = {
    "result_format": {"result_format": "SUMMARY", "partial_unexpected_count": 0},
    "catch_exceptions": True,
}
"""Counts without values."""
_ROW_COUNT, _NULL_COUNT = "table.row_count", "column_values.nonnull.unexpected_count"
_NULL_MAP_METRICS = ("column_values.nonnull", "column_values.null")
_SCHEMA_METRICS = ("table.columns", "table.column_types", "table.column_count")
_EXPRESSION_SUFFIXES = (".condition", ".map", ".unexpected_index_query")
"""Metrics whose value is an expression."""
_INDEX_LIST_SUFFIX = ".unexpected_index_list"
_VALUE_SUFFIXES = (
    ".unexpected_values",
    _INDEX_LIST_SUFFIX,
    ".distinct_values.not_in_set",
    ".distinct_values.missing_from_column",
)
"""Metrics that list values, which results do not contain."""
_DERIVED_METRICS = ("column.unique_proportion", "column.non_null_proportion")
"""Metrics that Great Expectations computes from other metrics of a unit."""
MetricKey = Any
"""Great Expectations' identifier of a metric."""
_UNIT = "_tidemark_unit"
_SHARE_TOLERANCE = 1e-9
"""Distance from `mostly` at which rounding cannot decide."""
_CONCURRENT_QUERIES = 3
"""Number of queries at the same time. Each leaves processors idle while it is planned and collected."""
_HASH_AGGREGATION = {"spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000"}
"""Quantiles by hash aggregation. By default Spark sorts all rows if there are more than 128 units."""


@dataclass(frozen=True)
class UnitResult:
    """Result of an expectation in a unit."""

    value: float | None
    """Value as in `Measurement`."""
    failed: Any = None
    """Great Expectations' result if the expectation failed, else None."""

    @classmethod
    def from_gx(cls, result: Any) -> UnitResult:
        """Create it from a result of Great Expectations."""
        return cls(parse_observed_value(result.result), None if result.success else result)


_PASSED_WITHOUT_FAILURES, _PASSED_WITHOUT_VALUES = UnitResult(0.0), UnitResult(None)


@dataclass(frozen=True)
class BatchedResults:
    """Results of several expectations on several units."""

    by_unit: dict[int, tuple[UnitResult, ...]]
    """Results by unit, in the order of the expectations."""
    create_results: Callable[[int, Sequence[Expectation]], list[Any]]
    """Creates Great Expectations' results of a unit, passed or failed, for the same expectations with other notes."""


def evaluate_units(
    rows: DataFrame, unit: Column, units: Sequence[int], expectations: Sequence[Expectation]
) -> BatchedResults:
    """Evaluate expectations on each unit of rows.

    Args:
        rows: Rows of all units.
        unit: A row's unit, a long.
        units: Units to evaluate, with or without rows.
        expectations: Expectations of Great Expectations.
    """
    engine = _GroupedEngine(rows, unit, frozenset(units))
    plans = {
        number: plan
        for number, expectation in enumerate(expectations)
        if (plan := engine.plan_expectation(expectation))
    }
    engine.compute_metrics(plans.values())
    # Without metrics, for example if a column is missing, an expectation is evaluated on rows and raises there.
    plans = {number: plan for number, plan in plans.items() if engine.has_metrics(plan)}
    by_unit = {}
    for unit_number in units:
        grouped = {n: engine.evaluate(expectations[n], plan, unit_number) for n, plan in plans.items()}
        results = {n: result for n, result in grouped.items() if result is not None}
        if remaining := [number for number in range(len(expectations)) if number not in results]:
            gx_results = evaluate_rows(rows.where(unit == unit_number), [expectations[n] for n in remaining])
            results |= {n: UnitResult.from_gx(result) for n, result in zip(remaining, gx_results, strict=True)}
        by_unit[unit_number] = tuple(results[n] for n in range(len(expectations)))

    def create_results(unit_number: int, annotated: Sequence[Expectation]) -> list[Any]:
        remaining = [
            n
            for n in range(len(annotated))
            if n not in plans or engine.evaluate(expectations[n], plans[n], unit_number) is None
        ]
        unit_rows = rows.where(unit == unit_number)
        gx_results = evaluate_rows(unit_rows, [annotated[n] for n in remaining]) if remaining else ()
        from_rows = dict(zip(remaining, gx_results, strict=True))
        return [
            from_rows[n] if n in from_rows else engine.create_result(annotated[n], plans[n], unit_number)
            for n in range(len(annotated))
        ]

    return BatchedResults(by_unit, create_results)


def evaluate_rows(rows: DataFrame, expectations: Sequence[Expectation]) -> list[Any]:
    """Evaluate expectations on rows; return Great Expectations' results in the same order."""
    engine = SparkDFExecutionEngine(spark=rows.sparkSession, persist=False)
    engine.load_batch_data("rows", rows)
    # One at a time: among several, results of exceptions change the order.
    validator = Validator(execution_engine=engine)
    validator.metrics_calculator.show_progress_bars = False
    return [
        validator.graph_validate([expectation.configuration], deepcopy(_RESULT_FORMAT))[0]
        for expectation in expectations
    ]


def _get_key(metric: Any) -> MetricKey:
    """Return a metric's key. Its own identifier, for quantiles, is computed before their arguments are set."""
    return (metric.metric_name, metric.metric_domain_kwargs.to_id(), metric.metric_value_kwargs.to_id())


@dataclass(frozen=True)
class _RowCountShortcut:
    """Metrics that decide an expectation on single rows if its share of failing rows is far from `mostly`.

    Great Expectations itself takes milliseconds per unit.
    """

    row_count: MetricKey
    null_count: MetricKey | None
    failure_count: MetricKey
    mostly: float

    @classmethod
    def from_metrics(cls, expectation: Expectation, metrics: Iterable[Any]) -> _RowCountShortcut | None:
        """Create the shortcut from the metrics an expectation needs; None if it is not on single rows."""
        prefix = getattr(expectation, "map_metric", None)
        keys = {metric.metric_name: _get_key(metric) for metric in metrics}
        if (failure_count := keys.get(f"{prefix}.unexpected_count")) is None:
            return None
        null_count = None if prefix in _NULL_MAP_METRICS else keys.get(_NULL_COUNT)
        row_count = keys.get(f"{prefix}.filtered_row_count", keys[_ROW_COUNT])
        return cls(row_count, null_count, failure_count, getattr(expectation, "mostly", 1.0))

    def evaluate(self, values: Mapping[MetricKey, Any]) -> UnitResult | None:
        """Return the result if the expectation clearly passes, else None."""
        failures = values[self.failure_count]
        # Sums over no rows are null.
        total = values[self.row_count] - (values[self.null_count] or 0 if self.null_count else 0)
        if failures == 0:
            return _PASSED_WITHOUT_FAILURES if total > 0 else _PASSED_WITHOUT_VALUES
        if failures and total and (total - failures) / total > self.mostly + _SHARE_TOLERANCE:
            return UnitResult(failures / total * 100 / 100)
        return None


@dataclass(frozen=True)
class _RangeShortcut:
    """The single metric of an expectation that passes between two numbers."""

    metric: MetricKey
    low: float
    high: float

    @classmethod
    def from_metrics(cls, expectation: Expectation, metrics: Sequence[Any]) -> _RangeShortcut | None:
        """Create the shortcut from the metrics an expectation needs; None unless it is one between two numbers."""
        low: Any = getattr(expectation, "min_value", "")
        high: Any = getattr(expectation, "max_value", "")
        if len(metrics) != 1 or not all(bound is None or type(bound) in {int, float} for bound in (low, high)):
            return None
        return cls(_get_key(metrics[0]), -inf if low is None else low, inf if high is None else high)

    def evaluate(self, values: Mapping[MetricKey, Any]) -> UnitResult | None:
        """Return the result if the expectation clearly passes, else None."""
        value = values[self.metric]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return UnitResult(float(value)) if is_number and self.low < value < self.high else None


@dataclass(frozen=True)
class _ExpectationPlan:
    """Metrics that an expectation needs, and how to compute them."""

    metric_ids: Mapping[MetricKey, Any]
    """Great Expectations' identifiers of the metrics, by key."""
    shortcut: _RowCountShortcut | _RangeShortcut | None
    edges: tuple[Any, ...]
    """Edges of Great Expectations' graph of metrics that it resolves without reading rows."""


class _GroupedEngine(SparkDFExecutionEngine):
    """Engine that computes the aggregates of all units together."""

    def __init__(self, rows: DataFrame, unit: Column, units: frozenset[int]) -> None:
        super().__init__(spark=rows.sparkSession, persist=False)
        self.load_batch_data("rows", rows)
        self._unit, self._units = unit, units
        self._unit_values: dict[MetricKey, tuple[Mapping[int, Any], Any]] = {}
        """Values by unit of each aggregate, and its value for a unit without rows."""
        self._constants: dict[MetricKey, Any] = {}
        """Metrics with the same value for all units."""
        self._derived: dict[MetricKey, Any] = {}
        """Metrics computed from others of the unit."""
        self._condition_counts: dict[MetricKey, tuple[Any, MetricKey]] = {}
        """Metrics that become aggregates once their condition is resolved, with that condition."""
        self._pending: list[tuple[MetricKey, GroupedMetric]] = []
        self._cache: dict[tuple[Any, ...], UnitResult | None] = {}

    def plan_expectation(self, expectation: Expectation) -> _ExpectationPlan | None:
        """Plan the metrics of an expectation; None if they do not all follow from aggregates and columns."""
        try:
            dependencies = expectation.get_validation_dependencies(
                execution_engine=self, runtime_configuration=_RESULT_FORMAT
            )
            calculator = MetricsCalculator(execution_engine=self, show_progress_bars=False)
            metrics = dependencies.get_metric_configurations()
            graph = calculator.build_metric_dependency_graph(metrics, runtime_configuration=_RESULT_FORMAT)
        except Exception:  # noqa: BLE001 - evaluation on rows reports it
            return None
        edges: dict[MetricKey, list[Any]] = defaultdict(list)
        for edge in graph.edges:
            edges[edge.left.id].append(edge)
        resolved: list[Any] = []
        if not all(self._can_group(metric, edges, resolved) for metric in metrics):
            return None
        return _ExpectationPlan(
            {_get_key(metric): metric.id for metric in metrics},
            _RowCountShortcut.from_metrics(expectation, metrics) or _RangeShortcut.from_metrics(expectation, metrics),
            tuple(resolved),
        )

    def _can_group(self, metric: Any, edges: Mapping[MetricKey, Sequence[Any]], resolved: list[Any]) -> bool:
        """Return True if a metric follows from aggregates and columns. Append its edges to `resolved`."""
        name = metric.metric_name
        dependencies = [edge.right for edge in edges[metric.id] if edge.right]
        if name.endswith(_VALUE_SUFFIXES):
            self._constants[_get_key(metric)] = None if name.endswith(_INDEX_LIST_SUFFIX) else []
            return True
        if name in _DERIVED_METRICS:
            self._derived[_get_key(metric)] = metric
            return all(self._can_group(dependency, edges, resolved) for dependency in dependencies)
        if any(dependency.metric_name == f"{name}{_AGGREGATE_SUFFIX}" for dependency in dependencies):
            resolved += edges[metric.id]
            return all(_is_resolvable(dependency, edges, resolved) for dependency in dependencies)
        if (grouped := create_metric(metric, self.dataframe.schema)) is not None:
            self._pending.append((_get_key(metric), grouped))
            return True
        if is_condition_count(metric):
            [condition] = (dependency for dependency in dependencies if dependency.metric_name.endswith(".condition"))
            self._condition_counts[_get_key(metric)] = metric, condition.id
            return _is_resolvable(condition, edges, resolved)
        return _is_resolvable(metric, edges, resolved)

    def compute_metrics(self, plans: Iterable[_ExpectationPlan]) -> None:
        """Compute all metrics of the planned expectations."""
        graph = ValidationGraph(execution_engine=self)
        for plan in plans:
            for edge in plan.edges:
                graph.add(edge)
        values, _ = graph.resolve(runtime_configuration=_RESULT_FORMAT, show_progress_bars=False)
        pending = {key for key, _ in self._pending}
        self._constants |= {key: value for key, value in values.items() if key not in pending}
        for key, (metric, condition) in self._condition_counts.items():
            if condition in values:
                self._pending.append((key, create_condition_count(metric, values[condition])))
        queries: dict[Any, dict[MetricKey, GroupedMetric]] = defaultdict(dict)
        for key, grouped in self._pending:
            queries[grouped.domain.to_id(), grouped.group_columns, grouped.skip_nulls][key] = grouped
        with (
            override_settings(self.dataframe.sparkSession, _HASH_AGGREGATION),
            ThreadPoolExecutor(_CONCURRENT_QUERIES) as pool,
        ):
            for unit_values in pool.map(self._query_or_split, queries.values()):
                self._unit_values |= unit_values

    def has_metrics(self, plan: _ExpectationPlan) -> bool:
        """Return True if all metrics of a plan were computed."""
        return all(map(self._has_metric, plan.metric_ids))

    def _has_metric(self, key: MetricKey) -> bool:
        if (metric := self._derived.get(key)) is not None:
            return all(self._has_metric(_get_key(part)) for part in metric.metric_dependencies.values())
        return key in self._unit_values or key in self._constants

    def evaluate(self, expectation: Expectation, plan: _ExpectationPlan, unit: int) -> UnitResult | None:
        """Evaluate an expectation in a unit; None if it raises, for example if it compares text with a number."""
        values = {key: self._get_value(key, unit) for key in plan.metric_ids}
        if plan.shortcut and (result := plan.shortcut.evaluate(values)):
            return result
        cache_key = (id(expectation), *map(repr, values.values()))
        if cache_key not in self._cache:
            try:
                self._cache[cache_key] = UnitResult.from_gx(self.create_result(expectation, plan, unit))
            except Exception:  # noqa: BLE001 - evaluation on rows reports it
                self._cache[cache_key] = None
        return self._cache[cache_key]

    def create_result(self, expectation: Expectation, plan: _ExpectationPlan, unit: int) -> Any:
        """Create Great Expectations' result of a unit."""
        metrics = {metric_id: self._get_value(key, unit) for key, metric_id in plan.metric_ids.items()}
        return expectation.metrics_validate(metrics, deepcopy(_RESULT_FORMAT), self)

    def _get_value(self, key: MetricKey, unit: int) -> Any:
        if key in self._unit_values:
            values, without_rows = self._unit_values[key]
            return values.get(unit, without_rows)
        if (metric := self._derived.get(key)) is not None:
            _, provider = get_metric_provider(metric.metric_name, self)
            return provider(
                metrics={
                    name: self._get_value(_get_key(part), unit) for name, part in metric.metric_dependencies.items()
                }
            )
        return self._constants[key]

    @override
    def resolve_metric_bundle(self, metric_fn_bundle: Iterable[Any]) -> dict[MetricKey, Any]:
        keys = []
        for item in metric_fn_bundle:
            keys.append(item.metric_configuration.id)
            domain = IDDict(item.compute_domain_kwargs or {})
            self._pending.append((keys[-1], GroupedMetric(domain, item.metric_fn, convert_to_json_serializable)))
        # Placeholders: `compute_metrics` computes the values later, and the graph needs none of them.
        return dict.fromkeys(keys)

    def _query_or_split(
        self, metrics: Mapping[MetricKey, GroupedMetric]
    ) -> dict[MetricKey, tuple[Mapping[int, Any], Any]]:
        """Query aggregates over the same rows; if that fails, query each alone and leave out those that fail."""
        try:
            return dict(self._query(metrics))
        except PySparkException:
            parts = [{key: grouped} for key, grouped in metrics.items()] if len(metrics) > 1 else []
            return {key: values for part in parts for key, values in self._query_or_split(part).items()}

    def _query(
        self, metrics: Mapping[MetricKey, GroupedMetric]
    ) -> Iterator[tuple[MetricKey, tuple[Mapping[int, Any], Any]]]:
        """Yield the values by unit of aggregates over the same rows, and the value of a unit without rows."""
        first = next(iter(metrics.values()))
        rows = self.get_domain_records(first.domain).withColumn(_UNIT, self._unit)
        if first.group_columns:
            columns = [F.col(name) for name in first.group_columns]
            if first.skip_nulls:
                rows = rows.where(reduce(and_, (column.isNotNull() for column in columns)))
            value = columns[0] if len(columns) == 1 else F.struct(*columns)
            rows = rows.groupBy(_UNIT, value.alias("value")).agg(F.count(F.lit(1)).alias("n"))
        aggregates = [grouped.aggregate.alias(f"metric_{number}") for number, grouped in enumerate(metrics.values())]
        unit_rows = rows.groupBy(_UNIT).agg(*aggregates).collect()
        has_empty_unit = not self._units <= {row[0] for row in unit_rows}
        empty_row = rows.where(F.lit(False)).agg(*aggregates).first() if has_empty_unit else None
        for number, (key, grouped) in enumerate(metrics.items()):
            values = {row[0]: grouped.convert(row[number + 1]) for row in unit_rows}
            yield key, (values, grouped.convert(empty_row[number]) if empty_row else None)


def _is_resolvable(metric: Any, edges: Mapping[MetricKey, Sequence[Any]], resolved: list[Any]) -> bool:
    """Return True if a metric is an expression or follows from the columns; its edges are appended to `resolved`."""
    name, metric_edges = metric.metric_name, edges[metric.id]
    resolved += metric_edges
    # Great Expectations requests the row count before any other metric of an expectation.
    is_supported = name in {*_SCHEMA_METRICS, _ROW_COUNT} or name.endswith((_AGGREGATE_SUFFIX, *_EXPRESSION_SUFFIXES))
    return is_supported and all(_is_resolvable(edge.right, edges, resolved) for edge in metric_edges if edge.right)
