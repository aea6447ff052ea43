"""Pair late rows, and rows that are not cached on arrival, with other rows.

Only a late row can match a row that has expired, as all partners of an expired row are below the watermark. So these
pairs have all matches of expired rows. Pairs of two other rows match by their event times alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.config.sides import OTHER, SIDES
from tidemark.joins.base import JobRows, RowTransform, compute_row_hash
from tidemark.joins.binned_join import join_by_interval
from tidemark.joins.keys import key_columns
from tidemark.joins.rules.flink_sql import IntervalRules
from tidemark.joins.sql_interval.arrival_order import ARRIVAL_ORDER_OF_SIDE, is_left_earlier
from tidemark.joins.sql_interval.labels import get_other_side, is_late_or_uncached
from tidemark.joins.sql_interval.overdue_rows import OverdueRows
from tidemark.spark.dataframe_utils import choose_by_side, with_columns
from tidemark.spark.materialization import materialize, materialize_and_count

_LABELS = (
    "lane",
    "slice",
    "bucket_number",
    "clock",
    "tiebreak",
    "order_in_event",
    "watermark",
    "operator_time",
    "is_cached",
    "expires_at",
    "cleanup_time",
    "match_hash",
    "lookup_number",
)


def with_lookup_number(late_rows: DataFrame) -> DataFrame:
    """Add `lookup_number`: lookups with equal keys and places in the arrival order are numbered from 1 by content."""
    identity = ("lane", "side", *ARRIVAL_ORDER_OF_SIDE, *key_columns(late_rows))
    by_identity = Window.partitionBy(*identity).orderBy(compute_row_hash(late_rows))
    return late_rows.withColumn("lookup_number", F.row_number().over(by_identity))


def number_late_rows(rows: DataFrame, first_slice: int) -> DataFrame:
    """Add `lookup_number` to labelled rows; null for rows that are cached and not late."""
    late_rows = materialize(with_lookup_number(rows.where(is_late_or_uncached(first_slice))))
    return rows.where(~is_late_or_uncached(first_slice)).unionByName(late_rows, allowMissingColumns=True)


def number_late_candidates(job_rows: JobRows, label: RowTransform) -> tuple[JobRows, DataFrame, int]:
    """Add `lookup_number` to the rows of a large job; null for rows that are surely cached and not late.

    Args:
        job_rows: The rows of the job, with `order_in_event`.
        label: Function that labels rows (`labels.label_caching`).

    Returns:
        The rows of the job without rejected ones, those of them that are late or not cached with the labels of
        `label_caching`, and the number of these.
    """
    candidates = job_rows.late_candidates.where(F.col("rejected").isNull())
    is_late = is_late_or_uncached(job_rows.watermarks.first_slice)
    labelled = label(candidates)
    late_rows, count = materialize_and_count(with_lookup_number(labelled.where(is_late)))
    number = F.lit(None).cast("int").alias("lookup_number")
    others = labelled.where(~is_late).select(*candidates.columns, number)
    numbered = replace(
        job_rows,
        on_time=job_rows.on_time.select("*", number),
        late_candidates=others.unionByName(late_rows.select(*others.columns)),
        may_be_carried=job_rows.may_be_carried.select("*", number),
    )
    return numbered, late_rows, count


def pair_late_rows(
    late_rows: DataFrame,
    rows: DataFrame,
    rules: IntervalRules,
    first_slice: int,
    *,
    is_small: bool,
    has_exact_watermarks: bool,
) -> DataFrame:
    """Pair late rows with all rows of the other side that are within the bounds, if the earlier row was cached.

    Args:
        late_rows: Late rows, and rows that were not cached, with `match_hash` and `lookup_number`.
        rows: All rows of the job with the same labels.
        rules: The rules.
        first_slice: First slice of the job.
        is_small: True if the late rows are few enough for a broadcast join.
        has_exact_watermarks: True if all rows have exact watermarks, False if only late rows have.

    Returns:
        Pairs with `left_*` and `right_*` labels, the keys, `left`, `right`, `late_side`, and the `slice` of the later
        row. `is_later` is True if the late row is the later one; otherwise the other row is not late. `is_expired` is
        True if the earlier row has expired, so that the pair is a match only if that row is still in the cache.
    """
    names = ("side", "event_time", *_LABELS, *key_columns(rows), *SIDES)
    pairs = []
    for side in SIDES:
        both = late_rows.where(F.col("side") == side).select(*names)
        both = both.unionByName(rows.where(F.col("side") == OTHER[side]).select(*names))
        late, other = ({name: F.col(f"{s}_{name}") for name in (*_LABELS, "event_time")} for s in (side, OTHER[side]))
        is_within = rules.is_within(F.col("left_event_time"), F.col("right_event_time"))
        left_is_earlier = is_left_earlier(has_exact_watermarks=has_exact_watermarks)
        is_later = ~left_is_earlier if side == "left" else left_is_earlier
        is_among_late = is_late_or_uncached(first_slice, f"{OTHER[side]}_")
        is_pair = F.when(is_later, other["is_cached"]).otherwise(late["is_cached"] & ~is_among_late)
        pair = join_by_interval(
            both, rules.lower, rules.upper, _LABELS, is_within & is_pair, repeated_side=side, is_broadcast=is_small
        )
        columns = {
            "lane": late["lane"],
            "late_side": F.lit(side),
            "slice": F.when(is_later, late["slice"]).otherwise(other["slice"]),
            "is_later": is_later,
            "is_expired": is_later & (late["operator_time"] >= other["expires_at"]),
        }
        pairs.append(pair.transform(with_columns, columns))
    return reduce(DataFrame.unionByName, pairs)


def select_expired_partners(late_pairs: DataFrame) -> DataFrame:
    """Select the expired rows of late pairs by their identity, keys, `bucket_number` and `cleanup_time`."""
    names = ("lane", "clock", "tiebreak", "event_time", "bucket_number", "cleanup_time")
    columns = {name: _get_earlier(name) for name in names}
    columns["side"] = get_other_side(F.col("late_side"))
    return late_pairs.where("is_expired").select(
        *key_columns(late_pairs), *(column.alias(name) for name, column in columns.items())
    )


def select_uncached_matches(late_pairs: DataFrame) -> DataFrame:
    """Select the pairs of late rows that were not cached with rows that have not expired."""
    is_late = _get_late("event_time") < _get_late("watermark")
    return late_pairs.where(F.col("is_later") & ~F.col("is_expired") & is_late & ~_get_late("is_cached"))


def select_overdue_matches(late_pairs: DataFrame, overdue_rows: OverdueRows) -> DataFrame:
    """Select the pairs of overdue rows with the late rows that remove them.

    Args:
        late_pairs: The pairs of the job.
        overdue_rows: The overdue rows.
    """
    expired = late_pairs.where("is_expired").transform(
        with_columns,
        {name: _get_earlier(name) for name in ("lane", "clock", "tiebreak", "event_time")}
        | {"side": get_other_side(F.col("late_side"))},
    )
    removed_rows = replace(overdue_rows, rows=overdue_rows.rows.where(F.col("removing_lookup").isNotNull()))
    annotated = removed_rows.annotate(expired, ["removing_lookup"])
    is_remover = [_get_late(name) == F.col(f"removing_lookup.{name}") for name in ARRIVAL_ORDER_OF_SIDE]
    is_first = _get_late("lookup_number") == 1  # simultaneous lookups: the first one removes the row
    return annotated.where(reduce(Column.__and__, [*is_remover, is_first]))


def _get_late(name: str) -> Column:
    return choose_by_side(F.col(f"left_{name}"), F.col(f"right_{name}"), side="late_side")


def _get_earlier(name: str) -> Column:
    return choose_by_side(F.col(f"right_{name}"), F.col(f"left_{name}"), side="late_side")
