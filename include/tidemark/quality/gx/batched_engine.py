"""Great Expectations' verdicts on many units of rows, such as slices, by a few queries over all of them.

An expectation asks for metrics. Where each of them is an aggregate over the rows (Great Expectations' own, or one of
`grouped`), or follows from such or from the columns, queries grouped by unit give those of all units. By them Great
Expectations judges each unit, as if it had its rows alone. Expectations that ask for more, such as the order of rows,
are judged on the rows of each unit.

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

from tidemark.quality.gx.grouped_metrics import Grouped, by_condition, by_name, is_by_condition
from tidemark.quality.results import observed
from tidemark.spark.temporary_settings import session_settings

_AGGREGATE = ".aggregate_fn"
_FORMAT = {"result_format": {"result_format": "SUMMARY", "partial_unexpected_count": 0}, "catch_exceptions": True}
"""Counts, and none of the values."""
_ROWS, _NULLS = "table.row_count", "column_values.nonnull.unexpected_count"
_ABOUT_NULLS = ("column_values.nonnull", "column_values.null")
_OF_COLUMNS = ("table.columns", "table.column_types", "table.column_count")
_OF_NO_ROW = (".condition", ".map", ".unexpected_index_query")
"""What these stand for is an expression."""
_NOWHERE = ".unexpected_index_list"
_UNWANTED = (".unexpected_values", _NOWHERE, ".distinct_values.not_in_set", ".distinct_values.missing_from_column")
"""Values, of which none are told."""
_BY_OTHERS = ("column.unique_proportion", "column.non_null_proportion")
"""What Great Expectations makes of other metrics of a unit."""
Metric = Any
"""What Great Expectations identifies a metric by."""
_UNIT = "_tidemark_unit"
_PLAINLY = 1e-9
"""A share so much above what is asked for is so however it is reckoned."""
_AT_ONCE = 3
"""So many queries run side by side: each leaves the processor idle while it is planned and collected."""
_HASHED = {"spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000"}
"""Quantiles of many units by hash: by default Spark sorts all rows where there are more than 128 of them."""


@dataclass(frozen=True)
class Judged:
    """What an expectation came to in a unit."""

    value: float | None
    """`findings.Measure.value`."""
    failed: Any = None
    """Great Expectations' result where it does not hold, else None."""

    @classmethod
    def of(cls, result: Any) -> Judged:
        """That of one of Great Expectations' results."""
        return cls(observed(result.result), None if result.success else result)


_NONE_BROKEN, _NO_VALUES = Judged(0.0), Judged(None)


@dataclass(frozen=True)
class Verdicts:
    """What each of some expectations comes to, in their order, by unit."""

    by_unit: dict[int, tuple[Judged, ...]]
    results: Callable[[int, Sequence[Expectation]], list[Any]]
    """Great Expectations' results for a unit, whether they hold or not; of the same expectations, with other notes."""


def judged(rows: DataFrame, unit: Column, units: Sequence[int], expectations: Sequence[Expectation]) -> Verdicts:
    """Judge units of rows, each by itself.

    `unit` tells the unit of a row, a long; of `units` some may have no rows.
    """
    engine = _ByUnit(rows, unit, frozenset(units))
    asked = {number: asked for number, one in enumerate(expectations) if (asked := engine.asked_by(one))}
    engine.compute(asked.values())
    # What raised, on a column that is not there say, is told by Great Expectations on the rows.
    asked = {number: one for number, one in asked.items() if engine.knows(one)}
    found = {}
    for one in units:
        known = {n: engine.judged(expectations[n], asked[n], one) for n in asked}
        here = {n: judged for n, judged in known.items() if judged is not None}
        if apart := [number for number in range(len(expectations)) if number not in here]:
            results = on_rows(rows.where(unit == one), [expectations[n] for n in apart])
            here |= {n: Judged.of(result) for n, result in zip(apart, results, strict=True)}
        found[one] = tuple(here[n] for n in range(len(expectations)))

    def results_of(one: int, same: Sequence[Expectation]) -> list[Any]:
        alone = [n for n in range(len(same)) if n not in asked or engine.judged(expectations[n], asked[n], one) is None]
        told = dict(
            zip(alone, on_rows(rows.where(unit == one), [same[n] for n in alone]) if alone else (), strict=True)
        )
        return [told[n] if n in told else engine.result(same[n], asked[n], one) for n in range(len(same))]

    return Verdicts(found, results_of)


