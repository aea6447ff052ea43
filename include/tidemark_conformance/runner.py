"""Vectors replayed side by side, as lanes of one job, and compared with what the engine did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.errors import UserError
from tidemark.execution.replay import Replay, replay
from tidemark.joins.keys import key_name
from tidemark.ledger.checkpoint_files import buffered_after
from tidemark.sources.stored_input import Side, side_of
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.buckets import Buckets
from tidemark_conformance import flink
from tidemark_conformance import flink_triggers as triggered
from tidemark_conformance import spark as stream_stream
from tidemark_conformance.adapter import KEYS, REFUSED, Kind, Row
from tidemark_conformance.vectors import Case, Cut, Vector, Verdict, parse_cuts, read_vectors, steps

_KINDS: dict[str, type[Kind]] = {**flink.KINDS, **stream_stream.KINDS}
_TYPES = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}
_GRID = Grid(0, 1 << 20)
"""Slices of more microseconds than any vector has steps."""
_LANES = 400


def check_files(
    spark: SparkSession,
    files: list[Path],
    cuts: str,
    shown: Callable[[Sequence[Sequence[Case]]], Iterable[Sequence[Case]]] = iter,
) -> Iterator[Verdict]:
    """Check every vector of the files under every cut, batch by batch; `shown` may tell of each as it goes through.

    Raises:
        UserError: a file cannot be read, or a cut or a dialect is unknown.
    """
    vectors = [readable(vector, path) for path in files for vector in read_vectors(path)]
    cases = [Case(vector, cut) for vector in vectors for cut in parse_cuts(cuts, vector)]
    with tuned_for_tiny_queries(spark):
        for batch in shown(list(_batches(cases))):
            yield from check(spark, batch)


def readable(vector: Vector, path: Path) -> Vector:
    """A vector that has all that its kind asks of it.

    Raises:
        UserError: it has not, or its dialect is unknown.
    """
    try:
        kind = kind_of(vector)
        if not kind.refused:
            kind.pipeline()
        hash(kind.group)
        columns = [("key", str), ("id", str), ("ts", int), *kind.columns]
        _arrow([row for step in kind.steps() for row in step], columns)
        Counter(kind.expected(Cut("1", ())))
        return {**vector, "name": str(vector["name"])}
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        told = " ".join(f"{type(error).__name__} {error}".split())[:200]
        name = str(vector.get("name"))[:80]
        raise UserError(f"{path}: vector {name!r} is not as recorded vectors are: {told}") from None


def check(spark: SparkSession, cases: Sequence[Case]) -> list[Verdict]:
    """Replay vectors side by side, each under its cut, and compare with what the engine did."""
    refused = [case for case in cases if kind_of(case.vector).refused]
    verdicts = {id(case): _compared(kind_of(case.vector), case, Counter([REFUSED])) for case in refused}
    for group in _batches([case for case in cases if id(case) not in verdicts]):
        found: list[Counter[str]] = [Counter() for _ in group]
        kind = kind_of(group[0].vector)
        for answer in replays(spark, group):
            for lane, text in kind.found(answer):
                found[lane][text] += 1
        for case, rows in zip(group, found, strict=True):
            verdicts[id(case)] = _compared(kind_of(case.vector), case, rows)
    return [verdicts[id(case)] for case in cases]


def replays(spark: SparkSession, cases: Sequence[Case]) -> Iterator[Replay]:
    """The replays of cases of one kind side by side: of each slice in turn, or of all in one job. Lanes are cases."""
    kinds = [kind_of(case.vector) for case in cases]
    pipelines = [kind.pipeline() for kind in kinds]
    one_job = cases[0].cut.one_job
    slices = range(max(len(case.cut.starts) for case in cases) + 1)
    tables = [_table(spark, cases, kinds, side) for side in SIDES]
    sides = [_side(pipelines[0], "left", tables[0]), _side(pipelines[0], "right", tables[1])]
    join, carried = kinds[0].join(spark, kinds), None
    lanes = [
        replace(
            kind.lane(pipeline, [_clock(case.cut, step) for step in range(steps(case.vector))]),
            drain=case.drain,
            clocks=kind.clocks(case.cut, slices),
        )
        for case, kind, pipeline in zip(cases, kinds, pipelines, strict=True)
    ]
    for job in [slices] if one_job else [range(n, n + 1) for n in slices]:
        came = [
            side.normalized(table.where(_arrives_in(job)), _GRID, 0) for side, table in zip(sides, tables, strict=True)
        ]
        rows = (
            came[0]
            .unionByName(came[1], allowMissingColumns=True)
            .withColumn("lane", F.col(key_name(KEYS.index("lane"))))
        )
        answer = replay(rows, carried, lanes, join, Buckets(_GRID, job, kinds[0].steps_per_bucket))
        yield answer
        if job[-1] != slices[-1]:
            kept = buffered_after(answer.carried, job[-1])
            carried = spark.createDataFrame(kept.toArrow(), kept.schema)
        lanes = [replace(lane, before=line.ends[job[-1]]) for lane, line in zip(lanes, answer.lines, strict=True)]


def kind_of(vector: Vector) -> Kind:
    """What a vector's dialect makes of it.

    Raises:
        UserError: a dialect that this version does not replay.
    """
    dialect = vector.get("dialect") or vector.get("engine", "").partition("-")[0]
    if dialect not in _KINDS:
        raise UserError(
            f"vector {vector.get('name')} is of dialect {dialect}; this version replays {', '.join(_KINDS)}"
        )
    if dialect == "datastream_window" and triggered.is_told_by(vector):
        return triggered.DatastreamTrigger(vector)
    return _KINDS[dialect](vector)


def _batches(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Cases that can share a job."""
    alike: dict[object, list[Case]] = defaultdict(list)
    for case in cases:
        kind = kind_of(case.vector)
        alike[type(kind), kind.group, case.cut.one_job].append(case)
    for group in alike.values():
        yield from (group[start : start + _LANES] for start in range(0, len(group), _LANES))


