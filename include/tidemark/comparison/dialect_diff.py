"""Replay the same data under each dialect, and attribute each difference to the rule that causes it.

Nothing is written. A rule is derived from labels of the row's input rows: whether a dialect dropped them as late,
joined them behind its watermark, rejected them, or still buffered them when the input ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import combinations
from typing import Any, get_args

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tidemark.comparison.compared_columns import NOT_COMPARED
from tidemark.comparison.in_memory_replay import count_rows, replay_slices
from tidemark.comparison.multiset_diff import BATCH, STREAM, diff_multisets
from tidemark.config import Pipeline, with_overrides
from tidemark.config.pipeline import Dialect
from tidemark.config.sides import SIDES, SideName
from tidemark.errors import PipelineFileError
from tidemark.execution.job_spec import MAX_TINY_JOB_ROWS
from tidemark.execution.replay import ReplayResult
from tidemark.formatting import quote_identifier
from tidemark.joins.join_type import SEMI_ANTI_TYPES
from tidemark.joins.keys import key_sql_over_pair
from tidemark.joins.output_schema import select_emissions
from tidemark.ledger.row_content import content_hash
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.engine import get_engine
from tidemark.spark.materialization import materialize
from tidemark.spark.temporary_settings import with_all_cores
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import ResolvedTimeColumn, as_example_json, parse_example_json

RULES = {
    "null keys": "only some dialects join rows without a key",
    "null event times": "only some dialects join rows without an event time",
    "late rows still join": "flink-sql's interval join drops no late row",
    "watermark by batch": "Spark's watermark moves between micro-batches, Flink's with every row",
    "at the watermark": "Spark drops a row at the watermark, Flink only one behind it",
    "watermark policy": "Spark can follow the faster input, Flink follows the slower",
    "watermark kind": "the DataStream API's watermark is 1 ms behind SQL's",
    "end of input": "Flink's inputs end with a last watermark, a Spark query keeps waiting rows",
    "whole milliseconds": "Flink computes in ms, Spark in us",
    "cleanup timer": "Flink's SQL kept expired rows longer before 1.18",
    "sessions": "of both inputs together, or of each by itself",
    "eviction": "the ms at which a buffered row is evicted",
    "not derived": "no rule explains the row",
}
"""Every rule with a description; each but the last is a section of docs/dialects.md."""


@dataclass(frozen=True)
class DialectResult:
    """Result of one dialect."""

    dialect: str
    """Name of the dialect, with a setting that differs from the pipeline file's, if any."""
    emissions: int | None
    """Number of emitted rows; None if the dialect does not support the join."""
    late: int
    """Number of input rows behind its watermark."""
    unsupported: str | None
    """The part of the join that it does not support."""


@dataclass(frozen=True)
class DialectDifference:
    """Rows that one dialect emits and another does not, by one rule."""

    only_in: str
    not_in: str
    rule: str
    rows: int
    example: dict[str, Any]

    @property
    def section(self) -> str | None:
        """The documentation of the rule."""
        return None if self.rule == "not derived" else f"docs/dialects.md#{self.rule.replace(' ', '-')}"


@dataclass(frozen=True)
class DialectComparison:
    """Results of all dialects, and their differences."""

    pipeline: str
    start: str
    end: str
    results: tuple[DialectResult, ...]
    differences: tuple[DialectDifference, ...]
    key_columns: tuple[str, ...]
    """The most informative columns of an example: keys and event times."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and the section of each rule, as a JSON-ready dictionary."""
        differences = [{**asdict(difference), "section": difference.section} for difference in self.differences]
        return {**asdict(self), "differences": differences}


def compare_dialects(spark: SparkSession, pipeline: Pipeline, lake: str, slices: range) -> DialectComparison:
    """Replay slices from empty state under every dialect that supports the join, and compare the emissions.

    The inputs end after the last slice.

    Raises:
        InputError: An input is missing or unusable.
    """
    inputs = open_inputs(spark, pipeline, lake)
    is_large = count_rows(inputs) * len(get_args(Dialect)) > MAX_TINY_JOB_ROWS
    with with_all_cores(spark) if is_large else nullcontext():
        return _compare_variants(spark, pipeline, inputs, slices)


