"""Reduce one difference of a comparison to the fewest input rows that still show it.

As a vector file, `tidemark conformance` replays it, and fails on exactly that emission.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.multiset_diff import STREAM
from tidemark.comparison.result import Cause, Comparison
from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_micros, to_micros, to_millis
from tidemark.errors import UserError
from tidemark.execution.replay import ReplayResult, replay
from tidemark.formatting import quote_identifier
from tidemark.joins.factory import create_join, create_lane
from tidemark.joins.keys import has_null_key, key_columns, key_name
from tidemark.joins.rules.flink_common import find_watermark_strategy
from tidemark.ledger.row_content import content_hash
from tidemark.sources.normalization import create_side
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.timegrid.slices import SYNTHETIC_GRID
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.values import Watermarks

Vector = dict[str, Any]

MAX_CANDIDATES = 40
"""Largest number of rows of the same keys to try, those nearest to the difference in event time."""
_CAUSES = (
    "late in the stream",
    "late in the batch",
    "padded before its partner arrived",
    "other settings",
    "partner already evicted",
    "unexplained",
)
"""The causes that the rules of the join decide."""
_ORDER = ("clock", "tiebreak", "side")
_EVENT_TABLE = "key string, lane long, id string, arrival long, ts long"


@dataclass(frozen=True)
class Event:
    """An input row."""

    clock: int
    """Arrival, or event time where slices follow that, in microseconds UTC."""
    tiebreak: int
    side: SideName
    ts: int
    """Event time in ms UTC."""
    key: str | None
    row_hash: int
    """Hash of the columns that the emissions have and the comparison compares."""

    @property
    def id(self) -> str:
        """Name of the event in the vector: its clock and the end of its hash."""
        return f"{self.side} {format_micros(self.clock)} {self.row_hash % 2**32:08x}"

    def to_vector_event(self) -> dict[str, Any]:
        """Return the event in the form of vector files."""
        return {"side": self.side[0].upper(), "key": self.key, "ts": self.ts, "id": self.id}


@dataclass(frozen=True)
class MinimalExample:
    """The fewest input rows that show a difference."""

    number: int
    cause: Cause
    view: CommittedView
    events: Sequence[Event]
    """The rows in order of arrival."""
    check: DifferenceCheck
    ignore_columns: Sequence[str]
    """Columns of the emissions that do not identify a row, because they were not compared."""


def find_minimal_example(
    spark: SparkSession, pipeline: Pipeline, lake: str, comparison: Comparison, number: int
) -> MinimalExample:
    """Find the fewest input rows that reproduce one difference of a comparison.

    Args:
        spark: A session.
        pipeline: The pipeline.
        lake: The lake root.
        comparison: The comparison.
        number: Number of the difference among its examples.

    Raises:
        UserError: No such difference, not a matter of the join's rules, or not shown by the rows around it.
        InputError: An input is missing or unusable.
    """
    cause, example = find_example(comparison, number)
    _require_reproducible(pipeline)
    hashes = {side: example[f"_{side}"] for side in SIDES if example.get(f"_{side}") is not None}
    view = CommittedView.read(spark, pipeline, lake)
    targets, context = _collect_events(view, hashes, comparison.ignore_columns)
    with tuned_for_tiny_queries(spark):
        check = DifferenceCheck(spark, pipeline, targets, only_batch=cause.missing_in == STREAM)
        smallest = minimize_context(number, targets, context, check)
        events = _sorted([*targets, *smallest])
        return MinimalExample(number, cause, view, events, check, comparison.ignore_columns)


def write_vector(example: MinimalExample, file: Path) -> Vector:
    """Write a minimal example as a vector, which `conformance` fails on.

    Args:
        example: The example.
        file: JSON lines; gzipped where the name ends in `.gz`.
    """
    pipeline = example.view.pipeline
    vector = _create_vector(pipeline, f"{pipeline.name}_{example.number}", example.events)
    with tuned_for_tiny_queries(example.view.spark):
        vector["expected"] = example.check.expect_stream_output(example.events)
    opener: Callable[..., Any] = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wt", encoding="utf-8") as lines:
        lines.write(json.dumps(vector) + "\n")
    return vector


def _require_reproducible(pipeline: Pipeline) -> None:
    """Refuse joins that a vector of interval joins cannot express.

    Raises:
        UserError: Says which setting is the obstacle.
    """
    inputs = (pipeline.left, pipeline.right)
    if (
        pipeline.dialect == "spark"
        or not pipeline.join.interval
        or pipeline.join.condition
        or pipeline.uses_processing_time_only
    ):
        raise UserError(
            "compare minimize supports interval joins of Flink's dialects on event time, without a condition. "
            "Use compare run."
        )
    if pipeline.explode is not None:
        raise UserError("compare minimize: a row of `explode` is not a pair, as vectors need. Compare without explode.")
    if any(source.partition or source.idle_timeout for source in inputs):
        raise UserError("compare minimize: vectors support neither partitions nor idle inputs. Compare without them.")
    if pipeline.recorded_watermark_sides:
        raise UserError(
            f"compare minimize: the watermark of {pipeline.recorded_watermark_sides[0]} is recorded, and a few rows do "
            "not contain all of it. Compare with a watermark_delay instead."
        )
    if pipeline.restarts:
        raise UserError("compare minimize: a few rows do not show where the job restarted. Compare without restarts.")
    if any(source.where is not None and not pipeline.has_filter_before_watermark(source) for source in inputs):
        raise UserError(
            "compare minimize: vectors cannot contain rows that `where` removes after the watermark. Remove `where`."
        )


def minimize_context(
    number: int, targets: Sequence[Any], context: Sequence[Any], check: Callable[[Sequence[Sequence[Any]]], list[bool]]
) -> list[Any]:
    """Find the fewest rows that, with those of a difference, show it.

    Raises:
        UserError: All of them do not show it.
    """
    if not check([context])[0]:
        raise UserError(
            f"difference {number}: the {len(targets) + len(context)} rows around it do not show it. "
            "Choose another difference."
        )
    return minimize(context, check)


def minimize(rows: Sequence[Any], passes: Callable[[Sequence[Sequence[Any]]], Sequence[bool]]) -> list[Any]:
    """Minimise rows by delta debugging, until none can be left out.

    Args:
        passes: Tests all candidate subsets of one round together; one result for each.

    >>> minimize("abcdefgh", lambda subsets: [{"c", "f"} <= set(subset) for subset in subsets])
    ['c', 'f']
    """
    smallest = list(rows)
    while smallest:
        subsets = list(_list_subsets(smallest))
        passing = [subset for subset, passed in zip(subsets, passes(subsets), strict=True) if passed]
        if not passing:
            break
        smallest = min(passing, key=len)
    return smallest


def _list_subsets(rows: list[Any]) -> Iterator[list[Any]]:
    """Yield the empty set, then parts and complements of divisions into 2, 4, 8 parts, and so on."""
    yield []
    pieces = 1
    while pieces < len(rows):
        pieces = min(pieces * 2, len(rows))
        ends = [len(rows) * n // pieces for n in range(pieces + 1)]
        for start, end in pairwise(ends):
            yield rows[:start] + rows[end:]
            if pieces > 2:  # noqa: PLR2004 - of two parts each is the complement of the other
                yield rows[start:end]


def find_example(comparison: Comparison, number: int) -> tuple[Cause, dict[str, Any]]:
    """Find a difference by its number, and its cause.

    Raises:
        UserError: There is no such difference, or its cause is not a matter of the join's rules.
    """
    examples = [(cause, example) for cause in comparison.causes for example in cause.examples]
    for cause, example in examples:
        if example["_number"] != number:
            continue
        if cause.cause not in _CAUSES or not any(example.get(f"_{side}") for side in SIDES):
            raise UserError(
                f"difference {number}: its cause '{cause.cause}' does not follow from the join's rules. "
                "Choose another difference."
            )
        return cause, example
    available = f"differences 1 to {len(examples)}" if examples else "no difference"
    raise UserError(
        f"difference {number}: the comparison shows {available}. Raise --examples to see more of each cause."
    )


def _collect_events(
    view: CommittedView, hashes: dict[SideName, int], ignore_columns: Sequence[str]
) -> tuple[list[Event], list[Event]]:
    """Find the rows of the difference, and other rows that may decide it.

    The others are rows of the same keys within the join's reach. For each row they include the two rows that determine
    the watermark at its position.
    """
    left, right = (select_events(view, source, ignore_columns) for source in view.inputs)
    rows = left.unionByName(right)
    matches = [rows.where((F.col("side") == side) & (F.col("row_hash") == value)) for side, value in hashes.items()]
    targets = [to_event(row) for match in matches for row in match.orderBy(*_ORDER).limit(1).collect()]
    if len(targets) < len(hashes):
        raise UserError("compare minimize: an input does not contain a row of the difference. Run compare again.")
    times = [event.ts for event in targets]
    reach = to_micros(view.pipeline.join.max_time_distance or timedelta()) // 1000
    in_reach = F.col("ts").between(min(times) - reach, max(times) + reach) & (F.col("key") == targets[0].key)
    distance = F.least(*(F.abs(F.col("ts") - time) for time in times), F.lit(2**62))
    neighbours = [to_event(row) for row in rows.where(in_reach).orderBy(distance).limit(MAX_CANDIDATES).collect()]
    positions = rows.sparkSession.createDataFrame(
        sorted({(event.clock, event.tiebreak) for event in [*targets, *neighbours]}),
        "position_clock long, position_tiebreak long",
    )
    is_earlier = F.struct("clock", "tiebreak") < F.struct("position_clock", "position_tiebreak")
    earlier = rows.join(F.broadcast(positions), is_earlier)
    newest = earlier.groupBy(*positions.columns, F.col("side").alias("of")).agg(
        F.max_by(F.struct(*rows.columns), F.col("ts")).alias("row")
    )
    raising = map(to_event, newest.select("row.*").distinct().collect())
    context = {*neighbours, *raising} - set(targets)
    return targets, sorted(context, key=lambda event: (event.clock, event.tiebreak, event.side, event.ts))


def select_events(
    view: CommittedView, source: StoredInput, ignore_columns: Sequence[str], row_columns: Sequence[str] = ()
) -> DataFrame:
    """Return the rows of an input that take part, in the columns of `Event`, and some columns of the input as `row`."""
    side, grid = source.side, view.grid
    source.changes.require_exact_arrivals(grid, 0)
    rows = side.normalize(source.table.read().where(side.clock.micros >= grid.start), grid, grid.start)
    key_text = F.concat_ws(", ", *(F.col(key).cast("string") for key in key_columns(rows)))
    fields = {
        "_clock": F.col("clock"),
        "_tiebreak": F.col("tiebreak"),
        "_ts": F.col("event_time"),
        "_key": F.when(~has_null_key(rows), key_text),
    }
    flat = rows.where("rejected IS NULL").select(
        *(column.alias(name) for name, column in fields.items()), f"{side.name}.*"
    )
    compared = [column for name, column in view.map_columns(side.name).items() if name not in ignore_columns]
    row_hash = content_hash(flat, compared)
    row = [F.struct(*map(quote_identifier, row_columns)).alias("row")] if row_columns else []
    names = (F.col(name).alias(name[1:]) for name in fields)
    return flat.select(*names, F.lit(side.name).alias("side"), row_hash.alias("row_hash"), *row)


def to_event(row: Row) -> Event:
    """Return a row of `select_events` without the columns of the input."""
    return Event(**{name: value for name, value in row.asDict().items() if name != "row"})


def _sorted(events: Sequence[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.clock, event.tiebreak, event.side))


def _create_vector(pipeline: Pipeline, name: str, events: Sequence[Event]) -> Vector:
    """Return sorted events under the pipeline's settings as a vector, without expected output."""
    interval = pipeline.join.interval
    is_sql = pipeline.dialect == "flink-sql"
    assert interval and interval.lower is not None and interval.upper is not None, "checked by the pipeline file"  # noqa: PT018
    lower, upper = to_millis(interval.lower), to_millis(interval.upper)
    inclusive = interval.lower_inclusive, interval.upper_inclusive
    # Flink SQL's vectors bound the left time by the right one.
    bounds = dict(zip(("lower", "upper"), (-upper, -lower) if is_sql else (lower, upper), strict=True))
    ends = zip(("lower_inclusive", "upper_inclusive"), reversed(inclusive) if is_sql else inclusive, strict=True)
    sql_params = {
        "join_type": pipeline.join.type,
        "allowed_lateness": 0,
        "min_cleanup_interval": pipeline.join.min_cleanup_interval_ms,
    }
    delays = {f"delay_ms_{side}": to_millis(getattr(pipeline, side).watermark_delay) for side in SIDES}
    return {
        "name": name,
        "dialect": "sql_interval" if is_sql else "datastream_interval",
        "params": {**bounds, **dict(ends), **(sql_params if is_sql else {})},
        "watermark": {"kind": find_watermark_strategy(pipeline), **delays},
        "drain": True,
        "events": [event.to_vector_event() for event in events],
        "expected": {"rows": [], "dropped": []},
    }


