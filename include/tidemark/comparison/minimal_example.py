"""One difference of a comparison as a vector: the fewest input rows that still show it, and what the stream wrote.

`tidemark conformance` replays the vector, and fails on exactly that row.
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
from tidemark.comparison.compare import Cause, Comparison
from tidemark.comparison.multiset_diff import STREAM
from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_instant, from_micros, micros, millis
from tidemark.errors import UserError
from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.rules.flink_common import watermark_kind
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark_conformance import Case, Cut, Vector, replays

MOST = 40
"""How many rows of the same keys are tried, those nearest to the difference in event time."""
_OF_THE_JOIN = (
    "late in the stream",
    "late in the batch",
    "padded before its partner came",
    "other settings",
    "evicted before its partner",
    "unexplained",
)
_PLACE = ("clock", "tiebreak", "side")


@dataclass(frozen=True)
class _Event:
    """An input row."""

    clock: int
    tiebreak: int
    side: SideName
    ts: int
    key: str | None
    number: int
    """The hash of those of its columns that the emissions have."""

    def of_vector(self) -> dict[str, Any]:
        """The event as a vector has it."""
        return {"side": self.side[0].upper(), "key": self.key, "ts": self.ts, "id": self.id}

    @property
    def id(self) -> str:
        """The event's name in the vector: when it arrived, and the end of its hash."""
        return f"{self.side} {format_instant(from_micros(self.clock))} {self.number % 2**32:08x}"


def reproduce(
    spark: SparkSession, pipeline: Pipeline, lake: str, comparison: Comparison, number: int, file: Path
) -> Vector:
    """Write the vector of the difference with that number among the comparison's examples; gzipped if `file` ends so.

    Raises:
        UserError: there is no such difference, it is not one of the join's rules, or so few rows do not show it.
        InputError: an input does not serve.
    """
    cause, example = _chosen(comparison, number)
    if pipeline.dialect == "spark" or not pipeline.join.interval or pipeline.join.condition or pipeline.by_clock_alone:
        raise UserError("--reproduce: is for interval joins of Flink's dialects on event time, without a condition")
    if pipeline.flatten is not None:
        raise UserError("--reproduce: a row of `flatten` is not a pair, which a vector has; compare without flatten")
    if any(source.partition or source.idle_after for source in (pipeline.left, pipeline.right)):
        raise UserError("--reproduce: a vector has neither partitions nor idle inputs")
    if pipeline.recorded:
        raise UserError(
            f"--reproduce: the watermark of {pipeline.recorded[0]} is recorded, and a few rows do not have all of it; "
            "compare with a watermark_delay in its place"
        )
    if pipeline.restarts:
        raise UserError("--reproduce: where the job has restarted, a few rows do not tell; compare without restarts")
    sources = (pipeline.left, pipeline.right)
    if any(source.where is not None and not pipeline.filters_at_source(source) for source in sources):
        raise UserError("--reproduce: a vector has no rows that `where` leaves out behind the watermark")
    if cause.cause not in _OF_THE_JOIN or not any(example.get(f"_{side}") for side in SIDES):
        raise UserError(f"--reproduce {number}: a difference by '{cause.cause}' is not one of the join's rules")
    wanted = {side: example[f"_{side}"] for side in SIDES if example.get(f"_{side}") is not None}
    targets, others = _events(CommittedView.read(spark, pipeline, lake), wanted)
    with tuned_for_tiny_queries(spark):
        shown = _Shown(spark, pipeline, targets, only_batch=cause.missing_in == STREAM)
        if not shown([others])[0]:
            raise UserError(f"--reproduce {number}: {len(targets) + len(others)} rows around it do not show it")
        vector = _vector(pipeline, f"{pipeline.name}_{number}", [*targets, *smallest(others, shown)])
        vector["expected"] = shown.as_the_stream(vector)
    opener: Callable[..., Any] = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wt", encoding="utf-8") as lines:
        lines.write(json.dumps(vector) + "\n")
    return vector


