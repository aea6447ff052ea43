"""Pairs of Flink SQL's interval joins, and which rows have found a partner."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.formatting import quote_identifier
from tidemark.joins.base import EMISSION_COLUMNS
from tidemark.joins.keys import key_columns
from tidemark.joins.window_output import PADDING_TYPES, JoinType
from tidemark.spark.expression_sandbox import confined
from tidemark.timegrid.time_columns import as_json

ARRIVAL = ("clock", "tiebreak", "event_time")
_PAIR = ("slice", "left_mark", "right_mark", "left", "right")


def mark(rows: DataFrame, condition: str | None) -> Column:
    """A hash: rows of a key that agree in it have the same partners."""
    payload = [as_json(F.struct(*PADDING_TYPES), rows.select(*PADDING_TYPES).schema)] if condition else []
    return F.xxhash64("side", *ARRIVAL, *payload)


def is_padded(side: Column, join_type: JoinType) -> Column:
    """Whether a row of a side comes out padded if it finds no partner."""
    left, right = (join_type.is_in(*types) for types in PADDING_TYPES.values())
    return F.when(side == "left", left).otherwise(right)


def matching(pairs: DataFrame, condition: str | None) -> DataFrame:
    """The pairs that meet the join's condition, over `left_*` and `right_*`."""
    pairs = pairs.select(*_PAIR, *key_columns(pairs))
    if condition is None:
        return pairs
    flat = (
        F.col(f"{side}.{quote_identifier(name)}").alias(f"{side}_{name}")
        for side in PADDING_TYPES
        for name in _names(pairs, side)
    )
    agrees = confined(pairs.sparkSession, condition).column
    met = pairs.select(F.struct(*pairs.columns).alias("_pair"), *flat).where(agrees)
    return met.select("_pair.*")


def first_matches(pairs: DataFrame) -> DataFrame:
    """The slice of the first match of each row that has one, by key and `mark`."""
    keys, marks = key_columns(pairs), F.array("left_mark", "right_mark")
    matched = pairs.select(*keys, "slice", F.explode(marks).alias("mark"))
    return matched.groupBy(*keys, "mark").agg(F.min("slice").alias("first_match"))


def with_first_match(rows: DataFrame, matches: DataFrame) -> DataFrame:
    """Fill in `matched_in`, the slice of a row's first match, where no earlier job has; by `first_matches`."""
    met = rows.join(matches, [*key_columns(rows), "mark"], "left")
    return met.withColumn("matched_in", F.coalesce("matched_in", "first_match")).drop("first_match")


def emissions(rows: DataFrame, emission: Column) -> DataFrame:
    """Rows or pairs as `JoinResult.joined` has them."""
    none = F.lit(None).cast("long")
    known = {"emission": emission, "pane": F.lit(0), "result_time": none, "window_start": none, "window_end": none}
    return rows.select(*(known.get(name, F.col(name)).alias(name) for name in EMISSION_COLUMNS))


def _names(rows: DataFrame, side: str) -> list[str]:
    kind = rows.schema[side].dataType
    assert isinstance(kind, T.StructType)
    return kind.names