@dataclass(frozen=True)
class DifferenceCheck:
    """Tests whether rows reproduce the difference."""

    spark: SparkSession
    pipeline: Pipeline
    targets: Sequence[Event]
    only_batch: bool

    @property
    def emission(self) -> tuple[str | None, str | None]:
        """Left and right id of the emission that differs."""
        left, right = (next((event.id for event in self.targets if event.side == side), None) for side in SIDES)
        return left, right

    def __call__(self, contexts: Sequence[Sequence[Event]]) -> list[bool]:
        """Test whether each set of rows, added to those of the difference, reproduces it. Runs one job."""
        result = self._replay([_sorted([*self.targets, *context]) for context in contexts], slice_per_event=False)
        lane = F.coalesce("left.lane", "right.lane")
        pairs = result.joined.select(lane.alias("lane"), F.col("left.id").alias("l"), F.col("right.id").alias("r"))
        emitting = {row["lane"] for row in pairs.distinct().collect() if (row["l"], row["r"]) == self.emission}
        return [(lane in emitting) == self.only_batch for lane in range(len(contexts))]

    def expect_stream_output(self, events: Sequence[Event]) -> dict[str, Any]:
        """Return the output that the stream wrote for sorted events: the pipeline's, but for the difference."""
        result = self._replay([events], slice_per_event=True)
        joined, late = result.joined.collect(), result.late.where("reason = 'late'").collect()
        rows = [
            {
                **{f"{side}_id": row[side] and row[side]["id"] for side in SIDES},
                "ts": row["result_time"],
                "at": row["slice"],
            }
            for row in joined
        ]
        emission = dict(zip(("left_id", "right_id"), self.emission, strict=True))
        if self.only_batch:
            rows = [row for row in rows if not emission.items() <= row.items()]
        else:
            last = max(number for number, event in enumerate(events) if event.id in self.emission)
            has_time = self.pipeline.dialect == "flink-datastream"
            rows.append({**emission, "ts": max(event.ts for event in self.targets) if has_time else None, "at": last})
        dropped = [{"side": row["side"][0].upper(), "id": row[row["side"]]["id"], "at": row["slice"]} for row in late]
        return {"rows": rows, "dropped": dropped}

    def count_output(self, events: Sequence[Event]) -> tuple[int, int]:
        """Return the number of emissions and of late rows of sorted events."""
        result = self._replay([events], slice_per_event=False)
        return result.joined.count(), result.late.where("reason = 'late'").count()

    def _replay(self, streams: Sequence[Sequence[Event]], *, slice_per_event: bool) -> ReplayResult:
        """Replay streams of sorted events as lanes of one job; each arrives in one slice or in a slice per event."""
        rows: dict[str, list[tuple[Any, ...]]] = {side: [] for side in SIDES}
        for lane, events in enumerate(streams):
            for number, event in enumerate(events):
                arrival = number + (number * SYNTHETIC_GRID.every if slice_per_event else 0)
                rows[event.side].append((event.key, lane, event.id, arrival, event.ts))
        slices = range(max(map(len, streams)) if slice_per_event else 1)
        pipeline = _pipeline_over_events(self.pipeline)
        tables = {side: self.spark.createDataFrame(rows[side], _EVENT_TABLE) for side in SIDES}
        key_types = [tables["left"].schema[name].dataType for name in ("key", "lane")]
        left, right = (
            create_side(pipeline, side, tables[side].schema, key_types).normalize(tables[side], SYNTHETIC_GRID, 0)
            for side in SIDES
        )
        normalized = left.unionByName(right, allowMissingColumns=True).withColumn("lane", F.col(key_name(1)))
        join = create_join(pipeline, self.spark, {side: table.schema for side, table in tables.items()})
        lanes = [create_lane(pipeline, Watermarks(), slices[-1])] * len(streams)
        return replay(normalized, None, lanes, join, Buckets.create(SYNTHETIC_GRID, slices, join.buckets_per_slice))


def _pipeline_over_events(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline's join over tables of events, which have the columns of `_EVENT_TABLE`."""
    join_settings = {"name", "dialect", "flink_version", "watermark_strategy", "join"}
    settings = pipeline.model_dump(mode="json", exclude_unset=True, include=join_settings)
    settings["join"]["keys"] = ["key", "lane"]
    times = {"event_time": {"column": "ts", "unit": "ms"}, "arrival": {"column": "arrival", "unit": "us"}}
    for side in SIDES:
        delay = f"{to_millis(getattr(pipeline, side).watermark_delay)} ms"
        settings[side] = {"table": side, "watermark_delay": delay, **times}
    slices = {"every": "1 s", "start": "1970-01-01T00:00:00Z"}
    return Pipeline.model_validate({**settings, "slices": slices, "time_bounds": False})
