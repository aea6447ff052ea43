"""Emit the unmatched rows of Flink SQL's outer interval joins.

A row is emitted by the lookup that removes it from the cache, or else by its cleanup timer. A row that was not cached
is emitted on arrival, after its matches and the rows that it removes. Timers follow in the order of their times.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config.sides import OTHER, SideName
from tidemark.joins.base import later_position, row_position
from tidemark.joins.emission_order import AFTER_LOOKUP, order_of_lookup, to_emission_order
from tidemark.joins.join_type import JoinType
from tidemark.joins.sql_interval.match_tracking import is_padded, to_emissions
from tidemark.spark.dataframe_utils import with_columns

_LABELS = (
    "slice",
    "clock",
    "tiebreak",
    "order_in_event",
    "cleanup_time",
    "eviction_slice",
    "first_match_slice",
)
"""Labels that determine when and how an unmatched row is emitted, besides `removing_lookup`."""


def list_padding_labels(rows: DataFrame) -> tuple[str, ...]:
    """List the labels of rows that `pad_rows` and `emit_outer_join` read."""
    return (*_LABELS, *(["removing_lookup"] if "removing_lookup" in rows.columns else []))


def pad_rows(rows: DataFrame, join_type: JoinType, *, is_ordered: bool) -> DataFrame:
    """Return the unmatched rows among rows of both sides as emissions.

    Args:
        rows: Rows with `side`, `list_padding_labels` and `left` or `right`. `first_match_slice` is null for rows
            without a match.
        join_type: Type of the join, which may pad no row of a side.
        is_ordered: True to order the rows that one event emits.
    """
    unmatched = rows.where(_is_unmatched(join_type))
    emission = F.concat(F.lit("padded_"), F.col("side"))
    timer = _get_timer(unmatched)
    return to_emissions(
        unmatched.transform(with_columns, _compute_place(unmatched, is_ordered=is_ordered)), emission, timer
    )


def emit_outer_join(rows: DataFrame, side: SideName, join_type: JoinType, pair_order: Column | None) -> DataFrame:
    """Return the pairs and unmatched rows of an outer join as emissions.

    Args:
        rows: Result of `join_by_interval` that keeps the unmatched rows of a side, with `list_padding_labels`.
        side: That side.
        join_type: Type of the join.
        pair_order: Order of a pair among the rows that one event emits; None if their order does not matter.
    """
    is_pair = F.col(f"{OTHER[side]}_event_time").isNotNull()
    rows = with_own_labels(rows, side)
    rows = rows.where(is_pair | _is_unmatched(join_type))
    place_of_pair = {
        "slice": F.greatest("left_slice", "right_slice"),
        "emitting_row": later_position(),
        "emission_order": to_emission_order(pair_order),
    }
    place = {
        name: F.when(is_pair, place_of_pair[name]).otherwise(column)
        for name, column in _compute_place(rows, is_ordered=pair_order is not None).items()
    }
    emission = F.when(is_pair, "matched").otherwise(f"padded_{side}")
    timer = F.when(~is_pair, _get_timer(rows))
    return to_emissions(rows.transform(with_columns, place), emission, timer)


def with_own_labels(rows: DataFrame, side: SideName) -> DataFrame:
    """Add the labels of one side of joined rows without its prefix, and `side`."""
    labels = [name for name in (*_LABELS, "removing_lookup", "event_time") if f"{side}_{name}" in rows.columns]
    columns = {name: F.col(f"{side}_{name}") for name in labels}
    return rows.transform(with_columns, {**columns, "side": F.lit(side)})


def _is_unmatched(join_type: JoinType) -> Column:
    """Return True if a row has no match by its eviction, and the join pads its side."""
    has_no_match = F.col("first_match_slice").isNull() & F.col("eviction_slice").isNotNull()
    return has_no_match & is_padded(F.col("side"), join_type)


def _get_timer(rows: DataFrame) -> Column:
    """Return the least watermark that emits an unmatched row, ms; null if its arrival or a lookup emits it."""
    timer = F.col("cleanup_time")  # null for rows that were not cached
    return F.when(F.col("removing_lookup").isNull(), timer) if "removing_lookup" in rows.columns else timer


def _compute_place(rows: DataFrame, *, is_ordered: bool) -> dict[str, Column]:
    """Return the slice of unmatched rows, and their place among the emissions of the event that emits them."""
    emitting_row = row_position()
    own_order = F.col("order_in_event")
    timer = _get_timer(rows)
    order = order_of_lookup(F.array(timer), own_order, is_removed=True)
    is_cached = F.col("cleanup_time").isNotNull()
    order = F.when(is_cached, order).otherwise(F.concat(own_order, F.array(F.lit(AFTER_LOOKUP))))
    if "removing_lookup" in rows.columns:
        is_removed = F.col("removing_lookup").isNotNull()
        lookup_order = order_of_lookup(F.col("removing_lookup.order_in_event"), own_order, is_removed=True)
        emitting_row = F.when(is_removed, row_position("removing_lookup.")).otherwise(emitting_row)
        order = F.when(is_removed, lookup_order).otherwise(order)
    return {
        "slice": F.greatest("slice", "eviction_slice"),
        "emitting_row": emitting_row,
        "emission_order": to_emission_order(order if is_ordered else None),
    }
