"""Panes whose firings follow from what each row met: a closed form, without a look at the firings before.

Of a tumbling or sliding window whose trigger is of its own time, or counts, a firing is a number q: how many of the
pane's rows, in the order of arrival, are in by then. What an evictor or a purge has taken follows from q and that of
the firing before.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.joins.firing_spec import Firing
from tidemark.joins.keys import key_columns
from tidemark.timegrid.time_columns import whole
from tidemark.watermarks.buckets import Horizon, of_lane

CLOSED = ("event_time", "continuous_event_time", "processing_time", "continuous_processing_time", "count")


def is_closed(firing: Firing) -> Column:
    """Whether windows that are no sessions have a closed form; rows without event times may confuse a time evictor."""
    by_clock = firing.trigger.endswith("processing_time")
    own_time = (firing.trigger == "count") | (by_clock == firing.processing)
    timed = F.coalesce(firing.evictor == "time", F.lit(False))
    return firing.trigger.isin(*CLOSED) & own_time & ~(firing.processing & timed)


def members_and_lost(
    copies: DataFrame, order: tuple[str, ...], firing: Firing, horizon: Horizon
) -> tuple[DataFrame, DataFrame]:
    """The members of the job's firings (`firings.Members`), and a row without a side for a firing that has none.

    And the rows that never come out because the input ends before the clock fires their window. Takes the rows that
    entered their windows, a copy for each.
    """
    pane = [*key_columns(copies), "window_start", "window_end"]
    arrival = Window.partitionBy(*pane).orderBy(*order)
    met = F.when(firing.processing, F.col("now")).otherwise(F.col("watermark"))
    rows = copies.withColumns({"number": F.row_number().over(arrival).cast("long"), "met": met})
    known = rows.groupBy(*pane).agg(
        F.first("lane").alias("lane"),
        F.array_sort(F.collect_list(F.struct("number", "met", "event_time", "slice"))).alias("rows"),
    )
    known = known.withColumn("firings", _firings(firing, horizon))
    firings = _fired(known, pane, firing, horizon).drop("lane")
    found = rows.drop("slice").join(firings, pane).where(_is_in(firing))
    nobody = F.coalesce(~firing.evicts_after & (firing.kept <= 0) & firing.evictor.isNotNull(), F.lit(False))
    empty = firings.where(nobody).drop("q", "before", "top")
    named = [*pane, "slice", "pane", "side", "left", "right"]
    clock = of_lane([max(clocks.values()) for clocks in horizon.clocks])
    in_time = F.filter("firings", lambda one: one["level"] <= clock)
    done = F.coalesce(F.array_max(F.transform(in_time, lambda one: one["q"])), whole(0))
    open_ = firing.trigger.endswith("processing_time") & horizon.drained_in.isNotNull() & (F.col("window_end") > clock)
    ended = known.where(open_).select(*pane, done.alias("done"))
    lost = rows.join(ended, pane).where(F.col("number") > F.col("done"))
    return found.select(*named).unionByName(empty, allowMissingColumns=True), lost


def _firings(firing: Firing, horizon: Horizon) -> Column:
    """All firings of a pane in order: how many rows are in, and the row's slice or the level of the timer."""
    last, first = F.col("window_end") - 1, F.col("rows")[0]
    by_count = F.filter("rows", lambda row: row["number"] % F.greatest(firing.amount, whole(1)) == 0)
    late = F.filter("rows", lambda row: ~firing.processing & (row["met"] >= last))
    rowed = F.when(firing.trigger == "count", by_count).otherwise(late)
    by_row = F.transform(rowed, lambda row: _one(row["number"], row["slice"], F.lit(None)))
    timed = (firing.trigger != "count") & (firing.processing | (first["met"] < last))
    # A timer of the clock runs 1 ms after its time, one of the watermark at it.
    after = firing.processing.cast("long")
    levels = F.transform(_times(firing, horizon), lambda time: F.greatest(time + after, first["met"] + 1))
    by_timer = F.transform(
        F.when(timed, levels).otherwise(F.array().cast("array<bigint>")),
        lambda level: _one(F.size(F.filter("rows", lambda row: row["met"] < level)), F.lit(None), level),
    )
    return F.concat(by_timer, by_row)


