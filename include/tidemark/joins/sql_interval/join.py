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
from tidemark.joins.sql_interval.last_cleanup import LastCleanups
from tidemark.joins.sql_interval.late_materialization import (
    MAX_BROADCAST_ROWS,
    NARROW_COLUMNS,
    join_annotations,
    select_annotations,
)
from tidemark.joins.sql_interval.match_tracking import (
    compute_mark,
    filter_matches,
    find_first_matches,
    is_padded,
    to_emissions,
    with_first_match,
)
from tidemark.joins.sql_interval.operator_simulation import replay_lanes
from tidemark.joins.sql_interval.overdue_rows import (
    is_overdue,
    pair_with_removing_rows,
    select_lookups,
    select_lookups_near_overdue,
    with_removal_slice,
    with_removing_lookup,
)
from tidemark.joins.window_output import PADDING_TYPES, JoinType
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize, materialize_and_count
from tidemark.timegrid.time_columns import as_json
from tidemark.watermarks.job_restarts import epoch_column
from tidemark.watermarks.job_watermarks import JobWatermarks

_SLICE_COLUMNS = ("matched_in", "timed_from", "gone_in")
_STATE_COLUMNS = ("matched_in", "leaves_at", "timed_from", "gone_in")
_LABELS = ("slice", "watermark", "clock", "tiebreak", "mark")


