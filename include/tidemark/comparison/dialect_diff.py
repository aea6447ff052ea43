"""The same data under each dialect, and for each row that only one of two emits the rule in which they differ.

Nothing is written. A rule is derived from labels of the row's input rows: whether a dialect dropped them as late, took
them behind its watermark, rejected them, or still held them when the input ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import combinations
from typing import Any, get_args

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tidemark.comparison.compare import NOT_COMPARED
from tidemark.comparison.in_memory_replay import replayed, rows_of
from tidemark.comparison.multiset_diff import BATCH, STREAM, align
from tidemark.config import Pipeline, changed
from tidemark.config.pipeline import Dialect
from tidemark.config.sides import SIDES, SideName
from tidemark.errors import PipelineFileError
from tidemark.execution.job_spec import TINY_ROWS
from tidemark.execution.replay import Replay
from tidemark.formatting import quoted
from tidemark.joins.keys import key_over_pair
from tidemark.joins.output_schema import emissions
from tidemark.joins.window_output import HALVES
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.sources.stored_input import StoredInput, stored_inputs
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import computed_once
from tidemark.spark.temporary_settings import spread
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import Clock

RULES = {
    "null keys": "who takes a row without a key",
    "null event times": "who takes a row without an event time",
    "late rows still join": "flink-sql's interval join drops no late row",
    "watermark by batch": "Spark's watermark moves between micro-batches, Flink's with every row",
    "at the watermark": "Spark drops a row at the watermark, Flink only one behind it",
    "watermark policy": "Spark can follow the faster input, Flink follows the slower",
    "watermark kind": "the DataStream API's watermark is 1 ms behind SQL's",
    "end of input": "Flink's inputs end with a last watermark, a Spark query keeps what waits",
    "whole milliseconds": "Flink reckons in ms, Spark in us",
    "clean-up": "Flink's SQL kept expired rows longer before 1.18",
    "sessions": "of both inputs together, or of each by itself",
    "eviction": "when a buffered row leaves, to the ms",
    "not derived": "none of these",
}
"""Every rule with what it says; each but the last is a section of docs/dialects.md."""


@dataclass(frozen=True)
class Answered:
    """One dialect."""

    dialect: str
    """Its name; with what is told otherwise than in the pipeline file, where that is so."""
    emissions: int | None
    """How many rows it emits; None where it does not know the join."""
    late: int
    """Input rows behind its watermark."""
    refused: str | None
    """What it does not know."""


@dataclass(frozen=True)
class Difference:
    """Rows that one dialect emits and another does not, by one rule."""

    only_in: str
    not_in: str
    rule: str
    rows: int
    example: dict[str, Any]

    @property
    def section(self) -> str | None:
        """Where the rule is described."""
        return None if self.rule == "not derived" else f"docs/dialects.md#{self.rule.replace(' ', '-')}"


@dataclass(frozen=True)
class Dialects:
    """The answers of all dialects, and their differences."""

    pipeline: str
    start: str
    end: str
    answered: tuple[Answered, ...]
    differences: tuple[Difference, ...]
    identity: tuple[str, ...]
    """The columns of an example that tell most of it: keys and event times."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return {
            **asdict(self),
            "differences": [{**asdict(one), "section": one.section} for one in self.differences],
        }


def dialects(spark: SparkSession, pipeline: Pipeline, lake: str, slices: range) -> Dialects:
    """Replay slices from empty state under every dialect that knows the join, their inputs ending behind them.

    Raises:
        InputError: an input does not serve.
    """
    inputs = stored_inputs(spark, pipeline, lake)
    many = rows_of(inputs) * len(get_args(Dialect)) > TINY_ROWS
    with spread(spark) if many else nullcontext():
        return _told(pipeline, inputs, slices)


