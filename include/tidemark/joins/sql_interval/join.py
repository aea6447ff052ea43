"""Flink SQL's interval join: a closed form, and a replay row by row of the lanes that have none.

No row is late. What decides is which rows are still cached, and when an unmatched one leaves:

- a cached row is joined until it expires, and then as long as the engine has not got round to removing it;
- a timer removes it at the watermark `leaves_at` (`timers`), unless before that a row of the other side with the
  same key looks for partners: that one still finds it, and removes it (`searches`);
- rows that come later than all they could find may skip their search (`cleanups`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.joins.base import JobRows, Join, JoinResult, add_late_reason
from tidemark.joins.datastream_interval import join_by_interval
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.rules.flink_sql import IntervalRules
from tidemark.joins.sql_interval.cleanup_timers import with_leaves_at
from tidemark.joins.sql_interval.last_cleanup import Cleanups
from tidemark.joins.sql_interval.late_materialization import FEW, TIMES, beside, told_of
from tidemark.joins.sql_interval.match_tracking import (
    emissions,
    first_matches,
    is_padded,
    mark,
    matching,
    with_first_match,
)
from tidemark.joins.sql_interval.operator_simulation import replay_lanes
from tidemark.joins.sql_interval.overdue_rows import found_expired, near, removed, searches, stays, with_first_search
from tidemark.joins.window_output import PADDING_TYPES, JoinType
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import computed_once, counted_once
from tidemark.timegrid.time_columns import as_json
from tidemark.watermarks.job_restarts import epoch_column
from tidemark.watermarks.job_watermarks import JobWatermarks

_IN_SLICES = ("matched_in", "timed_from", "gone_in")
_STATE = ("matched_in", "leaves_at", "timed_from", "gone_in")
_LABELS = ("slice", "watermark", "clock", "tiebreak", "mark")


@dataclass(frozen=True)
class _Rows:
    """The rows of a closed form, with their labels."""

    every: DataFrame
    asked: DataFrame
    """Those of which it matters whether they have matched."""
    waiting: DataFrame
    """Those that wait for partners, for who asks whether there are any; what they hold may be left out."""
    others: DataFrame | None
    """The rows that are not asked; None where they have been counted."""
    few: bool = False
    """Whether rows that do not wait are known to be few enough to go to all tasks."""


@dataclass(frozen=True)
class SqlIntervalJoin(Join):
    """`RowTimeIntervalJoin`: inner, left, right or full.

    Of a carried row are known, beside the watermark that it met: `matched_in`, the slice of its first match;
    `leaves_at`, the least watermark at which a timer removes it; and from replayed lanes `timed_from`, the slice since
    which the key's timer is this row's, and `gone_in`, the slice that removed it while the timer stays.
    """

    rules: IntervalRules
    join_type: JoinType
    condition: str | None = None
    """Part of the match, over `left_*` and `right_*`."""

    needs_exact_watermarks = True
    prefers_narrow_rows = True
    needs_bucket_number = True
    carried_columns = ("watermark", *_STATE)
    slice_valued_columns = _IN_SLICES

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.is_within(left, right)

    def apply(self, came: JobRows) -> JoinResult:
        """The closed form, unless `Cleanups` finds it undecided."""
        if (many := came.with_exact_watermarks) is None:
            timed = computed_once(self._timed(came.late_candidates.where(F.col("rejected").isNull()), came))
        else:
            timed = self._timed(many.select(*TIMES, *key_columns(many)), came, ("leaves_at",))
        cleanups = Cleanups.of(timed, came.watermarks, came.filtered)
        rows = (self._of_few if many is None else self._of_many)(timed, came, cleanups)
        found = self._closed_form(rows, came)
        found = replace(
            found, timelines=cleanups.lines({}), evicted_counts=cleanups.gone if rows.others is None else {}
        )
        if not cleanups.undecided:
            return found
        whole = timed if many is None else self._timed(many, came)
        return self._with_replayed(found, whole.where(~cleanups.decided), came, cleanups)

    @property
    def _wait(self) -> Column:
        return self.rules.wait_for_side(F.col("side"))

    @property
    def _outer(self) -> Column:
        return is_padded(F.col("side"), self.join_type)

    def _timed(self, rows: DataFrame, came: JobRows, carried: tuple[str, ...] = _STATE) -> DataFrame:
        """New rows with exact watermarks, those carried with what is known of them, and which timer removes each."""
        if came.carried is not None:
            names = [name for name in (*rows.columns, *carried) if name in came.carried.columns]
            rows = rows.unionByName(came.carried.select(*names), allowMissingColumns=True)
        event_time, none = F.col("event_time"), F.lit(None).cast("long")
        asked = {
            "leaves_at": F.col("leaves_at") if "leaves_at" in rows.columns else none,
            "waits": self.rules.is_cached(event_time, self._wait, self.rules.operator_time(F.col("watermark"))),
            "expires_at": self.rules.expires_at(event_time, self._wait),
        }
        timed = with_leaves_at(rows.transform(with_columns, asked), few=came.is_cacheable)
        return self._labelled(timed, came.watermarks)

    def _labelled(self, rows: DataFrame, horizon: JobWatermarks) -> DataFrame:
        """Rows that know which timer removes them, with what follows from that and from the watermark that they met."""
        rules, event_time, now = self.rules, F.col("event_time"), self.rules.operator_time(F.col("watermark"))
        labels = {
            "now": now,
            "waits": rules.is_cached(event_time, self._wait, now),
            "expires_at": rules.expires_at(event_time, self._wait),
            "stale_at": rules.lookup_skipped_at(event_time),
            "stale": (rules.lookup_skipped_at(event_time) <= now) & ~rules.is_empty,
            "off_the_path": rules.requires_row_by_row(event_time, self._wait),
        }
        leaves_at = F.coalesce("leaves_at", "expires_at")  # the search takes no null; who does not wait leaves at once
        found = horizon.with_slice_reaching(rows.transform(with_columns, labels), leaves_at, "eviction_slice")
        found = found.withColumn(
            "eviction_slice", F.when(F.col("waits"), F.col("eviction_slice")).otherwise(F.col("slice"))
        )
        # Most rows are on time, and gone when their slice ends: nobody asks whether they have matched.
        gone = (F.col("eviction_slice") <= F.greatest("slice", F.lit(horizon.first_slice))) & ~_is_behind(
            horizon.first_slice
        )
        return found.withColumn("asked", ~F.coalesce(gone, F.lit(False)))

    def _of_few(self, timed: DataFrame, came: JobRows, cleanups: Cleanups) -> _Rows:
        """Rows with what they hold, all of them in order."""
        first = came.watermarks.first_slice
        rows = self._marked(timed.where(cleanups.decided), first)
        if cleanups.overdue:
            found = computed_once(with_first_search(rows, searches(rows, first)))
            rows = removed(found.unionByName(rows.where(~stays()), allowMissingColumns=True))
        return _Rows(rows, rows.where("asked"), rows.where("waits"), rows.where(~F.col("asked")))

    def _of_many(self, times: DataFrame, came: JobRows, cleanups: Cleanups) -> _Rows:
        """Rows with what they hold, told by `times`: the same rows in order, without that.

        Most come on time, wait, and leave when they expire. What the others met and when they leave is set beside all
        rows; beside those that are asked, what they met.
        """
        first, decided = came.watermarks.first_slice, times.where(cleanups.decided)
        unlike, names = computed_once(decided.where(~F.col("waits") | stays())), ["watermark", "leaves_at"]
        if cleanups.overdue:
            searching = searches(decided, first)
            searching = near(searching, unlike, cleanups.longest) if cleanups.overdue <= FEW else searching
            found = with_first_search(unlike, searching)
            unlike = found.unionByName(unlike.where(~stays()), allowMissingColumns=True)
            names.append("by")
        told, count = counted_once(told_of(unlike, names))
        told = F.broadcast(told) if count <= FEW else told
        rows = beside(came.select_participating().where(cleanups.decided), told, names)
        rows = self._labelled(rows, came.watermarks)
        rows = rows.withColumn("leaves_at", F.when(F.col("waits"), F.coalesce("leaves_at", "expires_at")))
        rows = self._marked(rows, first)
        rows = removed(rows) if cleanups.overdue else rows
        met = told_of(decided.where("asked"), ["watermark"])
        asked = computed_once(beside(rows.where("asked"), met, ["watermark"]))
        waiting = rows
        if self.condition is None:
            nothing = {side: F.lit(None).cast(rows.schema[side].dataType) for side in SIDES}
            waiting = self._marked(decided.transform(with_columns, nothing), first)
        return _Rows(rows, asked, waiting.where("waits"), None, few=count <= FEW)

    def _marked(self, rows: DataFrame, first: int) -> DataFrame:
        """Labelled rows with a `mark`, and with what the slice before the job knew of them."""
        none = F.lit(None).cast("long")
        known = {
            name: F.when(F.col(name) < first, F.col(name)) if name in rows.columns else none for name in _IN_SLICES
        }
        return rows.transform(with_columns, {**known, "mark": mark(rows, self.condition)})

    def _closed_form(self, rows: _Rows, came: JobRows) -> JoinResult:
        """Emissions, and the rows with their `reached`, and `matched_in` of those that are asked."""
        first = came.watermarks.first_slice
        pairs = self._certain(rows.every, first)
        if self.join_type.types - {"inner"}:
            known = pairs = computed_once(pairs)
        else:
            known = self._with_fleeting(rows, first)
        if "by" in rows.every.columns:
            within = self.rules.is_within(F.col("left_time"), F.col("right_time"))
            late = matching(found_expired(rows.every, rows.asked.where(_is_behind(first)), within), self.condition)
            pairs, known = pairs.unionByName(late), known.unionByName(late)
        matches = computed_once(first_matches(known))
        leaves = F.col("eviction_slice").isNotNull() & F.col("matched_in").isNull() & self._outer
        padded = (
            with_first_match(rows.every, matches)
            .where(leaves)
            .withColumn("slice", F.greatest("slice", "eviction_slice"))
        )
        side = F.concat(F.lit("padded_"), F.col("side"))
        asked = with_first_match(rows.asked.drop("by"), matches)
        rejected = add_late_reason(came.late_candidates.where(F.col("rejected").isNotNull()), F.col("rejected"))
        chosen = [*came.late_candidates.columns, "reason", "window_start", "window_end"]
        rejected = rejected.select(*chosen, F.lit(None).cast("string").alias("fate"))
        return JoinResult(
            joined=emissions(pairs, F.lit("matched")).unionByName(emissions(padded, side)),
            late=self._behind(asked, came).unionByName(rejected),
            buffered=asked if rows.others is None else asked.unionByName(rows.others.select(*asked.columns)),
        )

    def _with_fleeting(self, rows: _Rows, first: int) -> DataFrame:
        """The pairs of late rows that are not cached: in an inner join only these are asked whether they matched."""
        labels = ("side", "event_time", *_LABELS, "waits", *key_columns(rows.waiting), *SIDES)
        waiting = rows.waiting.select(*labels)
        behind = rows.asked.where(~F.col("waits") & _is_behind(first)).select(*labels)
        parts = {side: behind.where(F.col("side") == side) for side in SIDES}
        parts = {side: part.unionByName(waiting.where(F.col("side") == OTHER[side])) for side, part in parts.items()}
        pairs = (self._certain(part, first, few=side if rows.few else None) for side, part in parts.items())
        return reduce(DataFrame.unionByName, pairs)

    def _certain(self, rows: DataFrame, first: int, few: SideName | None = None) -> DataFrame:
        """Pairs whose later row comes before the other, which is cached, has expired: in the slice of the later."""
        rules = self.rules
        times = F.col("left_event_time"), F.col("right_event_time")
        left_now, right_now = (rules.operator_time(F.col(f"{side}_watermark")) for side in PADDING_TYPES)
        left_waited = rules.is_cached(times[0], rules.left_wait, left_now)
        left_waited &= right_now < rules.expires_at(times[0], rules.left_wait)
        right_waited = rules.is_cached(times[1], rules.right_wait, right_now)
        right_waited &= left_now < rules.expires_at(times[1], rules.right_wait)
        left_first = F.struct("left_clock", "left_tiebreak") <= F.struct("right_clock", "right_tiebreak")
        waited = F.when(left_first, left_waited).otherwise(right_waited)
        later = F.greatest("left_slice", "right_slice")
        joins = rules.is_within(*times) & waited & (later >= first)
        found = join_by_interval(rows, rules.lower, rules.upper, _LABELS, joins, few)
        return matching(found.withColumn("slice", later), self.condition)

    def _behind(self, rows: DataFrame, came: JobRows) -> DataFrame:
        """Rows behind the watermark with what became of them on arrival."""
        fate = (
            F.when(F.col("waits"), "cached")
            .when(F.col("matched_in").isNotNull(), "matched")
            .when(self._outer, "padded")
            .otherwise("lost")
        )
        behind = add_late_reason(rows.where(_is_behind(came.watermarks.first_slice)), F.lit("behind_watermark"))
        return behind.select(*came.late_candidates.columns, "reason", "window_start", "window_end", fate.alias("fate"))

    def _with_replayed(self, found: JoinResult, rows: DataFrame, came: JobRows, cleanups: Cleanups) -> JoinResult:
        """Add lanes that have no closed form."""
        ends = dict[tuple[int, str, int], int]()
        rows = self._marked(rows, came.watermarks.first_slice)
        replayed = computed_once(self._replayed(rows, came, cleanups.undecided))
        for row in replayed.where(F.col("role") == "end").collect():
            ends |= {(row["lane"], side, row["slice"]): row[f"{side}_last_cleanup"] for side in PADDING_TYPES}
        emitted = replayed.where(~F.col("role").isin("state", "end"))
        states = replayed.where(F.col("role") == "state")
        return replace(
            found,
            joined=found.joined.unionByName(emissions(emitted, F.col("role"))),
            late=found.late.unionByName(self._behind(states, came)),
            buffered=found.buffered.unionByName(states.select(*found.buffered.columns)),
            timelines=cleanups.lines(ends),
        )

    def _replayed(self, rows: DataFrame, came: JobRows, lanes: frozenset[int]) -> DataFrame:
        """Whole lanes, row by row."""
        keys, rules = key_columns(rows), self.rules
        outer = {f"pads_{side}": self.join_type.is_in(*types) for side, types in PADDING_TYPES.items()}
        params = {name: getattr(rules, name) for name in ("lower", "upper", "lateness", "min_cleanup")}
        mates = F.lit(None).cast("array<long>")
        if self.condition:
            within = rules.is_within(F.col("left_event_time"), F.col("right_event_time"))
            pairs = join_by_interval(rows, rules.lower, rules.upper, _LABELS, within).withColumn("slice", F.lit(0))
            agreed = matching(pairs, self.condition).groupBy(*keys, F.col("right_mark").alias("mark"))
            rows = rows.join(agreed.agg(F.collect_set("left_mark").alias("_mates")), [*keys, "mark"], "left")
            mates = F.coalesce("_mates", F.array().cast("array<long>"))
        if came.filtered is not None:
            rows = rows.unionByName(came.filtered.where(F.col("lane").isin(*lanes)), allowMissingColumns=True)
        known = {"key": as_json(F.struct(*keys)), "keyless": has_null_key(rows), "mates": mates}
        rows = rows.transform(with_columns, {**outer, **params, **known, "epoch": epoch_column(came.watermarks)})
        return replay_lanes(
            rows, {lane: came.watermarks.timelines[lane] for lane in lanes}, came.watermarks.first_slice
        ).drop("_mates")


def _is_behind(first: int) -> Column:
    """Whether a row of these slices came behind the watermark."""
    return (F.col("slice") >= first) & (F.col("event_time") < F.col("watermark"))
