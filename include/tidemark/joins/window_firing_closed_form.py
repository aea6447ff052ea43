"""Compute the members of window firings in closed form, without simulating the firings before.

Applies to aligned windows whose trigger is of their own time or counts rows. The rows of a pane are numbered from 1 in
the order of arrival. A firing is identified by `row_count`, the number of rows in the pane when it fires. With the
previous firing's `row_count`, this determines which rows an evictor or a purge removed. `level`: watermark (ms), or
processing time (ms) for processing-time triggers.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.joins.firing_spec import FiringColumns
from tidemark.joins.keys import key_columns
from tidemark.timegrid.time_columns import lit_long
from tidemark.watermarks.job_watermarks import JobWatermarks, lookup_by_lane

CLOSED_FORM_TRIGGERS = (
    "event_time",
    "continuous_event_time",
    "processing_time",
    "continuous_processing_time",
    "count",
)


def has_closed_form(firing: FiringColumns) -> Column:
    """Return True if aligned windows have a closed form. Rows without event times have none under a time evictor."""
    is_by_processing_time = firing.trigger.endswith("processing_time")
    has_own_time = (firing.trigger == "count") | (is_by_processing_time == firing.is_processing_time)
    has_time_evictor = F.coalesce(firing.evictor == "time", F.lit(False))
    is_supported = firing.trigger.isin(*CLOSED_FORM_TRIGGERS)
    return is_supported & has_own_time & ~(firing.is_processing_time & has_time_evictor)


def find_members_and_lost(
    copies: DataFrame, order: tuple[str, ...], firing: FiringColumns, watermarks: JobWatermarks
) -> tuple[DataFrame, DataFrame]:
    """Find the members of the job's firings, and the rows lost because the input ends before their timer fires.

    Args:
        copies: Rows that entered their windows, one copy for each.
        order: Columns of the order of arrival.
        firing: How the windows fire.
        watermarks: Watermarks of the job.

    Returns:
        Members for `FiringMembers`, with a row without a side for each empty firing; and the lost rows.
    """
    pane = [*key_columns(copies), "window_start", "window_end"]
    arrival = Window.partitionBy(*pane).orderBy(*order)
    level = F.when(firing.is_processing_time, F.col("now")).otherwise(F.col("watermark"))
    rows = copies.withColumns({"number": F.row_number().over(arrival).cast("long"), "arrival_level": level})
    panes = rows.groupBy(*pane).agg(
        F.first("lane").alias("lane"),
        F.array_sort(F.collect_list(F.struct("number", "arrival_level", "event_time", "slice"))).alias("rows"),
    )
    panes = panes.withColumn("firings", _list_firings(firing, watermarks))
    firings = _select_job_firings(panes, pane, firing, watermarks).drop("lane")
    members = rows.drop("slice").join(firings, pane).where(_is_member(firing))
    has_no_rows = ~firing.evicts_after & (firing.evictor_amount <= 0) & firing.evictor.isNotNull()
    empty = firings.where(F.coalesce(has_no_rows, F.lit(False)))
    empty = empty.drop("row_count", "previous_row_count", "newest_event_time")
    columns = [*pane, "slice", "pane", "side", "left", "right"]
    end_of_job = lookup_by_lane([max(times.values()) for times in watermarks.end_processing_times_ms])
    fired = F.filter("firings", lambda firing: firing["level"] <= end_of_job)
    fired_rows = F.coalesce(F.array_max(F.transform(fired, lambda firing: firing["row_count"])), lit_long(0))
    has_processing_time_trigger = firing.trigger.endswith("processing_time")
    is_open = has_processing_time_trigger & watermarks.drain_slice.isNotNull() & (F.col("window_end") > end_of_job)
    open_panes = panes.where(is_open).select(*pane, fired_rows.alias("fired_rows"))
    lost = rows.join(open_panes, pane).where(F.col("number") > F.col("fired_rows"))
    return members.select(*columns).unionByName(empty, allowMissingColumns=True), lost


def _list_firings(firing: FiringColumns, watermarks: JobWatermarks) -> Column:
    """Return all firings of a pane in order: the row count, and the slice of the row or the level of the timer."""
    max_timestamp = F.col("window_end") - 1
    first_row = F.col("rows")[0]
    by_count = F.filter("rows", lambda row: row["number"] % F.greatest(firing.trigger_amount, lit_long(1)) == 0)
    late = F.filter("rows", lambda row: ~firing.is_processing_time & (row["arrival_level"] >= max_timestamp))
    firing_rows = F.when(firing.trigger == "count", by_count).otherwise(late)
    by_row = F.transform(firing_rows, lambda row: _create_firing(row["number"], row["slice"], F.lit(None)))
    has_timers = (firing.trigger != "count") & (
        firing.is_processing_time | (first_row["arrival_level"] < max_timestamp)
    )
    # A processing-time timer runs 1 ms after its time, an event-time timer at its time.
    delay = firing.is_processing_time.cast("long")
    levels = F.transform(
        _list_timers(firing, watermarks), lambda time: F.greatest(time + delay, first_row["arrival_level"] + 1)
    )

    def count_rows_before(level: Column) -> Column:
        return F.size(F.filter("rows", lambda row: row["arrival_level"] < level))

    by_timer = F.transform(
        F.when(has_timers, levels).otherwise(F.array().cast("array<bigint>")),
        lambda level: _create_firing(count_rows_before(level), F.lit(None), level),
    )
    return F.concat(by_timer, by_row)


def _list_timers(firing: FiringColumns, watermarks: JobWatermarks) -> Column:
    """Return the times of a pane's timers: continuous ones up to the end of the job, and the window's end."""
    max_timestamp = F.col("window_end") - 1
    first_row = F.col("rows")[0]
    start = F.when(firing.is_processing_time, first_row["arrival_level"]).otherwise(first_row["event_time"])
    interval = F.greatest(firing.trigger_amount, lit_long(1))
    begin = start - start % interval + interval
    last_processing_time = lookup_by_lane([max(times.values()) for times in watermarks.end_processing_times_ms])
    last_watermark = lookup_by_lane([max(line.combined_at_end.values()) for line in watermarks.timelines])
    stop = F.least(max_timestamp - 1, F.when(firing.is_processing_time, last_processing_time).otherwise(last_watermark))
    stop = F.when(firing.trigger.startswith("continuous"), stop)
    between = F.when(begin <= stop, F.sequence(begin, stop, interval)).otherwise(F.array().cast("array<bigint>"))
    return F.concat(between, F.array(max_timestamp))


def _select_job_firings(
    panes: DataFrame, pane: list[str], firing: FiringColumns, watermarks: JobWatermarks
) -> DataFrame:
    """Select the firings in slices of the job.

    Returns:
        `slice`, `pane`, `row_count`, `previous_row_count` and `newest_event_time` of the rows that the evictor sees.
    """
    exploded = panes.select("*", F.posexplode("firings").alias("index", "fired"))
    firings = exploded.select(*panes.columns, "index", "fired.*")
    in_order = Window.partitionBy(*pane).orderBy("index")
    keeps_none = F.coalesce(firing.evictor.isNotNull() & (firing.evictor_amount <= 0), F.lit(False))
    clears = firing.is_purging | keeps_none
    previous = F.coalesce(F.lag("row_count").over(in_order), lit_long(0))
    firings = firings.withColumn("previous_row_count", previous)
    # An empty pane does not fire.
    firings = firings.where(~clears | (F.col("row_count") > F.col("previous_row_count")))
    firings = firings.withColumn("pane", F.row_number().over(in_order) - 1)
    evictor_rows = F.when(firing.evicts_after, F.slice("rows", 1, F.col("previous_row_count").cast("int"))).otherwise(
        F.slice(
            "rows",
            _first_unpurged_number(firing).cast("int"),
            (F.col("row_count") - _first_unpurged_number(firing) + 1).cast("int"),
        )
    )
    newest = F.array_max(F.transform(evictor_rows, lambda row: row["event_time"]))
    firings = firings.withColumn("newest_event_time", newest)
    level = F.coalesce("level", lit_long(0))
    firings = watermarks.with_slice_reaching(firings, level, "slice_by_watermark")
    firings = watermarks.with_slice_at_processing_time(firings, level, "slice_by_processing_time")
    by_timer = F.when(firing.is_processing_time, F.col("slice_by_processing_time")).otherwise(
        F.col("slice_by_watermark")
    )
    by_timer = F.when(F.col("level").isNotNull(), by_timer)
    firings = firings.withColumn("slice", F.coalesce("row_slice", by_timer))
    firings = firings.where(F.col("slice") >= watermarks.first_slice)
    return firings.select(*pane, "lane", "slice", "pane", "row_count", "previous_row_count", "newest_event_time")


def _first_unpurged_number(firing: FiringColumns) -> Column:
    """Return the number of the first row that no purge has removed."""
    return F.when(firing.is_purging, F.col("previous_row_count") + 1).otherwise(lit_long(1))


def _is_member(firing: FiringColumns) -> Column:
    """Return True if a row is in a firing."""
    number, count, previous = F.col("number"), F.col("row_count"), F.col("previous_row_count")
    first_kept = F.when(firing.evicts_after, previous).otherwise(count) - firing.evictor_amount + 1
    is_kept_by_count = number >= first_kept
    is_kept_by_time = F.col("event_time") > F.col("newest_event_time") - firing.evictor_amount
    is_kept_by_evictor = F.when(firing.evictor == "count", is_kept_by_count)
    is_kept_by_evictor = is_kept_by_evictor.when(firing.evictor == "time", is_kept_by_time)
    is_new = firing.evicts_after & (number > previous)
    conditions = (
        number >= _first_unpurged_number(firing),
        number <= count,
        is_new | is_kept_by_evictor.otherwise(F.lit(True)),
    )
    return reduce(Column.__and__, conditions)


def _create_firing(row_count: Column, row_slice: Column, level: Column) -> Column:
    return F.struct(
        row_count.cast("long").alias("row_count"),
        row_slice.cast("long").alias("row_slice"),
        level.cast("long").alias("level"),
    )
