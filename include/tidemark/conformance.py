"""Golden vectors: what the real engines did, replayed through the code that `run` uses.

A vector's events are rows of two in-memory tables on the arrival clock. A cut into n slices runs n jobs of one slice,
with the buffered rows and watermarks carried between them; the cut `each` runs one job with a slice per event.
Emissions and late rows must be those of the engine, each in the slice in which the engine emitted it.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import track

from tidemark.checkpoint import buffered_after
from tidemark.errors import UserError
from tidemark.inputs import Side, side_of
from tidemark.joins.flink_datastream import IntervalRules, WatermarkLag
from tidemark.replay import Carry, replay
from tidemark.session import spark_session
from tidemark.slices import Grid
from tidemark.spec import Pipeline

Vector = dict[str, Any]
_SCHEMA = pa.schema([("arrival", pa.int64()), ("ts", pa.int64()), ("key", pa.string()), ("id", pa.string())])
_TINY = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_SPACING = 1 << 20
"""Microseconds of the clock per slice: more than any vector has events."""


@dataclass(frozen=True)
class Cut:
    """Where a vector is cut: numbers of the events that begin a new slice, and whether each slice is a job."""

    name: str
    starts: tuple[int, ...]
    one_job: bool = False

    def slice_of(self, event: int) -> int:
        """Number of the slice that holds an event."""
        return sum(start <= event for start in self.starts)


@dataclass(frozen=True)
class Verdict:
    """One vector under one cut: rows missing and rows too many, each with its count; both empty if it passed."""

    vector: str
    cut: str
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the answer is the engine's."""
        return not (self.missing or self.unexpected)

    def describe(self) -> dict[str, Any]:
        """The verdict for scripts: JSON-ready."""
        return {**asdict(self), "passed": self.passed}