def _times(firing: Firing, horizon: Horizon) -> Column:
    """When the timers of a pane are: the continuous ones as far as the job comes, and its end."""
    last, first = F.col("window_end") - 1, F.col("rows")[0]
    start = F.when(firing.processing, first["met"]).otherwise(first["event_time"])
    interval = F.greatest(firing.amount, whole(1))
    begin = start - start % interval + interval
    ends = [max(clocks.values()) for clocks in horizon.clocks], [max(line.reached.values()) for line in horizon.lines]
    by_clock, by_watermark = (of_lane(levels) for levels in ends)
    stop = F.least(last - 1, F.when(firing.processing, by_clock).otherwise(by_watermark))
    stop = F.when(firing.trigger.startswith("continuous"), stop)
    between = F.when(begin <= stop, F.sequence(begin, stop, interval)).otherwise(F.array().cast("array<bigint>"))
    return F.concat(between, F.array(last))


def _fired(known: DataFrame, pane: list[str], firing: Firing, horizon: Horizon) -> DataFrame:
    """The job's firings: `slice`, `pane`, `q`, that of the firing `before`, and the newest time the evictor sees."""
    each = known.select("*", F.posexplode("firings").alias("place", "fired")).select(*known.columns, "place", "fired.*")
    in_order = Window.partitionBy(*pane).orderBy("place")
    clears = firing.purging | F.coalesce(firing.evictor.isNotNull() & (firing.kept <= 0), F.lit(False))
    each = each.withColumn("before", F.coalesce(F.lag("q").over(in_order), whole(0)))
    # An empty pane is not asked.
    each = each.where(~clears | (F.col("q") > F.col("before")))
    each = each.withColumn("pane", F.row_number().over(in_order) - 1)
    seen = F.when(firing.evicts_after, F.slice("rows", 1, F.col("before").cast("int"))).otherwise(
        F.slice("rows", _base(firing).cast("int"), (F.col("q") - _base(firing) + 1).cast("int"))
    )
    each = each.withColumn("top", F.array_max(F.transform(seen, lambda row: row["event_time"])))
    level = F.coalesce("level", whole(0))
    each = horizon.first_slice_reaching(each, level, "by_watermark")
    each = horizon.first_slice_at(each, level, "by_clock")
    by_timer = F.when(firing.processing, F.col("by_clock")).otherwise(F.col("by_watermark"))
    by_timer = F.when(F.col("level").isNotNull(), by_timer)
    each = each.withColumn("slice", F.coalesce("by_row", by_timer)).where(F.col("slice") >= horizon.first)
    return each.select(*pane, "lane", "slice", "pane", "q", "before", "top")


def _base(firing: Firing) -> Column:
    """The number of the first row that no purge has taken."""
    return F.when(firing.purging, F.col("before") + 1).otherwise(whole(1))


def _is_in(firing: Firing) -> Column:
    """Whether a row is among those that a firing sees."""
    number, q, before = F.col("number"), F.col("q"), F.col("before")
    newest = F.when(firing.evicts_after, before).otherwise(q) - firing.kept + 1
    counted = number >= newest
    timed = F.col("event_time") > F.col("top") - firing.kept
    left = F.when(firing.evictor == "count", counted).when(firing.evictor == "time", timed).otherwise(F.lit(True))
    new = firing.evicts_after & (number > before)
    conditions = number >= _base(firing), number <= q, new | left
    return reduce(Column.__and__, conditions)


def _one(q: Column, by_row: Column, level: Column) -> Column:
    return F.struct(q.cast("long").alias("q"), by_row.cast("long").alias("by_row"), level.cast("long").alias("level"))
