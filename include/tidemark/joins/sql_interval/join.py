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
interval, times of 0 or below, a pending timer that was set among these, or restarts, or if the result depends on
whether an uncertain lookup is skipped. Only these lanes are simulated row by row (`operator_simulation`).

A small job computes the cleanup times of all rows. A large job computes them only for rows that late rows may match
after their expiry, or that may outlive their slice (`timer_selection`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.joins.base import JobRows, Join, JoinResult, select_all
from tidemark.joins.binned_join import join_by_interval
from tidemark.joins.emission_order import order_of_pair, own_order_in_event
from tidemark.joins.join_type import JoinType
from tidemark.joins.keys import key_columns
from tidemark.joins.rules.flink_sql import IntervalRules
from tidemark.joins.sql_interval.arrival_order import is_left_earlier
from tidemark.joins.sql_interval.cleanup_timers import with_cleanup_time
from tidemark.joins.sql_interval.labelling import LabelledRows, label_large_job, label_small_job
from tidemark.joins.sql_interval.labels import (
    SLICE_COLUMNS,
    STATE_COLUMNS,
    add_carried,
    is_late_or_uncached,
    label_caching,
    label_eviction,
)
from tidemark.joins.sql_interval.late_materialization import broadcast_if_small
from tidemark.joins.sql_interval.late_outcomes import select_late, select_rejected_without_outcome
from tidemark.joins.sql_interval.late_pairs import select_overdue_matches, select_uncached_matches
from tidemark.joins.sql_interval.match_tracking import (
    drop_needless_matches,
    find_first_matches,
    select_pairs,
    to_emissions,
    with_first_match,
)
from tidemark.joins.sql_interval.padding import emit_outer_join, list_padding_labels, pad_rows, with_own_labels
from tidemark.joins.sql_interval.simulated_lanes import add_simulated_lanes, count_simulated
from tidemark.spark.materialization import materialize, materialize_and_count
from tidemark.watermarks.row_status import moves_watermark_only

_NEVER = 2**63 - 1


@dataclass(frozen=True)
class SqlIntervalJoin(Join):
    """An inner, left, right or full interval join on event time (`RowTimeIntervalJoin`).

    Carried rows have these columns:

    - `watermark`: the watermark at the row's arrival, ms.
    - `first_match_slice`: the slice of its first match; null if the join does not pad its side.
    - `cleanup_time`: the least watermark at which a timer removes it, ms.
    - `timer_slice`: the slice in which the cache's timer was set for this row, if the closed form would derive another
      one; only from simulated lanes, which are simulated until the timer fires.
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
            first_slice = job_rows.watermarks.first_slice
            rows = label_caching(add_carried(rows, job_rows.carried), self.rules, first_slice)
            # Large jobs come here too if they cannot select exact rows: these sort all rows, so that once is enough.
            rows = with_cleanup_time(rows, is_small=job_rows.has_materialized_input)
            rows = materialize(label_eviction(rows, job_rows.watermarks))
            labelled, cleanups = label_small_job(rows, job_rows, self.rules, self.condition)
        else:
            has_padding = bool(self.join_type.padded_sides)
            labelled, cleanups = label_large_job(
                job_rows, exact_rows, self.rules, self.condition, has_padding=has_padding
            )
        result = replace(self._join_closed_form(labelled, job_rows), timelines=cleanups.to_timelines({}))
        if not cleanups.simulated_lanes:
            return result
        if exact_rows is not None:
            new_rows = exact_rows.select(select_all, select_all)
            job_rows = replace(job_rows, filtered=new_rows.where(moves_watermark_only()))
            rows = add_carried(new_rows.where(F.col("rejected").isNull()), job_rows.carried)
            rows = label_caching(rows, self.rules, job_rows.watermarks.first_slice)
            rows = label_eviction(rows, job_rows.watermarks)
            result = replace(result, evicted_counts=count_simulated(rows, job_rows, cleanups))
        rows = rows.where(~cleanups.has_closed_form)
        return add_simulated_lanes(result, rows, job_rows, cleanups, self.rules, self.join_type, self.condition)

    @property
    def _wait(self) -> Column:
        return self.rules.wait_for_side(F.col("side"))

    def _order_of_pair(self, rows: LabelledRows) -> Column | None:
        if not self.orders_emissions:
            return None
        return order_of_pair(self.upstream_sides, is_left_earlier(has_exact_watermarks=rows.has_exact_watermarks))

    def _join_closed_form(self, rows: LabelledRows, job_rows: JobRows) -> JoinResult:
        """Compute the outputs of the lanes with a closed form."""
        select = partial(select_pairs, emission_order=self._order_of_pair(rows))
        select_late_matches = partial(select, has_match_hashes=True, condition=self.condition)
        late_matches = select_late_matches(rows.late_pairs.where(~F.col("is_expired")))
        outcome_pairs = select_late_matches(select_uncached_matches(rows.late_pairs))
        if rows.overdue_rows is not None:
            overdue_matches = select_late_matches(select_overdue_matches(rows.late_pairs, rows.overdue_rows))
            late_matches = late_matches.unionByName(overdue_matches)
            outcome_pairs = outcome_pairs.unionByName(overdue_matches)
        joined = to_emissions(late_matches, F.lit("matched"))
        late_and_carried = buffered = rows.late_and_carried.drop("removing_lookup", "lookup_number")
        first_slice = job_rows.watermarks.first_slice
        if self.join_type.padded_sides:
            first_late_matches = find_first_matches(late_matches, self.join_type.padded_sides)
            first_late_matches = broadcast_if_small(*materialize_and_count(first_late_matches))
            joined = joined.unionByName(self._emit_outer_join(rows, first_late_matches, first_slice))
            buffered = self._track_matches(late_and_carried, rows.pairable, late_matches, first_slice)
        else:
            pairs = self._pair_on_time_rows(rows.pairable, first_slice)
            joined = joined.unionByName(to_emissions(select(pairs, has_match_hashes=False), F.lit("matched")))
        # Late rows have an outcome besides `cached` only if they are not cached, and few pairs have such rows.
        outcome_matches = broadcast_if_small(*materialize_and_count(find_first_matches(outcome_pairs, SIDES)))
        if rows.others is not None:
            buffered = buffered.unionByName(rows.others.select(*buffered.columns))
        late = select_late(with_first_match(late_and_carried, outcome_matches), job_rows, self.join_type)
        return JoinResult(
            joined=joined,
            late=late.unionByName(select_rejected_without_outcome(job_rows)),
            buffered=drop_needless_matches(buffered, self.join_type),
        )

    def _emit_outer_join(self, rows: LabelledRows, first_late_matches: DataFrame, first_slice: int) -> DataFrame:
        """Emit the pairs of rows on time, and all unmatched rows.

        For one padded side, Spark's outer join returns its pairs and its unmatched rows. For the second side of a full
        join, an anti join adds the unmatched rows: a full join would pad each copy of a row that is in several bins.
        The ON clauses have all conditions of a match. Late rows are paired elsewhere (`late_pairs`).

        Args:
            rows: The labelled rows.
            first_late_matches: Slice of the first match of each row that matches a late row.
            first_slice: First slice of the job.
        """
        labels = (*list_padding_labels(rows.all_rows), "watermark")

        def join_side(side: SideName, unmatched: Literal["keep", "only"]) -> DataFrame:
            own = with_first_match(rows.all_rows.where(F.col("side") == side), first_late_matches)
            partners = rows.pairable.where(F.col("side") == OTHER[side])
            both = own.unionByName(partners, allowMissingColumns=True)
            return self._join_on_time_rows(both, first_slice, labels, OTHER[side], unmatched)

        pad = partial(pad_rows, join_type=self.join_type, is_ordered=self.orders_emissions)
        first_side, *second_side = self.join_type.padded_sides
        joined = join_side(first_side, "keep")
        emissions = [
            emit_outer_join(joined, first_side, self.join_type, self._order_of_pair(rows)),
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
        needs_match = F.col("side").isin(self.join_type.padded_sides) & F.col("needs_first_match")
        parts = [late_and_carried.where(~needs_match)]
        for side in self.join_type.padded_sides:
            own = late_and_carried.where(needs_match & (F.col("side") == side))
            partners = pairable.where(F.col("side") == OTHER[side])
            names = ("side", "slice", "clock", "tiebreak", "event_time", "watermark", "is_cached", "match_hash")
            rows, other_rows = (part.select(*names, *key_columns(part), *SIDES) for part in (own, partners))
            pairs = self._pair_on_time_rows(rows.unionByName(other_rows), first_slice, repeated_side=side)
            matches = select_pairs(pairs, has_match_hashes=True)
            matches = matches.unionByName(late_matches.select(*matches.columns))
            parts.append(with_first_match(own, find_first_matches(matches, [side])))
        return reduce(DataFrame.unionByName, parts)

    def _pair_on_time_rows(self, rows: DataFrame, first_slice: int, repeated_side: SideName = "right") -> DataFrame:
        """Return the pairs of `_join_on_time_rows` that meet the bounds, with the `slice` of the later row."""
        labels = ("slice", "clock", "tiebreak", "watermark", "match_hash")
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
