"""Why rows differ: one cause for each, from what is known of the input rows that it was made of.

The *batch* is what the pipeline has committed. The *reference* is what another pipeline has committed that tells how
the stream ran, such as the replay of its trace. It is believed of the rows that it gives as often as the stream did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.comparison.committed_view import KNOWN_OF_ROW, CommittedView
from tidemark.comparison.multiset_diff import BATCH, STREAM
from tidemark.comparison.setting_search import Tried, emissions_under, try_settings
from tidemark.config import Pipeline
from tidemark.config.diff import flat
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import micros
from tidemark.formatting import in_one_line, quoted
from tidemark.joins.window_output import HALVES
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import computed_once

CAUSES = {
    "pending": "not due yet: one of them has not come so far",
    "quarantined": "the pipeline has it in quarantine, for it breaks an expectation",
    "re-fired pane": "an earlier firing of the row's window",
    "emitted twice": "the stream has the row more often than it was due",
    "changed value": "the row as it should be, but for a value",
    "missing in an input": "made of a row that an input does not have",
    "landed after the slice": "a row of it landed after its slice had run",
    "late in the stream": "a row of it came behind the stream's watermark",
    "late in the batch": "a row of it is behind the pipeline's watermark, and was not behind the stream's",
    "evicted before its partner": "a row of it came behind the watermark, when its partner had left the buffers",
    "rejected in the stream": "a row of it could take no part in the stream",
    "rejected in the batch": "a row of it can take no part in the pipeline",
    "padded before its partner came": "padded on one side, matched on the other",
    "other settings": "the stream ran under other settings",
    "unexplained": "none of these",
}
"""Every cause with what it says, in the order in which they are asked for."""
DETAILS = ("_cause", "_input", "_watermark", "_behind_ms", "_held_by", "_detail")
"""What `with_causes` adds: the cause and, where it is known, the input of the row to blame, its watermark (ms) with how
far it was behind and the input that held it, and more in words."""
_DROPPED = ("late", "late_for_window")
_LATE = (*_DROPPED, "behind_watermark")
_MATCHED = ("matched", "semi")


@dataclass(frozen=True)
class Sides:
    """The two views that rows are explained by."""

    batch: CommittedView
    reference: CommittedView | None
    until: int | None
    """The clock, in microseconds and exclusive, up to which the stream has come; None for as far as the batch."""

    @property
    def settings_apart(self) -> str | None:
        """The settings, but for those of tables and clocks, in which the reference is not the batch."""
        return "; ".join(f"{name} {other}, not {one}" for name, (one, other) in self._apart.items()) or None

    @property
    def restarts_apart(self) -> str | None:
        """The restarts of the job in which the reference is not the batch, if it differs in nothing else."""
        return self.settings_apart if all(name.startswith("restarts.") for name in self._apart) else None

    @cached_property
    def _apart(self) -> dict[str, tuple[str, str]]:
        """Settings that differ, with the values of the batch and of the reference."""
        if self.reference is None:
            return {}
        one, other = (_settings_of(view.pipeline) for view in (self.batch, self.reference))
        told = {name: (one.get(name), other.get(name)) for name in one | other}
        return {name: (_told(mine), _told(its)) for name, (mine, its) in told.items() if mine != its}


def with_causes(differing: DataFrame, sides: Sides, names: Sequence[str], identity: Sequence[str]) -> DataFrame:
    """Rows of `align.Aligned.differing`, with `DETAILS`, and `_slice` where their own clocks tell it.

    `names` are the columns compared, `identity` those by which rows are the same but for a changed value.
    """
    # Checkpoints cut off what rows were computed from, where what follows uses them more than once.
    rows = computed_once(differing.withColumn("_id", F.monotonically_increasing_id()), now=True)
    for side in SIDES:
        rows = _with_labels(rows, side, sides)
    counted = with_count(rows, sides.reference.emissions(), names, "_reference") if sides.reference else rows
    rows = counted.withColumn(
        "_as_reference", F.col("_reference") == F.col("_stream") if sides.reference else F.lit(False)
    )
    if (apart := sides.batch.quarantined()) is not None:
        rows = with_count(rows, apart, names, "_quarantined")
    if sides.batch.fires_again:
        panes = emissions_under(sides.batch, {"join.emit": "every-pane"})
        rows = computed_once(with_count(rows, panes, names, "_every_pane"), now=True)
    rows = computed_once(
        rows.withColumn("_clock", F.greatest(*(F.col(f"_{side}_batch.clock") for side in SIDES))), now=True
    )
    rows = _with_changes(rows, names, identity).withColumn("_counterpart", _counterpart())
    grid = sides.batch.grid
    clocked = grid.timestamp_column(grid.number_column(F.col("_clock")))
    rows = rows.withColumn("_slice", F.coalesce("_slice", clocked))
    return computed_once(_with_details(rows, list(_rules(sides, rows))), now=True)


def with_other_settings(
    rows: DataFrame, sides: Sides, stream: DataFrame, names: Sequence[str]
) -> tuple[DataFrame, tuple[Tried, ...]]:
    """Rows of `with_causes`, and the sets of settings tried for those without a cause, the best first.

    If the stream as a whole speaks for the best one, what it explains has it for its cause.
    """
    open_ = F.col("_cause") == "unexplained"
    tried, explained = try_settings(rows.where(open_), sides.batch, stream, names, sides.until)
    if explained is None or not tried[0].holds:
        return rows, tried
    hits = explained.withColumn("_hit", F.lit(True))
    rows = rows.join(hits, "_id", "left")
    hit = open_ & F.col("_hit").isNotNull()
    named = {"_cause": F.when(hit, "other settings").otherwise(F.col("_cause"))}
    named["_detail"] = F.when(hit, F.lit(tried[0].told)).otherwise(F.col("_detail"))
    return computed_once(rows.transform(with_columns, named).drop("_hit"), now=True), tried


def with_count(rows: DataFrame, emissions: DataFrame, names: Sequence[str], column: str) -> DataFrame:
    """How often emissions have the content of each row."""
    rows = rows.withColumn("_content", content_hash(rows, names))
    found = emissions.select(content_hash(emissions, names).alias("_content"))
    found = found.join(rows.select("_content").distinct(), "_content", "semi")
    counts = found.groupBy("_content").agg(F.count("*").alias(column))
    return rows.join(counts, "_content", "left").withColumn(column, F.coalesce(column, F.lit(0))).drop("_content")


def _with_labels(rows: DataFrame, side: SideName, sides: Sides) -> DataFrame:
    """`_SIDE`, the hash of that input's row (null without one), and its labels `_SIDE_batch` and `_SIDE_reference`."""
    columns = sides.batch.columns(side)
    absent = F.lit(None).cast(KNOWN_OF_ROW)
    if not columns:
        nothing = {f"_{side}_{name}": absent for name in ("batch", "reference")}
        return rows.withColumns({f"_{side}": F.lit(None).cast("long"), **nothing})
    lacks = F.col("_emission") == ("padded_right" if side == "left" else "padded_left")
    if side == "right":
        lacks = lacks | F.col("_emission").isin(*HALVES)
    rows = rows.withColumn(f"_{side}", F.when(~lacks, content_hash(rows, columns)))
    wanted = rows.select(F.col(f"_{side}").alias("_hash")).where("_hash IS NOT NULL").distinct()
    for name, view in (("batch", sides.batch), ("reference", sides.reference)):
        if view is None:
            rows = rows.withColumn(f"_{side}_{name}", absent)
            continue
        labels = view.known_of_rows(side, list(columns.values()), wanted)
        labels = labels.select(F.col("_hash").alias(f"_{side}"), F.col("label").alias(f"_{side}_{name}"))
        rows = rows.join(labels, f"_{side}", "left")
    return rows