def smallest(rows: Sequence[Any], shows: Callable[[Sequence[Sequence[Any]]], Sequence[bool]]) -> list[Any]:
    """Rows of which none can be left out: delta debugging, all the parts of one round tried together.

    >>> smallest("abcdefgh", lambda parts: [{"c", "f"} <= set(part) for part in parts])
    ['c', 'f']
    """
    found = list(rows)
    while found:
        parts = list(_without_some(found))
        passing = [part for part, holds in zip(parts, shows(parts), strict=True) if holds]
        if not passing:
            break
        found = min(passing, key=len)
    return found


def _without_some(rows: list[Any]) -> Iterator[list[Any]]:
    """Nothing, then each part and each complement of a division into 2, 4, 8 parts and so on, to single rows."""
    yield []
    pieces = 1
    while pieces < len(rows):
        pieces = min(pieces * 2, len(rows))
        ends = [len(rows) * n // pieces for n in range(pieces + 1)]
        for start, end in pairwise(ends):
            yield rows[:start] + rows[end:]
            if pieces > 2:  # noqa: PLR2004 - of two parts one is the other's complement
                yield rows[start:end]


def _chosen(comparison: Comparison, number: int) -> tuple[Cause, dict[str, Any]]:
    shown = [(cause, one) for cause in comparison.causes for one in cause.examples]
    for cause, example in shown:
        if example["_number"] == number:
            return cause, example
    known = f"the comparison shows differences 1 to {len(shown)}" if shown else "the comparison shows no difference"
    raise UserError(f"--reproduce {number}: {known}; --examples says how many of each cause it shows")


def _events(view: CommittedView, wanted: dict[SideName, int]) -> tuple[list[_Event], list[_Event]]:
    """The rows that the difference is made of, and others that may decide it.

    Those are rows of the same keys within reach, and for each row the two that the watermark which it met is of.
    """
    left, right = (_placed(view, source) for source in view.inputs)
    rows = left.unionByName(right)
    found = [rows.where((F.col("side") == side) & (F.col("number") == hash_)) for side, hash_ in wanted.items()]
    targets = [_event(one) for part in found for one in part.orderBy(*_PLACE).limit(1).collect()]
    if len(targets) < len(wanted):
        raise UserError("--reproduce: an input no longer has a row that the difference is made of, or never had")
    times = [one.ts for one in targets]
    reach = micros(view.pipeline.join.reach or timedelta()) // 1000
    near = F.col("ts").between(min(times) - reach, max(times) + reach) & (F.col("key") == targets[0].key)
    apart = F.least(*(F.abs(F.col("ts") - at) for at in times), F.lit(2**62))
    mates = [_event(one) for one in rows.where(near).orderBy(apart).limit(MOST).collect()]
    places = rows.sparkSession.createDataFrame(
        sorted({(one.clock, one.tiebreak) for one in [*targets, *mates]}), "met_clock long, met_tiebreak long"
    )
    before = F.struct("clock", "tiebreak") < F.struct("met_clock", "met_tiebreak")
    ahead = rows.join(F.broadcast(places), before).groupBy(*places.columns, F.col("side").alias("of"))
    leading = ahead.agg(F.max_by(F.struct(*rows.columns), F.col("ts")).alias("row")).select("row.*").distinct()
    others = {*mates, *map(_event, leading.collect())} - set(targets)
    return targets, sorted(others, key=lambda one: (one.clock, one.tiebreak, one.side, one.ts))


def _placed(view: CommittedView, source: StoredInput) -> DataFrame:
    """The rows of an input that take part, in the columns of `_Event`."""
    side, grid = source.side, view.grid
    source.refuse_untold(grid, 0)
    rows = side.normalized(source.table.read().where(side.clock.micros >= grid.start), grid, grid.start)
    known = {
        "_clock": F.col("clock"),
        "_tiebreak": F.col("tiebreak"),
        "_ts": F.col("event_time"),
        "_key": F.when(
            ~has_null_key(rows), F.concat_ws(", ", *(F.col(key).cast("string") for key in key_columns(rows)))
        ),
    }
    flat = rows.where("rejected IS NULL").select(*(one.alias(name) for name, one in known.items()), f"{side.name}.*")
    number = content_hash(flat, view.columns(side.name).values())
    return flat.select(
        *(F.col(name).alias(name[1:]) for name in known), F.lit(side.name).alias("side"), number.alias("number")
    )


def _event(row: Row) -> _Event:
    return _Event(**row.asDict())


def _vector(pipeline: Pipeline, name: str, events: Sequence[_Event]) -> Vector:
    """The events under the pipeline's settings, with nothing expected yet."""
    interval, sql = pipeline.join.interval, pipeline.dialect == "flink-sql"
    assert interval and interval.lower is not None and interval.upper is not None, "settings.dialects sees to it"  # noqa: PT018
    lower, upper = millis(interval.lower), millis(interval.upper)
    closed = interval.lower_inclusive, interval.upper_inclusive
    bounds = dict(zip(("lower", "upper"), (-upper, -lower) if sql else (lower, upper), strict=True))
    ends = zip(("lower_inclusive", "upper_inclusive"), reversed(closed) if sql else closed, strict=True)
    of_sql = {"join_type": pipeline.join.type, "allowed_lateness": 0}
    of_sql |= {"min_cleanup_interval": pipeline.join.min_cleanup_ms}
    delays = {f"delay_ms_{side}": millis(getattr(pipeline, side).watermark_delay) for side in SIDES}
    return {
        "name": name,
        "dialect": "sql_interval" if sql else "datastream_interval",
        "params": {**bounds, **dict(ends), **(of_sql if sql else {})},
        "watermark": {"kind": watermark_kind(pipeline), **delays},
        "drain": True,
        "events": [one.of_vector() for one in sorted(events, key=lambda one: (one.clock, one.tiebreak, one.side))],
        "expected": {"rows": [], "dropped": []},
    }


@dataclass(frozen=True)
class _Shown:
    """Which rows show the difference."""

    spark: SparkSession
    pipeline: Pipeline
    targets: Sequence[_Event]
    only_batch: bool

    @property
    def row(self) -> tuple[str | None, str | None]:
        """The left and the right id of the emission."""
        left, right = (next((one.id for one in self.targets if one.side == side), None) for side in SIDES)
        return left, right

    def __call__(self, others: Sequence[Sequence[_Event]]) -> list[bool]:
        """Whether each of these rows do, beside those of the difference itself: lanes of one job."""
        cases = [Case(_vector(self.pipeline, "", [*self.targets, *some]), Cut("1", ())) for some in others]
        emitted = [False] * len(cases)
        for answer in replays(self.spark, cases):
            lane = F.coalesce("left.lane", "right.lane")
            ids = answer.joined.select(lane.alias("lane"), "left.id", F.col("right.id").alias("other")).distinct()
            for one in ids.collect():
                emitted[one["lane"]] |= (one["id"], one["other"]) == self.row
        return [one == self.only_batch for one in emitted]

    def as_the_stream(self, vector: Vector) -> dict[str, Any]:
        """What is expected of a vector: the pipeline's answer, but for the difference."""
        last = len(vector["events"]) - 1
        case = Case(vector, Cut("each", tuple(range(1, last + 1)), one_job=True))
        (answer,) = (
            (a.joined.collect(), a.late.where("reason = 'late'").collect()) for a in replays(self.spark, [case])
        )
        joined, late = answer
        rows = [
            {**{f"{s}_id": row[s] and row[s]["id"] for s in SIDES}, "ts": row["result_time"], "at": row["slice"]}
            for row in joined
        ]
        mine = dict(zip(("left_id", "right_id"), self.row, strict=True))
        if self.only_batch:
            rows = [row for row in rows if not mine.items() <= row.items()]
        else:
            at = max(n for n, event in enumerate(vector["events"]) if event["id"] in self.row)
            datastream = vector["dialect"] == "datastream_interval"
            rows.append({**mine, "ts": max(one.ts for one in self.targets) if datastream else None, "at": at})
        dropped = [{"side": r["side"][0].upper(), "id": r[r["side"]]["id"], "at": r["slice"]} for r in late]
        return {"rows": rows, "dropped": dropped}
