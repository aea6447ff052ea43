"""Split an ON condition the way Spark does, into conjuncts over one side and over both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.expressions import qualify_for_pair
from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.errors import PipelineFileError
from tidemark.formatting import quote_identifier
from tidemark.joins.rules.spark import FOREVER
from tidemark.spark.engine import get_engine
from tidemark.spark.engine_protocol import Expression, NumericComparison
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.spark.temporary_settings import FILTER_INFERENCE_SETTINGS

_BOUNDS = {">=": -1, ">": 0}


@dataclass(frozen=True, kw_only=True)
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
    inferred: Mapping[str, Column]
    """Conjuncts by side that Spark infers from the equality of keys: `left_k = 'a'` gives `right_k = 'a'`. They read a
    key of the other side, whose value is that of the own key (`columns_of_single_rows`)."""
    inferred_columns: Mapping[str, frozenset[str]]
    """Input columns that `inferred` reads, by side."""
    keys: tuple[tuple[str, str], ...]
    """Keys that are columns of equal types, as pairs of a left and a right column."""

    @classmethod
    def always_true(cls) -> Condition:
        """Create a condition that every pair meets."""
        true, no_floor = F.lit(True), F.lit(None).cast("long")
        return cls(
            single_side=dict.fromkeys(SIDES, true),
            not_null=dict.fromkeys(SIDES, true),
            pair=true,
            event_time_floors=dict.fromkeys(SIDES, no_floor),
            columns=dict.fromkeys(SIDES, frozenset()),
            inferred=dict.fromkeys(SIDES, true),
            inferred_columns=dict.fromkeys(SIDES, frozenset()),
            keys=(),
        )

    @classmethod
    def parse(
        cls,
        spark: SparkSession,
        expression: str | None,
        schemas: Mapping[str, T.StructType],
        keys: Sequence[tuple[str, str]] = (),
        filters: Mapping[SideName, str | None] = MappingProxyType({}),
    ) -> Condition:
        """Parse a condition with Spark and split it.

        Args:
            spark: Session that parses and analyses.
            expression: SQL over `left_NAME` and `right_NAME`; None or empty for no condition.
            schemas: Schema of each input by side.
            keys: Left and right column, or expression, of each key.
            filters: SQL condition over an input's own columns that its rows have passed, by side.

        Raises:
            AnalysisException: The expression is invalid for these inputs.
            PipelineFileError: The expression has something that expressions may not have.
        """
        passed = [qualify_for_pair(text, side) for side, text in filters.items() if text and keys]
        if not expression and not passed:
            return cls.always_true()
        with get_engine(spark).override_settings(FILTER_INFERENCE_SETTINGS) as session:
            empty = get_engine(session).create_empty_dataframe(_flatten_schemas(schemas))
            analyze = partial(_analyze_conjuncts, session, empty)
            conjuncts = analyze(expression) if expression else []
            passed_conjuncts = [part for text in passed for part in analyze(text)]
        plain_keys = _find_plain_keys(keys, schemas)
        inferred = {
            side: [part for part in (*conjuncts, *passed_conjuncts) if part.is_inferred_for(side, plain_keys)]
            for side in SIDES
        }

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
            columns=_unite_names(conjuncts),
            inferred={side: _all(part.column for part in parts) for side, parts in inferred.items()},
            inferred_columns=_unite_names([*inferred["left"], *inferred["right"]]),
            keys=plain_keys,
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
        return {f"{side}_{name}": _extract(side, name) for name in sorted(self.columns[side])}

    def columns_of_single_rows(self) -> dict[str, Column]:
        """Return the columns that the condition and `inferred` read, for rows of one side.

        A key of the other side has the value of the own one.
        """
        names = {side: sorted(self.columns[side] | self.inferred_columns[side]) for side in SIDES}
        columns = {f"{side}_{name}": _extract(side, name) for side in SIDES for name in names[side]}
        for left, right in self.keys:
            key = F.coalesce(_extract("left", left), _extract("right", right))
            columns |= dict.fromkeys(columns.keys() & {f"left_{left}", f"right_{right}"}, key)
        return columns


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

    def is_inferred_for(self, side: SideName, keys: Sequence[tuple[str, str]]) -> bool:
        """Return True if a key is all that this reads of the other side, so that Spark infers it for this side."""
        other = OTHER[side]
        return any(self.names[other] == {names[SIDES.index(other)]} for names in keys)


def _analyze_conjuncts(session: SparkSession, empty: DataFrame, expression: str) -> list[_Conjunct]:
    return [_Conjunct.analyze(empty, part) for part in parse_user_expression(session, expression).split_conjuncts()]


def _unite_names(conjuncts: Iterable[_Conjunct]) -> dict[str, frozenset[str]]:
    parts = list(conjuncts)
    return {side: frozenset().union(*(part.names[side] for part in parts)) for side in SIDES}


def _extract(side: str, name: str) -> Column:
    return F.col(f"{side}.{quote_identifier(name)}")


def _find_plain_keys(
    keys: Iterable[tuple[str, str]], schemas: Mapping[str, T.StructType]
) -> tuple[tuple[str, str], ...]:
    """Find the keys that are columns of equal types. Spark infers nothing from a cast on both sides."""
    types = {side: {field.name: field.dataType for field in schemas[side]} for side in SIDES}
    return tuple(
        (left, right)
        for left, right in keys
        if left in types["left"] and types["left"][left] == types["right"].get(right)
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
        single_side={side: choose(first.single_side[side], second.single_side[side]) for side in SIDES},
        not_null={side: choose(first.not_null[side], second.not_null[side]) for side in SIDES},
        pair=choose(first.pair, second.pair),
        event_time_floors={
            side: choose(first.event_time_floors[side], second.event_time_floors[side]) for side in SIDES
        },
        columns={side: first.columns[side] | second.columns[side] for side in SIDES},
        inferred={side: choose(first.inferred[side], second.inferred[side]) for side in SIDES},
        inferred_columns={side: first.inferred_columns[side] | second.inferred_columns[side] for side in SIDES},
        keys=first.keys or second.keys,
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
    """Yield the event time in ms that Spark derives from `column >= number`, as a state watermark.

    A number beyond all event times yields the greatest or least of them, and NaN nothing.
    """
    if comparison.operator in _BOUNDS and not math.isnan(comparison.number):
        yield int(max(-FOREVER, min(FOREVER, comparison.number * 1000))) + _BOUNDS[comparison.operator]