def read_vectors(path: Path) -> Iterator[Vector]:
    """The vectors of a JSON-lines file, gzipped or not.

    Raises:
        UserError: the file is missing or is not JSON lines.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a vector file (JSON lines, may be gzipped): {error}") from None


def parse_cuts(text: str, vector: Vector) -> list[Cut]:
    """Cuts of one vector from an option such as `1,2,7,random:5,each`.

    Raises:
        UserError: a part is not a number above 0, `each`, or `random:SEED`.
    """
    return [_cut(part.strip(), vector) for part in text.split(",")]


def check_files(files: list[Path], cuts: str) -> Iterator[Verdict]:
    """Check every vector of the files under every cut, in a session tuned for many tiny queries."""
    every = [(vector, cut) for path in files for vector in read_vectors(path) for cut in parse_cuts(cuts, vector)]
    spark = spark_session("tidemark conformance")
    with tuned_for_tiny_queries(spark):
        for vector, cut in track(every, "replaying", console=Console(stderr=True), transient=True):
            yield check(spark, vector, cut)


@contextmanager
def tuned_for_tiny_queries(spark: SparkSession) -> Iterator[None]:
    """Settings under which thousands of queries over a few rows do not take hours; the plans stay the same."""
    before = {key: spark.conf.get(key, None) for key in _TINY}
    for key, tiny in _TINY.items():
        spark.conf.set(key, tiny)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value) if value is not None else spark.conf.unset(key)


def check(spark: SparkSession, vector: Vector, cut: Cut) -> Verdict:
    """Replay one vector under one cut and compare with what the engine did."""
    expected = Counter(_expected(vector, cut))
    found = Counter(_replayed(spark, vector, cut))
    return Verdict(
        vector["name"],
        cut.name,
        tuple(f"{n} x {row}" for row, n in sorted((expected - found).items())),
        tuple(f"{n} x {row}" for row, n in sorted((found - expected).items())),
    )


def pipeline_of(vector: Vector) -> Pipeline:
    """The pipeline file that a vector stands for, with guards off.

    Raises:
        UserError: a dialect that this version does not replay.
    """
    if vector.get("dialect") != "datastream_interval":
        raise UserError(
            f"vector {vector['name']} is of dialect {vector.get('dialect') or vector.get('engine')}; "
            "this version replays datastream_interval"
        )
    params, watermark = vector["params"], vector["watermark"]
    times = {"event_time": {"column": "ts", "unit": "ms"}, "arrival": {"column": "arrival", "unit": "us"}}
    return Pipeline.model_validate(
        {
            "name": "vector",
            "dialect": "flink-datastream",
            "left": {"table": "left", "watermark_delay": f"{watermark['delay_ms_left']} ms", **times},
            "right": {"table": "right", "watermark_delay": f"{watermark['delay_ms_right']} ms", **times},
            "join": {
                "keys": ["key"],
                "interval": {k: f"{v} ms" if k in ("lower", "upper") else v for k, v in params.items()},
            },
            "slices": {"every": "1 s", "start": "1970-01-01T00:00:00Z"},
            "guard": False,
            "watermark_kind": watermark["kind"],
        }
    )


def _cut(text: str, vector: Vector) -> Cut:
    events = len(vector["events"])
    if text == "each":
        return Cut(text, tuple(range(1, events)), one_job=True)
    if text.startswith("random:") and text[7:].isdigit():
        chosen = random.Random(f"{text}/{vector['name']}")  # noqa: S311 - a seed, not a secret
        return Cut(text, tuple(sorted(chosen.sample(range(1, events), chosen.randint(1, min(3, events - 1))))))
    if text.isdigit() and int(text) > 0:
        count = min(int(text), events)
        return Cut(text, tuple(events * n // count for n in range(1, count)))
    raise UserError(f"--cuts {text}: a cut is a number of slices above 0, 'each', or random:SEED")


def _expected(vector: Vector, cut: Cut) -> Iterator[str]:
    last = len(vector["events"]) - 1
    for row in vector["expected"]["rows"]:
        at = cut.slice_of(last if row["at"] == "drain" else row["at"])
        yield f"slice {at}: {row['left_id']} with {row['right_id']} at {row['ts']}"
    for row in vector["expected"]["dropped"]:
        yield f"slice {cut.slice_of(row['at'])}: {row['id']} late"


def _replayed(spark: SparkSession, vector: Vector, cut: Cut) -> Iterator[str]:
    pipeline = pipeline_of(vector)
    rules, lag = IntervalRules.of(pipeline.join.interval), WatermarkLag.of(pipeline)
    left, right = (_table(spark, vector, cut, letter) for letter in "LR")
    left_side, right_side = (_side(pipeline, "left", left), _side(pipeline, "right", right))
    grid, numbers = Grid(0, _SPACING), range(len(cut.starts) + 1)
    jobs = [numbers] if cut.one_job else [range(n, n + 1) for n in numbers]
    carry = Carry()
    for job in jobs:
        came = (
            left_side.labelled(left.where(_arrives_in(job)), grid, 0),
            right_side.labelled(right.where(_arrives_in(job)), grid, 0),
        )
        drain = vector["drain"] and job[-1] == numbers[-1]
        # Three events to a bucket: rows are put in order inside buckets, not only between them.
        answer = replay(*came, carry, job, rules, lag, bucket_width=3, drain=drain)
        for row in answer.joined.select("*", F.greatest("left_event_time", "right_event_time").alias("ts")).collect():
            yield f"slice {row['slice']}: {row['left']['id']} with {row['right']['id']} at {row['ts']}"
        for row in answer.late.collect():
            yield f"slice {row['slice']}: {row[row['side']]['id']} {row['reason']}"
        if job[-1] != numbers[-1]:
            kept = buffered_after(answer.carried, job[-1])
            carry = Carry(answer.timeline.slice_ends[job[-1]], spark.createDataFrame(kept.toArrow(), kept.schema))
        answer.release()


def _table(spark: SparkSession, vector: Vector, cut: Cut, letter: str) -> DataFrame:
    rows = [
        {**event, "arrival": cut.slice_of(number) * _SPACING + number}
        for number, event in enumerate(vector["events"])
        if event["side"] == letter
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, _SCHEMA))


def _side(pipeline: Pipeline, which: Literal["left", "right"], table: DataFrame) -> Side:
    return side_of(pipeline, which, table.schema, ["string"])


def _arrives_in(job: range) -> Any:
    return F.col("arrival").between(job[0] * _SPACING, (job[-1] + 1) * _SPACING - 1)