@dataclass(frozen=True)
class _LabelledRows:
    """The rows of a closed form, with their labels."""

    all_rows: DataFrame
    tracked: DataFrame
    """Those of which it matters whether they have matched."""
    cached: DataFrame
    """Those that wait for partners, for who asks whether there are any; what they hold may be left out."""
    untracked: DataFrame | None
    """The rows that are not asked; None where they have been counted."""
    has_few_uncached: bool = False
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
    carried_columns = ("watermark", *_STATE_COLUMNS)
    slice_valued_columns = _SLICE_COLUMNS

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.is_within(left, right)

    def apply(self, job_rows: JobRows) -> JoinResult:
        """The closed form, unless `Cleanups` finds it undecided."""
        if (narrowable_rows := job_rows.with_exact_watermarks) is None:
            timed_rows = materialize(
                self._with_timers(job_rows.late_candidates.where(F.col("rejected").isNull()), job_rows)
            )
        else:
            timed_rows = self._with_timers(
                narrowable_rows.select(*NARROW_COLUMNS, *key_columns(narrowable_rows)), job_rows, ("leaves_at",)
            )
        cleanups = LastCleanups.from_rows(timed_rows, job_rows.watermarks, job_rows.filtered)
        rows = (self._label_all_columns if narrowable_rows is None else self._label_narrow_columns)(
            timed_rows, job_rows, cleanups
        )
        result = self._join_closed_form(rows, job_rows)
        result = replace(
            result,
            timelines=cleanups.to_timelines({}),
            evicted_counts=cleanups.evicted_counts if rows.untracked is None else {},
        )
        if not cleanups.replayed_lanes:
            return result
        full_rows = timed_rows if narrowable_rows is None else self._with_timers(narrowable_rows, job_rows)
        return self._add_replayed_lanes(result, full_rows.where(~cleanups.has_closed_form), job_rows, cleanups)

    @property
    def _wait(self) -> Column:
        return self.rules.wait_for_side(F.col("side"))

    @property
    def _is_padded(self) -> Column:
        return is_padded(F.col("side"), self.join_type)

    def _with_timers(
        self, rows: DataFrame, job_rows: JobRows, carried_columns: tuple[str, ...] = _STATE_COLUMNS
    ) -> DataFrame:
        """New rows with exact watermarks, those carried with what is known of them, and which timer removes each."""
        if job_rows.carried is not None:
            names = [name for name in (*rows.columns, *carried_columns) if name in job_rows.carried.columns]
            rows = rows.unionByName(job_rows.carried.select(*names), allowMissingColumns=True)
        event_time, null = F.col("event_time"), F.lit(None).cast("long")
        labels = {
            "leaves_at": F.col("leaves_at") if "leaves_at" in rows.columns else null,
            "waits": self.rules.is_cached(event_time, self._wait, self.rules.operator_time(F.col("watermark"))),
            "expires_at": self.rules.expires_at(event_time, self._wait),
        }
        with_timers = with_leaves_at(rows.transform(with_columns, labels), is_small=job_rows.is_cacheable)
        return self._with_labels(with_timers, job_rows.watermarks)

    def _with_labels(self, rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:
        """Rows that know which timer removes them, with what follows from that and from the watermark that they met."""
        rules, event_time, operator_time = self.rules, F.col("event_time"), self.rules.operator_time(F.col("watermark"))
        labels = {
            "now": operator_time,
            "waits": rules.is_cached(event_time, self._wait, operator_time),
            "expires_at": rules.expires_at(event_time, self._wait),
            "stale_at": rules.lookup_skipped_at(event_time),
            "stale": (rules.lookup_skipped_at(event_time) <= operator_time) & ~rules.is_empty,
            "off_the_path": rules.requires_row_by_row(event_time, self._wait),
        }
        leaves_at = F.coalesce("leaves_at", "expires_at")  # the search takes no null; who does not wait leaves at once
        labelled = watermarks.with_slice_reaching(rows.transform(with_columns, labels), leaves_at, "eviction_slice")
        labelled = labelled.withColumn(
            "eviction_slice", F.when(F.col("waits"), F.col("eviction_slice")).otherwise(F.col("slice"))
        )
        # Most rows are on time, and gone when their slice ends: nobody asks whether they have matched.
        is_removed_in_slice = (
            F.col("eviction_slice") <= F.greatest("slice", F.lit(watermarks.first_slice))
        ) & ~_is_late(watermarks.first_slice)
        return labelled.withColumn("asked", ~F.coalesce(is_removed_in_slice, F.lit(False)))

    def _label_all_columns(self, timed_rows: DataFrame, job_rows: JobRows, cleanups: LastCleanups) -> _LabelledRows:
        """Rows with what they hold, all of them in order."""
        first_slice = job_rows.watermarks.first_slice
        rows = self._with_marks(timed_rows.where(cleanups.has_closed_form), first_slice)
        if cleanups.overdue_count:
            overdue_rows = materialize(with_removing_lookup(rows, select_lookups(rows, first_slice)))
            rows = with_removal_slice(overdue_rows.unionByName(rows.where(~is_overdue()), allowMissingColumns=True))
        return _LabelledRows(rows, rows.where("asked"), rows.where("waits"), rows.where(~F.col("asked")))

    def _label_narrow_columns(self, narrow_rows: DataFrame, job_rows: JobRows, cleanups: LastCleanups) -> _LabelledRows:
        """Rows with what they hold, told by `times`: the same rows in order, without that.

        Most come on time, wait, and leave when they expire. What the others met and when they leave is set beside all
        rows; beside those that are asked, what they met.
        """
        first_slice, closed_form_rows = job_rows.watermarks.first_slice, narrow_rows.where(cleanups.has_closed_form)
        exceptions, names = (
            materialize(closed_form_rows.where(~F.col("waits") | is_overdue())),
            ["watermark", "leaves_at"],
        )
        if cleanups.overdue_count:
            lookups = select_lookups(closed_form_rows, first_slice)
            lookups = (
                select_lookups_near_overdue(lookups, exceptions, cleanups.longest_overdue_ms)
                if cleanups.overdue_count <= MAX_BROADCAST_ROWS
                else lookups
            )
            overdue_rows = with_removing_lookup(exceptions, lookups)
            exceptions = overdue_rows.unionByName(exceptions.where(~is_overdue()), allowMissingColumns=True)
            names.append("by")
        annotations, count = materialize_and_count(select_annotations(exceptions, names))
        annotations = F.broadcast(annotations) if count <= MAX_BROADCAST_ROWS else annotations
        rows = join_annotations(job_rows.select_participating().where(cleanups.has_closed_form), annotations, names)
        rows = self._with_labels(rows, job_rows.watermarks)
        rows = rows.withColumn("leaves_at", F.when(F.col("waits"), F.coalesce("leaves_at", "expires_at")))
        rows = self._with_marks(rows, first_slice)
        rows = with_removal_slice(rows) if cleanups.overdue_count else rows
        arrival_watermarks = select_annotations(closed_form_rows.where("asked"), ["watermark"])
        tracked = materialize(join_annotations(rows.where("asked"), arrival_watermarks, ["watermark"]))
        partners = rows
        if self.condition is None:
            null_sides = {side: F.lit(None).cast(rows.schema[side].dataType) for side in SIDES}
            partners = self._with_marks(closed_form_rows.transform(with_columns, null_sides), first_slice)
        return _LabelledRows(rows, tracked, partners.where("waits"), None, has_few_uncached=count <= MAX_BROADCAST_ROWS)

    def _with_marks(self, rows: DataFrame, first_slice: int) -> DataFrame:
        """Labelled rows with a `mark`, and with what the slice before the job knew of them."""
        null = F.lit(None).cast("long")
        carried_state = {
            name: F.when(F.col(name) < first_slice, F.col(name)) if name in rows.columns else null
            for name in _SLICE_COLUMNS
        }
        return rows.transform(with_columns, {**carried_state, "mark": compute_mark(rows, self.condition)})

    def _join_closed_form(self, rows: _LabelledRows, job_rows: JobRows) -> JoinResult:
        """Emissions, and the rows with their `reached`, and `matched_in` of those that are asked."""
        first_slice = job_rows.watermarks.first_slice
        pairs = self._join_unexpired(rows.all_rows, first_slice)
        if self.join_type.types - {"inner"}:
            tracked_pairs = pairs = materialize(pairs)
        else:
            tracked_pairs = self._join_late_uncached(rows, first_slice)
        if "by" in rows.all_rows.columns:
            is_within = self.rules.is_within(F.col("left_time"), F.col("right_time"))
            overdue_pairs = filter_matches(
                pair_with_removing_rows(rows.all_rows, rows.tracked.where(_is_late(first_slice)), is_within),
                self.condition,
            )
            pairs, tracked_pairs = pairs.unionByName(overdue_pairs), tracked_pairs.unionByName(overdue_pairs)
        first_matches = materialize(find_first_matches(tracked_pairs))
        is_padded = F.col("eviction_slice").isNotNull() & F.col("matched_in").isNull() & self._is_padded
        padded = (
            with_first_match(rows.all_rows, first_matches)
            .where(is_padded)
            .withColumn("slice", F.greatest("slice", "eviction_slice"))
        )
        emission = F.concat(F.lit("padded_"), F.col("side"))
        tracked = with_first_match(rows.tracked.drop("by"), first_matches)
        rejected = add_late_reason(job_rows.late_candidates.where(F.col("rejected").isNotNull()), F.col("rejected"))
        columns = [*job_rows.late_candidates.columns, "reason", "window_start", "window_end"]
        rejected = rejected.select(*columns, F.lit(None).cast("string").alias("fate"))
        return JoinResult(
            joined=to_emissions(pairs, F.lit("matched")).unionByName(to_emissions(padded, emission)),
            late=self._select_late(tracked, job_rows).unionByName(rejected),
            buffered=tracked
            if rows.untracked is None
            else tracked.unionByName(rows.untracked.select(*tracked.columns)),
        )

    def _join_late_uncached(self, rows: _LabelledRows, first_slice: int) -> DataFrame:
        """The pairs of late rows that are not cached: in an inner join only these are asked whether they matched."""
        labels = ("side", "event_time", *_LABELS, "waits", *key_columns(rows.cached), *SIDES)
        cached = rows.cached.select(*labels)
        uncached = rows.tracked.where(~F.col("waits") & _is_late(first_slice)).select(*labels)
        rows_by_side = {side: uncached.where(F.col("side") == side) for side in SIDES}
        rows_by_side = {
            side: side_rows.unionByName(cached.where(F.col("side") == OTHER[side]))
            for side, side_rows in rows_by_side.items()
        }
        pairs = (
            self._join_unexpired(side_rows, first_slice, small_side=side if rows.has_few_uncached else None)
            for side, side_rows in rows_by_side.items()
        )
        return reduce(DataFrame.unionByName, pairs)

    def _join_unexpired(self, rows: DataFrame, first_slice: int, small_side: SideName | None = None) -> DataFrame:
        """Pairs whose later row comes before the other, which is cached, has expired: in the slice of the later."""
        rules = self.rules
        times = F.col("left_event_time"), F.col("right_event_time")
        left_now, right_now = (rules.operator_time(F.col(f"{side}_watermark")) for side in PADDING_TYPES)
        left_is_in_cache = rules.is_cached(times[0], rules.left_wait, left_now)
        left_is_in_cache &= right_now < rules.expires_at(times[0], rules.left_wait)
        right_is_in_cache = rules.is_cached(times[1], rules.right_wait, right_now)
        right_is_in_cache &= left_now < rules.expires_at(times[1], rules.right_wait)
        left_is_earlier = F.struct("left_clock", "left_tiebreak") <= F.struct("right_clock", "right_tiebreak")
        earlier_is_in_cache = F.when(left_is_earlier, left_is_in_cache).otherwise(right_is_in_cache)
        later_slice = F.greatest("left_slice", "right_slice")
        condition = rules.is_within(*times) & earlier_is_in_cache & (later_slice >= first_slice)
        pairs = join_by_interval(rows, rules.lower, rules.upper, _LABELS, condition, small_side)
        return filter_matches(pairs.withColumn("slice", later_slice), self.condition)

    def _select_late(self, rows: DataFrame, job_rows: JobRows) -> DataFrame:
        """Rows behind the watermark with what became of them on arrival."""
        outcome = (
            F.when(F.col("waits"), "cached")
            .when(F.col("matched_in").isNotNull(), "matched")
            .when(self._is_padded, "padded")
            .otherwise("lost")
        )
        late = add_late_reason(rows.where(_is_late(job_rows.watermarks.first_slice)), F.lit("behind_watermark"))
        return late.select(
            *job_rows.late_candidates.columns, "reason", "window_start", "window_end", outcome.alias("fate")
        )

    def _add_replayed_lanes(
        self, result: JoinResult, rows: DataFrame, job_rows: JobRows, cleanups: LastCleanups
    ) -> JoinResult:
        """Add lanes that have no closed form."""
        last_cleanups = dict[tuple[int, str, int], int]()
        rows = self._with_marks(rows, job_rows.watermarks.first_slice)
        replayed = materialize(self._replay(rows, job_rows, cleanups.replayed_lanes))
        for row in replayed.where(F.col("role") == "end").collect():
            last_cleanups |= {(row["lane"], side, row["slice"]): row[f"{side}_last_cleanup"] for side in PADDING_TYPES}
        emitted_rows = replayed.where(~F.col("role").isin("state", "end"))
        states = replayed.where(F.col("role") == "state")
        return replace(
            result,
            joined=result.joined.unionByName(to_emissions(emitted_rows, F.col("role"))),
            late=result.late.unionByName(self._select_late(states, job_rows)),
            buffered=result.buffered.unionByName(states.select(*result.buffered.columns)),
            timelines=cleanups.to_timelines(last_cleanups),
        )

    def _replay(self, rows: DataFrame, job_rows: JobRows, lanes: frozenset[int]) -> DataFrame:
        """Whole lanes, row by row."""
        keys, rules = key_columns(rows), self.rules
        padding = {f"pads_{side}": self.join_type.is_in(*types) for side, types in PADDING_TYPES.items()}
        params = {name: getattr(rules, name) for name in ("lower", "upper", "lateness", "min_cleanup")}
        mates = F.lit(None).cast("array<long>")
        if self.condition:
            is_within = rules.is_within(F.col("left_event_time"), F.col("right_event_time"))
            pairs = join_by_interval(rows, rules.lower, rules.upper, _LABELS, is_within).withColumn("slice", F.lit(0))
            matches = filter_matches(pairs, self.condition).groupBy(*keys, F.col("right_mark").alias("mark"))
            rows = rows.join(matches.agg(F.collect_set("left_mark").alias("_mates")), [*keys, "mark"], "left")
            mates = F.coalesce("_mates", F.array().cast("array<long>"))
        if job_rows.filtered is not None:
            rows = rows.unionByName(job_rows.filtered.where(F.col("lane").isin(*lanes)), allowMissingColumns=True)
        labels = {"key": as_json(F.struct(*keys)), "keyless": has_null_key(rows), "mates": mates}
        rows = rows.transform(with_columns, {**padding, **params, **labels, "epoch": epoch_column(job_rows.watermarks)})
        return replay_lanes(
            rows, {lane: job_rows.watermarks.timelines[lane] for lane in lanes}, job_rows.watermarks.first_slice
        ).drop("_mates")


def _is_late(first_slice: int) -> Column:
    """Whether a row of these slices came behind the watermark."""
    return (F.col("slice") >= first_slice) & (F.col("event_time") < F.col("watermark"))
