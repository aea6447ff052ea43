"""An ON condition taken apart the way Spark does it: by its conjuncts and the sides that they ask about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.sides import SIDES, SideName
from tidemark.errors import PipelineFileError
from tidemark.formatting import quoted
from tidemark.spark.engine import engine_of
from tidemark.spark.engine_protocol import Comparison, Expression
from tidemark.spark.expression_sandbox import confined
from tidemark.spark.temporary_settings import INFERRED_FILTERS, session_settings

_BOUNDS = {">=": -1, ">": 0}


@dataclass(frozen=True)
class Condition:
    """Columns over `left_NAME` and `right_NAME`, never null."""

    alone: Mapping[str, Column]
    """What is asked of a side's rows alone, by side."""
    complete: Mapping[str, Column]
    """Whether a side's row has no null where a conjunct over both sides cannot be true with one, by side."""
    both: Column
    """What is asked of a pair."""
    floors: Mapping[str, Column]
    """A limit in ms by side, null for none: Spark reads `left_x >= 5` as an event time of at least 5 s."""
    names: Mapping[str, frozenset[str]]
    """The columns of the input that are read, by side."""

    @classmethod
    def none(cls) -> Condition:
        """No condition."""
        true, no_floor = F.lit(True), F.lit(None).cast("long")
        return cls(
            dict.fromkeys(SIDES, true),
            dict.fromkeys(SIDES, true),
            true,
            dict.fromkeys(SIDES, no_floor),
            dict.fromkeys(SIDES, frozenset()),
        )

    @classmethod
    def of(cls, spark: SparkSession, text: str | None, rows: Mapping[str, T.StructType]) -> Condition:
        """A condition over inputs with these columns, parsed and analysed by Spark.

        Raises:
            AnalysisException: it makes no sense over these inputs.
            PipelineFileError: it has something that an expression may not have.
        """
        if not text:
            return cls.none()
        empty = engine_of(spark).empty(_flat(rows))
        with session_settings(spark, INFERRED_FILTERS):
            parts = [_Conjunct.of(empty, part) for part in confined(spark, text).conjuncts()]
        return cls(
            alone={side: _all(part.column for part in parts if part.sides == {side}) for side in SIDES},
            complete={
                side: _all(F.col(quoted(name)).isNotNull() for part in parts for name in sorted(part.required[side]))
                for side in SIDES
            },
            both=_all(part.column for part in parts if len(part.sides) != 1),
            floors={
                side: F.lit(min((n for part in parts if part.sides == {side} for n in part.floors), default=None)).cast(
                    "long"
                )
                for side in SIDES
            },
            names={side: frozenset().union(*(part.names[side] for part in parts)) for side in SIDES},
        )

    @classmethod
    def chosen(cls, by: Column, conditions: Mapping[str, Condition]) -> Condition:
        """The one of several that a column names."""
        found = cls.none()
        for name, condition in conditions.items():
            found = _chosen(by == name, condition, found)
        return found

    def beside(self, side: str) -> dict[str, Column]:
        """The columns of one side that the condition reads, taken out of its struct."""
        return {f"{side}_{name}": F.col(f"{side}.{quoted(name)}") for name in sorted(self.names[side])}


@dataclass(frozen=True)
class _Conjunct:
    column: Column
    sides: set[SideName]
    names: Mapping[SideName, frozenset[str]]
    required: Mapping[SideName, frozenset[str]]
    floors: tuple[int, ...]

    @classmethod
    def of(cls, empty: DataFrame, parsed: Expression) -> _Conjunct:
        """Spark's optimizer tells what a conjunct comes to, and which columns it implies not to be null."""
        analysed = engine_of(empty.sparkSession).analysed(empty, parsed.column)
        spelt = {name.lower(): name for name in empty.columns}  # Spark gives names in the case of the condition
        names = {side: _names((spelt[name.lower()] for name in analysed.references), side) for side in SIDES}
        sides = {side for side in SIDES if names[side]}
        implied = {spelt[name.lower()] for name in analysed.not_null} if len(sides) > 1 else set()
        return cls(
            column=F.coalesce(parsed.column, F.lit(False)),
            sides=sides,
            names=names,
            required={side: frozenset(n for n in implied if n.startswith(f"{side}_")) for side in SIDES},
            floors=tuple(floor for compared in analysed.comparisons for floor in _floor(compared)),
        )


def refuse_event_times(condition: Condition, event_times: Mapping[str, str]) -> None:
    """See that a condition reads no event time.

    Raises:
        PipelineFileError: names the column, and what to write instead.
    """
    for side, name in event_times.items():
        if name in condition.names[side]:
            raise PipelineFileError(
                f"join.condition: {side}_{name} is the event time, from which Spark derives when rows are evicted; "
                "write bounds as join.interval"
            )


def _chosen(applies: Column, one: Condition, other: Condition) -> Condition:
    def pick(mine: Column, its: Column) -> Column:
        return F.when(applies, mine).otherwise(its)

    return Condition(
        {side: pick(one.alone[side], other.alone[side]) for side in SIDES},
        {side: pick(one.complete[side], other.complete[side]) for side in SIDES},
        pick(one.both, other.both),
        {side: pick(one.floors[side], other.floors[side]) for side in SIDES},
        {side: one.names[side] | other.names[side] for side in SIDES},
    )


def _flat(rows: Mapping[str, T.StructType]) -> T.StructType:
    return T.StructType(
        [T.StructField(f"{side}_{field.name}", field.dataType) for side in SIDES for field in rows[side].fields]
    )


def _all(columns: Iterable[Column]) -> Column:
    return reduce(Column.__and__, columns, F.lit(True))


def _names(read: Iterable[str], side: str) -> frozenset[str]:
    """The columns of an input among those read."""
    return frozenset(name.removeprefix(f"{side}_") for name in read if name.startswith(f"{side}_"))


def _floor(compared: Comparison) -> Iterator[int]:
    """The event time in ms that Spark makes of `column >= number`, as a state watermark."""
    if compared.operator in _BOUNDS:
        yield int(compared.number * 1000) + _BOUNDS[compared.operator]
