"""Join rows by keys and an interval of event times: an equi-join on bins of time."""

from __future__ import annotations

from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config.allowed_functions import InputColumns
from tidemark.config.expressions import rename_columns
from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.formatting import quote_identifier
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.spark.engine import get_engine
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.spark.struct_columns import flatten_struct, name_flat_columns
from tidemark.timegrid.time_columns import trunc_div


def join_by_interval(
    rows: DataFrame,
    lower: Column,
    upper: Column,
    labels: tuple[str, ...],
    condition: Column,
    *,
    sql_condition: str | None = None,
    repeated_side: SideName = "right",
    is_broadcast: bool = False,
    unmatched: Literal["drop", "keep", "only"] = "drop",
) -> DataFrame:
    """Join rows with equal keys and `lower <= right event time - left event time <= upper`.

    Spark would cross all rows of a key and then filter, so event times are binned. A bin is twice as wide as the
    interval, so a row of one side is repeated in one or two bins. Rounding towards zero makes the bin around 1970 even
    wider.

    Args:
        rows: Rows of both sides with `side`, `event_time`, `labels`, `key_*` and `left` or `right`.
        lower: Lower bound, in units of the event time, inclusive.
        upper: Upper bound, inclusive.
        labels: Further columns of both rows that the condition or the caller reads.
        condition: Condition over `left_*` and `right_*` of event time and labels. It must include the bounds.
        sql_condition: The user's SQL over `left_*` and `right_*` of the columns of `left` and `right`. It is evaluated
            only for pairs that meet `condition`: for others it might fail, as in a division by zero.
        repeated_side: Side of which rows are repeated, the one with fewer rows.
        is_broadcast: True to broadcast the rows of this side. Unmatched rows must be dropped then.
        unmatched: What happens to rows of the other side without a partner, those with null keys among them: `drop`
            them, `keep` them with nulls for the partner, or return them `only`, without pairs.

    Returns:
        Pairs with `left_*` and `right_*` of event time and labels, the keys, and `left` and `right`. If only unmatched
        rows are returned, they lack the event time and labels of the other side.
    """
    size = F.greatest(2 * (upper - lower), F.lit(1))
    keys = key_columns(rows)
    single_side = OTHER[repeated_side]
    assert unmatched == "drop" or not is_broadcast, "the semi join drops rows without a partner"
    # Null keys match nothing.
    can_match = ~has_null_key(rows)
    rows = rows.where(can_match if unmatched == "drop" else can_match | (F.col("side") == single_side))
    flat = {side: _flatten_side(rows, side, keys, labels) for side in SIDES}
    sides = {side: flat[side][0] for side in SIDES}
    structs = {side: flat[side][1] for side in SIDES}
    own = F.col(f"{repeated_side}_event_time")
    single_time = F.col(f"{single_side}_event_time")
    nearest, farthest = (own + lower, own + upper) if repeated_side == "left" else (own - upper, own - lower)
    bins = F.explode(F.sequence(trunc_div(nearest, size), trunc_div(farthest, size)))
    repeated = sides[repeated_side].withColumn("bin", bins)
    single = sides[single_side]
    single_bin = trunc_div(single_time, size)
    if unmatched != "drop":  # null keys would skew a few tasks
        single_bin = F.when(has_null_key(single), F.xxhash64(single_time)).otherwise(single_bin)
    single = single.withColumn("bin", single_bin)
    if is_broadcast:
        # Few rows have a partner. Spark drops the others here, before it unites the rows of several sources.
        bins_with_rows = F.broadcast(repeated.select(*keys, "bin"))
        single = single.join(bins_with_rows, [*keys, "bin"], "left_semi")
    repeated = repeated.withColumnsRenamed({name: f"repeated_{name}" for name in (*keys, "bin")})
    repeated = F.broadcast(repeated) if is_broadcast else repeated
    is_same_bin = [F.col(name) == F.col(f"repeated_{name}") for name in (*keys, "bin")]
    if sql_condition is not None:
        condition = F.coalesce(F.when(condition, _parse_flat_condition(rows, sql_condition)), F.lit(False))
    how = {"drop": "inner", "keep": "left", "only": "left_anti"}[unmatched]
    joined = single.join(repeated, reduce(Column.__and__, [*is_same_bin, condition]), how)
    if unmatched == "keep":
        structs[repeated_side] = F.when(own.isNotNull(), structs[repeated_side]).alias(repeated_side)
    if unmatched == "only":
        structs[repeated_side] = F.lit(None).cast(rows.schema[repeated_side].dataType).alias(repeated_side)
    labelled_sides = [single_side] if unmatched == "only" else SIDES
    columns = [f"{side}_{name}" for side in labelled_sides for name in ("event_time", *labels)]
    return joined.select(*columns, *keys, *structs.values())


def _flatten_side(rows: DataFrame, side: str, keys: list[str], labels: tuple[str, ...]) -> tuple[DataFrame, Column]:
    """Select one side's rows with flat columns.

    Returns:
        The rows, and the side's struct as an expression over their columns.
    """
    fields, struct = flatten_struct(rows, side)
    columns = (F.col(name).alias(f"{side}_{name}") for name in ("event_time", *labels))
    return rows.where(F.col("side") == side).select(*keys, *columns, *fields), struct


def _parse_flat_condition(rows: DataFrame, condition: str) -> Column:
    """Return a condition over the flat columns of `left` and `right` (`struct_columns`), for an ON clause.

    Args:
        rows: Rows with `left` and `right`.
        condition: SQL over `left_*` and `right_*`.
    """
    parse_user_expression(rows.sparkSession, condition)  # checks the user's own text
    names = {f"{side}_{field}".lower(): flat for side in SIDES for field, flat in name_flat_columns(rows, side).items()}
    flat_condition = rename_columns(condition, lambda name: quote_identifier(names[name.lower()]))
    columns = InputColumns(tuple(names.values()))
    return get_engine(rows.sparkSession).parse_expression(flat_condition, columns).column