def _told(pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput], slices: range) -> Dialects:
    grid = Grid.of(pipeline.slices)
    asked = {name: {"dialect": name} for name in get_args(Dialect)} | _otherwise(pipeline)
    # Side by side: most of the time of each is planning, in one thread.
    with ThreadPoolExecutor() as pool:
        replays = list(pool.map(lambda name: _answer(pipeline, name, asked[name], inputs, slices), asked))
        answers = [answer for _, answer in replays if answer]
        pairs = (two for two in combinations(answers, 2) if _are_compared(*two))
        differing = pool.map(lambda pair: _differences(*pair), pairs)
        found = [difference for part in differing for difference in part]
    names = ((one.side.name, [*_key_columns(pipeline, one), one.side.event.name]) for one in inputs)
    identity = tuple(f"{side}_{name}" for side, mine in names for name in mine)
    start, end = grid.name(slices[0]), grid.name(slices[-1] + 1)
    return Dialects(pipeline.name, start, end, tuple(answered for answered, _ in replays), tuple(found), identity)


def _key_columns(pipeline: Pipeline, source: StoredInput) -> list[str]:
    """The columns of an input that are its keys, or that these are made of."""
    told = (name for pair in pipeline.join.keys for name in pair.told_by(source.side.name))
    return [name for name in told if name in source.side.schema.names]


def _otherwise(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """Settings by which other versions of the engine go, by what they are called here."""
    if pipeline.dialect != "flink-sql" or not pipeline.join.interval:
        return {}
    if pipeline.join.min_cleanup:
        return {"flink-sql, min_cleanup 0 s": {"join.min_cleanup": "0 s"}}
    return {"flink-sql, min_cleanup half": {"join.min_cleanup": "half"}}


def _are_compared(one: _DialectAnswer, other: _DialectAnswer) -> bool:
    """Another version is held against its own dialect alone."""
    return other.dialect in {one.dialect, other.name}


def _answer(
    pipeline: Pipeline,
    name: str,
    changes: dict[str, str],
    inputs: tuple[StoredInput, StoredInput],
    slices: range,
) -> tuple[Answered, _DialectAnswer | None]:
    """What a dialect makes of the data, if it knows the join."""
    try:
        under = _under(pipeline, changes)
    except PipelineFileError as error:
        return Answered(name, None, 0, str(error)), None
    replay = replayed(under, inputs, slices, drain=under.trace is None)
    answer = _DialectAnswer.of(replay, name, under, inputs)
    return Answered(name, answer.emitted.count(), answer.late, None), answer


def _under(pipeline: Pipeline, changes: dict[str, str]) -> Pipeline:
    """The pipeline with other settings and all columns, a row per pair, without those that only another dialect knows.

    Raises:
        PipelineFileError: the dialect does not know the join; says what.
    """
    dialect = changes.get("dialect", pipeline.dialect)
    foreign = [] if dialect == "spark" else ["spark"]
    if dialect != "flink-sql":
        foreign += ["engine", "join.min_cleanup"]
    try:
        return changed(pipeline, {"select": None, "flatten": None, **dict.fromkeys(foreign), **changes})
    except PipelineFileError as error:
        raise PipelineFileError(str(error).split("the pipeline: ", 1)[-1]) from None


@dataclass(frozen=True)
class _DialectAnswer:
    """What a dialect made of the data."""

    name: str
    """That of `Answered`."""
    pipeline: Pipeline
    inputs: tuple[StoredInput, StoredInput]
    emitted: DataFrame
    labels: dict[SideName, DataFrame]
    """What became of input rows where there is something to tell, by side and `_hash`: the struct `label` of the
    `reason` in the side output, the starts of windows `lost` to lateness one by one, and whether the row still `waits`.
    """
    late: int

    @classmethod
    def of(
        cls, answer: Replay, name: str, pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput]
    ) -> _DialectAnswer:
        """Keep what is told of a replay, which can then be released."""
        emitted = computed_once(emissions(answer.joined, pipeline, Grid.of(pipeline.slices)), now=True)
        labels = computed_once(_labels(answer, inputs), now=True)
        late = labels.agg(F.coalesce(F.sum("_late"), F.lit(0)).alias("rows")).collect()[0]["rows"]
        by_side = {side: labels.where(F.col("_side") == side).select("_hash", "label") for side in SIDES}
        return cls(name, pipeline, inputs, emitted, by_side, late)

    @property
    def dialect(self) -> str:
        """The dialect whose rules gave the answer."""
        return self.pipeline.dialect