def _compare_variants(
    spark: SparkSession, pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput], slices: range
) -> DialectComparison:
    grid = Grid.from_config(pipeline.slices)
    variants = {name: {"dialect": name} for name in get_args(Dialect)} | _list_version_variants(pipeline)
    # In threads, because most of the time of each replay is planning on one core.
    with ThreadPoolExecutor(None if get_engine(spark).can_share_session else 1) as pool:
        outcomes = list(
            pool.map(lambda name: _replay_variant(pipeline, name, variants[name], inputs, slices), variants)
        )
        replays = [replay for _, replay in outcomes if replay]
        pairs = (pair for pair in combinations(replays, 2) if _is_comparable(*pair))
        differences = [part for parts in pool.map(lambda pair: _diff(*pair), pairs) for part in parts]
    return DialectComparison(
        pipeline=pipeline.name,
        start=grid.label(slices[0]),
        end=grid.label(slices[-1] + 1),
        results=tuple(result for result, _ in outcomes),
        differences=tuple(differences),
        key_columns=tuple(
            f"{source.side.name}_{name}"
            for source in inputs
            for name in (*_find_key_columns(pipeline, source), source.side.event_time.name)
        ),
    )


def _find_key_columns(pipeline: Pipeline, source: StoredInput) -> list[str]:
    """Return the columns of an input that its keys consist of."""
    names = (name for pair in pipeline.join.keys for name in pair.list_source_names(source.side.name))
    return [name for name in names if name in source.side.schema.names]


def _list_version_variants(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """Return settings that correspond to other versions of the engine, by a name for each."""
    if pipeline.dialect != "flink-sql" or not pipeline.join.interval:
        return {}
    interval = "0 s" if pipeline.join.min_cleanup_interval else "half"
    return {f"flink-sql, min_cleanup_interval {interval}": {"join.min_cleanup_interval": interval}}


def _is_comparable(first: _DialectReplay, second: _DialectReplay) -> bool:
    """Return True unless the second is another version of a different dialect."""
    return second.dialect in {first.dialect, second.name}


def _replay_variant(
    pipeline: Pipeline,
    name: str,
    changes: dict[str, str],
    inputs: tuple[StoredInput, StoredInput],
    slices: range,
) -> tuple[DialectResult, _DialectReplay | None]:
    """Replay the data under other settings; no replay if the dialect does not support the join."""
    try:
        variant = _apply_dialect(pipeline, changes)
    except PipelineFileError as error:
        return DialectResult(name, None, 0, str(error)), None
    result = replay_slices(variant, inputs, slices, drain=variant.checkpoint_arrival is None)
    replay = _DialectReplay.create(result, name, variant, inputs)
    return DialectResult(name, replay.emitted.count(), replay.late, None), replay


def _apply_dialect(pipeline: Pipeline, changes: dict[str, str]) -> Pipeline:
    """Return the pipeline under other settings, with all columns and a row per pair.

    Settings that only another dialect supports are removed.

    Raises:
        PipelineFileError: The dialect does not support the join.
    """
    dialect = changes.get("dialect", pipeline.dialect)
    foreign = ["watermark_strategy"] if dialect == "spark" else ["spark"]
    if dialect != "flink-sql":
        foreign += ["flink_version", "join.min_cleanup_interval"]
    try:
        return with_overrides(pipeline, {"select": None, "explode": None, **dict.fromkeys(foreign), **changes})
    except PipelineFileError as error:
        raise PipelineFileError(str(error).split("the pipeline: ", 1)[-1]) from None


@dataclass(frozen=True)
class _DialectReplay:
    """Materialized output of one dialect."""

    name: str
    """Name of the `DialectResult`."""
    pipeline: Pipeline
    inputs: tuple[StoredInput, StoredInput]
    emitted: DataFrame
    labels: dict[SideName, DataFrame]
    """Labels of late, rejected and buffered input rows, by side. Columns `_hash` and the struct `label`: `reason` in
    the side output, `lost`, the starts of single windows that the row was late for, and `waits`, true if it is
    buffered."""
    late: int

    @classmethod
    def create(
        cls, result: ReplayResult, name: str, pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput]
    ) -> _DialectReplay:
        """Materialize a replay, which can be released afterwards."""
        emitted = materialize(select_emissions(result.joined, pipeline, Grid.from_config(pipeline.slices)), eager=True)
        labels = materialize(_label_rows(result, inputs), eager=True)
        late = labels.agg(F.coalesce(F.sum("_late"), F.lit(0)).alias("rows")).collect()[0]["rows"]
        by_side = {side: labels.where(F.col("_side") == side).select("_hash", "label") for side in SIDES}
        return cls(name, pipeline, inputs, emitted, by_side, late)

    @property
    def dialect(self) -> str:
        """The dialect whose rules were applied."""
        return self.pipeline.dialect


