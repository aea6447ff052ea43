"""Replay vectors as lanes of one job, and compare the output with the engine's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.errors import UserError
from tidemark.execution.lane_replay import replay_jobs
from tidemark.execution.replay import ReplayResult
from tidemark.joins.keys import key_name
from tidemark.planning.replay_strategy import DEFAULT_LIMITS, ReplayLimits
from tidemark.sources.normalization import Side, create_side
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.buckets import Buckets
from tidemark_conformance import flink, flink_triggers
from tidemark_conformance import spark as spark_vectors
from tidemark_conformance.adapter import KEYS, REFUSED, Row, VectorAdapter
from tidemark_conformance.vectors import (
    Case,
    ConformanceResult,
    Cut,
    Vector,
    count_steps,
    parse_cuts,
    read_vectors,
)

_ADAPTERS: dict[str, type[VectorAdapter]] = {**flink.ADAPTERS, **spark_vectors.ADAPTERS}
_ARROW_TYPES = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}
_GRID = Grid(0, 1 << 20)
"""Slices of more microseconds than any vector has steps."""
_MAX_LANES = 400


def check_files(
    spark: SparkSession,
    files: list[Path],
    cuts: str,
    progress: Callable[[Sequence[Sequence[Case]]], Iterable[Sequence[Case]]] = iter,
) -> Iterator[ConformanceResult]:
    """Check every vector of the files under every cut, batch by batch.

    Args:
        progress: iterates over the batches, and may report each.

    Raises:
        UserError: a file is unreadable, or a cut or a dialect is unknown.
    """
    vectors = [validate_vector(vector, path) for path in files for vector in read_vectors(path)]
    cases = [Case(vector, cut) for vector in vectors for cut in parse_cuts(cuts, vector)]
    with tuned_for_tiny_queries(spark):
        for batch in progress(list(_batch_cases(cases))):
            yield from check_cases(spark, batch)


def validate_vector(vector: Vector, path: Path) -> Vector:
    """Return a vector if it has all fields that its dialect needs.

    Raises:
        UserError: a field is missing or malformed, or the dialect is unknown.
    """
    try:
        adapter = create_adapter(vector)
        if not adapter.is_refused:
            adapter.create_pipeline()
        hash(adapter.job_key)
        columns = [("key", str), ("id", str), ("ts", int), *adapter.columns]
        _to_arrow([row for step in adapter.read_steps() for row in step], columns)
        Counter(adapter.format_expected(Cut("1", ())))
        return {**vector, "name": str(vector["name"])}
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
        name = str(vector.get("name"))[:80]
        raise UserError(f"{path}: vector {name!r} is malformed: {reason}. Record it again.") from None


def check_cases(
    spark: SparkSession, cases: Sequence[Case], limits: ReplayLimits = DEFAULT_LIMITS
) -> list[ConformanceResult]:
    """Replay cases side by side, and compare each with the engine's output."""
    refused = [case for case in cases if create_adapter(case.vector).is_refused]
    results = {id(case): _compare(create_adapter(case.vector), case, Counter([REFUSED])) for case in refused}
    for batch in _batch_cases([case for case in cases if id(case) not in results]):
        outputs: list[Counter[str]] = [Counter() for _ in batch]
        adapter = create_adapter(batch[0].vector)
        for answer in replay_cases(spark, batch, limits):
            for lane, text in adapter.format_replay(answer):
                outputs[lane][text] += 1
        for case, output in zip(batch, outputs, strict=True):
            results[id(case)] = _compare(create_adapter(case.vector), case, output)
    return [results[id(case)] for case in cases]