def _labels(answer: Replay, inputs: tuple[StoredInput, StoredInput]) -> DataFrame:
    """Labels of both sides' rows, by `_side` and `_hash`, and how many were `_late`: each output is computed once."""
    aside = answer.late.select(
        "side", *SIDES, F.col("reason").alias("_reason"), F.timestamp_millis("window_start").alias("_window")
    )
    none = {"_reason": F.lit(None).cast("string"), "_window": F.lit(None).cast("timestamp")}
    held = answer.carried.where(F.col("evicted_in").isNull()).select("side", *SIDES).transform(with_columns, none)
    both = aside.withColumn("_waits", F.lit(False)).unionByName(held.withColumn("_waits", F.lit(True)))
    columns = {one.side.name: _columns_of(one) for one in inputs}
    wide = both.select(
        *("side", "_reason", "_window", "_waits"),
        *(F.col(side)[name].alias(told) for side, names in columns.items() for name, told in names.items()),
    )
    hashes = (F.when(F.col("side") == side, content_hash(wide, names.values())) for side, names in columns.items())
    hashed = wide.select(
        F.col("side").alias("_side"), F.coalesce(*hashes).alias("_hash"), "_reason", "_window", "_waits"
    )
    partly = F.col("_reason") == "late_for_window"
    return hashed.groupBy("_side", "_hash").agg(
        F.struct(
            F.first(F.when(~partly, F.col("_reason")), ignorenulls=True).alias("reason"),
            F.collect_set(F.when(partly, F.col("_window"))).alias("lost"),
            F.max("_waits").alias("waits"),
        ).alias("label"),
        F.count_if(F.col("_reason").isin("late", "behind_watermark")).alias("_late"),
    )


def _columns_of(source: StoredInput) -> dict[str, str]:
    """An input's columns, and what emissions call them."""
    return {name: f"{source.side.name}_{name}" for name in source.side.schema.names}


def _differences(one: _DialectAnswer, other: _DialectAnswer) -> list[Difference]:
    """Rows that only one of two emits, by rule; in the order of `RULES`."""
    names = [name for name in one.emitted.columns if name in other.emitted.columns and name not in NOT_COMPARED]
    aligned = align(one.emitted, other.emitted, names, {})
    if aligned.alike:
        return []
    rows = computed_once(aligned.differing.withColumn("_id", F.monotonically_increasing_id()), now=True)
    for source in one.inputs:
        rows = _with_labels(rows, source, one, other)
    rules = {STREAM: _first(_Pair(other, one)), BATCH: _first(_Pair(one, other))}
    missing = F.col("_missing_in")
    rows = computed_once(
        rows.withColumn("_rule", F.when(missing == STREAM, rules[STREAM]).otherwise(rules[BATCH])), now=True
    )
    ruled = F.coalesce("_rule", _rule_of_partner(), F.lit("not derived"))
    by_rule = rows.withColumn("_rule", ruled).groupBy("_missing_in", "_rule")
    counted = by_rule.agg(
        F.sum("_copies").alias("rows"), F.min(F.to_json(F.struct(*map(quoted, names)))).alias("example")
    )
    only = {STREAM: (one.name, other.name), BATCH: (other.name, one.name)}
    found = [
        Difference(*only[row["_missing_in"]], row["_rule"], row["rows"], json.loads(row["example"]))
        for row in counted.collect()
    ]
    return sorted(found, key=lambda its: (its.only_in != one.name, list(RULES).index(its.rule)))


def _with_labels(rows: DataFrame, source: StoredInput, *answers: _DialectAnswer) -> DataFrame:
    """`_SIDE`, the hash of the row of that input, null without one, and `_SIDE_DIALECT`, what each did with it."""
    side, columns = source.side.name, list(_columns_of(source).values())
    absent = {"left": ("padded_right",), "right": ("padded_left", *HALVES)}[side]
    part = content_hash(rows, columns) if set(columns) <= set(rows.columns) else F.lit(None).cast("long")
    rows = rows.withColumn(f"_{side}", F.when(~F.col("_emission").isin(*absent), part))
    for answer in answers:
        labels = answer.labels[side].withColumnsRenamed({"_hash": f"_{side}", "label": f"_{side}_{answer.name}"})
        rows = rows.join(labels, f"_{side}", "left")
    return rows