def _label_rows(result: ReplayResult, inputs: tuple[StoredInput, StoredInput]) -> DataFrame:
    """Label the rows of both sides, by `_side` and `_hash`, with the number of `_late` rows; reads each output once."""
    side_output = result.late.select(
        "side", *SIDES, F.col("reason").alias("_reason"), F.timestamp_millis("window_start").alias("_window")
    )
    no_reason = {"_reason": F.lit(None).cast("string"), "_window": F.lit(None).cast("timestamp")}
    is_buffered = F.col("evicted_in").isNull()
    buffered = result.carried.where(is_buffered).select("side", *SIDES).transform(with_columns, no_reason)
    both = side_output.withColumn("_waits", F.lit(False)).unionByName(buffered.withColumn("_waits", F.lit(True)))
    columns = {source.side.name: source.side.emitted_columns for source in inputs}
    wide = both.select(
        *("side", "_reason", "_window", "_waits"),
        *(F.col(side)[name].alias(alias) for side, names in columns.items() for alias, name in names.items()),
    )
    hashes = (F.when(F.col("side") == side, content_hash(wide, names)) for side, names in columns.items())
    hashed = wide.select(
        F.col("side").alias("_side"), F.coalesce(*hashes).alias("_hash"), "_reason", "_window", "_waits"
    )
    is_partial = F.col("_reason") == "late_for_window"
    return hashed.groupBy("_side", "_hash").agg(
        F.struct(
            F.first(F.when(~is_partial, F.col("_reason")), ignorenulls=True).alias("reason"),
            F.collect_set(F.when(is_partial, F.col("_window"))).alias("lost"),
            F.max("_waits").alias("waits"),
        ).alias("label"),
        F.count_if(F.col("_reason").isin("late", "late_but_processed")).alias("_late"),
    )


def _diff(first: _DialectReplay, second: _DialectReplay) -> list[DialectDifference]:
    """Return the rows that only one of two dialects emits, by rule, in the order of `RULES`."""
    names = [name for name in first.emitted.columns if name in second.emitted.columns and name not in NOT_COMPARED]
    diff = diff_multisets(first.emitted, second.emitted, names, {})
    if diff.is_empty:
        return []
    rows = materialize(diff.differing.withColumn("_id", F.monotonically_increasing_id()), eager=True)
    for source in first.inputs:
        rows = _add_labels(rows, source, first, second)
    # The first dialect's rows are the batch.
    rules = {BATCH: _DialectPair(second, first).first_rule(), STREAM: _DialectPair(first, second).first_rule()}
    only_in = F.col("_only_in")
    rows = materialize(
        rows.withColumn("_rule", F.when(only_in == BATCH, rules[BATCH]).otherwise(rules[STREAM])), eager=True
    )
    rule = F.coalesce("_rule", _rule_of_partner(), F.lit("not derived"))
    counts = (
        rows.withColumn("_rule", rule)
        .groupBy("_only_in", "_rule")
        .agg(
            F.sum("_copies").alias("rows"),
            F.min(as_example_json(F.struct(*map(quote_identifier, names)))).alias("example"),
        )
    )
    dialects = {BATCH: (first.name, second.name), STREAM: (second.name, first.name)}
    differences = [
        DialectDifference(
            *dialects[row["_only_in"]], row["_rule"], row["rows"], parse_example_json(row["example"], rows.schema)
        )
        for row in counts.collect()
    ]
    order = list(RULES)
    return sorted(differences, key=lambda difference: (difference.only_in != first.name, order.index(difference.rule)))


def _add_labels(rows: DataFrame, source: StoredInput, *replays: _DialectReplay) -> DataFrame:
    """Add `_SIDE`, the hash of that input's row (null if absent), and its label by each dialect, `_SIDE_NAME`."""
    side = source.side.name
    columns = list(source.side.emitted_columns)
    absent_in = {"left": ("padded_right",), "right": ("padded_left", *SEMI_ANTI_TYPES)}[side]
    row_hash = content_hash(rows, columns) if set(columns) <= set(rows.columns) else F.lit(None).cast("long")
    rows = rows.withColumn(f"_{side}", F.when(~F.col("_emission").isin(*absent_in), row_hash))
    for replay in replays:
        labels = replay.labels[side].withColumnsRenamed({"_hash": f"_{side}", "label": f"_{side}_{replay.name}"})
        rows = rows.join(labels, f"_{side}", "left")
    return rows