def replay_cases(
    spark: SparkSession, cases: Sequence[Case], limits: ReplayLimits = DEFAULT_LIMITS
) -> Iterator[ReplayResult]:
    """Replay cases that can share a job, as lanes: slice by slice, or all slices in one job."""
    adapters = [create_adapter(case.vector) for case in cases]
    pipelines = [adapter.create_pipeline() for adapter in adapters]
    single_job = cases[0].cut.single_job
    slices = range(max(len(case.cut.starts) for case in cases) + 1)
    tables = [_create_table(spark, cases, adapters, side) for side in SIDES]
    sides = [_create_side(pipelines[0], name, table) for name, table in zip(SIDES, tables, strict=True)]
    join = adapters[0].create_join(spark, adapters)
    lanes = [
        replace(
            adapter.create_lane(pipeline, [_clock(case.cut, step) for step in range(count_steps(case.vector))]),
            drain=case.drain,
            end_clocks=adapter.processing_times(case.cut, slices),
        )
        for case, adapter, pipeline in zip(cases, adapters, pipelines, strict=True)
    ]
    left, right = (side.normalize(table, _GRID, 0) for side, table in zip(sides, tables, strict=True))
    rows = left.unionByName(right, allowMissingColumns=True).withColumn("lane", F.col(key_name(KEYS.index("lane"))))
    jobs = [slices] if single_job else [range(n, n + 1) for n in slices]
    yield from replay_jobs(
        rows, lanes, join, [Buckets(_GRID, job, adapters[0].steps_per_bucket) for job in jobs], limits
    )


def create_adapter(vector: Vector) -> VectorAdapter:
    """Return the adapter of a vector's dialect.

    Raises:
        UserError: this version does not replay the dialect.
    """
    dialect = vector.get("dialect") or vector.get("engine", "").partition("-")[0]
    if dialect not in _ADAPTERS:
        raise UserError(f"vector {vector.get('name')} has dialect {dialect}. Pass one of {', '.join(_ADAPTERS)}.")
    if dialect == "datastream_window" and flink_triggers.has_trigger_settings(vector):
        return flink_triggers.DatastreamTrigger(vector)
    return _ADAPTERS[dialect](vector)


def _batch_cases(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Group cases that can share a job."""
    groups: dict[object, list[Case]] = defaultdict(list)
    for case in cases:
        adapter = create_adapter(case.vector)
        groups[type(adapter), adapter.job_key, case.cut.single_job].append(case)
    for group in groups.values():
        yield from (group[start : start + _MAX_LANES] for start in range(0, len(group), _MAX_LANES))


def _compare(adapter: VectorAdapter, case: Case, output: Counter[str]) -> ConformanceResult:
    expected = Counter(adapter.format_expected(case.cut))
    surplus = sorted((output - expected).items())
    return ConformanceResult(
        case.vector["name"],
        case.cut.name,
        tuple(f"{count} x {row}" for row, count in sorted((expected - output).items())),
        tuple(f"{count} x {row}" for row, count in surplus if not adapter.is_undecidable(case.cut, row)),
    )


def _create_table(
    spark: SparkSession, cases: Sequence[Case], adapters: Sequence[VectorAdapter], side: str
) -> DataFrame:
    """Create one side's input table, with the rows of all lanes."""
    rows = []
    for lane, (case, adapter) in enumerate(zip(cases, adapters, strict=True)):
        for number, step in enumerate(adapter.read_steps()):
            constants = {**adapter.params, "lane": lane, "arrival": _clock(case.cut, number)}
            rows += [{**row, **constants} for row in step if row["side"] == side]
    params = [(name, type(value)) for name, value in adapters[0].params.items()]
    columns = [("key", str), ("lane", int), *params, ("id", str), ("arrival", int), ("ts", int), *adapters[0].columns]
    return spark.createDataFrame(_to_arrow(rows, columns))


def _to_arrow(rows: list[Row], columns: Iterable[tuple[str, type]]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([(name, _ARROW_TYPES[dtype]) for name, dtype in columns]))


def _clock(cut: Cut, step: int) -> int:
    """Return the arrival of a step, in microseconds."""
    return cut.slice_of(step) * _GRID.every + step


def _create_side(pipeline: Pipeline, name: SideName, table: DataFrame) -> Side:
    key_types = [table.schema[pair.left].dataType for pair in pipeline.join.keys]
    return create_side(pipeline, name, table.schema, key_types)