def on_rows(rows: DataFrame, expectations: Sequence[Expectation]) -> list[Any]:
    """The results of expectations on some rows, each in its place."""
    engine = SparkDFExecutionEngine(spark=rows.sparkSession, persist=False)
    engine.load_batch_data("rows", rows)
    # One by one: results come in another order where some are exceptions.
    validator = Validator(execution_engine=engine)
    return [validator.graph_validate([one.configuration], deepcopy(_FORMAT))[0] for one in expectations]


def _key(metric: Any) -> Metric:
    """What tells a metric from others: the identifier of quantiles is made before it is known which are asked for."""
    return (metric.metric_name, metric.metric_domain_kwargs.to_id(), metric.metric_value_kwargs.to_id())


@dataclass(frozen=True)
class _OfRows:
    """Metrics of an expectation on single rows: how many it is about, less those without a value, and that break it."""

    rows: Metric
    without: Metric | None
    broken: Metric
    mostly: float

    @classmethod
    def of(cls, expectation: Expectation, wanted: Iterable[Any]) -> _OfRows | None:
        """Those among the metrics that an expectation asks for."""
        about, named = getattr(expectation, "map_metric", None), {one.metric_name: _key(one) for one in wanted}
        if (broken := named.get(f"{about}.unexpected_count")) is None:
            return None
        without = None if about in _ABOUT_NULLS else named.get(_NULLS)
        mostly = getattr(expectation, "mostly", 1.0)
        return cls(named.get(f"{about}.filtered_row_count", named[_ROWS]), without, broken, mostly)

    def holds(self, values: Mapping[Metric, Any]) -> Judged | None:
        """That it holds, where this is plain; Great Expectations takes milliseconds to say so, a unit."""
        broken = values[self.broken]
        # Of no rows sums are null.
        about = values[self.rows] - (values[self.without] or 0 if self.without else 0)
        if broken == 0:
            return _NONE_BROKEN if about > 0 else _NO_VALUES
        if broken and about and (about - broken) / about > self.mostly + _PLAINLY:
            return Judged(broken / about * 100 / 100)
        return None


@dataclass(frozen=True)
class _Between:
    """The one figure of an expectation that it is between two numbers."""

    figure: Metric
    low: float
    high: float

    @classmethod
    def of(cls, expectation: Expectation, wanted: Sequence[Any]) -> _Between | None:
        """That of an expectation which asks for no more."""
        low: Any = getattr(expectation, "min_value", "")
        high: Any = getattr(expectation, "max_value", "")
        if len(wanted) != 1 or not all(one is None or type(one) in {int, float} for one in (low, high)):
            return None
        return cls(_key(wanted[0]), -inf if low is None else low, inf if high is None else high)

    def holds(self, values: Mapping[Metric, Any]) -> Judged | None:
        """That it holds, where this is plain."""
        value = values[self.figure]
        plainly = isinstance(value, int | float) and not isinstance(value, bool) and self.low < value < self.high
        return Judged(float(value)) if plainly else None


@dataclass(frozen=True)
class _Asked:
    """The metrics that an expectation asks for."""

    wanted: Mapping[Metric, Any]
    """As Great Expectations identifies them, by their keys."""
    plain: _OfRows | _Between | None
    """Tells where it plainly holds, if it is about single rows or one figure."""
    edges: tuple[Any, ...]
    """Of the graph of metrics that Great Expectations resolves, those that need no row."""


