"""Join by interval as Flink SQL does, without simulating its operator for most streams.

The operator, `RowTimeIntervalJoin`, has a cache of rows for each side and key. An arriving row first looks up the other
side's rows of its key, and is then cached itself if a later row can still match it. The operator drops no late row, so
a result depends only on which rows are cached at each arrival:

1. A row expires when the watermark has passed the event time of its last possible partner. Pairs of rows that have not
   expired follow from event times and watermarks, as a join on an interval (`SqlIntervalJoin._join_unexpired`).
2. An expired row remains in the cache until it is removed. A cleanup timer removes it at its `cleanup_time`, a
   watermark that is fixed at its arrival (`cleanup_timers`). Usually this is the watermark at which it expires.
3. If its cleanup time is later, the row is overdue from its expiry until then. The first lookup in that time still
   matches it, and then removes it (`overdue_rows`).
4. An extremely late row skips its lookup if the last cleanup of the other side, whatever its key, has already removed
   all rows that it can match (`last_cleanup`).

These steps are the closed form: joins and window functions over all rows of a job. A lane has none if it has a cleanup
interval, times of 0 or below, or restarts, or if the result depends on a lookup of which it is uncertain whether it is
skipped. Only these lanes are replayed row by row (`operator_simulation`). In large jobs, steps 2 to 4 run over narrow
rows without their content, which is joined afterwards (`late_materialization`).
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
from tidemark.joins.sql_interval.cleanup_timers import with_cleanup_time
from tidemark.joins.sql_interval.last_cleanup import LastCleanups
from tidemark.joins.sql_interval.late_materialization import (
    MAX_BROADCAST_ROWS,
    NARROW_COLUMNS,
    join_annotations,
    select_annotations,
)
from tidemark.joins.sql_interval.match_tracking import (
    compute_match_hash,
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
    select_certain_lookups,
    select_lookups_near_overdue,
    with_eviction_slice,
    with_removing_lookup,
)
from tidemark.joins.window_output import PADDING_TYPES, JoinType
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize, materialize_and_count
from tidemark.timegrid.time_columns import as_json
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.restarted_lane import epoch_column

_SLICE_COLUMNS = ("first_match_slice", "timer_slice", "removal_slice")
_STATE_COLUMNS = ("first_match_slice", "cleanup_time", "timer_slice", "removal_slice")
_LABELS = ("slice", "watermark", "clock", "tiebreak", "match_hash")


@dataclass(frozen=True)
class _LabelledRows:
    """Rows of the lanes with a closed form, labelled with their cleanup and eviction."""

    all_rows: DataFrame
    tracked: DataFrame
    """Rows with `is_tracked`: late rows and rows that outlive their slice."""
    cached: DataFrame
    """Rows that are cached on arrival. Only match tracking reads them, so that `left` and `right` may be null."""
    untracked: DataFrame | None
    """Other rows; None if they were only counted."""
    has_few_uncached: bool = False
    """True if the rows that are not cached on arrival are few enough for a broadcast join."""


@dataclass(frozen=True)
class SqlIntervalJoin(Join):
    """An inner, left, right or full interval join on event time (`RowTimeIntervalJoin`).

    Carried rows have these columns:

    - `watermark`: the watermark at the row's arrival, ms.
    - `first_match_slice`: the slice of its first match.
    - `cleanup_time`: the least watermark at which a timer removes it, ms.
    - `timer_slice`: the slice in which the cache's timer was set for this row; only if the lane must be replayed.
    - `removal_slice`: the slice that removed it from the cache, if it is carried until its timer fires; only from
      replayed lanes.
    """

    rules: IntervalRules
    join_type: JoinType
    condition: str | None = None
    """SQL over `left_*` and `right_*` that pairs must meet as well."""

    needs_exact_watermarks = True
    prefers_narrow_rows = True
    needs_bucket_number = True
    carried_columns = ("watermark", *_STATE_COLUMNS)
    slice_valued_columns = _SLICE_COLUMNS

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.is_within(left, right)

    def apply(self, job_rows: JobRows) -> JoinResult:
        """Join in closed form, and replay the lanes that have none."""
        if (narrowable_rows := job_rows.with_exact_watermarks) is None:
            timed_rows = materialize(
                self._with_timers(job_rows.late_candidates.where(F.col("rejected").isNull()), job_rows)
            )
        else:
            timed_rows = self._with_timers(
                narrowable_rows.select(*NARROW_COLUMNS, *key_columns(narrowable_rows)), job_rows, ("cleanup_time",)
            )
        cleanups = LastCleanups.from_rows(timed_rows, job_rows.watermarks, job_rows.filtered)
        label_rows = self._label_all_columns if narrowable_rows is None else self._label_narrow_columns
        rows = label_rows(timed_rows, job_rows, cleanups)
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
        """Union new and carried rows, and label them with their cleanup times.

        Args:
            rows: New rows with exact watermarks.
            job_rows: The rows of the job.
            carried_columns: Columns of carried rows to add to those of new rows.
        """
        if job_rows.carried is not None:
            names = [name for name in (*rows.columns, *carried_columns) if name in job_rows.carried.columns]
            rows = rows.unionByName(job_rows.carried.select(*names), allowMissingColumns=True)
        event_time, null = F.col("event_time"), F.lit(None).cast("long")
        labels = {
            "cleanup_time": F.col("cleanup_time") if "cleanup_time" in rows.columns else null,
            "is_cached": self.rules.is_cached(event_time, self._wait, self.rules.operator_time(F.col("watermark"))),
            "expires_at": self.rules.expires_at(event_time, self._wait),
        }
        with_timers = with_cleanup_time(rows.transform(with_columns, labels), is_small=job_rows.is_cached)
        return self._with_labels(with_timers, job_rows.watermarks)

    def _with_labels(self, rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:
        """Add the labels that follow from a row's cleanup time and from the watermark at its arrival.

        - `operator_time`: the operator time at its arrival.
        - `is_cached`: whether it is cached on arrival.
        - `expires_at`: the least operator time at which it has expired.
        - `lookup_skipped_at`: the last cleanup of the other side, an operator time, at which it skips its lookup.
        - `may_skip_lookup`: whether some cleanup before its arrival may have reached `lookup_skipped_at`.
        - `requires_replay`: whether only a replay of its lane is exact.
        - `eviction_slice`: the slice whose watermark removes it; that of its arrival if it is not cached.
        - `is_tracked`: whether it is late or outlives its slice, so that its first match must be known.
        """
        rules, event_time, operator_time = self.rules, F.col("event_time"), self.rules.operator_time(F.col("watermark"))
        labels = {
            "operator_time": operator_time,
            "is_cached": rules.is_cached(event_time, self._wait, operator_time),
            "expires_at": rules.expires_at(event_time, self._wait),
            "lookup_skipped_at": rules.lookup_skipped_at(event_time),
            "may_skip_lookup": (rules.lookup_skipped_at(event_time) <= operator_time) & ~rules.is_empty,
            "requires_replay": rules.requires_replay(event_time, self._wait),
        }
        # `with_slice_reaching` accepts no null. The eviction slice of rows that are not cached is replaced below.
        removal_watermark = F.coalesce("cleanup_time", "expires_at")
        labelled = watermarks.with_slice_reaching(
            rows.transform(with_columns, labels), removal_watermark, "eviction_slice"
        )
        labelled = labelled.withColumn(
            "eviction_slice", F.when(F.col("is_cached"), F.col("eviction_slice")).otherwise(F.col("slice"))
        )
        # Most rows are on time and removed by the end of their slice. No output needs the first match of these.
        is_removed_in_slice = (
            F.col("eviction_slice") <= F.greatest("slice", F.lit(watermarks.first_slice))
        ) & ~_is_late(watermarks.first_slice)
        return labelled.withColumn("is_tracked", ~F.coalesce(is_removed_in_slice, F.lit(False)))

    def _label_all_columns(self, timed_rows: DataFrame, job_rows: JobRows, cleanups: LastCleanups) -> _LabelledRows:
        """Label rows with all their columns, in small jobs."""
        first_slice = job_rows.watermarks.first_slice
        rows = self._with_match_state(timed_rows.where(cleanups.has_closed_form), first_slice)
        if cleanups.overdue_count:
            overdue_rows = materialize(with_removing_lookup(rows, select_certain_lookups(rows, first_slice)))
            rows = with_eviction_slice(overdue_rows.unionByName(rows.where(~is_overdue()), allowMissingColumns=True))
        return _LabelledRows(rows, rows.where("is_tracked"), rows.where("is_cached"), rows.where(~F.col("is_tracked")))

    def _label_narrow_columns(self, narrow_rows: DataFrame, job_rows: JobRows, cleanups: LastCleanups) -> _LabelledRows:
        """Label rows in large jobs: compute labels on narrow rows, then join those that differ from the usual.

        Usually a row is cached on arrival and its cleanup time is when it expires, so that labels follow from its event
        time. Exceptions get their watermark, cleanup time and removing lookup by late materialization, and tracked rows
        their watermark.

        Args:
            narrow_rows: Labelled rows without `left` and `right`.
            job_rows: The rows of the job.
            cleanups: The cleanups of the job.
        """
        first_slice, closed_form_rows = job_rows.watermarks.first_slice, narrow_rows.where(cleanups.has_closed_form)
        exceptions = materialize(closed_form_rows.where(~F.col("is_cached") | is_overdue()))
        names = ["watermark", "cleanup_time"]
        if cleanups.overdue_count:
            lookups = select_certain_lookups(closed_form_rows, first_slice)
            lookups = (
                select_lookups_near_overdue(lookups, exceptions, cleanups.longest_overdue_ms)
                if cleanups.overdue_count <= MAX_BROADCAST_ROWS
                else lookups
            )
            overdue_rows = with_removing_lookup(exceptions, lookups)
            exceptions = overdue_rows.unionByName(exceptions.where(~is_overdue()), allowMissingColumns=True)
            names.append("removing_lookup")
        annotations, count = materialize_and_count(select_annotations(exceptions, names))
        annotations = F.broadcast(annotations) if count <= MAX_BROADCAST_ROWS else annotations
        rows = join_annotations(job_rows.select_participating().where(cleanups.has_closed_form), annotations, names)
        rows = self._with_labels(rows, job_rows.watermarks)
        rows = rows.withColumn("cleanup_time", F.when(F.col("is_cached"), F.coalesce("cleanup_time", "expires_at")))
        rows = self._with_match_state(rows, first_slice)
        rows = with_eviction_slice(rows) if cleanups.overdue_count else rows
        arrival_watermarks = select_annotations(closed_form_rows.where("is_tracked"), ["watermark"])
        tracked = materialize(join_annotations(rows.where("is_tracked"), arrival_watermarks, ["watermark"]))
        partners = rows
        if self.condition is None:
            null_sides = {side: F.lit(None).cast(rows.schema[side].dataType) for side in SIDES}
            partners = self._with_match_state(closed_form_rows.transform(with_columns, null_sides), first_slice)
        return _LabelledRows(
            rows, tracked, partners.where("is_cached"), None, has_few_uncached=count <= MAX_BROADCAST_ROWS
        )

    def _with_match_state(self, rows: DataFrame, first_slice: int) -> DataFrame:
        """Add `match_hash`, and the slices of the carried state that precede the job."""
        null = F.lit(None).cast("long")
        carried_state = {
            name: F.when(F.col(name) < first_slice, F.col(name)) if name in rows.columns else null
            for name in _SLICE_COLUMNS
        }
        return rows.transform(with_columns, {**carried_state, "match_hash": compute_match_hash(rows, self.condition)})

    def _join_closed_form(self, rows: _LabelledRows, job_rows: JobRows) -> JoinResult:
        """Compute the outputs of the lanes with a closed form.

        An outer join needs the first match of all rows, to pad the others. An inner join needs it only to report the
        outcome of late rows that were not cached, for which few pairs are enough.
        """
        first_slice = job_rows.watermarks.first_slice
        pairs = self._join_unexpired(rows.all_rows, first_slice)
        if self.join_type.types - {"inner"}:
            tracked_pairs = pairs = materialize(pairs)
        else:
            tracked_pairs = self._join_late_uncached(rows, first_slice)
        if "removing_lookup" in rows.all_rows.columns:
            is_within = self.rules.is_within(F.col("left_time"), F.col("right_time"))
            overdue_pairs = filter_matches(
                pair_with_removing_rows(rows.all_rows, rows.tracked.where(_is_late(first_slice)), is_within),
                self.condition,
            )
            pairs, tracked_pairs = pairs.unionByName(overdue_pairs), tracked_pairs.unionByName(overdue_pairs)
        first_matches = materialize(find_first_matches(tracked_pairs))
        is_padded = F.col("eviction_slice").isNotNull() & F.col("first_match_slice").isNull() & self._is_padded
        padded_rows = (
            with_first_match(rows.all_rows, first_matches)
            .where(is_padded)
            .withColumn("slice", F.greatest("slice", "eviction_slice"))
        )
        emission = F.concat(F.lit("padded_"), F.col("side"))
        tracked = with_first_match(rows.tracked.drop("removing_lookup"), first_matches)
        rejected = add_late_reason(job_rows.late_candidates.where(F.col("rejected").isNotNull()), F.col("rejected"))
        columns = [*job_rows.late_candidates.columns, "reason", "window_start", "window_end"]
        rejected = rejected.select(*columns, F.lit(None).cast("string").alias("outcome"))
        return JoinResult(
            joined=to_emissions(pairs, F.lit("matched")).unionByName(to_emissions(padded_rows, emission)),
            late=self._select_late(tracked, job_rows).unionByName(rejected),
            buffered=tracked
            if rows.untracked is None
            else tracked.unionByName(rows.untracked.select(*tracked.columns)),
        )

    def _join_late_uncached(self, rows: _LabelledRows, first_slice: int) -> DataFrame:
        """Return the pairs of late rows that were not cached with rows that were.

        Each side's late rows are joined with the cached rows of the other side.
        """
        labels = ("side", "event_time", *_LABELS, "is_cached", *key_columns(rows.cached), *SIDES)
        cached = rows.cached.select(*labels)
        uncached = rows.tracked.where(~F.col("is_cached") & _is_late(first_slice)).select(*labels)
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
        """Return pairs whose earlier row is cached and has not expired when the later one arrives.

        Args:
            rows: Labelled rows of both sides.
            first_slice: First slice of the job. Pairs of earlier slices are omitted.
            small_side: Side to broadcast.

        Returns:
            Pairs that meet the condition, with the `slice` of the later row.
        """
        rules = self.rules
        times = F.col("left_event_time"), F.col("right_event_time")
        left_operator_time, right_operator_time = (
            rules.operator_time(F.col(f"{side}_watermark")) for side in PADDING_TYPES
        )
        left_is_in_cache = rules.is_cached(times[0], rules.left_wait, left_operator_time)
        left_is_in_cache &= right_operator_time < rules.expires_at(times[0], rules.left_wait)
        right_is_in_cache = rules.is_cached(times[1], rules.right_wait, right_operator_time)
        right_is_in_cache &= left_operator_time < rules.expires_at(times[1], rules.right_wait)
        left_is_earlier = F.struct("left_clock", "left_tiebreak") <= F.struct("right_clock", "right_tiebreak")
        earlier_is_in_cache = F.when(left_is_earlier, left_is_in_cache).otherwise(right_is_in_cache)
        later_slice = F.greatest("left_slice", "right_slice")
        condition = rules.is_within(*times) & earlier_is_in_cache & (later_slice >= first_slice)
        pairs = join_by_interval(rows, rules.lower, rules.upper, _LABELS, condition, small_side)
        return filter_matches(pairs.withColumn("slice", later_slice), self.condition)

    def _select_late(self, rows: DataFrame, job_rows: JobRows) -> DataFrame:
        """Select late rows with their outcome: cached, matched, padded or lost."""
        outcome = (
            F.when(F.col("is_cached"), "cached")
            .when(F.col("first_match_slice").isNotNull(), "matched")
            .when(self._is_padded, "padded")
            .otherwise("lost")
        )
        late = add_late_reason(rows.where(_is_late(job_rows.watermarks.first_slice)), F.lit("late_but_processed"))
        return late.select(
            *job_rows.late_candidates.columns, "reason", "window_start", "window_end", outcome.alias("outcome")
        )

    def _add_replayed_lanes(
        self, result: JoinResult, rows: DataFrame, job_rows: JobRows, cleanups: LastCleanups
    ) -> JoinResult:
        """Replay the lanes without a closed form, and add their outputs.

        Args:
            result: The outputs of the other lanes.
            rows: Rows of the replayed lanes with all columns and labels.
            job_rows: The rows of the job.
            cleanups: The cleanups of the job.
        """
        last_cleanups = dict[tuple[int, str, int], int]()
        rows = self._with_match_state(rows, job_rows.watermarks.first_slice)
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
        """Prepare the rows of lanes for `operator_simulation.replay_lanes`, and replay them."""
        keys, rules = key_columns(rows), self.rules
        padding = {f"pads_{side}": self.join_type.is_in(*types) for side, types in PADDING_TYPES.items()}
        params = {name: getattr(rules, name) for name in ("lower", "upper", "lateness", "min_cleanup")}
        condition_matches = F.lit(None).cast("array<long>")
        if self.condition:
            is_within = rules.is_within(F.col("left_event_time"), F.col("right_event_time"))
            pairs = join_by_interval(rows, rules.lower, rules.upper, _LABELS, is_within).withColumn("slice", F.lit(0))
            matches = filter_matches(pairs, self.condition).groupBy(
                *keys, F.col("right_match_hash").alias("match_hash")
            )
            rows = rows.join(
                matches.agg(F.collect_set("left_match_hash").alias("_condition_matches")), [*keys, "match_hash"], "left"
            )
            condition_matches = F.coalesce("_condition_matches", F.array().cast("array<long>"))
        if job_rows.filtered is not None:
            rows = rows.unionByName(job_rows.filtered.where(F.col("lane").isin(*lanes)), allowMissingColumns=True)
        labels = {
            "key": as_json(F.struct(*keys)),
            "has_null_key": has_null_key(rows),
            "condition_matches": condition_matches,
        }
        rows = rows.transform(with_columns, {**padding, **params, **labels, "epoch": epoch_column(job_rows.watermarks)})
        return replay_lanes(
            rows, {lane: job_rows.watermarks.timelines[lane] for lane in lanes}, job_rows.watermarks.first_slice
        ).drop("_condition_matches")


def _is_late(first_slice: int) -> Column:
    """Return True if a row arrived in the job, below the watermark."""
    return (F.col("slice") >= first_slice) & (F.col("event_time") < F.col("watermark"))
