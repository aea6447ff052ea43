"""Split an ON condition the way Spark does, into conjuncts over one side and over both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.sides import SIDES, SideName
from tidemark.errors import PipelineFileError
from tidemark.formatting import quote_identifier
from tidemark.spark.engine import get_engine
from tidemark.spark.engine_protocol import Expression, NumericComparison
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.spark.temporary_settings import FILTER_INFERENCE_SETTINGS

_BOUNDS = {">=": -1, ">": 0}


@dataclass(frozen=True)
class Condition:
    """Parts of a condition as columns over `left_NAME` and `right_NAME`, never null."""

    single_side: Mapping[str, Column]
    """Conjuncts over one side only, by side."""
    not_null: Mapping[str, Column]
    """True if a side's row has no null in a column that the conjuncts over both sides need, by side."""
    pair: Column
    """Conjuncts over both sides, or neither."""
    event_time_floors: Mapping[str, Column]
    """Limit in ms by side, null for none: Spark reads `left_x >= 5` as an event time of at least 5 s."""
    columns: Mapping[str, frozenset[str]]
    """Input columns that the condition reads, by side."""

    @classmethod
    def always_true(cls) -> Condition:
        """Create a condition that every pair meets."""
        true, no_floor = F.lit(True), F.lit(None).cast("long")
        return cls(
            dict.fromkeys(SIDES, true),
            dict.fromkeys(SIDES, true),
            true,
            dict.fromkeys(SIDES, no_floor),
            dict.fromkeys(SIDES, frozenset()),
        )

    @classmethod
    def parse(cls, spark: SparkSession, expression: str | None, schemas: Mapping[str, T.StructType]) -> Condition:
        """Parse a condition with Spark and split it.

        Args:
            spark: Session that parses and analyses.
            expression: SQL over `left_NAME` and `right_NAME`; None or empty for no condition.
            schemas: Schema of each input by side.

        Raises:
            AnalysisException: The expression is invalid for these inputs.
            PipelineFileError: The expression has something that expressions may not have.
        """
        if not expression:
            return cls.always_true()
        with get_engine(spark).override_settings(FILTER_INFERENCE_SETTINGS) as session:
            empty = get_engine(session).create_empty_dataframe(_flatten_schemas(schemas))
            conjuncts = [
                _Conjunct.analyze(empty, part) for part in parse_user_expression(session, expression).split_conjuncts()
            ]

        def required(side: SideName) -> Iterator[Column]:
            for conjunct in conjuncts:
                yield from (F.col(quote_identifier(name)).isNotNull() for name in sorted(conjunct.required[side]))

        def least_floor(side: SideName) -> Column:
            floors = (floor for conjunct in conjuncts if conjunct.sides == {side} for floor in conjunct.floors)
            return F.lit(min(floors, default=None)).cast("long")

        return cls(
            single_side={side: _all(part.column for part in conjuncts if part.sides == {side}) for side in SIDES},
            not_null={side: _all(required(side)) for side in SIDES},
            pair=_all(part.column for part in conjuncts if len(part.sides) != 1),
            event_time_floors={side: least_floor(side) for side in SIDES},
            columns={side: frozenset().union(*(part.names[side] for part in conjuncts)) for side in SIDES},
        )

    @classmethod
    def select_by(cls, selector: Column, conditions: Mapping[str, Condition]) -> Condition:
        """Create the condition whose name is the value of a column; always true for other values."""
        selected = cls.always_true()
        for name, condition in conditions.items():
            selected = _choose(selector == name, condition, selected)
        return selected

    def side_columns(self, side: str) -> dict[str, Column]:
        """Return the columns of one side that the condition reads, extracted from the side's struct."""
        return {f"{side}_{name}": F.col(f"{side}.{quote_identifier(name)}") for name in sorted(self.columns[side])}


@dataclass(frozen=True)
class _Conjunct:
    column: Column
    sides: set[SideName]
    names: Mapping[SideName, frozenset[str]]
    required: Mapping[SideName, frozenset[str]]
    floors: tuple[int, ...]

    @classmethod
    def analyze(cls, empty: DataFrame, parsed: Expression) -> _Conjunct:
        """Simplify a conjunct with Spark's optimizer, and find the columns that it implies not to be null."""
        analysed = get_engine(empty.sparkSession).analyze_filter(empty, parsed.column)
        spelling = {name.lower(): name for name in empty.columns}  # Spark returns names in the case of the condition
        names = {side: _select_names((spelling[n.lower()] for n in analysed.references), side) for side in SIDES}
        sides = {side for side in SIDES if names[side]}
        implied = {spelling[name.lower()] for name in analysed.not_null} if len(sides) > 1 else set()
        return cls(
            column=F.coalesce(parsed.column, F.lit(False)),
            sides=sides,
            names=names,
            required={side: frozenset(n for n in implied if n.startswith(f"{side}_")) for side in SIDES},
            floors=tuple(floor for comparison in analysed.comparisons for floor in _find_floor(comparison)),
        )


def check_no_event_times(condition: Condition, event_times: Mapping[str, str]) -> None:
    """Check that a condition reads no event time.

    Args:
        condition: The condition.
        event_times: Name of the event time column by side.

    Raises:
        PipelineFileError: The condition reads an event time.
    """
    for side, name in event_times.items():
        if name in condition.columns[side]:
            raise PipelineFileError(
                f"join.condition: {side}_{name} is the event time, from which Spark derives when rows are evicted. "
                "Write bounds as join.interval."
            )


def _choose(applies: Column, first: Condition, second: Condition) -> Condition:
    def choose(first: Column, second: Column) -> Column:
        return F.when(applies, first).otherwise(second)

    return Condition(
        {side: choose(first.single_side[side], second.single_side[side]) for side in SIDES},
        {side: choose(first.not_null[side], second.not_null[side]) for side in SIDES},
        choose(first.pair, second.pair),
        {side: choose(first.event_time_floors[side], second.event_time_floors[side]) for side in SIDES},
        {side: first.columns[side] | second.columns[side] for side in SIDES},
    )


def _flatten_schemas(schemas: Mapping[str, T.StructType]) -> T.StructType:
    return T.StructType(
        [T.StructField(f"{side}_{field.name}", field.dataType) for side in SIDES for field in schemas[side].fields]
    )


def _all(columns: Iterable[Column]) -> Column:
    return reduce(Column.__and__, columns, F.lit(True))


def _select_names(names: Iterable[str], side: str) -> frozenset[str]:
    """Return the input columns of one side."""
    return frozenset(name.removeprefix(f"{side}_") for name in names if name.startswith(f"{side}_"))


def _find_floor(comparison: NumericComparison) -> Iterator[int]:
    """Yield the event time in ms that Spark derives from `column >= number`, as a state watermark."""
    if comparison.operator in _BOUNDS:
        yield int(comparison.number * 1000) + _BOUNDS[comparison.operator]
