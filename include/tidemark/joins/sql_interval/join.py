"""Flink SQL's interval join: a closed form, and a replay row by row of the lanes that have none.

No row is late. What decides is which rows are still cached, and when an unmatched one leaves:

- a cached row is joined until it expires, and then as long as the engine has not got round to removing it;
- a timer removes it at the watermark `leaves_at` (`sql_timers`), unless before that a row of the other side with the
  same key looks for partners: that one still finds it, and removes it;
- rows that come later than all they could find may skip their search (`sql_sweeps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from tidemark.clock.times import as_json
from tidemark.joins.base import JobRows, Join, JoinResult, with_reason
from tidemark.joins.firings import PADDING, JoinType
from tidemark.joins.flink_sql import IntervalRules
from tidemark.joins.interval import candidates
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.sql_interval.cleanups import Cleanups
from tidemark.joins.sql_interval.pairs import (
    ARRIVAL,
    emissions,
    first_matches,
    is_padded,
    mark,
    matching,
    with_first_match,
)
from tidemark.joins.sql_interval.replay import replay_lanes
from tidemark.joins.sql_interval.timers import with_leaves_at
from tidemark.spark.columns import with_columns
from tidemark.spark.once import computed_once
from tidemark.watermarks.restarted import epoch_of_rows

_STATE = ("matched_in", "leaves_at", "timed_from", "gone_in")
_IN_SLICES = ("matched_in", "timed_from", "gone_in")
_LABELS = ("slice", "watermark", "clock", "tiebreak", "mark")


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

    exact_watermarks = True
    knows_buckets = True
    carries = ("watermark", *_STATE)
    dated = _IN_SLICES

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.rules.within(left, right)

    def apply(self, came: JobRows) -> JoinResult:
        """The closed form, unless `Cleanups` finds it undecided."""
        horizon = came.horizon
        rows = self._labelled(came)
        cleanups = Cleanups.of(rows, horizon, came.passing)
        undecided = F.col("lane").isin(*cleanups.undecided)
        joined, states = self._closed_form(rows.where(~undecided), horizon.first, overdue=cleanups.overdue)
        ends = dict[tuple[int, str, int], int]()
        if cleanups.undecided:
            replayed = computed_once(self._replayed(rows.where(undecided), came, cleanups.undecided))
            for row in replayed.where(F.col("role") == "end").collect():
                ends |= {(row["lane"], side, row["slice"]): row[f"{side}_last_cleanup"] for side in PADDING}
            emitted = replayed.where(~F.col("role").isin("state", "end"))
            joined = joined.unionByName(emissions(emitted, F.col("role")))
            states = states.unionByName(replayed.where(F.col("role") == "state").select(*states.columns))
        return JoinResult(joined, self._side_output(states, came), states, lines=cleanups.lines(ends))

    @property
    def _wait(self) -> Column:
        return self.rules.wait_of(F.col("side"))

    @property
    def _outer(self) -> Column:
        return is_padded(F.col("side"), self.join_type)

    def _labelled(self, came: JobRows) -> DataFrame:
        """All rows that take part, with what becomes of them by themselves; and what the slice before knew."""
        first, rules = came.horizon.first, self.rules
        rows = came.maybe_late.where(F.col("rejected").isNull())  # all of them, because watermarks are exact
        if came.carried is not None:
            rows = rows.unionByName(came.carried, allowMissingColumns=True)
        for name in _STATE:
            if name not in rows.columns:
                rows = rows.withColumn(name, F.lit(None).cast("long"))
        event_time, now = F.col("event_time"), rules.now(F.col("watermark"))
        labels = {
            **{name: F.when(F.col(name) < first, F.col(name)) for name in _IN_SLICES},
            "now": now,
            "waits": rules.cached(event_time, self._wait, now),
            "expires_at": rules.expires_at(event_time, self._wait),
            "stale_at": rules.stale_at(event_time),
            "stale": (rules.stale_at(event_time) <= now) & ~rules.empty,
            "off_the_path": rules.off_the_path(event_time, self._wait),
            "mark": mark(rows, self.condition),
        }
        timed = with_leaves_at(rows.transform(with_columns, labels), few=came.cacheable)
        leaves_at = F.coalesce("leaves_at", "expires_at")  # the search takes no null; who does not wait leaves at once
        found = came.horizon.first_slice_reaching(timed, leaves_at, "reached")
        found = found.withColumn("reached", F.when(F.col("waits"), F.col("reached")).otherwise(F.col("slice")))
        # Of many rows what costs something is kept already, and to keep them again would cost more than it saves.
        return computed_once(found) if came.cacheable else found

    def _closed_form(self, rows: DataFrame, first: int, *, overdue: bool) -> tuple[DataFrame, DataFrame]:
        """Emissions, and the rows with their `reached`, and `matched_in` where they outlive their slice or are late."""
        late = None
        if overdue:
            stays = F.coalesce(F.col("leaves_at") > F.col("expires_at"), F.lit(False))
            looked_up = computed_once(_with_first_search(rows.where(stays), rows, first))
            late = self._found_expired(looked_up)
            removed = looked_up.withColumn("reached", F.coalesce(F.col("by.slice"), F.col("reached"))).drop("by")
            rows = rows.where(~stays).unionByName(removed)
        pairs = self._certain(rows, first)
        if self.join_type.types - {"inner"}:
            known = pairs = computed_once(pairs)
        else:
            known = self._with_fleeting(rows, first)
        if late is not None:
            pairs, known = pairs.unionByName(late), known.unionByName(late)
        matches = computed_once(first_matches(known))
        leaves = F.col("reached").isNotNull() & F.col("matched_in").isNull() & self._outer
        padded = with_first_match(rows, matches).where(leaves).withColumn("slice", F.greatest("slice", "reached"))
        side = F.concat(F.lit("padded_"), F.col("side"))
        # Most rows are on time, and gone when their slice ends: nobody asks whether they have matched.
        gone = (F.col("reached") <= F.greatest("slice", F.lit(first))) & ~_is_behind(first)
        unasked = F.coalesce(gone, F.lit(False))
        states = with_first_match(rows.where(~unasked), matches).unionByName(rows.where(unasked))
        return emissions(pairs, F.lit("matched")).unionByName(emissions(padded, side)), states

    def _with_fleeting(self, rows: DataFrame, first: int) -> DataFrame:
        """The pairs of late rows that are not cached: in an inner join only these are asked whether they matched."""
        fleeting = ~F.col("waits") & (F.col("event_time") < F.col("watermark"))
        parts = (rows.where(F.when(F.col("side") == side, fleeting).otherwise(F.col("waits"))) for side in PADDING)
        return reduce(DataFrame.unionByName, (self._certain(part, first) for part in parts))

    def _certain(self, rows: DataFrame, first: int) -> DataFrame:
        """Pairs whose later row comes before the other, which is cached, has expired: in the slice of the later."""
        rules = self.rules
        times = F.col("left_event_time"), F.col("right_event_time")
        left_now, right_now = (rules.now(F.col(f"{side}_watermark")) for side in PADDING)
        left_waited = rules.cached(times[0], rules.left_wait, left_now)
        left_waited &= right_now < rules.expires_at(times[0], rules.left_wait)
        right_waited = rules.cached(times[1], rules.right_wait, right_now)
        right_waited &= left_now < rules.expires_at(times[1], rules.right_wait)
        left_first = F.struct("left_clock", "left_tiebreak") <= F.struct("right_clock", "right_tiebreak")
        waited = F.when(left_first, left_waited).otherwise(right_waited)
        later = F.greatest("left_slice", "right_slice")
        joins = rules.within(*times) & waited & (later >= first)
        found = candidates(rows, rules.lower, rules.upper, _LABELS, joins)
        return matching(found.withColumn("slice", later), self.condition)

    def _found_expired(self, looked_up: DataFrame) -> DataFrame:
        """Pairs of expired rows and the first row that looked for partners since."""
        both = {"slice": F.col("by.slice")}
        for side in PADDING:
            for name, column in ((f"{side}_time", "event_time"), (f"{side}_mark", "mark"), (side, side)):
                both[name] = F.when(F.col("side") == side, F.col(column)).otherwise(F.col(f"by.{column}"))
        found = looked_up.where(F.col("by").isNotNull() & ~has_null_key(looked_up)).transform(with_columns, both)
        return matching(found.where(self.rules.within(F.col("left_time"), F.col("right_time"))), self.condition)

    def _replayed(self, rows: DataFrame, came: JobRows, lanes: frozenset[int]) -> DataFrame:
        """Whole lanes, row by row."""
        keys, rules = key_columns(rows), self.rules
        outer = {f"pads_{side}": self.join_type.is_one_of(*types) for side, types in PADDING.items()}
        params = {name: getattr(rules, name) for name in ("lower", "upper", "lateness", "min_cleanup")}
        mates = F.lit(None).cast("array<long>")
        if self.condition:
            within = rules.within(F.col("left_event_time"), F.col("right_event_time"))
            pairs = candidates(rows, rules.lower, rules.upper, _LABELS, within).withColumn("slice", F.lit(0))
            agreed = matching(pairs, self.condition).groupBy(*keys, F.col("right_mark").alias("mark"))
            rows = rows.join(agreed.agg(F.collect_set("left_mark").alias("_mates")), [*keys, "mark"], "left")
            mates = F.coalesce("_mates", F.array().cast("array<long>"))
        if came.passing is not None:
            rows = rows.unionByName(came.passing.where(F.col("lane").isin(*lanes)), allowMissingColumns=True)
        known = {"key": as_json(F.struct(*keys)), "keyless": has_null_key(rows), "mates": mates}
        rows = rows.transform(with_columns, {**outer, **params, **known, "epoch": epoch_of_rows(came.horizon)})
        return replay_lanes(rows, {lane: came.horizon.lines[lane] for lane in lanes}, came.horizon.first).drop("_mates")

    def _side_output(self, states: DataFrame, came: JobRows) -> DataFrame:
        """Rejected rows, and those behind the watermark with what became of them on arrival."""
        fate = (
            F.when(F.col("waits"), "cached")
            .when(F.col("matched_in").isNotNull(), "matched")
            .when(self._outer, "padded")
            .otherwise("lost")
        )
        behind = states.where(_is_behind(came.horizon.first)).withColumn("fate", fate)
        late = with_reason(behind, F.lit("behind_watermark"))
        rejected = came.maybe_late.where(F.col("rejected").isNotNull())
        chosen = [*came.maybe_late.columns, "reason", "window_start", "window_end"]
        rejected_rows = with_reason(rejected, F.col("rejected")).withColumn("fate", F.lit(None).cast("string"))
        return late.select(*chosen, "fate").unionByName(rejected_rows.select(*chosen, "fate"))


def _is_behind(first: int) -> Column:
    """Whether a row of these slices came behind the watermark."""
    return (F.col("slice") >= first) & (F.col("event_time") < F.col("watermark"))


def _with_first_search(stays: DataFrame, rows: DataFrame, first: int) -> DataFrame:
    """Rows that outstay their time, with `by`: the row of the same key that removes them, null where a timer does.

    It is the first one of the other side to look for partners after they have expired, if no timer is sooner.
    """
    keys = key_columns(rows)
    searches = rows.where((F.col("slice") >= first) & ~F.col("stale"))
    searcher = F.struct("slice", "now", "event_time", "mark", "left", "right")
    other = F.when(F.col("side") == "left", "right").otherwise("left")
    none = F.lit(None).cast(_kind(rows, searcher))
    both = stays.withColumns({"level": F.col("expires_at"), "of": F.col("side"), "by": none})
    both = both.unionByName(searches.withColumns({"level": F.col("now"), "of": other, "by": searcher}))
    # Backwards: a frame that ends with the partition is gone through anew for each of its rows.
    backwards = [one.desc() for one in (F.col("level"), F.col("by").isNotNull(), *map(F.col, ARRIVAL))]
    following = Window.partitionBy(*keys, "of").orderBy(*backwards).rowsBetween(Window.unboundedPreceding, -1)
    by = F.last("by", ignorenulls=True).over(following)
    found = both.withColumn("search", by).where(F.col("by").isNull())
    sooner = F.when(F.col("search.now") < F.col("leaves_at"), F.col("search"))
    return found.withColumn("by", sooner).drop("search", "level", "of")


def _kind(rows: DataFrame, column: Column) -> T.DataType:
    return rows.select(column.alias("it")).schema["it"].dataType
