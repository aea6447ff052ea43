"""Spark's stream-stream join as a relational query over rows labelled with their micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.dialect_support import TICK_MICROS
from tidemark.config.sides import OTHER, SIDES
from tidemark.joins.base import EMISSION_COLUMNS, JobRows, Join, JoinResult, add_late_reason, select_rejected
from tidemark.joins.condition import Condition
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.rules.spark import StreamStreamRules
from tidemark.joins.window import WindowAssigner
from tidemark.spark.dataframe_utils import choose_by_side, with_columns
from tidemark.spark.materialization import materialize
from tidemark.timegrid.time_columns import floor_div

Columns = Callable[[str], Column]
"""Function from a name to a column of a row copy."""
WINDOW_BOUNDS = ("window_start", "window_end")
_STATE_COLUMNS: tuple[str, ...] = ("first_match_slices",)
_MATCHES_DTYPE = "map<int, bigint>"
_VISIBLE = ("slice", "batch", "previous_watermark", "eviction_watermark", "fails_alone", "event_time", *WINDOW_BOUNDS)
"""Columns of a row copy that the matching with the other side reads."""


@dataclass(frozen=True)
class StreamStreamJoin(Join):
    """The join in closed form; see `rules.spark`, and section 6 of the dialect's description.

    A row is copied into each of its windows; without windows it is its own single copy. Each copy is late, matched and
    evicted by itself. A partner may be evicted before the row, so carried rows have `first_match_slices`: a map from
    the number of a copy to the slice of its first match.
    """

    rules: StreamStreamRules
    condition: Condition
    windows: WindowAssigner | None = None
    """Windows in microseconds. A row's window is one of its keys."""
    is_on_event_time: bool = False
    """True if event time is a key."""
    is_binned: bool = False
    """True if the range has both bounds, so that event time can be binned."""
    buckets_per_slice: int | None = 1
    """A bucket is a micro-batch: a slice, or a millisecond of it, as two batches of a query never start in the same."""

    carried_columns = _STATE_COLUMNS
    slice_valued_columns = _STATE_COLUMNS
    tick = TICK_MICROS["spark"]

    def reject_invalid(self, rows: DataFrame) -> DataFrame:
        """Reject rows that Spark filters before a side's watermark, which they do not move.

        Without padding, Spark filters rows of a side that cannot match: null keys and times, and rows that fail the
        conjuncts over their side alone, also those that it infers from the equality of a key. With padding, the rows
        that fail conjuncts over their side have `fails_alone` and are emitted at once. With windows, rows without a
        time are filtered on any side.
        """
        has_no_time = F.col("event_time").isNull()
        is_padded = _by_side(self.rules.join_type.pads)
        passes_alone, is_complete, passes_inferred = (
            _by_side(part.__getitem__)
            for part in (self.condition.single_side, self.condition.not_null, self.condition.inferred)
        )
        reason = F.coalesce(
            "rejected",
            F.when(~is_padded & has_null_key(rows), F.lit("null_key")),
            F.when(has_no_time if self.windows else has_no_time & ~is_padded, F.lit("null_event_time")),
            F.when(~is_padded & ~(passes_alone & is_complete & passes_inferred), F.lit("condition_not_met")),
        )
        read = self.condition.columns_of_single_rows()
        labels = {"rejected": reason, "fails_alone": ~passes_alone}
        return rows.transform(with_columns, read).transform(with_columns, labels).drop(*read)

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        if self.windows:
            return F.arrays_overlap(self.windows.assign(left), self.windows.assign(right))
        is_equal = left == right if self.is_on_event_time else F.lit(True)
        return is_equal & self.rules.is_in_range(left, right)

    def apply(self, job_rows: JobRows) -> JoinResult:
        """Compute pairs with one join; for sides whose matches matter, find each row's first match with another."""
        first_slice = job_rows.watermarks.first_slice
        copies = self._create_copies(job_rows)
        # The copies have many uses: a small job would plan them for each. A large one would have to store all its rows.
        if job_rows.has_materialized_input:
            copies = materialize(copies)
        by_side = {side: copies.where(F.col("side") == side) for side in SIDES}
        emissions = [self._join_pairs(copies, first_slice)] if self.rules.join_type.types != {"semi"} else []
        for side in (side for side in SIDES if self.rules.tracks_matches(side)):
            by_side[side] = self._add_first_match(copies, side, first_slice)
            emissions += [*self._emit_single(by_side[side], side, first_slice)]
        buffered = [self._add_eviction_slice(rows, side) for side, rows in by_side.items()]
        joined, state = (reduce(DataFrame.unionByName, parts) for parts in (emissions, buffered))
        return JoinResult(joined, self._find_late(job_rows), state)

    def _create_copies(self, job_rows: JobRows) -> DataFrame:
        """Create the accepted copies of all rows; of carried rows those that are in the state when the job starts."""
        rows = job_rows.select_participating()
        first_slice = job_rows.watermarks.first_slice
        empty = F.create_map().cast(_MATCHES_DTYPE)
        matched = F.coalesce("first_match_slices", empty) if "first_match_slices" in rows.columns else empty
        # The run before may have carried matches of later slices, which this job recomputes.
        rows = rows.withColumn(
            "first_match_slices", F.map_filter(matched, lambda _, match_slice: match_slice < first_slice)
        )
        # Unique within one evaluation, which is enough to group the copies of a row.
        rows = rows.withColumn("id", F.monotonically_increasing_id())
        null = F.lit(None).cast("bigint")
        spans = {"copy": F.lit(0), "window_start": null, "window_end": null}
        if self.windows:
            rows = rows.select("*", F.posexplode(self.windows.assign(F.col("event_time"))).alias("copy", "span"))
            spans = {"copy": F.col("copy"), "window_start": F.col("span.start"), "window_end": F.col("span.end")}
        value = F.coalesce("window_end", "event_time")

        def evicts_at(side: str) -> Column:
            return self.rules.eviction_watermark(side, value, self.condition.event_time_floors[side])

        labels = {
            "eviction_watermark": _by_side(evicts_at),
            "first_match_slice": F.try_element_at("first_match_slices", F.col("copy")),
            "fails_alone": F.coalesce("fails_alone", F.lit(False)),
        }
        is_late = _by_side(lambda side: self.rules.is_late(side, value, F.col("watermark")))
        accepted = rows.transform(with_columns, spans).where(~F.coalesce(is_late, F.lit(False))).drop("span")
        labelled = accepted.transform(with_columns, labels)
        copies = job_rows.watermarks.with_slice_reaching(labelled, F.col("eviction_watermark"), "evicted_in")
        is_new = F.col("batch").isNotNull()
        is_in_state = is_new | F.coalesce(F.col("evicted_in") >= first_slice, F.lit(True))
        is_emitted = self._is_semi_row() & F.col("first_match_slice").isNotNull()
        updated = {"batch": F.coalesce("batch", F.lit(-1)), "evicted_in": self._copy_evicted_in()}
        return copies.where(is_in_state & ~F.coalesce(is_emitted, F.lit(False))).transform(with_columns, updated)

    @staticmethod
    def _copy_evicted_in() -> Column:
        """Return the slice in which a copy is evicted, at the earliest that of its arrival.

        A copy that fails the conjuncts of its side is never stored.
        """
        evicted_in = F.when(F.col("evicted_in").isNotNull(), F.greatest("evicted_in", "slice"))
        return F.when(F.col("fails_alone"), F.col("slice")).otherwise(evicted_in)

    def _is_semi_row(self) -> Column:
        return (F.col("side") == "left") & self.rules.join_type.is_in("semi")

    def _join_copies(self, copies: DataFrame, side: str, how: str, first_slice: int) -> DataFrame:
        """Join the copies of one side with matching copies of the other in slices of the job.

        Returns:
            Structs `left` and `right`, each with `_VISIBLE`; that of `side` has all columns.
        """
        other = OTHER[side]
        own_copies = self._select_side(copies, side, [name for name in copies.columns if name != other])
        other_copies = self._select_side(copies, other, [*_VISIBLE, other])
        is_match = self._is_match(first_slice)
        if self.is_binned:
            least, greatest = self.rules.min_difference, self.rules.max_difference
            size = F.greatest(2 * (greatest - least), F.lit(1))
            time = F.col(f"{other}.event_time")
            ends = (time - greatest, time - least) if other == "right" else (time + least, time + greatest)
            bins = F.sequence(*(floor_div(end, size) for end in ends))
            own_copies = own_copies.withColumn("bin", floor_div(F.col(f"{side}.event_time"), size))
            other_copies = other_copies.withColumn("other_bin", F.explode(bins))
            is_match = (F.col("bin") == F.col("other_bin")) & is_match
        keys = self._match_keys(copies)
        renamed = other_copies.withColumnsRenamed({name: f"other_{name}" for name in keys})
        has_equal_keys = (self._keys_equal(F.col(name), F.col(f"other_{name}")) for name in keys)
        return own_copies.join(renamed, reduce(Column.__and__, has_equal_keys) & is_match, how)

    def _select_side(self, copies: DataFrame, side: str, names: list[str]) -> DataFrame:
        """Select one side's copies: the keys, a struct of the named columns, and the columns of the condition."""
        struct = F.struct(*(F.col(name).alias("row" if name == side else name) for name in names)).alias(side)
        read = (column.alias(name) for name, column in self.condition.side_columns(side).items())
        return copies.where(F.col("side") == side).select(*self._match_keys(copies), struct, *read)

    def _match_keys(self, copies: DataFrame) -> list[str]:
        window = ["window_start"] if self.windows else []
        times = ["event_time"] if self.is_on_event_time else []
        return [*key_columns(copies), *window, *times]

    def _keys_equal(self, left: Column, right: Column) -> Column:
        """Return True if two keys match. Nulls match each other, as only a full join admits them on both sides."""
        return left.eqNullSafe(right) if "full" in self.rules.join_type.types else left == right

    def _is_match(self, first_slice: int) -> Column:
        left, right = _struct_columns("left"), _struct_columns("right")
        is_stored = self.rules.is_in_state(left, right) & ~left("fails_alone") & ~right("fails_alone")
        is_in_job = F.greatest(left("slice"), right("slice")) >= first_slice
        return self._times_of_copies_match(left, right) & self.condition.pair & is_stored & is_in_job

    def _times_of_copies_match(self, left: Columns, right: Columns) -> Column:
        """Return True if two copies with equal keys match by their times."""
        return self.rules.is_in_range(left("event_time"), right("event_time"))

    def _window_columns(self, left: Columns | None, right: Columns | None) -> dict[str, Column]:
        """Return the window bounds of an emission; None is a copy without a partner."""
        columns = left or right
        assert columns, "an emission has a row"
        return {name: columns(name) for name in WINDOW_BOUNDS}

    def _join_pairs(self, copies: DataFrame, first_slice: int) -> DataFrame:
        """Emit each pair once, in the slice of its later row."""
        pairs = self._join_copies(copies, "left", "inner", first_slice)
        pairs = pairs.where(~self.rules.join_type.is_in("semi"))
        emission = {"slice": F.greatest("left.slice", "right.slice"), "emission": F.lit("matched")}
        windows = self._window_columns(_struct_columns("left"), _struct_columns("right"))
        rows: dict[str, Column] = {side: F.col(f"{side}.row") for side in SIDES}
        return _select_emissions(pairs, {**emission, **windows, **rows})

    def _add_first_match(self, copies: DataFrame, side: str, first_slice: int) -> DataFrame:
        """Set `first_match_slice` of one side's copies: the slice of the first match, null if there is none yet."""
        matches = self._join_copies(copies, side, "left", first_slice)
        other = OTHER[side]
        grouped = matches.groupBy(f"{side}.id", f"{side}.copy").agg(
            F.first(side).alias("own"), F.min(f"{other}.slice").alias("first_partner_slice")
        )
        in_job = F.when(F.col("first_partner_slice").isNotNull(), F.greatest("first_partner_slice", "own.slice"))
        rows = grouped.select("own.*", in_job.alias("first_match_in_job")).withColumnRenamed("row", side)
        null = F.lit(None).cast(copies.schema[other].dataType)
        first_match_slice = F.coalesce("first_match_slice", "first_match_in_job")
        return rows.withColumns({"first_match_slice": first_match_slice, other: null}).drop("first_match_in_job")

    def _emit_single(self, rows: DataFrame, side: str, first_slice: int) -> Iterator[DataFrame]:
        """Yield emissions of single rows of one side: padded when evicted, and the left rows of a semi join."""
        windows = self._window_columns(F.col, None) if side == "left" else self._window_columns(None, F.col)
        columns: dict[str, Column] = {**windows, "left": F.col("left"), "right": F.col("right")}
        if side in self.rules.join_type.padded_sides:
            is_unmatched = F.col("first_match_slice").isNull() & (F.col("evicted_in") >= first_slice)
            padded = rows.where(self.rules.join_type.pads(side) & is_unmatched)
            emission = {"slice": F.col("evicted_in"), "emission": F.lit(f"padded_{side}")}
            yield _select_emissions(padded, {**emission, **columns})
        if side == "left" and "semi" in self.rules.join_type.types:
            matched = rows.where(self.rules.join_type.is_in("semi") & (F.col("first_match_slice") >= first_slice))
            emission = {"slice": F.col("first_match_slice"), "emission": F.lit("semi")}
            yield _select_emissions(matched, {**emission, **columns})

    def _add_eviction_slice(self, copies: DataFrame, side: str) -> DataFrame:
        """Merge accepted copies into rows, evicted with their last copy, or in a semi join when that has matched."""
        if not self.rules.tracks_matches(side):  # the first copy has the last window
            null = F.lit(None).cast(_MATCHES_DTYPE)
            labels = {"eviction_slice": F.col("evicted_in"), "first_match_slices": null}
            return self._select_row_columns(copies.where(F.col("copy") == 0).transform(with_columns, labels))
        is_semi = self.rules.join_type.is_in("semi") if side == "left" else F.lit(False)
        removal_slice = F.when(is_semi, F.least("evicted_in", "first_match_slice")).otherwise(F.col("evicted_in"))
        is_matched = F.col("first_match_slice").isNotNull()
        if not self.windows:
            matched = F.when(is_matched, F.create_map("copy", "first_match_slice"))
            return self._select_row_columns(
                copies.withColumns({"eviction_slice": removal_slice, "first_match_slices": matched})
            )
        names = [name for name in copies.columns if name != "id"]
        copies = copies.withColumns(
            {
                "removal_slice": removal_slice,
                "first_match_entry": F.when(is_matched, F.struct("copy", "first_match_slice")),
            }
        )
        rows = copies.groupBy("id").agg(
            F.first(F.struct(*names)).alias("row"),
            F.when(F.count("removal_slice") == F.count("*"), F.max("removal_slice")).alias("eviction_slice"),
            F.map_from_entries(F.collect_list("first_match_entry")).alias("first_matches"),
        )
        merged = F.map_zip_with(
            "row.first_match_slices", "first_matches", lambda _, before, new: F.coalesce(before, new)
        )
        rows = rows.select("row.*", "eviction_slice", merged.alias("merged"))
        return self._select_row_columns(rows.withColumn("first_match_slices", F.col("merged")))

    def _select_row_columns(self, rows: DataFrame) -> DataFrame:
        labels = ("side", "lane", "slice", "clock", "tiebreak", "event_time", "eviction_slice")
        return rows.select(*labels, *self.carried_columns, *key_columns(rows), *SIDES)

    def _find_late(self, job_rows: JobRows) -> DataFrame:
        """Select rejected and late rows. A row that is late for only some windows is returned once for each."""
        rows = job_rows.late_candidates.where(F.col("rejected").isNull())
        parts = [select_rejected(job_rows.late_candidates)]
        if self.windows is None:
            is_late = _by_side(lambda side: self.rules.is_late(side, F.col("event_time"), F.col("watermark")))
            parts.append(add_late_reason(rows.where(is_late), F.lit("late")))
        else:

            def filter_late(side: str) -> Column:
                def is_late(window: Column) -> Column:
                    return self.rules.is_late(side, window["end"], F.col("watermark"))

                return F.filter("windows", is_late)

            rows = rows.withColumn("windows", self.windows.assign(F.col("event_time")))
            rows = rows.withColumn("late_windows", _by_side(filter_late))
            added = ("windows", "late_windows")
            is_late = F.size("late_windows") == F.size("windows")
            parts.append(add_late_reason(rows.where(is_late), F.lit("late")).drop(*added))
            partly_late = rows.where(~is_late).withColumn("window", F.explode("late_windows"))
            bounds = (floor_div(F.col(f"window.{name}"), 1000) for name in ("start", "end"))
            parts.append(add_late_reason(partly_late, F.lit("late_for_window"), *bounds).drop(*added, "window"))
        return reduce(DataFrame.unionByName, parts)


def _by_side(rule: Callable[[str], Column]) -> Column:
    """Apply the rule of a row's side."""
    return choose_by_side(rule("left"), rule("right"))


def _struct_columns(side: str) -> Columns:
    return lambda name: F.col(f"{side}.{name}")


def _select_emissions(rows: DataFrame, columns: dict[str, Column]) -> DataFrame:
    """Select `EMISSION_COLUMNS`, and the right row's window if it has its own (ms). There is no result time."""
    emission = {**columns, "pane": F.lit(0), "result_time": F.lit(None).cast("bigint")}
    emission |= {name: floor_div(column, 1000) for name, column in columns.items() if name.endswith(WINDOW_BOUNDS)}
    return rows.select(*(emission[name].alias(name) for name in dict.fromkeys((*EMISSION_COLUMNS, *emission))))