@dataclass(frozen=True)
class _Pair:
    """A dialect that lacks rows which another has, and what its rules say of them."""

    lacks: _DialectAnswer
    has: _DialectAnswer

    def rules(self) -> Iterator[tuple[str, Column]]:
        """What tells each rule; the first that applies counts."""
        join, lacks = self.has.pipeline.join, self.lacks.dialect
        if self.has.dialect == lacks:
            yield "clean-up", F.lit(True)
            return
        late = self._either(lambda side: self._dropped(side) | self._behind(side, self.lacks))
        yield "null keys", self._either(self._keyless)
        yield "null event times", self._either(lambda side: self._clock(side).raw.isNull())
        yield "late rows still join", self._either(lambda side: self._dropped(side) & self._behind(side, self.has))
        if self.has.dialect == "spark":
            yield "watermark by batch", late
        elif lacks == "spark":
            follows_faster = self.lacks.pipeline.spark.watermark_policy == "max"
            yield "watermark policy" if follows_faster else "at the watermark", late
            waits = self._either(lambda side: self._label(side, self.lacks, "waits"))
            yield "end of input", (F.col("_emission") != "matched") & waits
        else:
            yield "watermark kind", late
        if "spark" in {lacks, self.has.dialect}:
            finer = self._either(lambda side: F.pmod(self._clock(side).micros, F.lit(1000)) != 0)
            yield "whole milliseconds", finer
        if join.window and join.window.session:
            yield "sessions", F.lit(True)
        if join.interval and lacks != "spark":
            yield "eviction", F.col("_emission") == "matched"

    def _either(self, holds: Callable[[SideName], Column]) -> Column:
        """Whether something holds of a row that the emission is made of."""
        sides = SIDES[:1] if self.has.pipeline.join.type in HALVES else SIDES
        return reduce(Column.__or__, (F.col(f"_{side}").isNotNull() & holds(side) for side in sides))

    @staticmethod
    def _label(side: SideName, answer: _DialectAnswer, part: str) -> Column:
        return F.col(quoted(f"_{side}_{answer.name}"))[part]

    def _behind(self, side: SideName, answer: _DialectAnswer) -> Column:
        return F.coalesce(self._label(side, answer, "reason") == "behind_watermark", F.lit(False))

    def _dropped(self, side: SideName) -> Column:
        late = F.coalesce(self._label(side, self.lacks, "reason") == "late", F.lit(False))
        if self.has.pipeline.join.window is None:
            return late
        lost = F.array_contains(self._label(side, self.lacks, "lost"), F.col("_window_start"))
        return late | F.coalesce(lost, F.lit(False))

    def _keyless(self, side: SideName) -> Column:
        of = self.has.inputs[SIDES.index(side)].side
        return reduce(Column.__or__, (F.expr(key_over_pair(of.schema, side, name)).isNull() for name, _ in of.keys))

    def _clock(self, side: SideName) -> Clock:
        event = self.has.inputs[SIDES.index(side)].side.event
        return replace(event, name=f"{side}_{event.name}")


def _first(pair: _Pair) -> Column:
    return F.coalesce(*(F.when(applies, F.lit(rule)) for rule, applies in pair.rules()))


def _rule_of_partner() -> Column:
    """The rule of a pair that only the other dialect makes of a row which is alone here."""
    matched, missing = F.col("_emission") == "matched", F.col("_missing_in")

    def of(side: SideName) -> Column:
        same = Window.partitionBy(F.coalesce(f"_{side}", "_id"))
        pairs = {
            at: F.first(F.when(matched & (missing == at), F.col("_rule")), ignorenulls=True).over(same)
            for at in (BATCH, STREAM)
        }
        opposite = F.when(missing == BATCH, pairs[STREAM]).otherwise(pairs[BATCH])
        return F.when(~matched & F.col(f"_{side}").isNotNull(), opposite)

    return F.coalesce(*map(of, SIDES))
