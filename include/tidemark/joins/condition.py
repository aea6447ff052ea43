"""An ON condition taken apart the way Spark does it: by its conjuncts and the sides that they ask about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.classic.column import Column as ClassicColumn

from tidemark.clock.times import quoted
from tidemark.errors import PipelineFileError

SIDES = ("left", "right")
_BOUNDS = {"GreaterThanOrEqual": -1, "GreaterThan": 0}
_MIRRORED = {"LessThanOrEqual": "GreaterThanOrEqual", "LessThan": "GreaterThan"}


@dataclass(frozen=True)
class Condition:
    """Columns over `left_NAME` and `right_NAME`, never null."""

    alone: Mapping[str, Column]
    """By side: what is asked of its rows alone."""
    complete: Mapping[str, Column]
    """By side: whether the row has no null where a conjunct over both sides cannot be true with one."""
    both: Column
    """What is asked of a pair."""
    floors: Mapping[str, Column]
    """By side: ms, null for none. Spark reads `left_x >= 5` as an event time of at least 5 s (`Rules.evicted_at`)."""
    names: Mapping[str, frozenset[str]]
    """By side: the columns of the input that are read."""

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
        """
        if not text:
            return cls.none()
        parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), _flat(rows))
        parts = [_Conjunct.of(empty, part) for part in _conjuncts(parser.parseExpression(text))]
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
    sides: set[str]
    names: Mapping[str, frozenset[str]]
    required: Mapping[str, frozenset[str]]
    floors: tuple[int, ...]

    @classmethod
    def of(cls, empty: DataFrame, parsed: Any) -> _Conjunct:
        """Spark's optimizer tells what a conjunct comes to, and which columns it implies not to be null."""
        jvm = empty.sparkSession.sparkContext._jvm  # noqa: SLF001
        assert jvm is not None, "a classic session has a JVM"
        column = ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(parsed))
        plan = empty.where(column)._jdf.queryExecution()  # noqa: SLF001
        read = _references(plan.analyzed().condition())
        optimized = plan.optimizedPlan()
        known = list(_conjuncts(optimized.condition())) if _kind(optimized) == "Filter" else []
        names = {side: _names(read, side) for side in SIDES}
        sides = {side for side in SIDES if names[side]}
        implied = {_references(part)[0] for part in known if _kind(part) == "IsNotNull"} if len(sides) > 1 else set()
        return cls(
            column=F.coalesce(column, F.lit(False)),
            sides=sides,
            names=names,
            required={side: frozenset(n for n in implied if n.startswith(f"{side}_")) for side in SIDES},
            floors=tuple(floor for part in known for floor in _floor(part)),
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


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _conjuncts(expression: Any) -> Iterator[Any]:
    if _kind(expression) == "And":
        yield from _conjuncts(expression.left())
        yield from _conjuncts(expression.right())
    else:
        yield expression


def _references(expression: Any) -> list[str]:
    found = expression.references().toSeq()
    return [found.apply(i).name() for i in range(found.size())]


def _names(read: Iterable[str], side: str) -> frozenset[str]:
    """The columns of an input among those read."""
    return frozenset(name.removeprefix(f"{side}_") for name in read if name.startswith(f"{side}_"))


def _floor(conjunct: Any) -> Iterator[int]:
    """The event time in ms that Spark makes of `column >= number`, as a state watermark."""
    kind = _kind(conjunct)
    if kind not in {*_BOUNDS, *_MIRRORED}:
        return
    column, number = conjunct.left(), conjunct.right()
    if kind in _MIRRORED:
        column, number, kind = number, column, _MIRRORED[kind]
    numeric = _kind(number) == "Literal" and isinstance(_type_of(number), T.NumericType)
    if _kind(column) == "AttributeReference" and numeric:
        yield int(float(str(number.value())) * 1000) + _BOUNDS[kind]


def _type_of(literal: Any) -> T.DataType:
    return T._parse_datatype_json_string(literal.dataType().json())  # noqa: SLF001
