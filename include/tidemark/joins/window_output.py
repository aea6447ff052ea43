"""What comes out of a window when it fires: the join of its rows.

A window join is two steps. The first, in `window` and `session`, says which rows are in which firing: a table of
members. The second, here, is an ordinary join for each firing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.sides import OTHER
from tidemark.formatting import quoted
from tidemark.joins.base import EMISSION
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.expression_sandbox import confined
from tidemark.timegrid.zones import Zone

PADDING = {"left": ("left", "full"), "right": ("right", "full")}
"""The join types that keep a row without a partner, padded, by the row's side."""
HALVES = ("semi", "anti")


@dataclass(frozen=True)
class Members:
    """Rows by firing: `key_*`, `slice`, `pane`, `window_start`, `window_end`, `side`, `left` or `right`."""

    rows: DataFrame
    by_start: bool = True
    """Whether windows with equal ends and different starts are different ones."""
    zone: Zone | None = None
    """In whose local time they begin and end; None for UTC."""
    by_epoch: bool = False
    """Whether a window may fire once in each epoch of its job, `until` which its rows wait."""

    @property
    def firing(self) -> list[str]:
        """The columns that name a firing."""
        more = [name for name, tells in (("window_start", self.by_start), ("until", self.by_epoch)) if tells]
        return [*key_columns(self.rows), "slice", "pane", "window_end", *more]


@dataclass(frozen=True)
class JoinType:
    """The join's type, a literal in a job that replays one stream, a column where lanes have theirs."""

    column: Column
    types: frozenset[str]
    """All that the column may say."""

    @classmethod
    def of(cls, name: str) -> JoinType:
        """One type for all rows."""
        return cls(F.lit(name), frozenset([name]))

    def is_one_of(self, *names: str) -> Column:
        """Whether the type is one of these."""
        return self.column.isin(*names)


def join_members(members: Members, join_type: JoinType, condition: str | None = None) -> DataFrame:
    """The rows that the firings emit (`base.EMISSION`, and `right_window_start`)."""
    if join_type.types <= {"inner", "semi"}:  # null keys meet nobody, and a firing's would all be one task's
        members = replace(members, rows=members.rows.where(~has_null_key(members.rows)))
    sides = _sides(members, condition)
    parts = []
    if join_type.types - set(HALVES):
        pads = [side for side, types in PADDING.items() if join_type.types & set(types)]
        how = "full" if len(pads) > 1 else next(iter(pads), "inner")
        alone = {side: F.col(other).isNull() for side, other in OTHER.items()}
        owed = (alone[side] & join_type.is_one_of(*types) for side, types in PADDING.items())
        paired = _joined(*sides, members.firing, how, condition)
        kind = F.when(alone["left"], "padded_left").when(alone["right"], "padded_right").otherwise("matched")
        wanted = ~alone["left"] & ~alone["right"] & ~join_type.is_one_of(*HALVES)
        parts.append(paired.withColumn("emission", kind).where(reduce(Column.__or__, owed, wanted)))
    for half in sorted(join_type.types & set(HALVES)):
        chosen = _joined(*sides, members.firing, f"left_{half}", condition).where(join_type.is_one_of(half))
        none = {name: F.lit(None).cast(sides[1].schema[name].dataType) for name in ("right", "start_of_right")}
        parts.append(chosen.withColumns({"emission": F.lit(half), **none}))
    chosen_parts = (part.select(*_emission(members)) for part in parts)
    return reduce(DataFrame.unionByName, chosen_parts)


def group_members(members: Members) -> DataFrame:
    """One row per firing, with all of its left and right rows as arrays: a coGroup. It has the keys as well."""
    both = {side: F.collect_list(F.when(F.col("side") == side, F.col(side))).alias(side) for side in PADDING}
    grouped = members.rows.groupBy(*members.firing).agg(*both.values())
    start = F.col("window_start").alias("start_of_left"), F.lit(None).cast("long").alias("start_of_right")
    grouped = grouped.select("*", *start).withColumn("emission", F.lit("grouped"))
    return grouped.select(*_emission(members), *key_columns(grouped))


def _emission(members: Members) -> list[Column]:
    last = F.col("window_end") - 1
    known = {
        "result_time": members.zone.instant(last) if members.zone else last,
        "window_start": F.coalesce("start_of_left", "start_of_right"),
        "right_window_start": F.col("start_of_right"),
    }
    return [known.get(name, F.col(name)).alias(name) for name in (*EMISSION, "right_window_start")]


def _sides(members: Members, condition: str | None) -> tuple[DataFrame, DataFrame]:
    """Each side's members; the condition, if there is one, sees their columns as left_* and right_*."""
    lefts, rights = (
        members.rows.where(F.col("side") == side).select(
            *members.firing,
            F.col("window_start").alias(f"start_of_{side}"),
            side,
            *(flat_columns(members.rows, side) if condition else []),
        )
        for side in PADDING
    )
    return lefts, rights


def flat_columns(rows: DataFrame, side: str) -> list[Column]:
    """The columns of one side's rows, as `left_NAME` or `right_NAME`."""
    kind = rows.schema[side].dataType
    assert isinstance(kind, T.StructType)
    return [F.col(f"{side}.{quoted(name)}").alias(f"{side}_{name}") for name in kind.names]


def _joined(lefts: DataFrame, rights: DataFrame, firing: list[str], how: str, condition: str | None) -> DataFrame:
    """A join of Spark's own over the columns of a firing; null keys meet nobody."""
    if condition is None:
        return lefts.join(rights, firing, how)
    renamed = rights.withColumnsRenamed({name: f"_right_{name}" for name in firing})
    same = reduce(Column.__and__, (F.col(name) == F.col(f"_right_{name}") for name in firing))
    found = lefts.join(renamed, same & confined(lefts.sparkSession, condition).column, how)
    if how.startswith("left_"):
        return found
    return found.transform(with_columns, {name: F.coalesce(name, f"_right_{name}") for name in firing})