class _ByUnit(SparkDFExecutionEngine):
    """An engine that finds the aggregates of all units at once."""

    def __init__(self, rows: DataFrame, unit: Column, units: frozenset[int]) -> None:
        super().__init__(spark=rows.sparkSession, persist=False)
        self.load_batch_data("rows", rows)
        self._unit, self._units = unit, units
        self._aggregates: dict[Metric, tuple[Mapping[int, Any], Any]] = {}
        """Of each metric the values by unit, and that of a unit without rows."""
        self._others: dict[Metric, Any] = {}
        """Metrics that are the same for all units."""
        self._made: dict[Metric, Any] = {}
        """Those that are made of others, by unit."""
        self._by_condition: dict[Metric, tuple[Any, Metric]] = {}
        """Those that are aggregates once a condition is known, and that."""
        self._parts: list[tuple[Metric, Grouped]] = []
        self._known: dict[tuple[Any, ...], Judged | None] = {}

    def asked_by(self, expectation: Expectation) -> _Asked | None:
        """The metrics of an expectation; None where they do not follow from aggregates and columns."""
        try:
            needed = expectation.get_validation_dependencies(execution_engine=self, runtime_configuration=_FORMAT)
            calculator = MetricsCalculator(execution_engine=self, show_progress_bars=False)
            wanted = needed.get_metric_configurations()
            graph = calculator.build_metric_dependency_graph(wanted, runtime_configuration=_FORMAT)
        except Exception:  # noqa: BLE001 - Great Expectations says of it on the rows what there is to say
            return None
        edges: dict[Metric, list[Any]] = defaultdict(list)
        for edge in graph.edges:
            edges[edge.left.id].append(edge)
        resolved: list[Any] = []
        if not all(self._follows(one, edges, resolved) for one in wanted):
            return None
        return _Asked(
            {_key(one): one.id for one in wanted},
            _OfRows.of(expectation, wanted) or _Between.of(expectation, wanted),
            tuple(resolved),
        )

    def _follows(self, metric: Any, edges: Mapping[Metric, Sequence[Any]], resolved: list[Any]) -> bool:
        """Whether a metric follows from aggregates and columns; what Great Expectations has to find for it is added."""
        name, needs = metric.metric_name, [edge.right for edge in edges[metric.id] if edge.right]
        if name.endswith(_UNWANTED):
            self._others[_key(metric)] = None if name.endswith(_NOWHERE) else []
            return True
        if name in _BY_OTHERS:
            self._made[_key(metric)] = metric
            return all(self._follows(one, edges, resolved) for one in needs)
        if any(one.metric_name == f"{name}{_AGGREGATE}" for one in needs):
            resolved += edges[metric.id]
            return all(_is_plain(one, edges, resolved) for one in needs)
        if (part := by_name(metric, self.dataframe.schema)) is not None:
            self._parts.append((_key(metric), part))
            return True
        if is_by_condition(metric):
            [condition] = (one for one in needs if one.metric_name.endswith(".condition"))
            self._by_condition[_key(metric)] = metric, condition.id
            return _is_plain(condition, edges, resolved)
        return _is_plain(metric, edges, resolved)

    def compute(self, asked: Iterable[_Asked]) -> None:
        """Find all metrics."""
        graph = ValidationGraph(execution_engine=self)
        for one in asked:
            for edge in one.edges:
                graph.add(edge)
        found, _ = graph.resolve(runtime_configuration=_FORMAT, show_progress_bars=False)
        to_come = {name for name, _ in self._parts}
        self._others |= {name: value for name, value in found.items() if name not in to_come}
        for name, (metric, condition) in self._by_condition.items():
            if condition in found:
                self._parts.append((name, by_condition(metric, found[condition])))
        together: dict[Any, dict[Metric, Grouped]] = defaultdict(dict)
        for name, part in self._parts:
            together[part.domain.to_id(), part.each, part.present][name] = part
        with session_settings(self.dataframe.sparkSession, _HASHED), ThreadPoolExecutor(_AT_ONCE) as pool:
            for values in pool.map(self._found, together.values()):
                self._aggregates |= values

    def knows(self, asked: _Asked) -> bool:
        """Whether all metrics of an expectation were found."""
        return all(map(self._is_known, asked.wanted))

    def _is_known(self, metric: Metric) -> bool:
        if (made := self._made.get(metric)) is not None:
            return all(self._is_known(_key(one)) for one in made.metric_dependencies.values())
        return metric in self._aggregates or metric in self._others

    def judged(self, expectation: Expectation, asked: _Asked, unit: int) -> Judged | None:
        """What an expectation comes to in a unit; None where it raises, comparing a text with a number say."""
        values = {metric: self._value(metric, unit) for metric in asked.wanted}
        if asked.plain and (judged := asked.plain.holds(values)):
            return judged
        key = (id(expectation), *map(repr, values.values()))
        if key not in self._known:
            try:
                self._known[key] = Judged.of(self.result(expectation, asked, unit))
            except Exception:  # noqa: BLE001 - Great Expectations says on the rows what there is to say
                self._known[key] = None
        return self._known[key]

    def result(self, expectation: Expectation, asked: _Asked, unit: int) -> Any:
        """Great Expectations' result for a unit."""
        metrics = {name: self._value(metric, unit) for metric, name in asked.wanted.items()}
        return expectation.metrics_validate(metrics, deepcopy(_FORMAT), self)

    def _value(self, metric: Metric, unit: int) -> Any:
        if metric in self._aggregates:
            values, without_rows = self._aggregates[metric]
            return values.get(unit, without_rows)
        if (made := self._made.get(metric)) is not None:
            _, provider = get_metric_provider(made.metric_name, self)
            return provider(
                metrics={name: self._value(_key(one), unit) for name, one in made.metric_dependencies.items()}
            )
        return self._others[metric]

    @override
    def resolve_metric_bundle(self, metric_fn_bundle: Iterable[Any]) -> dict[Metric, Any]:
        names = []
        for one in metric_fn_bundle:
            names.append(one.metric_configuration.id)
            domain = IDDict(one.compute_domain_kwargs or {})
            self._parts.append((names[-1], Grouped(domain, one.metric_fn, convert_to_json_serializable)))
        # They are found all at once, once they are known, and nothing else is made of these.
        return dict.fromkeys(names)

    def _found(self, parts: Mapping[Metric, Grouped]) -> dict[Metric, tuple[Mapping[int, Any], Any]]:
        """The values of aggregates over the same rows; what cannot be found, as it raises, is left out."""
        try:
            return dict(self._grouped(parts))
        except PySparkException:
            alone = [{name: part} for name, part in parts.items()] if len(parts) > 1 else []
            return {name: values for one in alone for name, values in self._found(one).items()}

    def _grouped(self, parts: Mapping[Metric, Grouped]) -> Iterator[tuple[Metric, tuple[Mapping[int, Any], Any]]]:
        first = next(iter(parts.values()))
        rows = self.get_domain_records(first.domain).withColumn(_UNIT, self._unit)
        if first.each:
            each = [F.col(name) for name in first.each]
            if first.present:
                rows = rows.where(reduce(and_, (one.isNotNull() for one in each)))
            value = each[0] if len(each) == 1 else F.struct(*each)
            rows = rows.groupBy(_UNIT, value.alias("value")).agg(F.count(F.lit(1)).alias("n"))
        columns = [part.column.alias(f"metric_{number}") for number, part in enumerate(parts.values())]
        by_unit = rows.groupBy(_UNIT).agg(*columns).collect()
        some_empty = not self._units <= {row[0] for row in by_unit}
        without_rows = rows.where(F.lit(False)).agg(*columns).first() if some_empty else None
        for number, (name, part) in enumerate(parts.items()):
            values = {row[0]: part.made(row[number + 1]) for row in by_unit}
            yield name, (values, part.made(without_rows[number]) if without_rows else None)


def _is_plain(metric: Any, edges: Mapping[Metric, Sequence[Any]], resolved: list[Any]) -> bool:
    """Whether a metric is an expression, or follows from the columns; how is added."""
    name, mine = metric.metric_name, edges[metric.id]
    resolved += mine
    # Great Expectations asks for the number of rows before it asks for what an expectation is about.
    known = name in {*_OF_COLUMNS, _ROWS} or name.endswith((_AGGREGATE, *_OF_NO_ROW))
    return known and all(_is_plain(edge.right, edges, resolved) for edge in mine if edge.right)
