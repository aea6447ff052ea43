"""Great Expectations' verdicts on many units of rows, such as slices, by a few queries over all of them.

An expectation asks for metrics. Where each of them is an aggregate over the rows, or follows from the columns alone,
one query grouped by unit gives those of all units: it is made of the expressions that Great Expectations' Spark engine
has for one. By them Great Expectations judges each unit, as if it had its rows alone. Expectations that ask for more,
such as quantiles or what other rows hold, are judged on the rows of each unit.

Imports Great Expectations, which takes seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from great_expectations.core.id_dict import IDDict
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.expectation import Expectation
from great_expectations.util import convert_to_json_serializable
from great_expectations.validator.metrics_calculator import MetricsCalculator
from great_expectations.validator.validation_graph import ValidationGraph
from great_expectations.validator.validator import Validator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

_FORMAT = {"result_format": {"result_format": "SUMMARY", "partial_unexpected_count": 0}, "catch_exceptions": True}
"""Counts, and none of the values."""
_AGGREGATE = ".aggregate_fn"
_ROWS = "table.row_count"
"""Others ask for it before they ask for what they are about."""
_OF_COLUMNS = ("table.columns", "table.column_types", "table.column_count")
_UNEXPECTED = tuple(f".unexpected_{name}" for name in ("values", "index_list", "index_query"))
_OF_NO_ROW = (_AGGREGATE, ".condition", ".map", *_UNEXPECTED)
"""What these stand for is an expression, or values of which none are wanted."""
Metric = Any
"""What Great Expectations identifies a metric by."""


def failures(
    rows: DataFrame, unit: Column, units: Sequence[int], expectations: Sequence[Expectation]
) -> dict[int, list[Any]]:
    """The results of the expectations that do not hold, by unit, in the order of `expectations`.

    `unit` tells the unit of a row, a long; of `units` some may have no rows.
    """
    engine = _ByUnit(rows, unit)
    asked = {number: asked for number, one in enumerate(expectations) if (asked := engine.asked_by(one))}
    engine.compute(asked.values())
    # What raised, on a column that is not there say, is told by Great Expectations on the rows.
    asked = {number: one for number, one in asked.items() if engine.knows(one)}
    apart = [number for number in range(len(expectations)) if number not in asked]
    found = {}
    for one in units:
        failed = {n: result for n in asked if (result := engine.failed(expectations[n], asked[n], one))}
        if apart:
            judged = on_rows(rows.where(unit == one), [expectations[n] for n in apart])
            failed |= {n: result for n, result in zip(apart, judged, strict=True) if not result.success}
        found[one] = [result for _, result in sorted(failed.items())]
    return found


def by_groups(rows: DataFrame, expectation: Expectation) -> bool:
    """Whether what it says of a row follows from that row, so that it may be asked of several units at once."""
    return _ByUnit(rows, F.lit(0)).asked_by(expectation) is not None


def on_rows(rows: DataFrame, expectations: Sequence[Expectation]) -> list[Any]:
    """The results of expectations on some rows, each in its place."""
    engine = SparkDFExecutionEngine(spark=rows.sparkSession, persist=False)
    engine.load_batch_data("rows", rows)
    # One by one: results come in another order where some are exceptions.
    validator = Validator(execution_engine=engine)
    return [validator.graph_validate([one.configuration], deepcopy(_FORMAT))[0] for one in expectations]


@dataclass(frozen=True)
class _Asked:
    """The metrics that an expectation asks for."""

    graph: ValidationGraph
    wanted: tuple[Metric, ...]
    unexpected: Metric | None
    """The number of rows that do not meet it, where it is about single rows."""


class _ByUnit(SparkDFExecutionEngine):
    """An engine that finds the aggregates of all units at once."""

    def __init__(self, rows: DataFrame, unit: Column) -> None:
        super().__init__(spark=rows.sparkSession, persist=False)
        self.load_batch_data("rows", rows)
        self._unit = unit
        self._aggregates: dict[Metric, tuple[Mapping[int, Any], Any]] = {}
        """Of each metric the values by unit, and that of a unit without rows."""
        self._others: dict[Metric, Any] = {}
        self._known: dict[tuple[Any, ...], Any] = {}

    def asked_by(self, expectation: Expectation) -> _Asked | None:
        """The metrics of an expectation; None where they do not follow from aggregates and columns."""
        try:
            needed = expectation.get_validation_dependencies(execution_engine=self, runtime_configuration=_FORMAT)
            calculator = MetricsCalculator(execution_engine=self, show_progress_bars=False)
            wanted = needed.get_metric_configurations()
            graph = calculator.build_metric_dependency_graph(wanted, runtime_configuration=_FORMAT)
        except Exception:  # noqa: BLE001 - Great Expectations says of it on the rows what there is to say
            return None
        aggregates = {edge.left.id for edge in graph.edges if edge.right and _is_aggregate(edge.left, edge.right)}
        for edge in graph.edges:
            name = edge.left.metric_name
            if not (edge.left.id in aggregates or name in _OF_COLUMNS or name.endswith(_OF_NO_ROW)):
                return None
            if edge.right and edge.right.id in aggregates and edge.right.metric_name != _ROWS:
                return None
        about = f"{getattr(expectation, 'map_metric', None)}.unexpected_count"
        unexpected = next((one.id for one in wanted if one.metric_name == about), None)
        return _Asked(graph, tuple(one.id for one in wanted), unexpected)

    def compute(self, asked: Iterable[_Asked]) -> None:
        """Find all metrics."""
        graph = ValidationGraph(execution_engine=self)
        for one in asked:
            for edge in one.graph.edges:
                graph.add(edge)
        self._others, _ = graph.resolve(runtime_configuration=_FORMAT, show_progress_bars=False)

    def knows(self, asked: _Asked) -> bool:
        """Whether all metrics of an expectation were found."""
        return all(metric in self._aggregates or metric in self._others for metric in asked.wanted)

    def failed(self, expectation: Expectation, asked: _Asked, unit: int) -> Any:
        """The result of an expectation that does not hold for a unit; None where it does."""
        metrics = {metric: self._value(metric, unit) for metric in asked.wanted}
        if asked.unexpected is not None and metrics[asked.unexpected] == 0:
            return None
        key = (id(expectation), *(repr(value) for value in metrics.values()))
        if key not in self._known:
            result = expectation.metrics_validate(metrics, deepcopy(_FORMAT), self)
            self._known[key] = None if result.success else result
        return self._known[key]

    def _value(self, metric: Metric, unit: int) -> Any:
        if metric not in self._aggregates:
            return self._others[metric]
        values, without_rows = self._aggregates[metric]
        return values.get(unit, without_rows)

    @override
    def resolve_metric_bundle(self, metric_fn_bundle: Iterable[Any]) -> dict[Metric, Any]:
        by_domain: dict[Any, list[Any]] = defaultdict(list)
        domains = {}
        for one in metric_fn_bundle:
            domain = IDDict(one.compute_domain_kwargs or {})
            domains[domain.to_id()] = domain
            by_domain[domain.to_id()].append(one)
        for domain_id, parts in by_domain.items():
            self._aggregates |= self._grouped(domains[domain_id], parts)
        # Nothing else is made of these (`asked_by`).
        return {one.metric_configuration.id: None for parts in by_domain.values() for one in parts}

    def _grouped(self, domain: dict[str, Any], parts: Sequence[Any]) -> Iterator[tuple[Metric, Any]]:
        rows = self.get_domain_records(domain)
        columns = [part.metric_fn.alias(f"metric_{number}") for number, part in enumerate(parts)]
        by_unit = rows.groupBy(self._unit.alias("unit")).agg(*columns).collect()
        without_rows = rows.where(F.lit(False)).agg(*columns).first()
        assert without_rows is not None, "an aggregate has one row"
        for number, part in enumerate(parts):
            values = {row[0]: convert_to_json_serializable(row[number + 1]) for row in by_unit}
            yield part.metric_configuration.id, (values, convert_to_json_serializable(without_rows[number]))


def _is_aggregate(metric: Any, needs: Any) -> bool:
    return bool(needs.metric_name == f"{metric.metric_name}{_AGGREGATE}")