def _compared(kind: Kind, case: Case, found: Counter[str]) -> Verdict:
    expected = Counter(kind.expected(case.cut))
    return Verdict(
        case.vector["name"],
        case.cut.name,
        tuple(f"{n} x {row}" for row, n in sorted((expected - found).items())),
        tuple(f"{n} x {row}" for row, n in sorted((found - expected).items()) if not kind.is_beyond(case.cut, row)),
    )


def _table(spark: SparkSession, cases: Sequence[Case], kinds: Sequence[Kind], side: str) -> DataFrame:
    rows = []
    for lane, (case, kind) in enumerate(zip(cases, kinds, strict=True)):
        for number, step in enumerate(kind.steps()):
            arrival = _clock(case.cut, number)
            rows += [{**row, **kind.params, "lane": lane, "arrival": arrival} for row in step if row["side"] == side]
    known = [("key", str), ("lane", int), *((k, type(v)) for k, v in kinds[0].params.items())]
    columns = [*known, ("id", str), ("arrival", int), ("ts", int), *kinds[0].columns]
    return spark.createDataFrame(_arrow(rows, columns))


def _arrow(rows: list[Row], columns: Iterable[tuple[str, type]]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([(name, _TYPES[kind]) for name, kind in columns]))


def _clock(cut: Cut, step: int) -> int:
    return cut.slice_of(step) * _GRID.every + step


def _side(pipeline: Pipeline, which: SideName, table: DataFrame) -> Side:
    kinds = [table.schema[pair.left].dataType for pair in pipeline.join.keys]
    return side_of(pipeline, which, table.schema, kinds)


def _arrives_in(job: range) -> Column:
    return F.col("arrival").between(_GRID.start_of(job[0]), _GRID.start_of(job[-1] + 1) - 1)