def _with_changes(rows: DataFrame, names: Sequence[str], identity: Sequence[str]) -> DataFrame:
    """`_changed`: the columns in which a row of the stream that no input has differs from one that only the batch has.

    Both rows have it; rows that no other stands for have null.
    """
    has = {side: (F.col("_missing_in") != side) for side in (BATCH, STREAM)}
    strange = reduce(Column.__or__, (_present(side) & F.col(f"_{side}_batch").isNull() for side in SIDES))
    rows = rows.withColumn("_candidate", has[BATCH] | strange)
    same = [*map(quoted, identity), "_candidate"]
    rows = rows.withColumn("_place", F.row_number().over(Window.partitionBy(*same, "_missing_in").orderBy("_id")))
    pair = Window.partitionBy(*same, "_place")
    content = F.struct(*map(quoted, names))
    both = {f"_{side}_row": F.first(F.when(has[side], content), ignorenulls=True).over(pair) for side in has}
    rows = rows.transform(with_columns, both)
    one, other = F.col(f"_{BATCH}_row"), F.col(f"_{STREAM}_row")
    differ = [F.when(~one[name].eqNullSafe(other[name]), F.lit(name)) for name in names]
    paired = F.col("_candidate") & one.isNotNull() & other.isNotNull()
    changed = F.when(paired, F.array_compact(F.array(*differ)))
    return rows.withColumn("_changed", changed).drop("_candidate", "_place", *both)


