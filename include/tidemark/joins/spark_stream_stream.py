"""Spark's stream-stream join as a relational query over rows labelled with their micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.dialect_support import TICK
from tidemark.config.sides import OTHER, SIDES
from tidemark.joins.base import EMISSION, JobRows, Join, JoinResult, with_reason
from tidemark.joins.condition import Condition
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.rules.spark import Rules
from tidemark.joins.window import WindowsOf
from tidemark.joins.window_output import PADDING
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import computed_once
from tidemark.timegrid.time_columns import floor_div

Columns = Callable[[str], Column]
"""What tells a copy's columns by their names."""
_MARKS: tuple[str, ...] = ("matched",)
_MATCHED = "map<int, bigint>"
BOUNDS = ("window_start", "window_end")
_SEEN = ("slice", "batch", "previous_watermark", "level", "early", "event_time", *BOUNDS)
"""What a row shows of itself to the rows of the other side."""


@dataclass(frozen=True)
class MicroBatchJoin(Join):
    """A closed form: see `spark.Rules`, and section 6 of the dialect's description.

    A row is copied into its windows; without windows it is a single copy of itself. Each copy is late, matched and
    evicted by itself. What a carried row has to tell beside its times is which of its copies have met a partner, since
    a partner may be evicted first: `matched`, a map from a copy's number to the slice in which it first met one.
    """

    rules: Rules
    condition: Condition
    windows: WindowsOf | None = None
    """The windows, in us: a row's is among the keys."""
    on_event_time: bool = False
    """Whether event time is among the keys."""
    binned: bool = False
    """Whether the range has both bounds, so that event time can be binned."""
    buckets_per_slice: int | None = 1
    """A bucket is a micro-batch: a slice, or a millisecond of it, since no two batches of a query begin in the same."""

    carries = _MARKS
    dated = _MARKS
    tick = TICK["spark"]

    def admitted(self, rows: DataFrame) -> DataFrame:
        """Rejects what Spark filters below a side's watermark, which such rows do not move.

        On a side without padding that is what cannot match: null keys and times, and what the condition asks of the row
        alone. On a side with padding a row that fails the condition is `early`: emitted at once. Windows have no place
        for a row without a time on any side.
        """
        timeless, owed = F.col("event_time").isNull(), _by_side(self.rules.preserved)
        alone, complete = (_by_side(part.__getitem__) for part in (self.condition.alone, self.condition.complete))
        reason = F.coalesce(
            "rejected",
            F.when(~owed & has_null_key(rows), F.lit("null_key")),
            F.when(timeless if self.windows else timeless & ~owed, F.lit("null_event_time")),
            F.when(~owed & ~(alone & complete), F.lit("condition_not_met")),
        )
        beside = self.condition.beside("left") | self.condition.beside("right")
        return rows.transform(with_columns, beside).withColumns({"rejected": reason, "early": ~alone}).drop(*beside)

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        if self.windows:
            return F.arrays_overlap(self.windows.of(left), self.windows.of(right))
        same = left == right if self.on_event_time else F.lit(True)
        return same & self.rules.in_range(left, right)

    def apply(self, came: JobRows) -> JoinResult:
        """Pairs from one join; for each side whose partners matter another, which finds the first of each row."""
        first = came.horizon.first
        copies = self._copies(came)
        if came.cacheable:
            copies = computed_once(copies)
        tracked = {side: self._tracked(copies, side, first) for side in SIDES if self.rules.tracks(side)}
        parts = [self._pairs(copies, first)] if self.rules.join_type.types != {"semi"} else []
        for side, rows in tracked.items():
            parts += [*self._alone(rows, side, first)]
        kept = [self._kept(tracked.get(side, copies.where(F.col("side") == side)), side) for side in SIDES]
        emitted, stored = (reduce(DataFrame.unionByName, some) for some in (parts, kept))
        return JoinResult(emitted, self._late(came), stored)

    def _copies(self, came: JobRows) -> DataFrame:
        """The accepted copies of all rows; of carried rows those that are still in the state when the job starts."""
        rows, first = came.taking_part(), came.horizon.first
        nothing = F.create_map().cast(_MATCHED)
        matched = F.coalesce("matched", nothing) if "matched" in rows.columns else nothing
        # A run may carry what a later slice of its own found.
        rows = rows.withColumn("matched", F.map_filter(matched, lambda _, found: found < first))
        # Unique within one evaluation, which is all that the grouping of a row's copies needs.
        rows = rows.withColumn("id", F.monotonically_increasing_id())
        none = F.lit(None).cast("bigint")
        spans = {"copy": F.lit(0), "window_start": none, "window_end": none}
        if self.windows:
            rows = rows.select("*", F.posexplode(self.windows.of(F.col("event_time"))).alias("copy", "span"))
            spans = {"copy": F.col("copy"), "window_start": F.col("span.start"), "window_end": F.col("span.end")}
        value = F.coalesce("window_end", "event_time")
        labels = {
            "level": _by_side(lambda side: self.rules.evicted_at(side, value, self.condition.floors[side])),
            "matched_in": F.try_element_at("matched", F.col("copy")),
            "early": F.coalesce("early", F.lit(False)),
        }
        late = _by_side(lambda side: self.rules.late(side, value, F.col("watermark")))
        accepted = rows.transform(with_columns, spans).where(~F.coalesce(late, F.lit(False))).drop("span")
        found = came.horizon.first_slice_reaching(accepted.transform(with_columns, labels), F.col("level"), "evicted")
        here = F.col("batch").isNotNull() | F.coalesce(F.col("evicted") >= first, F.lit(True))
        already_emitted = self._semi("left") & F.col("matched_in").isNotNull()
        carried = {"batch": F.coalesce("batch", F.lit(-1)), "evicted": self._leaves()}
        return found.where(here & ~F.coalesce(already_emitted, F.lit(False))).transform(with_columns, carried)

    @staticmethod
    def _leaves() -> Column:
        """The slice in which a copy is evicted: not before it has come; an early one is never stored."""
        evicted = F.when(F.col("evicted").isNotNull(), F.greatest("evicted", "slice"))
        return F.when(F.col("early"), F.col("slice")).otherwise(evicted)

    def _semi(self, side: str) -> Column:
        return (F.col("side") == side) & (side == "left") & self.rules.join_type.is_one_of("semi")

    def _meetings(self, copies: DataFrame, one: str, how: str, first: int) -> DataFrame:
        """Copies of one side beside those of the other that they meet in slices of the job: structs `left`, `right`."""
        other = OTHER[one]
        here = self._side(copies, one, [name for name in copies.columns if name != other])
        there = self._side(copies, other, [*_SEEN, other])
        matches = self._matches(first)
        if self.binned:
            size = F.greatest(2 * (self.rules.greatest - self.rules.least), F.lit(1))
            time, reach = F.col(f"{other}.event_time"), (self.rules.least, self.rules.greatest)
            ends = (time - reach[1], time - reach[0]) if other == "right" else (time + reach[0], time + reach[1])
            bins = F.sequence(*(floor_div(end, size) for end in ends))
            here = here.withColumn("bin", floor_div(F.col(f"{one}.event_time"), size))
            there = there.withColumn("other_bin", F.explode(bins))
            matches = (F.col("bin") == F.col("other_bin")) & matches
        renamed = there.withColumnsRenamed({name: f"other_{name}" for name in self._keys(copies)})
        same = (self._equal(F.col(name), F.col(f"other_{name}")) for name in self._keys(copies))
        return here.join(renamed, reduce(Column.__and__, same) & matches, how)

    def _side(self, copies: DataFrame, side: str, names: list[str]) -> DataFrame:
        """One side's copies: the keys, a struct of what they have to tell, and what the condition reads."""
        shown = F.struct(*(F.col(name).alias("row" if name == side else name) for name in names)).alias(side)
        beside = (column.alias(name) for name, column in self.condition.beside(side).items())
        return copies.where(F.col("side") == side).select(*self._keys(copies), shown, *beside)

    def _keys(self, copies: DataFrame) -> list[str]:
        window = ["window_start"] if self.windows else []
        times = ["event_time"] if self.on_event_time else []
        return [*key_columns(copies), *window, *times]

    def _equal(self, one: Column, other: Column) -> Column:
        """Null keys equal each other: only a full join lets them in on both sides."""
        return one.eqNullSafe(other) if "full" in self.rules.join_type.types else one == other

    def _matches(self, first: int) -> Column:
        left, right = _of("left"), _of("right")
        stored = self.rules.in_state(left, right) & ~left("early") & ~right("early")
        due = F.greatest(left("slice"), right("slice")) >= first
        return self._pair_up(left, right) & self.condition.both & stored & due

    def _pair_up(self, left: Columns, right: Columns) -> Column:
        """Whether the times of copies with equal keys are those of a pair."""
        return self.rules.in_range(left("event_time"), right("event_time"))

    def _bounds(self, left: Columns | None, right: Columns | None) -> dict[str, Column]:
        """What an emission tells of the windows of its copies; None for the one that is not there."""
        of = left or right
        assert of, "one is there"
        return {name: of(name) for name in BOUNDS}

    def _pairs(self, copies: DataFrame, first: int) -> DataFrame:
        """Each pair once, in the slice of its later row."""
        met = self._meetings(copies, "left", "inner", first)
        emission = {"slice": F.greatest("left.slice", "right.slice"), "emission": F.lit("matched")}
        rows: dict[str, Column] = {side: F.col(f"{side}.row") for side in SIDES}
        matched = met.where(~self.rules.join_type.is_one_of("semi"))
        return _emitted(matched, {**emission, **self._bounds(_of("left"), _of("right")), **rows})

    def _tracked(self, copies: DataFrame, side: str, first: int) -> DataFrame:
        """One side's copies with `matched_in`, the slice in which each met its first partner, null for none yet."""
        met, other = self._meetings(copies, side, "left", first), OTHER[side]
        firsts = met.groupBy(f"{side}.id", f"{side}.copy").agg(
            F.first(side).alias("own"), F.min(f"{other}.slice").alias("met")
        )
        in_job = F.when(F.col("met").isNotNull(), F.greatest("met", "own.slice"))
        rows = firsts.select("own.*", in_job.alias("in_job")).withColumnRenamed("row", side)
        none = F.lit(None).cast(copies.schema[other].dataType)
        return rows.withColumns({"matched_in": F.coalesce("matched_in", "in_job"), other: none}).drop("in_job")

    def _alone(self, rows: DataFrame, side: str, first: int) -> Iterator[DataFrame]:
        """What is emitted of one side without a partner: padded when evicted, or once for a semi join."""
        bounds = self._bounds(F.col, None) if side == "left" else self._bounds(None, F.col)
        kept_columns: dict[str, Column] = {**bounds, "left": F.col("left"), "right": F.col("right")}
        if self.rules.join_type.types & set(PADDING[side]):
            due = self.rules.preserved(side) & F.col("matched_in").isNull() & (F.col("evicted") >= first)
            yield _emitted(
                rows.where(due), {"slice": F.col("evicted"), "emission": F.lit(f"padded_{side}"), **kept_columns}
            )
        if side == "left" and "semi" in self.rules.join_type.types:
            due = self.rules.join_type.is_one_of("semi") & (F.col("matched_in") >= first)
            yield _emitted(rows.where(due), {"slice": F.col("matched_in"), "emission": F.lit("semi"), **kept_columns})

    def _kept(self, copies: DataFrame, side: str) -> DataFrame:
        """The rows of accepted copies, each in the state until its last copy has gone: for a semi join when matched."""
        if not self.rules.tracks(side):  # the first copy is the one of the last window
            none = F.lit(None).cast(_MATCHED)
            return self._row_columns(
                copies.where(F.col("copy") == 0).withColumns({"reached": F.col("evicted"), "matched": none})
            )
        semi = self.rules.join_type.is_one_of("semi") if side == "left" else F.lit(False)
        gone = F.when(semi, F.least("evicted", "matched_in")).otherwise(F.col("evicted"))
        first_match = F.when(F.col("matched_in").isNotNull(), F.struct("copy", "matched_in"))
        if not self.windows:
            matched = F.when(F.col("matched_in").isNotNull(), F.create_map("copy", "matched_in"))
            return self._row_columns(copies.withColumns({"reached": gone, "matched": matched}))
        copies = copies.withColumns({"gone": gone, "first_match": first_match})
        rows = copies.groupBy("id").agg(
            F.first(F.struct(*(name for name in copies.columns if name not in {"id", "gone", "first_match"}))).alias(
                "row"
            ),
            F.when(F.count("gone") == F.count("*"), F.max("gone")).alias("reached"),
            F.map_from_entries(F.collect_list("first_match")).alias("first_matches"),
        )
        both = F.map_zip_with("row.matched", "first_matches", lambda _, before, now: F.coalesce(before, now))
        return self._row_columns(
            rows.select("row.*", "reached", both.alias("known")).withColumn("matched", F.col("known"))
        )

    def _row_columns(self, rows: DataFrame) -> DataFrame:
        labels = ("side", "lane", "slice", "clock", "tiebreak", "event_time", "reached")
        return rows.select(*labels, *self.carries, *key_columns(rows), *SIDES)

    def _late(self, came: JobRows) -> DataFrame:
        """Rejected and late rows; a row that is late for some of its windows only is told for each of these."""
        rejected = came.maybe_late.where(F.col("rejected").isNotNull())
        rows = came.maybe_late.where(F.col("rejected").isNull())
        parts = [with_reason(rejected, F.col("rejected"))]
        if self.windows is None:
            late = _by_side(lambda side: self.rules.late(side, F.col("event_time"), F.col("watermark")))
            parts.append(with_reason(rows.where(late), F.lit("late")))
        else:
            rows = rows.withColumn("windows", self.windows.of(F.col("event_time")))
            gone = _by_side(
                lambda side: F.filter(
                    "windows", lambda window: self.rules.late(side, window["end"], F.col("watermark"))
                )
            )
            rows = rows.withColumn("gone", gone)
            whole = F.size("gone") == F.size("windows")
            parts.append(with_reason(rows.where(whole), F.lit("late")).drop("windows", "gone"))
            partly = rows.where(~whole).withColumn("window", F.explode("gone"))
            bounds = (floor_div(F.col(f"window.{name}"), 1000) for name in ("start", "end"))
            parts.append(with_reason(partly, F.lit("late_for_window"), *bounds).drop("windows", "gone", "window"))
        return reduce(DataFrame.unionByName, parts)


def _by_side(rule: Callable[[str], Column]) -> Column:
    """A rule of each side, for rows of both."""
    return F.when(F.col("side") == "left", rule("left")).otherwise(rule("right"))


def _of(side: str) -> Columns:
    return lambda name: F.col(f"{side}.{name}")


def _emitted(rows: DataFrame, columns: dict[str, Column]) -> DataFrame:
    """Emissions in the columns of `EMISSION`, and the right row's window where it has its own: ms, no result time."""
    known = {**columns, "pane": F.lit(0), "result_time": F.lit(None).cast("bigint")}
    known |= {name: floor_div(column, 1000) for name, column in columns.items() if name.endswith(BOUNDS)}
    return rows.select(*(known[name].alias(name) for name in dict.fromkeys((*EMISSION, *known))))
