"""Join the rows of each window firing.

A window join has two steps. `window`, `session_window` and `custom_trigger` compute which rows are in which firing, as
a table of members. The second step, here, is an ordinary join within each firing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.formatting import quote_identifier
from tidemark.joins.base import EMISSION_COLUMNS, no_position
from tidemark.joins.emission_order import order_in_event
from tidemark.joins.join_type import SEMI_ANTI_TYPES, JoinType
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.timegrid.zones import Zone


@dataclass(frozen=True)
class FiringMembers:
    """Rows by firing: `key_*`, `slice`, `pane`, `window_start`, `window_end`, `side`, `left` or `right`."""

    rows: DataFrame
    is_keyed_by_start: bool = True
    """True if windows with equal ends and different starts are different windows."""
    zone: Zone | None = None
    """Time zone of the window bounds; None for UTC."""
    is_keyed_by_epoch: bool = False
    """True if a window may fire once in each epoch of its job. The rows then have `firing_epoch`."""
    firing_watermark: Column | None = None
    """Watermark that fires a window on time, ms; None if `EMITTING_EVENT_COLUMNS` are not needed."""
    upstream_sides: tuple[SideName, ...] = ()
    """Sides whose rows are the output of another join."""
    add_slice: Callable[[DataFrame], DataFrame] | None = None
    """Function that adds the `slice` of a firing by its window and `lane`, if `rows` have `lane` instead of `slice`."""

    @property
    def firing_columns(self) -> list[str]:
        """Columns that identify a firing."""
        start = ["window_start"] if self.is_keyed_by_start else []
        epoch = ["firing_epoch"] if self.is_keyed_by_epoch else []
        return [*key_columns(self.rows), "lane" if self.add_slice else "slice", "pane", "window_end", *start, *epoch]

    @property
    def has_emitting_rows(self) -> bool:
        """True if the rows have `emitting_row`, the late row that fires; null for a firing on time."""
        return "emitting_row" in self.rows.columns

    @property
    def emitting_event_columns(self) -> dict[str, Column]:
        """`EMITTING_EVENT_COLUMNS` of the emissions of a firing; empty if they are unknown."""
        if self.firing_watermark is None:
            return {}
        row = F.coalesce(*(f"emitting_row_of_{side}" for side in SIDES)) if self.has_emitting_rows else no_position()
        order = F.concat(self._order_of_firing(row), *(self._order_of_row(side) for side in SIDES))
        watermark = F.when(row.isNull(), self.firing_watermark)
        return {"emitting_row": row, "emitting_watermark": watermark, "emission_order": order}

    @staticmethod
    def _order_of_firing(emitting_row: Column) -> Column:
        """Return the order of a firing among those of one event, as an array.

        A watermark fires windows in the order of their ends. A late row fires its windows from the last one on.
        """
        start = F.coalesce(*(f"start_of_{side}" for side in SIDES))
        window = F.when(emitting_row.isNull(), F.col("window_end")).otherwise(-start)
        return F.array(window, F.col("pane").cast("long"))

    def _order_of_row(self, side: SideName) -> Column:
        position = F.array(*(f"{name}_of_{side}" for name in ("clock", "tiebreak")))
        return F.concat(position, order_in_event(side, self.upstream_sides))

    @property
    def payload(self) -> list[str]:
        """Columns of a row that its emissions keep, as `NAME_of_left` and `NAME_of_right`."""
        emitting_row = ["emitting_row"] if self.has_emitting_rows else []
        return ["clock", "tiebreak", *emitting_row] if self.firing_watermark is not None else []


def join_members(members: FiringMembers, join_type: JoinType, condition: str | None = None) -> DataFrame:
    """Join the left and right rows of each firing.

    Args:
        members: The rows by firing.
        join_type: The type of the join.
        condition: SQL over `left_*` and `right_*` that pairs must meet as well.

    Returns:
        Emissions in `EMISSION_COLUMNS` and `right_window_start`.
    """
    if join_type.types <= {"inner", "semi"}:  # null keys match nothing, and would skew the task of their firing
        members = replace(members, rows=members.rows.where(~has_null_key(members.rows)))
    sides = _split_sides(members, condition)
    parts = []
    if join_type.types - set(SEMI_ANTI_TYPES):
        padded_sides = join_type.padded_sides
        how = "full" if len(padded_sides) > 1 else next(iter(padded_sides), "inner")
        is_unmatched = {side: F.col(other).isNull() for side, other in OTHER.items()}
        is_padded = (is_unmatched[side] & join_type.pads(side) for side in SIDES)
        pairs = _join_sides(*sides, members.firing_columns, how, condition)
        emission = F.when(is_unmatched["left"], "padded_left").when(is_unmatched["right"], "padded_right")
        is_pair = ~is_unmatched["left"] & ~is_unmatched["right"] & ~join_type.is_in(*SEMI_ANTI_TYPES)
        pairs = pairs.withColumn("emission", emission.otherwise("matched"))
        parts.append(pairs.where(reduce(Column.__or__, is_padded, is_pair)))
    for kind in sorted(join_type.types & set(SEMI_ANTI_TYPES)):
        rows = _join_sides(*sides, members.firing_columns, f"left_{kind}", condition).where(join_type.is_in(kind))
        missing = ["right", "start_of_right", *(f"{name}_of_right" for name in members.payload)]
        nulls = {name: F.lit(None).cast(sides[1].schema[name].dataType) for name in missing}
        parts.append(rows.withColumns({"emission": F.lit(kind), **nulls}))
    return reduce(DataFrame.unionByName, (_select_emissions(part, members) for part in parts))


def group_members(members: FiringMembers) -> DataFrame:
    """Group each firing for a coGroup: one row with its left and right rows as arrays, and the keys."""
    lists = {side: F.collect_list(F.when(F.col("side") == side, F.col(side))).alias(side) for side in SIDES}
    grouped = members.rows.groupBy(*members.firing_columns).agg(*lists.values())
    starts = F.col("window_start").alias("start_of_left"), F.lit(None).cast("long").alias("start_of_right")
    grouped = grouped.select("*", *starts).withColumn("emission", F.lit("grouped"))
    return _select_emissions(grouped, members, *key_columns(grouped))


def _select_emissions(rows: DataFrame, members: FiringMembers, *further: str) -> DataFrame:
    """Select the columns of emissions, and further ones."""
    last = F.col("window_end") - 1
    start = F.coalesce("start_of_left", "start_of_right")
    computed = {
        "result_time": F.when(start.isNotNull(), members.zone.to_instant(last) if members.zone else last),
        "window_start": start,
        "window_end": F.when(start.isNotNull(), F.col("window_end")),  # rows that a previous join padded have none
        "right_window_start": F.col("start_of_right"),
    }
    computed |= members.emitting_event_columns
    names = dict.fromkeys([*EMISSION_COLUMNS, *computed])
    rows = members.add_slice(rows) if members.add_slice else rows
    return rows.select(*(computed.get(name, F.col(name)).alias(name) for name in names), *further)


def _split_sides(members: FiringMembers, condition: str | None) -> tuple[DataFrame, DataFrame]:
    """Split members by side, with the columns `left_*` and `right_*` if a condition reads them."""
    lefts, rights = (
        members.rows.where(F.col("side") == side).select(
            *members.firing_columns,
            F.col("window_start").alias(f"start_of_{side}"),
            *(F.col(name).alias(f"{name}_of_{side}") for name in members.payload),
            side,
            *(flatten_columns(members.rows, side) if condition else []),
        )
        for side in SIDES
    )
    return lefts, rights


def flatten_columns(rows: DataFrame, side: str, hidden: Collection[str] = ()) -> list[Column]:
    """Return the columns of one side's struct as `left_NAME` or `right_NAME`, without hidden ones."""
    dtype = rows.schema[side].dataType
    assert isinstance(dtype, T.StructType)
    columns = {f"{side}_{name}": F.col(f"{side}.{quote_identifier(name)}") for name in dtype.names}
    return [column.alias(name) for name, column in columns.items() if name not in hidden]


def _join_sides(lefts: DataFrame, rights: DataFrame, firing: list[str], how: str, condition: str | None) -> DataFrame:
    """Join both sides on the columns of a firing. Null keys match nothing."""
    if condition is None:
        return lefts.join(rights, firing, how)
    renamed = rights.withColumnsRenamed({name: f"_right_{name}" for name in firing})
    is_same_firing = reduce(Column.__and__, (F.col(name) == F.col(f"_right_{name}") for name in firing))
    joined = lefts.join(renamed, is_same_firing & parse_user_expression(lefts.sparkSession, condition).column, how)
    if how.startswith("left_"):
        return joined
    return joined.transform(with_columns, {name: F.coalesce(name, f"_right_{name}") for name in firing})
