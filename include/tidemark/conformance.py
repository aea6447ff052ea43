"""Golden vectors: what the real engines did, replayed through the code that `run` uses.

A vector's events are rows of two in-memory tables on the arrival clock. A cut into n slices runs n jobs of one slice,
with the buffered rows and watermarks carried between them; the cut `each` runs one job with a slice per event.
Emissions and late rows must be those of the engine, each in the slice in which the engine emitted it.

A Spark job costs seconds whatever its size, so hundreds of vectors share one: each is a lane of the replay, with its
number and its bounds among the join keys.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import track

from tidemark.checkpoint import buffered_after
from tidemark.errors import UserError
from tidemark.inputs import Side, side_of
from tidemark.joins.flink_datastream import IntervalRules, WatermarkLag, inclusive_bounds
from tidemark.replay import Replay, replay
from tidemark.session import spark_session, tuned_for_tiny_queries
from tidemark.slices import Grid
from tidemark.spec import Pipeline
from tidemark.watermarks import Buckets, Lane

Vector = dict[str, Any]
_KEYS = ("key", "lane", "lower", "upper")
_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("id", pa.string()),
        *((name, pa.int64()) for name in ("lane", "lower", "upper", "arrival", "ts")),
    ]
)
_GRID = Grid(0, 1 << 20)
"""Slices of more microseconds than any vector has events."""
_LANES = 400


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
class Case:
    """One vector under one cut."""

    vector: Vector
    cut: Cut

    def drains(self, job: range, slices: range) -> bool:
        """Whether the vector's input ends with this job, of those that cover `slices`."""
        last = slices[-1] if self.cut.one_job else len(self.cut.starts)
        return bool(self.vector["drain"]) and last in job


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
    cases = [Case(vector, cut) for path in files for vector in read_vectors(path) for cut in parse_cuts(cuts, vector)]
    with tuned_for_tiny_queries(spark_session("tidemark conformance")) as spark:
        batches = list(_batches(cases))
        for batch in track(batches, "replaying", console=Console(stderr=True), transient=True):
            yield from check(spark, batch)


def check(spark: SparkSession, cases: Sequence[Case]) -> list[Verdict]:
    """Replay vectors side by side, each under its cut, and compare with what the engine did."""
    verdicts: dict[int, Verdict] = {}
    for one_job in (False, True):
        chosen = {number: case for number, case in enumerate(cases) if case.cut.one_job == one_job}
        found: list[Counter[str]] = [Counter() for _ in chosen]
        for answer in replays(spark, list(chosen.values()), one_job=one_job) if chosen else ():
            for lane, text in _told(answer):
                found[lane][text] += 1
        for (number, case), rows in zip(chosen.items(), found, strict=True):
            verdicts[number] = _compared(case, rows)
    return [verdicts[number] for number in range(len(cases))]


def replays(spark: SparkSession, cases: Sequence[Case], *, one_job: bool) -> Iterator[Replay]:
    """The replays of cases side by side: of each slice number in turn, or of all in one job. Lanes are cases."""
    pipelines = [pipeline_of(case.vector) for case in cases]
    slices = range(max(len(case.cut.starts) for case in cases) + 1)
    tables = [_table(spark, cases, pipelines, letter) for letter in "LR"]
    sides = [_side(pipelines[0], "left", tables[0]), _side(pipelines[0], "right", tables[1])]
    rules = IntervalRules(F.col("key_2"), F.col("key_3"))
    lanes, carried = [Lane(WatermarkLag.of(pipeline)) for pipeline in pipelines], None
    for job in [slices] if one_job else [range(n, n + 1) for n in slices]:
        came = [
            side.labelled(table.where(_arrives_in(job)), _GRID, 0) for side, table in zip(sides, tables, strict=True)
        ]
        rows = came[0].unionByName(came[1], allowMissingColumns=True).withColumn("lane", F.col("key_1"))
        lanes = [replace(lane, drain=case.drains(job, slices)) for lane, case in zip(lanes, cases, strict=True)]
        # Three events to a bucket: rows are put in order inside buckets, not only between them.
        answer = replay(rows, carried, lanes, rules, Buckets(_GRID, job, 3))
        yield answer
        if job[-1] != slices[-1]:
            kept = buffered_after(answer.carried, job[-1])
            carried = spark.createDataFrame(kept.toArrow(), kept.schema)
        lanes = [replace(lane, before=line.ends[job[-1]]) for lane, line in zip(lanes, answer.lines, strict=True)]
        answer.release()


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
                "keys": list(_KEYS),
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


def _batches(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    for one_job in (False, True):
        chosen = [case for case in cases if case.cut.one_job == one_job]
        yield from (chosen[start : start + _LANES] for start in range(0, len(chosen), _LANES))


def _compared(case: Case, found: Counter[str]) -> Verdict:
    expected = Counter(_expected(case.vector, case.cut))
    return Verdict(
        case.vector["name"],
        case.cut.name,
        tuple(f"{n} x {row}" for row, n in sorted((expected - found).items())),
        tuple(f"{n} x {row}" for row, n in sorted((found - expected).items())),
    )


def _expected(vector: Vector, cut: Cut) -> Iterator[str]:
    last = len(vector["events"]) - 1
    for row in vector["expected"]["rows"]:
        at = cut.slice_of(last if row["at"] == "drain" else row["at"])
        yield f"slice {at}: {row['left_id']} with {row['right_id']} at {row['ts']}"
    for row in vector["expected"]["dropped"]:
        yield f"slice {cut.slice_of(row['at'])}: {row['id']} late"


def _told(answer: Replay) -> Iterator[tuple[int, str]]:
    """Lane and text of each emission and late row."""
    for row in answer.joined.collect():
        left, right = row["left"], row["right"]
        yield left["lane"], f"slice {row['slice']}: {left['id']} with {right['id']} at {max(left['ts'], right['ts'])}"
    for row in answer.late.collect():
        its = row[row["side"]]
        yield its["lane"], f"slice {row['slice']}: {its['id']} {row['reason']}"


def _table(spark: SparkSession, cases: Sequence[Case], pipelines: Sequence[Pipeline], letter: str) -> DataFrame:
    rows = []
    for lane, (case, pipeline) in enumerate(zip(cases, pipelines, strict=True)):
        lower, upper = inclusive_bounds(pipeline.join.interval)
        for number, event in enumerate(case.vector["events"]):
            if event["side"] == letter:
                arrival = case.cut.slice_of(number) * _GRID.every + number
                rows.append({**event, "lane": lane, "lower": lower, "upper": upper, "arrival": arrival})
    return spark.createDataFrame(pa.Table.from_pylist(rows, _SCHEMA))


def _side(pipeline: Pipeline, which: Literal["left", "right"], table: DataFrame) -> Side:
    return side_of(pipeline, which, table.schema, [table.schema[name].dataType.simpleString() for name in _KEYS])


def _arrives_in(job: range) -> Column:
    return F.col("arrival").between(_GRID.start_of(job[0]), _GRID.start_of(job[-1] + 1) - 1)