@dataclass(frozen=True)
class _DialectPair:
    """A dialect without certain rows, and another one that emits them."""

    without: _DialectReplay
    emitting: _DialectReplay

    def first_rule(self) -> Column:
        """Return the first rule that applies; null for none."""
        return F.coalesce(*(F.when(applies, F.lit(rule)) for rule, applies in self._list_rules()))

    def _list_rules(self) -> Iterator[tuple[str, Column]]:
        """Yield the rules with their conditions, in the order of precedence."""
        join, dialect = self.emitting.pipeline.join, self.without.dialect
        if self.emitting.dialect == dialect:
            yield "cleanup timer", F.lit(True)
            return
        late = self._any_row(lambda side: self._is_dropped(side) | self._is_late(side, self.without))
        yield "null keys", self._any_row(self._has_null_key)
        yield "null event times", self._any_row(lambda side: self._event_time(side).raw.isNull())
        is_joined_late = self._any_row(lambda side: self._is_dropped(side) & self._is_late(side, self.emitting))
        yield "late rows still join", is_joined_late
        if self.emitting.dialect == "spark":
            yield "watermark by batch", late
        elif dialect == "spark":
            follows_faster = self.without.pipeline.spark.multiple_watermark_policy == "max"
            yield "watermark policy" if follows_faster else "at the watermark", late
            is_waiting = self._any_row(lambda side: self._label(side, self.without, "waits"))
            yield "end of input", (F.col("_emission") != "matched") & is_waiting
        else:
            yield "watermark kind", late
        if "spark" in {dialect, self.emitting.dialect}:
            has_micros = self._any_row(lambda side: F.pmod(self._event_time(side).micros, F.lit(1000)) != 0)
            yield "whole milliseconds", has_micros
        if join.window and join.window.session:
            yield "sessions", F.lit(True)
        if join.interval and dialect != "spark":
            yield "eviction", F.col("_emission") == "matched"

    def _any_row(self, condition: Callable[[SideName], Column]) -> Column:
        """Return True if an input row of the emission meets a condition."""
        sides = SIDES[:1] if self.emitting.pipeline.join.type in SEMI_ANTI_TYPES else SIDES
        return reduce(Column.__or__, (F.col(f"_{side}").isNotNull() & condition(side) for side in sides))

    @staticmethod
    def _label(side: SideName, replay: _DialectReplay, field: str) -> Column:
        return F.col(quote_identifier(f"_{side}_{replay.name}"))[field]

    def _is_late(self, side: SideName, replay: _DialectReplay) -> Column:
        return F.coalesce(self._label(side, replay, "reason") == "late_but_processed", F.lit(False))

    def _is_dropped(self, side: SideName) -> Column:
        late = F.coalesce(self._label(side, self.without, "reason") == "late", F.lit(False))
        if self.emitting.pipeline.join.window is None:
            return late
        lost = F.array_contains(self._label(side, self.without, "lost"), F.col("_window_start"))
        return late | F.coalesce(lost, F.lit(False))

    def _has_null_key(self, name: SideName) -> Column:
        side = self.emitting.inputs[SIDES.index(name)].side
        return reduce(
            Column.__or__, (F.expr(key_sql_over_pair(side.schema, name, key)).isNull() for key, _ in side.keys)
        )

    def _event_time(self, name: SideName) -> ResolvedTimeColumn:
        event_time = self.emitting.inputs[SIDES.index(name)].side.event_time
        return replace(event_time, name=f"{name}_{event_time.name}")


def _rule_of_partner() -> Column:
    """Return the rule of a pair that only the other dialect emits, for a row of it that is unmatched here."""
    is_matched = F.col("_emission") == "matched"
    only_in = F.col("_only_in")

    def rule_of_pair(side: SideName) -> Column:
        same_row = Window.partitionBy(F.coalesce(f"_{side}", "_id"))
        rules = {
            table: F.first(F.when(is_matched & (only_in == table), F.col("_rule")), ignorenulls=True).over(same_row)
            for table in (BATCH, STREAM)
        }
        opposite = F.when(only_in == BATCH, rules[STREAM]).otherwise(rules[BATCH])
        return F.when(~is_matched & F.col(f"_{side}").isNotNull(), opposite)

    return F.coalesce(*map(rule_of_pair, SIDES))
