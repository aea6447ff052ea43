"""Replay input tables with the rows of many vectors, each vector as a lane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.execution.lane_replay import replay_jobs
from tidemark.execution.replay import ReplayResult
from tidemark.joins.base import Join
from tidemark.joins.keys import key_name
from tidemark.planning.replay_strategy import ReplayLimits
from tidemark.sources.normalization import Side, create_side
from tidemark.timegrid.slices import SYNTHETIC_GRID
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.lanes import Lane
from tidemark_conformance.adapter import KEYS, Row, VectorAdapter
from tidemark_conformance.vectors import Case, Cut, count_steps

_ARROW_TYPES = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), list: pa.list_(pa.int64())}
Columns = Iterable[tuple[str, type]]


def list_slices(cases: Sequence[Case]) -> range:
    """Return the slices of cases that share a job."""
    return range(max(len(case.cut.starts) for case in cases) + 1)


def create_lanes(cases: Sequence[Case], adapters: Sequence[VectorAdapter], pipelines: Sequence[Pipeline]) -> list[Lane]:
    """Create the lanes of cases that share a job."""
    slices = list_slices(cases)
    return [
        replace(
            adapter.create_lane(pipeline, [to_clock(case.cut, step) for step in range(count_steps(case.vector))]),
            drain=case.drain,
            end_processing_times_ms=adapter.processing_times(case.cut, slices),
        )
        for case, adapter, pipeline in zip(cases, adapters, pipelines, strict=True)
    ]


def replay_tables(
    cases: Sequence[Case],
    tables: Sequence[DataFrame],
    pipeline: Pipeline,
    lanes: Sequence[Lane],
    join: Join,
    steps_per_bucket: int,
    limits: ReplayLimits,
) -> Iterator[ReplayResult]:
    """Replay the left and the right table of cases that share a job: slice by slice, or all slices in one job."""
    sides = [_create_side(pipeline, name, table) for name, table in zip(SIDES, tables, strict=True)]
    left, right = (side.normalize(table, SYNTHETIC_GRID, 0) for side, table in zip(sides, tables, strict=True))
    rows = left.unionByName(right, allowMissingColumns=True).withColumn("lane", F.col(key_name(KEYS.index("lane"))))
    slices = list_slices(cases)
    jobs = [slices] if cases[0].cut.single_job else [range(n, n + 1) for n in slices]
    yield from replay_jobs(rows, lanes, join, [Buckets(SYNTHETIC_GRID, job, steps_per_bucket) for job in jobs], limits)


def create_table(
    spark: SparkSession, cases: Sequence[Case], adapters: Sequence[VectorAdapter], side: str, columns: Columns = ()
) -> DataFrame:
    """Create one side's input table, with the rows of all lanes and further columns of them."""
    rows = []
    for lane, (case, adapter) in enumerate(zip(cases, adapters, strict=True)):
        for number, step in enumerate(adapter.read_steps()):
            constants = {**adapter.params, "lane": lane, "arrival": to_clock(case.cut, number)}
            rows += [{**row, **constants} for row in step if row["side"] == side]
    return spark.createDataFrame(to_arrow(rows, [*list_columns(adapters[0]), *columns]))


def list_columns(adapter: VectorAdapter) -> list[tuple[str, type]]:
    """List the columns of an input table of vectors that share a job, with their types."""
    params = [(name, type(value)) for name, value in adapter.params.items()]
    return [("key", str), ("lane", int), *params, ("id", str), ("arrival", int), ("ts", int), *adapter.columns]


def to_arrow(rows: list[Row], columns: Columns) -> pa.Table:
    """Convert rows to a table with these columns."""
    return pa.Table.from_pylist(rows, pa.schema([(name, _ARROW_TYPES[dtype]) for name, dtype in columns]))


def to_clock(cut: Cut, step: int) -> int:
    """Return the arrival of a step, in microseconds."""
    return cut.slice_of(step) * SYNTHETIC_GRID.every + step


def _create_side(pipeline: Pipeline, name: SideName, table: DataFrame) -> Side:
    key_types = [table.schema[pair.left].dataType for pair in pipeline.join.keys]
    return create_side(pipeline, name, table.schema, key_types)
