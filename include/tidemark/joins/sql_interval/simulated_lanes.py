"""Add the outputs of lanes without a closed form, which are simulated row by row."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.joins.base import JobRows, JoinResult, compute_row_hash
from tidemark.joins.binned_join import join_by_interval
from tidemark.joins.emission_order import own_order_in_event
from tidemark.joins.join_type import JoinType
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.rules.flink_sql import IntervalRules
from tidemark.joins.sql_interval.arrival_order import ARRIVAL_ORDER
from tidemark.joins.sql_interval.labels import with_match_state
from tidemark.joins.sql_interval.last_cleanup import LastCleanups
from tidemark.joins.sql_interval.late_outcomes import select_late
from tidemark.joins.sql_interval.match_tracking import drop_needless_matches, select_pairs, to_emissions
from tidemark.joins.sql_interval.operator_simulation import simulate_lanes
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize
from tidemark.timegrid.time_columns import as_json
from tidemark.watermarks.recorded_watermark_lane import PRECEDING_WATERMARK
from tidemark.watermarks.restarted_lane import epoch_column


def count_simulated(rows: DataFrame, job_rows: JobRows, cleanups: LastCleanups) -> dict[str, int]:
    """Count by side, as negative numbers, the rows of simulated lanes that were already counted as evicted."""
    if job_rows.may_be_carried is job_rows.on_time:
        return {}
    is_counted = ~cleanups.has_closed_form & (F.col("slice") >= job_rows.watermarks.first_slice)
    counts = dict[str, int]()
    for part, sign in ((rows, -1), (job_rows.select_rows_that_may_be_carried(), 1)):
        for side, count in part.where(is_counted).groupBy("side").count().collect():
            counts[side] = counts.get(side, 0) + sign * count
    return counts


def add_simulated_lanes(
    result: JoinResult,
    rows: DataFrame,
    job_rows: JobRows,
    cleanups: LastCleanups,
    rules: IntervalRules,
    join_type: JoinType,
    condition: str | None,
) -> JoinResult:
    """Simulate the lanes without a closed form, and add their outputs.

    Args:
        result: The outputs of the other lanes.
        rows: Rows of the simulated lanes with all columns and labels.
        job_rows: The rows of the job.
        cleanups: The cleanups of the job.
        rules: The rules.
        join_type: Type of the join.
        condition: SQL over `left_*` and `right_*` that pairs must meet as well; None for none.
    """
    last_cleanups = dict[tuple[int, str, int], int]()
    rows = with_match_state(rows, condition, job_rows.watermarks.first_slice)
    simulated = materialize(_simulate(rows, job_rows, cleanups.simulated_lanes, rules, join_type, condition))
    for row in simulated.where(F.col("role") == "end").collect():
        last_cleanups |= {(row["lane"], side, row["slice"]): row[f"{side}_last_cleanup"] for side in SIDES}
    emitted_rows = simulated.where(~F.col("role").isin("state", "end"))
    states = simulated.where(F.col("role") == "state")
    return replace(
        result,
        joined=result.joined.unionByName(to_emissions(emitted_rows, F.col("role"), F.col("emitting_watermark"))),
        late=result.late.unionByName(select_late(states, job_rows, join_type)),
        buffered=result.buffered.unionByName(drop_needless_matches(states, join_type).select(*result.buffered.columns)),
        timelines=cleanups.to_timelines(last_cleanups),
    )


def _simulate(
    rows: DataFrame,
    job_rows: JobRows,
    lanes: frozenset[int],
    rules: IntervalRules,
    join_type: JoinType,
    condition: str | None,
) -> DataFrame:
    """Prepare the rows of lanes for `operator_simulation.simulate_lanes`, and simulate them."""
    keys = key_columns(rows)
    padding = {f"pads_{side}": join_type.pads(side) for side in SIDES}
    params = {name: getattr(rules, name) for name in ("lower", "upper", "lateness", "min_cleanup")}
    condition_matches = F.lit(None).cast("array<long>")
    if condition:
        is_within = rules.is_within(F.col("left_event_time"), F.col("right_event_time"))
        labels = ("match_hash", "clock", "tiebreak")
        pairs = join_by_interval(rows, rules.lower, rules.upper, labels, is_within, sql_condition=condition)
        matches = select_pairs(pairs.withColumn("slice", F.lit(0)), has_match_hashes=True).groupBy(
            *keys, F.col("right_match_hash").alias("match_hash")
        )
        rows = rows.join(
            matches.agg(F.collect_set("left_match_hash").alias("_condition_matches")), [*keys, "match_hash"], "left"
        )
        condition_matches = F.coalesce("_condition_matches", F.array().cast("array<long>"))
    if job_rows.filtered is not None:
        rows = rows.unionByName(job_rows.filtered.where(F.col("lane").isin(*lanes)), allowMissingColumns=True)
    computed = {
        "key": as_json(F.struct(*keys)),
        "has_null_key": has_null_key(rows),
        "condition_matches": condition_matches,
        "epoch": epoch_column(job_rows.watermarks),
        PRECEDING_WATERMARK: F.coalesce(*(name for name in (PRECEDING_WATERMARK, "watermark") if name in rows.columns)),
        "order_in_event": F.coalesce("order_in_event", own_order_in_event(())),
        "arrival_number": F.row_number().over(
            Window.partitionBy("lane").orderBy(*ARRIVAL_ORDER, compute_row_hash(rows))
        ),
    }
    rows = rows.transform(with_columns, {**padding, **params, **computed})
    watermarks = job_rows.watermarks
    timelines = {lane: watermarks.timelines[lane] for lane in lanes}
    last_cleanups = {lane: watermarks.lanes[lane].initial_watermarks.last_cleanups for lane in lanes}
    simulated = simulate_lanes(rows, timelines, last_cleanups, watermarks.first_slice)
    return simulated.drop("_condition_matches", "arrival_number")
