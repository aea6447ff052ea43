"""Pairs of Flink SQL's interval joins, and which rows have found a partner."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.formatting import quote_identifier
from tidemark.joins.base import EMISSION_COLUMNS
from tidemark.joins.keys import key_columns
from tidemark.joins.window_output import PADDING_TYPES, JoinType
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.timegrid.time_columns import as_json

ARRIVAL_ORDER = ("clock", "tiebreak", "event_time")
_PAIR = ("slice", "left_mark", "right_mark", "left", "right")


def compute_mark(rows: DataFrame, condition: str | None) -> Column:
    """A hash: rows of a key that agree in it have the same partners."""
    payload = [as_json(F.struct(*PADDING_TYPES), rows.select(*PADDING_TYPES).schema)] if condition else []
    return F.xxhash64("side", *ARRIVAL_ORDER, *payload)


def is_padded(side: Column, join_type: JoinType) -> Column:
    """Whether a row of a side comes out padded if it finds no partner."""
    left, right = (join_type.is_in(*types) for types in PADDING_TYPES.values())
    return F.when(side == "left", left).otherwise(right)


def filter_matches(pairs: DataFrame, condition: str | None) -> DataFrame:
    """The pairs that meet the join's condition, over `left_*` and `right_*`."""
    pairs = pairs.select(*_PAIR, *key_columns(pairs))
    if condition is None:
        return pairs
    flat_columns = (
        F.col(f"{side}.{quote_identifier(name)}").alias(f"{side}_{name}")
        for side in PADDING_TYPES
        for name in _get_field_names(pairs, side)
    )
    is_match = parse_user_expression(pairs.sparkSession, condition).column
    matches = pairs.select(F.struct(*pairs.columns).alias("_pair"), *flat_columns).where(is_match)
    return matches.select("_pair.*")


def find_first_matches(pairs: DataFrame) -> DataFrame:
    """The slice of the first match of each row that has one, by key and `mark`."""
    keys, marks = key_columns(pairs), F.array("left_mark", "right_mark")
    matched = pairs.select(*keys, "slice", F.explode(marks).alias("mark"))
    return matched.groupBy(*keys, "mark").agg(F.min("slice").alias("first_match"))


def with_first_match(rows: DataFrame, first_matches: DataFrame) -> DataFrame:
    """Fill in `matched_in`, the slice of a row's first match, where no earlier job has; by `first_matches`."""
    with_matches = rows.join(first_matches, [*key_columns(rows), "mark"], "left")
    return with_matches.withColumn("matched_in", F.coalesce("matched_in", "first_match")).drop("first_match")


def to_emissions(rows: DataFrame, emission: Column) -> DataFrame:
    """Rows or pairs as `JoinResult.joined` has them."""
    null = F.lit(None).cast("long")
    constants = {"emission": emission, "pane": F.lit(0), "result_time": null, "window_start": null, "window_end": null}
    return rows.select(*(constants.get(name, F.col(name)).alias(name) for name in EMISSION_COLUMNS))


def _get_field_names(rows: DataFrame, side: str) -> list[str]:
    dtype = rows.schema[side].dataType
    assert isinstance(dtype, T.StructType)
    return dtype.names
