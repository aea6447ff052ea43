"""Find each row's first match, and select pairs and emissions, for Flink SQL's interval joins."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.sides import SIDES, SideName
from tidemark.formatting import quote_identifier
from tidemark.joins.base import EMISSION_COLUMNS, EMITTING_EVENT_COLUMNS, later_position
from tidemark.joins.emission_order import to_emission_order
from tidemark.joins.join_type import JoinType
from tidemark.joins.keys import key_columns
from tidemark.joins.sql_interval.arrival_order import ARRIVAL_ORDER
from tidemark.spark.dataframe_utils import choose_by_side
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.timegrid.time_columns import as_json

_EMITTED = ("slice", "left", "right", "emitting_row", "emission_order")
_MATCH_COLUMNS = (*_EMITTED, "left_match_hash", "right_match_hash")


def compute_match_hash(rows: DataFrame, condition: str | None) -> Column:
    """Return a hash that is equal for rows of a key with the same partners.

    It covers the place of a row in the arrival order and, if there is a condition, its content, so that matches can be
    tracked without a unique id. It also covers `lookup_number` (`late_pairs.with_lookup_number`): of late rows that
    agree in all else, only the first one matches the rows that it removes.
    """
    order = [name for name in ARRIVAL_ORDER if name in rows.columns]
    payload = [as_json(F.struct(*SIDES), rows.select(*SIDES).schema)] if condition else []
    number = [F.when(F.col("lookup_number") > 1, F.col("lookup_number"))] if "lookup_number" in rows.columns else []
    return F.xxhash64(*order, *payload, *number)  # skips nulls


def is_padded(side: Column, join_type: JoinType) -> Column:
    """Return True if the join pads unmatched rows of a side."""
    return choose_by_side(*(join_type.pads(side_name) for side_name in SIDES), side=side)


def select_pairs(
    pairs: DataFrame, *, has_match_hashes: bool, emission_order: Column | None = None, condition: str | None = None
) -> DataFrame:
    """Select the columns of pairs that emissions need, and the pairs that meet a condition.

    Args:
        pairs: Pairs with `slice`, `left`, `right` and the positions of both rows.
        has_match_hashes: True to select the keys and match hashes too.
        emission_order: Order of a pair among the rows that one event emits; None if it does not matter.
        condition: SQL over `left_*` and `right_*`; None for all pairs. The pairs must be materialized: otherwise Spark
            may evaluate it for rows that are no pair.
    """
    pairs = pairs.withColumns({"emitting_row": later_position(), "emission_order": to_emission_order(emission_order)})
    pairs = pairs.select(*_MATCH_COLUMNS, *key_columns(pairs)) if has_match_hashes else pairs.select(*_EMITTED)
    if condition is None:
        return pairs
    flat_columns = (
        F.col(f"{side}.{quote_identifier(name)}").alias(f"{side}_{name}")
        for side in SIDES
        for name in _get_field_names(pairs, side)
    )
    is_match = parse_user_expression(pairs.sparkSession, condition).column
    matches = pairs.select(F.struct(*pairs.columns).alias("_pair"), *flat_columns).where(is_match)
    return matches.select("_pair.*")


def find_first_matches(pairs: DataFrame, sides: Sequence[SideName]) -> DataFrame:
    """Find the slice of each matched row's first match in the job, by key and `match_hash`, for rows of some sides."""
    match_hashes = [F.col(f"{side}_match_hash") for side in sides]
    match_hash = match_hashes[0] if len(match_hashes) == 1 else F.explode(F.array(*match_hashes))
    matched = pairs.select(*key_columns(pairs), "slice", match_hash.alias("match_hash"))
    return matched.groupBy(*key_columns(pairs), "match_hash").agg(F.min("slice").alias("first_match_in_job"))


def with_first_match(rows: DataFrame, first_matches: DataFrame) -> DataFrame:
    """Set `first_match_slice` to the slice of a row's first match in the job, unless it has an earlier one.

    Args:
        rows: Rows with `match_hash` and `first_match_slice`.
        first_matches: Result of `find_first_matches`.
    """
    with_matches = rows.join(first_matches, [*key_columns(rows), "match_hash"], "left")
    return with_matches.withColumn("first_match_slice", F.least("first_match_slice", "first_match_in_job")).drop(
        "first_match_in_job"
    )


def drop_needless_matches(rows: DataFrame, join_type: JoinType) -> DataFrame:
    """Keep the first match of rows that may be padded. That of others depends on whether the lane is simulated."""
    return rows.withColumn("first_match_slice", F.when(is_padded(F.col("side"), join_type), F.col("first_match_slice")))


def to_emissions(rows: DataFrame, emission: Column, emitting_watermark: Column | None = None) -> DataFrame:
    """Select rows or pairs as emissions, in `EMISSION_COLUMNS` and `EMITTING_EVENT_COLUMNS`.

    Args:
        rows: Rows or pairs with `emitting_row` and `emission_order`.
        emission: Kind of the emissions.
        emitting_watermark: Least watermark that emits a row, ms; None if `emitting_row` emits all of them.
    """
    null = F.lit(None).cast("long")
    constants = {"emission": emission, "pane": F.lit(0), "result_time": null, "window_start": null, "window_end": null}
    constants["emitting_watermark"] = null if emitting_watermark is None else emitting_watermark
    names = (*EMISSION_COLUMNS, *EMITTING_EVENT_COLUMNS)
    return rows.select(*(constants.get(name, F.col(name)).alias(name) for name in names))


def _get_field_names(rows: DataFrame, side: str) -> list[str]:
    dtype = rows.schema[side].dataType
    assert isinstance(dtype, T.StructType)
    return dtype.names
