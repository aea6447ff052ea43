"""Join by interval as Flink SQL does, without simulating its operator for most streams.

The operator, `RowTimeIntervalJoin`, has a cache of rows for each side and key. An arriving row first looks up the other
side's rows of its key, and is then cached itself if a later row can still match it. The operator drops no late row, so
a result depends only on which rows are cached at each arrival:

1. A row expires when the watermark has passed the event time of its last possible partner. So cached rows that are not
   late match by event times alone, as a join on an interval (`SqlIntervalJoin._pair_on_time_rows`). Other rows are
   paired separately (`late_pairs`).
2. An expired row remains in the cache until it is removed. A cleanup timer removes it at its `cleanup_time`, a
   watermark that is fixed at its arrival (`cleanup_timers`). Usually this is the watermark at which it expires.
3. If its cleanup time is later, the row is overdue from its expiry until then. The first lookup in that time still
   matches it, and then removes it (`overdue_rows`).
4. An extremely late row skips its lookup if the last cleanup of the other side, of any key, was at a time at which all
   its possible partners have expired (`last_cleanup`). It then misses overdue rows.
5. An outer join pads a row that is removed without a match (`padding`). Spark's outer join finds these among the rows
   that match by event times alone.

These steps are the closed form: joins and window functions over the rows of a job. A lane has none if it has a cleanup
interval, times of 0 or below, or restarts, or if the result depends on whether an uncertain lookup is skipped. Only
these lanes are simulated row by row (`operator_simulation`).

A small job computes the cleanup times of all rows. A large job computes them only for rows that late rows may match
after their expiry, or that may outlive their slice (`timer_selection`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.joins.base import (
    ExactRows,
    JobRows,
    Join,
    JoinResult,
    add_late_reason,
    compute_row_hash,
    select_all,
)
from tidemark.joins.binned_join import join_by_interval
from tidemark.joins.emission_order import order_of_pair, own_order_in_event
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.rules.flink_sql import IntervalRules
from tidemark.joins.sql_interval.cleanup_timers import with_cleanup_time
from tidemark.joins.sql_interval.labels import (
    SLICE_COLUMNS,
    STATE_COLUMNS,
    add_carried,
    is_late,
    is_late_or_uncached,
    label_caching,
    label_eviction,
    with_match_state,
)
from tidemark.joins.sql_interval.last_cleanup import LastCleanups
from tidemark.joins.sql_interval.late_materialization import broadcast_if_small, can_broadcast
from tidemark.joins.sql_interval.late_pairs import (
    number_late_candidates,
    number_late_rows,
    pair_late_rows,
    select_expired_partners,
    select_overdue_matches,
    select_uncached_matches,
)
from tidemark.joins.sql_interval.match_tracking import (
    find_first_matches,
    is_padded,
    select_pairs,
    to_emissions,
    with_first_match,
)
from tidemark.joins.sql_interval.operator_simulation import simulate_lanes
from tidemark.joins.sql_interval.overdue_rows import (
    OverdueRows,
    is_overdue,
    select_certain_lookups,
    with_eviction_slice,
    with_removing_lookup,
)
from tidemark.joins.sql_interval.padding import emit_outer_join, list_padding_labels, pad_rows, with_own_labels
from tidemark.joins.sql_interval.timer_selection import find_overdue_rows
from tidemark.joins.window_output import PADDING_TYPES, JoinType
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.engine import get_engine
from tidemark.spark.materialization import materialize, materialize_and_count
from tidemark.timegrid.time_columns import as_json
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.restarted_lane import epoch_column
from tidemark.watermarks.row_status import is_filtered

_ARRIVAL_ORDER = ("clock", "tiebreak", "watermark", "order_in_event", "side", "event_time")
"""Order of arrival. Rows at one position have equal watermarks, unless the stream recorded one for each row."""


_NEVER = 2**63 - 1


@dataclass(frozen=True)
class _LabelledRows:
    """Rows of the lanes with a closed form, labelled with their cleanup and eviction."""

    all_rows: DataFrame
    pairable: DataFrame
    """The same rows with at least the labels that `SqlIntervalJoin._pair_on_time_rows` needs."""
    late: DataFrame
    """Rows of `all_rows` that are late or not cached."""
    late_and_carried: DataFrame
    """A superset of the rows with `needs_first_match`: late rows and rows that outlive their slice."""
    others: DataFrame | None
    """Other rows; None if they were only counted."""
    late_pairs: DataFrame
    """Pairs of late rows with cached rows; see `late_pairs.pair_late_rows`."""
    overdue_rows: OverdueRows | None
    """The overdue rows that matter; None if there are none."""


@dataclass(frozen=True)
class SqlIntervalJoin(Join):
    """An inner, left, right or full interval join on event time (`RowTimeIntervalJoin`).

    Carried rows have these columns:

    - `watermark`: the watermark at the row's arrival, ms.
    - `first_match_slice`: the slice of its first match; null if the join does not pad its side.
    - `cleanup_time`: the least watermark at which a timer removes it, ms.
    - `timer_slice`: the slice in which the cache's timer was set for this row; only if the lane must be simulated.
    - `removal_slice`: the slice that removed it from the cache, if it is carried until its timer fires; only from
      simulated lanes.
    """

    rules: IntervalRules
    join_type: JoinType
    condition: str | None = None
    """SQL over `left_*` and `right_*` that pairs must meet as well."""

    selects_exact_rows: bool = True
    """False to compute the cleanup times of all rows in large jobs too. The places of padded rows depend on them."""
    upstream_sides: tuple[SideName, ...] = ()
    """Inputs that are the output of another join, of which one event may emit several rows."""
    orders_emissions: bool = True
    """True to order the rows that one event emits, for a next join."""

    needs_exact_watermarks = True
    buffers_overdue_rows = True
    needs_bucket_number = True
    carried_columns = ("watermark", *STATE_COLUMNS)
    slice_valued_columns = SLICE_COLUMNS

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.is_within(left, right)

    @override
    def eviction_watermark(self, watermark: Column) -> Column:
        # With empty bounds no row is cached, and outer joins pad all rows on arrival: all rows are then needed.
        return F.when(self.rules.is_empty, F.lit(_NEVER)).otherwise(
            self.rules.expires_at(F.col("event_time"), self._wait)
        )

    @override
    def apply(self, job_rows: JobRows) -> JoinResult:
        """Join in closed form, and simulate the lanes that have none."""
        ordered_rows = job_rows.with_column("order_in_event", own_order_in_event(self.upstream_sides))
        result = self._apply(ordered_rows)
        return replace(result, late=result.late.drop("order_in_event"))

    def _apply(self, job_rows: JobRows) -> JoinResult:
        """Join rows with `order_in_event`."""
        exact_rows = job_rows.exact_rows
        if exact_rows is None:
            rows = job_rows.late_candidates.where(F.col("rejected").isNull())
            rows = label_caching(add_carried(rows, job_rows.carried), self.rules)
            # Large jobs come here too if they cannot select exact rows: these sort all rows, so that once is enough.
            rows = with_cleanup_time(rows, is_small=job_rows.has_materialized_input)
            rows = materialize(label_eviction(rows, job_rows.watermarks))
            labelled, cleanups = self._label_small_job(rows, job_rows)
        else:
            labelled, cleanups = self._label_large_job(job_rows, exact_rows)
        result = replace(self._join_closed_form(labelled, job_rows), timelines=cleanups.to_timelines({}))
        if not cleanups.simulated_lanes:
            return result
        if exact_rows is not None:
            new_rows = exact_rows.select(select_all, select_all)
            job_rows = replace(job_rows, filtered=new_rows.where(is_filtered()))
            rows = add_carried(new_rows.where(F.col("rejected").isNull()), job_rows.carried)
            rows = label_eviction(label_caching(rows, self.rules), job_rows.watermarks)
            result = replace(result, evicted_counts=self._count_simulated(rows, job_rows, cleanups))
        return self._add_simulated_lanes(result, rows.where(~cleanups.has_closed_form), job_rows, cleanups)

    @property
    def _wait(self) -> Column:
        return self.rules.wait_for_side(F.col("side"))

    @property
    def _padded_sides(self) -> list[SideName]:
        """Sides of which the join of some lane pads unmatched rows."""
        return [side for side in SIDES if self.join_type.types.intersection(PADDING_TYPES[side])]

    @property
    def _order_of_pair(self) -> Column | None:
        return order_of_pair(self.upstream_sides) if self.orders_emissions else None

    @property
    def _is_padded(self) -> Column:
        return is_padded(F.col("side"), self.join_type)

    def _label_small_job(self, timed_rows: DataFrame, job_rows: JobRows) -> tuple[_LabelledRows, LastCleanups]:
        """Label the rows of a small job, of which all cleanup times are known."""
        watermarks, first_slice = job_rows.watermarks, job_rows.watermarks.first_slice
        cleanups, overdue_count = LastCleanups.from_rows(timed_rows, watermarks, job_rows.filtered)
        rows = timed_rows.where(cleanups.has_closed_form)
        rows = number_late_rows(rows, first_slice) if overdue_count else rows.withColumn("lookup_number", F.lit(1))
        rows = with_match_state(rows, self.condition, first_slice)
        overdue_rows = None
        if overdue_count:
            removed_rows = with_removing_lookup(rows, select_certain_lookups(rows, first_slice))
            overdue_rows = OverdueRows(materialize(removed_rows), overdue_count)
            others = rows.where(~is_overdue())
            rows = with_eviction_slice(overdue_rows.rows.unionByName(others, allowMissingColumns=True))
        late_rows = rows.where(is_late_or_uncached(first_slice))
        late_pairs = materialize(pair_late_rows(late_rows, rows, self.rules, first_slice, is_small=False))
        needs_first_match = F.col("needs_first_match")
        late_and_carried, others = rows.where(needs_first_match), rows.where(~needs_first_match)
        return _LabelledRows(rows, rows, late_rows, late_and_carried, others, late_pairs, overdue_rows), cleanups

    def _label_large_job(self, job_rows: JobRows, exact_rows: ExactRows) -> tuple[_LabelledRows, LastCleanups]:
        """Label the rows of a large job, of which few are late, overdue or outlive their slice.

        The watermark of a row on time is the one before its bucket. Rows whose labels could differ with the exact one
        are late candidates (`Lane.late_margin`). Only overdue rows have a cleanup time after their expiry. They are
        searched among the rows for which it matters.
        """
        watermarks, first_slice = job_rows.watermarks, job_rows.watermarks.first_slice
        label = partial(label_caching, rules=self.rules)
        numbered_rows, late_rows, count = number_late_candidates(job_rows, label)
        rows = label(numbered_rows.select_participating())
        late_and_carried_rows = label(numbered_rows.select_rows_that_may_be_carried())
        late_pairs = pair_late_rows(
            with_match_state(late_rows, self.condition, first_slice),
            with_match_state(rows, self.condition, first_slice),
            self.rules,
            first_slice,
            is_small=can_broadcast(count),
        )
        late_pairs = materialize(late_pairs)
        overdue_rows = find_overdue_rows(
            select_expired_partners(late_pairs),
            late_and_carried_rows,
            job_rows.carried,
            label,
            exact_rows,
            first_slice,
            self._expiry_delays(job_rows),
        )
        simulated_lanes = self._find_simulated_lanes(rows, job_rows, exact_rows)
        cleanups = LastCleanups.from_selected_rows(
            rows, late_rows, overdue_rows, watermarks, exact_rows, label, simulated_lanes
        )
        rows, late_and_carried_rows, late_pairs = (
            part.where(cleanups.has_closed_form) for part in (rows, late_and_carried_rows, late_pairs)
        )
        all_rows, late_and_carried = (
            self._add_cleanup(part, overdue_rows, watermarks) for part in (rows, late_and_carried_rows)
        )
        all_rows, pairable, late_and_carried = (
            with_match_state(part, self.condition, first_slice) for part in (all_rows, rows, late_and_carried)
        )
        # An outer join has the deepest plans: its rows are annotated, joined and then annotated again.
        if self._padded_sides and not get_engine(rows.sparkSession).supports_deep_plans:
            all_rows = pairable = materialize(all_rows)
            late_and_carried = materialize(late_and_carried)
        late = late_and_carried.where(is_late_or_uncached(first_slice))
        return _LabelledRows(all_rows, pairable, late, late_and_carried, None, late_pairs, overdue_rows), cleanups

    @staticmethod
    def _add_cleanup(rows: DataFrame, overdue_rows: OverdueRows | None, watermarks: JobWatermarks) -> DataFrame:
        """Add the cleanup time and the eviction slice to the rows of a large job."""
        if overdue_rows is not None:
            rows = overdue_rows.annotate(rows, ["cleanup_time", "removing_lookup"])
        is_cached, cleanup_time = F.col("is_cached"), F.coalesce("cleanup_time", "expires_at")
        rows = label_eviction(rows.withColumn("cleanup_time", F.when(is_cached, cleanup_time)), watermarks)
        return rows if overdue_rows is None else with_eviction_slice(rows)

    def _expiry_delays(self, job_rows: JobRows) -> dict[SideName, int] | None:
        """Return by side the time from a row's event time to its expiry, ms; None if lanes differ."""
        if len(job_rows.watermarks.timelines) > 1:
            return None
        sides = job_rows.on_time.sparkSession.createDataFrame([(side,) for side in SIDES], "side string")
        delays = sides.select("side", self.rules.expires_at(F.lit(0), self._wait)).collect()
        return {row[0]: row[1] for row in delays}

    def _find_simulated_lanes(self, rows: DataFrame, job_rows: JobRows, exact_rows: ExactRows) -> set[int]:
        """Find the lanes of a large job with a row that requires a simulation.

        In a single lane, a row of either side at the oldest event time answers it without a scan of all rows. If only
        a row of the other side would require a simulation, the lane is simulated all the same, with the same result.
        """
        if len(job_rows.watermarks.timelines) > 1:
            return {row["lane"] for row in rows.where("requires_simulation").select("lane").distinct().collect()}
        oldest = exact_rows.buckets["oldest"].dropna().astype("int64").to_list()
        if job_rows.carried is not None:
            oldest += [row[0] for row in job_rows.carried.agg(F.min("event_time")).collect() if row[0] is not None]
        times = [(side, min(oldest)) for side in SIDES if oldest]
        sides = rows.sparkSession.createDataFrame(times, "side string, event_time long")
        return {0} if sides.where(self.rules.requires_simulation(F.col("event_time"), self._wait)).take(1) else set()

    @staticmethod
    def _count_simulated(rows: DataFrame, job_rows: JobRows, cleanups: LastCleanups) -> dict[str, int]:
        """Count by side, as negative numbers, the rows of simulated lanes that were already counted as evicted."""
        if job_rows.may_be_carried is job_rows.on_time:
            return {}
        is_counted = ~cleanups.has_closed_form & (F.col("slice") >= job_rows.watermarks.first_slice)
        counts = dict[str, int]()
        for part, sign in ((rows, -1), (job_rows.select_rows_that_may_be_carried(), 1)):
            for side, count in part.where(is_counted).groupBy("side").count().collect():
                counts[side] = counts.get(side, 0) + sign * count
        return counts

    def _join_closed_form(self, rows: _LabelledRows, job_rows: JobRows) -> JoinResult:
        """Compute the outputs of the lanes with a closed form."""
        select = partial(select_pairs, emission_order=self._order_of_pair)
        select_late = partial(select, has_match_hashes=True, condition=self.condition)
        late_matches = select_late(rows.late_pairs.where(~F.col("is_expired")))
        outcome_pairs = select_late(select_uncached_matches(rows.late_pairs))
        if rows.overdue_rows is not None:
            overdue_matches = select_late(select_overdue_matches(rows.late_pairs, rows.overdue_rows))
            late_matches = late_matches.unionByName(overdue_matches)
            outcome_pairs = outcome_pairs.unionByName(overdue_matches)
        joined = to_emissions(late_matches, F.lit("matched"))
        late_and_carried = buffered = rows.late_and_carried.drop("removing_lookup", "lookup_number")
        first_slice = job_rows.watermarks.first_slice
        if self._padded_sides:
            first_late_matches = find_first_matches(late_matches, self._padded_sides)
            first_late_matches = broadcast_if_small(*materialize_and_count(first_late_matches))
            joined = joined.unionByName(self._emit_outer_join(rows, first_late_matches, first_slice))
            buffered = self._track_matches(late_and_carried, rows.pairable, late_matches, first_slice)
        else:
            pairs = self._pair_on_time_rows(rows.pairable, first_slice)
            joined = joined.unionByName(to_emissions(select(pairs, has_match_hashes=False), F.lit("matched")))
        # Late rows have an outcome besides `cached` only if they are not cached, and few pairs have such rows.
        outcome_matches = broadcast_if_small(*materialize_and_count(find_first_matches(outcome_pairs, SIDES)))
        rejected = add_late_reason(job_rows.late_candidates.where(F.col("rejected").isNotNull()), F.col("rejected"))
        columns = [*job_rows.late_candidates.columns, "reason", "window_start", "window_end"]
        rejected = rejected.select(*columns, F.lit(None).cast("string").alias("outcome"))
        return JoinResult(
            joined=joined,
            late=self._select_late(with_first_match(late_and_carried, outcome_matches), job_rows).unionByName(rejected),
            buffered=self._drop_needless_matches(
                buffered if rows.others is None else buffered.unionByName(rows.others.select(*buffered.columns))
            ),
        )

    def _emit_outer_join(self, rows: _LabelledRows, first_late_matches: DataFrame, first_slice: int) -> DataFrame:
        """Emit the pairs of rows on time, and all unmatched rows.

        For one padded side, Spark's outer join returns its pairs and its unmatched rows. For the second side of a full
        join, an anti join adds the unmatched rows: a full join would pad each copy of a row that is in several bins.
        The ON clauses have all conditions of a match. Late rows are paired elsewhere (`late_pairs`).

        Args:
            rows: The labelled rows.
            first_late_matches: Slice of the first match of each row that matches a late row.
            first_slice: First slice of the job.
        """
        labels = list_padding_labels(rows.all_rows)

        def join_side(side: SideName, unmatched: Literal["keep", "only"]) -> DataFrame:
            own = with_first_match(rows.all_rows.where(F.col("side") == side), first_late_matches)
            partners = rows.pairable.where(F.col("side") == OTHER[side])
            both = own.unionByName(partners, allowMissingColumns=True)
            return self._join_on_time_rows(both, first_slice, labels, OTHER[side], unmatched)

        pad = partial(pad_rows, join_type=self.join_type, is_ordered=self.orders_emissions)
        first_side, *second_side = self._padded_sides
        joined = join_side(first_side, "keep")
        emissions = [
            emit_outer_join(joined, first_side, self.join_type, self._order_of_pair),
            *(pad(with_own_labels(join_side(side, "only"), side)) for side in second_side),
            pad(with_first_match(rows.late, first_late_matches)),
        ]
        return reduce(DataFrame.unionByName, emissions)

    def _track_matches(
        self, late_and_carried: DataFrame, pairable: DataFrame, late_matches: DataFrame, first_slice: int
    ) -> DataFrame:
        """Set the first match of the rows of padded sides that need it.

        Args:
            late_and_carried: A superset of the rows of both sides that need their first match.
            pairable: All rows of the lanes with a closed form.
            late_matches: Pairs of late rows that match.
            first_slice: First slice of the job.
        """
        needs_match = F.col("side").isin(self._padded_sides) & F.col("needs_first_match")
        parts = [late_and_carried.where(~needs_match)]
        for side in self._padded_sides:
            own = late_and_carried.where(needs_match & (F.col("side") == side))
            partners = pairable.where(F.col("side") == OTHER[side])
            names = ("side", "slice", "clock", "tiebreak", "event_time", "watermark", "is_cached", "match_hash")
            rows, other_rows = (part.select(*names, *key_columns(part), *SIDES) for part in (own, partners))
            pairs = self._pair_on_time_rows(rows.unionByName(other_rows), first_slice, repeated_side=side)
            matches = select_pairs(pairs, has_match_hashes=True)
            matches = matches.unionByName(late_matches.select(*matches.columns))
            parts.append(with_first_match(own, find_first_matches(matches, [side])))
        return reduce(DataFrame.unionByName, parts)

    def _drop_needless_matches(self, rows: DataFrame) -> DataFrame:
        """Keep the first match of rows that may be padded. That of others depends on whether the lane is simulated."""
        return rows.withColumn("first_match_slice", F.when(self._is_padded, F.col("first_match_slice")))

    def _pair_on_time_rows(self, rows: DataFrame, first_slice: int, repeated_side: SideName = "right") -> DataFrame:
        """Return the pairs of `_join_on_time_rows` that meet the bounds, with the `slice` of the later row."""
        labels = ("slice", "clock", "tiebreak", "match_hash")
        pairs = self._join_on_time_rows(rows, first_slice, labels, repeated_side, "drop")
        return pairs.withColumn("slice", F.greatest("left_slice", "right_slice"))

    def _join_on_time_rows(
        self,
        rows: DataFrame,
        first_slice: int,
        labels: tuple[str, ...],
        repeated_side: SideName,
        unmatched: Literal["drop", "keep", "only"],
    ) -> DataFrame:
        """Join rows that are carried, or cached and on time, by their event times alone.

        The later row is not below the watermark, so that the earlier one has not expired.

        Args:
            rows: Labelled rows of both sides. Late ones are omitted.
            first_slice: First slice of the job. Pairs of earlier slices are omitted.
            labels: Labels to return.
            repeated_side: As for `join_by_interval`.
            unmatched: As for `join_by_interval`.
        """
        is_match = self.rules.is_within(F.col("left_event_time"), F.col("right_event_time"))
        is_match &= F.greatest("left_slice", "right_slice") >= first_slice
        return join_by_interval(
            rows.where(~is_late_or_uncached(first_slice)),
            self.rules.lower,
            self.rules.upper,
            labels,
            is_match,
            sql_condition=self.condition,
            repeated_side=repeated_side,
            unmatched=unmatched,
        )

    def _select_late(self, rows: DataFrame, job_rows: JobRows) -> DataFrame:
        """Select late rows with their outcome: cached, matched, padded or lost."""
        outcome = (
            F.when(F.col("is_cached"), "cached")
            .when(F.col("first_match_slice").isNotNull(), "matched")
            .when(self._is_padded, "padded")
            .otherwise("lost")
        )
        late = add_late_reason(rows.where(is_late(job_rows.watermarks.first_slice)), F.lit("late_but_processed"))
        return late.select(
            *job_rows.late_candidates.columns, "reason", "window_start", "window_end", outcome.alias("outcome")
        )

    def _add_simulated_lanes(
        self, result: JoinResult, rows: DataFrame, job_rows: JobRows, cleanups: LastCleanups
    ) -> JoinResult:
        """Simulate the lanes without a closed form, and add their outputs.

        Args:
            result: The outputs of the other lanes.
            rows: Rows of the simulated lanes with all columns and labels.
            job_rows: The rows of the job.
            cleanups: The cleanups of the job.
        """
        last_cleanups = dict[tuple[int, str, int], int]()
        rows = with_match_state(rows, self.condition, job_rows.watermarks.first_slice)
        simulated = materialize(self._simulate(rows, job_rows, cleanups.simulated_lanes))
        for row in simulated.where(F.col("role") == "end").collect():
            last_cleanups |= {(row["lane"], side, row["slice"]): row[f"{side}_last_cleanup"] for side in PADDING_TYPES}
        emitted_rows = simulated.where(~F.col("role").isin("state", "end"))
        states = simulated.where(F.col("role") == "state")
        return replace(
            result,
            joined=result.joined.unionByName(to_emissions(emitted_rows, F.col("role"), F.col("emitting_watermark"))),
            late=result.late.unionByName(self._select_late(states, job_rows)),
            buffered=result.buffered.unionByName(self._drop_needless_matches(states).select(*result.buffered.columns)),
            timelines=cleanups.to_timelines(last_cleanups),
        )

    def _simulate(self, rows: DataFrame, job_rows: JobRows, lanes: frozenset[int]) -> DataFrame:
        """Prepare the rows of lanes for `operator_simulation.simulate_lanes`, and simulate them."""
        keys, rules = key_columns(rows), self.rules
        padding = {f"pads_{side}": self.join_type.is_in(*types) for side, types in PADDING_TYPES.items()}
        params = {name: getattr(rules, name) for name in ("lower", "upper", "lateness", "min_cleanup")}
        condition_matches = F.lit(None).cast("array<long>")
        if self.condition:
            is_within = rules.is_within(F.col("left_event_time"), F.col("right_event_time"))
            labels = ("match_hash", "clock", "tiebreak")
            pairs = join_by_interval(rows, rules.lower, rules.upper, labels, is_within, sql_condition=self.condition)
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
            "order_in_event": F.coalesce("order_in_event", own_order_in_event(())),
            "arrival_number": F.row_number().over(
                Window.partitionBy("lane").orderBy(*_ARRIVAL_ORDER, compute_row_hash(rows))
            ),
        }
        rows = rows.transform(with_columns, {**padding, **params, **computed})
        watermarks = job_rows.watermarks
        timelines = {lane: watermarks.timelines[lane] for lane in lanes}
        last_cleanups = {lane: watermarks.lanes[lane].initial_watermarks.last_cleanups for lane in lanes}
        simulated = simulate_lanes(rows, timelines, last_cleanups, watermarks.first_slice)
        return simulated.drop("_condition_matches", "arrival_number")