def _counterpart() -> Column:
    """Whether the other table, among the rows that differ, pads what this row has matched, or the other way round."""
    matched = F.col("_emission").isin(*_MATCHED)

    def elsewhere(side: SideName, kind: Column) -> Column:
        same = Window.partitionBy(F.coalesce(f"_{side}", "_id"))
        missing = {at: F.bool_or(kind & (F.col("_missing_in") == at)).over(same) for at in (BATCH, STREAM)}
        return F.when(F.col("_missing_in") == BATCH, missing[STREAM]).otherwise(missing[BATCH])

    found = [F.when(matched, elsewhere(side, ~matched)).otherwise(elsewhere(side, matched)) for side in SIDES]
    return reduce(Column.__or__, (_present(side) & one for side, one in zip(SIDES, found, strict=True)))


@dataclass(frozen=True)
class _Rule:
    """When a cause applies, and how to say more."""

    cause: str
    applies: Column
    side: Column | None = None
    """Which input's row is to blame."""
    label: str | None = None
    """Where that row's lateness stands: `batch` or `reference`."""
    detail: Column | None = None


def _rules(sides: Sides, rows: DataFrame) -> Iterator[_Rule]:
    """The rules in the order of `CAUSES`; the first that applies counts."""
    only_stream, only_batch = (F.col("_missing_in") == missing for missing in (BATCH, STREAM))
    matched, as_reference = F.col("_emission").isin(*_MATCHED), F.col("_as_reference")
    batch, grid, no_reference = sides.batch, sides.batch.grid, F.lit(sides.reference is None)

    due = F.when(matched, F.col("_clock")).otherwise(grid.end_column(F.unix_micros("_slice")) - 1)
    buffered = _either("batch", lambda label: label["buffered"])
    not_run = F.col("_clock") >= grid.start_of(batch.end)
    yield _Rule("pending", only_stream & F.coalesce(not_run | (~matched & buffered.isNotNull()), F.lit(False)))
    if sides.until is not None:
        yield _Rule("pending", only_batch & (due >= sides.until))
    if reference := sides.reference:
        clock = F.greatest(*(F.col(f"_{side}_reference.clock") for side in SIDES))
        waits = _either("reference", lambda label: label["buffered"])
        untold = (clock >= reference.grid.start_of(reference.end)) | (~matched & waits.isNotNull())
        behind = F.lit(f"{reference.pipeline.name} has not come so far")
        yield _Rule("pending", only_batch & F.coalesce(untold, F.lit(False)), detail=behind)
    if "_quarantined" in rows.columns:
        yield _Rule("quarantined", only_stream & (F.col("_quarantined") >= F.col("_copies")))
    if batch.fires_again:
        yield _Rule("re-fired pane", only_stream & (F.col("_every_pane") == F.col("_stream")))
    yield _Rule("emitted twice", only_stream & ~as_reference & (F.col("_batch") > 0))
    changed = F.concat_ws(", ", "_changed")
    yield _Rule("changed value", F.size("_changed") > 0, detail=changed)
    for only, view, told_by in ((only_stream, "batch", F.lit(True)), (only_batch, "reference", ~no_reference)):
        unknown = reduce(F.coalesce, (F.when(_present(s) & F.col(f"_{s}_{view}").isNull(), s) for s in SIDES))
        yield _Rule("missing in an input", only & told_by & unknown.isNotNull(), unknown)
    landed = _either("batch", lambda label: label["landed"])
    yield _Rule("landed after the slice", (only_stream | no_reference) & landed.isNotNull(), landed)
    by_restarts = F.lit(f"only by a restart: {sides.restarts_apart}") if sides.restarts_apart else None
    for where, applies, view, reasons in (
        ("stream", only_batch & as_reference, "reference", _DROPPED),
        ("batch", only_stream & as_reference, "batch", _LATE),
    ):
        late = _either(view, _has_reason(*reasons))
        yield _Rule(f"late in the {where}", applies & late.isNotNull(), late, view, by_restarts)
    behind = _either("reference", _has_reason("behind_watermark"))
    yield _Rule(
        "evicted before its partner", only_batch & as_reference & matched & behind.isNotNull(), behind, "reference"
    )
    for where, applies, view in (
        ("stream", only_batch & as_reference, "reference"),
        ("batch", only_stream, "batch"),
    ):
        rejected = _either(view, lambda label: ~label["reason"].isin(*_LATE))
        reason = reduce(F.coalesce, (F.col(f"_{side}_{view}")["reason"] for side in SIDES))
        yield _Rule(f"rejected in the {where}", applies & rejected.isNotNull(), rejected, detail=reason)
    if sides.settings_apart:
        yield _Rule("other settings", as_reference, detail=F.lit(sides.settings_apart))
    yield _Rule("padded before its partner came", F.col("_counterpart"))
    yield from _stories(sides, only_stream, only_batch)


def _stories(sides: Sides, only_stream: Column, only_batch: Column) -> Iterator[_Rule]:
    """What is known of rows without a cause."""
    view, in_stream, not_there = "batch", "and yet in the stream", "and yet not in the stream"
    if sides.reference:
        view = "reference"
        gives = F.lit(f"{sides.reference.pipeline.name} gives it, {not_there}")
        yield _Rule("unexplained", only_batch & (F.col("_reference") >= F.col("_batch")), detail=gives)
    late = _either(view, _has_reason(*_LATE))
    yield _Rule("unexplained", only_stream & late.isNotNull(), late, view, F.lit(in_stream))
    interval = sides.batch.pipeline.join.interval
    if interval:
        left, right = (F.col(f"_{side}_{view}")["event_time"] for side in SIDES)
        lower, upper = (None if bound is None else micros(bound) for bound in (interval.lower, interval.upper))
        beyond = F.lit(False) if lower is None else right - left < lower
        beyond |= F.lit(False) if upper is None else right - left > upper
        apart = F.lit(f"its times are further apart than join.interval, {in_stream}")
        yield _Rule("unexplained", only_stream & F.coalesce(beyond, F.lit(False)), detail=apart)
    on_time = reduce(Column.__and__, (~_present(side) | F.col(f"_{side}_{view}").isNotNull() for side in SIDES))
    on_time &= reduce(Column.__or__, map(_present, SIDES)) & late.isNull()
    for only, told in ((only_stream, in_stream), (only_batch, not_there)):
        yield _Rule("unexplained", only & on_time, detail=F.lit(f"its rows are on time, {told}"))
    yield _Rule("unexplained", F.lit(True))


def _with_details(rows: DataFrame, rules: Sequence[_Rule]) -> DataFrame:
    """`DETAILS`, by the first rule that applies to each row."""
    number = F.coalesce(*(F.when(rule.applies, F.lit(n)) for n, rule in enumerate(rules)))
    rows = rows.withColumn("_rule", number)

    def chosen(of: Callable[[_Rule], Column | None]) -> Column:
        values = [of(rule) for rule in rules]
        none = F.lit(None).cast("string")
        return F.coalesce(*(F.when(F.col("_rule") == n, one) for n, one in enumerate(values) if one is not None), none)

    details = [chosen(lambda rule: F.lit(rule.cause)), chosen(lambda rule: rule.side)]
    details += [chosen(partial(_lateness, part)) for part in ("watermark", "behind_ms", "held_by")]
    details += [chosen(lambda rule: rule.detail)]
    kinds = ("string", "string", "long", "long", "string", "string")
    columns = {name: one.cast(kind) for name, one, kind in zip(DETAILS, details, kinds, strict=True)}
    return rows.transform(with_columns, columns).drop("_rule")


def _lateness(part: str, rule: _Rule) -> Column | None:
    if rule.side is None or rule.label is None:
        return None
    return F.when(rule.side == "left", F.col(f"_left_{rule.label}")[part]).otherwise(
        F.col(f"_right_{rule.label}")[part]
    )


def _present(side: SideName) -> Column:
    return F.col(f"_{side}").isNotNull()


def _either(view: str, holds: Callable[[Column], Column]) -> Column:
    """The input of whose row something holds, null for neither."""
    return F.coalesce(*(F.when(holds(F.col(f"_{side}_{view}")), F.lit(side)) for side in SIDES))


def _has_reason(*reasons: str) -> Callable[[Column], Column]:
    return lambda label: label["reason"].isin(*reasons)


def _settings_of(pipeline: Pipeline) -> dict[str, Any]:
    told = flat(pipeline.deciding_settings())
    watermarks = tuple(f"{side}.watermark" for side in SIDES)
    return {
        name: value
        for name, value in told.items()
        if name.startswith(("dialect", "guard", "join.", "flatten", "restarts", *watermarks))
    }


def _told(value: Any) -> str:
    return in_one_line(str(value))
