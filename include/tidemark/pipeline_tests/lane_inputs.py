"""Inputs of a join with the rows of many lanes; the last key is the lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tidemark.config import KeyPair, Pipeline, TimeColumn
from tidemark.config.sides import SIDES, SideName
from tidemark.errors import prefix_errors
from tidemark.execution.lane_replay import LANE
from tidemark.execution.output_stream import extend_schema
from tidemark.joins.base import Join
from tidemark.joins.factory import create_join
from tidemark.joins.keys import key_name
from tidemark.joins.output_schema import check_expressions
from tidemark.pipeline_tests.outputs import Values
from tidemark.sources.normalization import Side
from tidemark.sources.resolution import create_sides
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class _InMemoryTable:
    """Columns of an input without a table (`sources.resolution.InputTable`)."""

    spark: SparkSession
    name: str
    schema: T.StructType
    void_paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaneInputs:
    """The inputs of a join, checked against its settings."""

    spark: SparkSession
    pipeline: Pipeline
    grid: Grid
    schemas: Mapping[SideName, T.StructType]
    """Schemas of the inputs without the lane."""
    emissions: T.StructType
    """Schema of the emissions without the lane."""

    @classmethod
    def create(
        cls, spark: SparkSession, pipeline: Pipeline, grid: Grid, schemas: Mapping[SideName, T.StructType]
    ) -> LaneInputs:
        """Check columns, types and expressions of a pipeline against the schemas of its inputs.

        Raises:
            UserError: The pipeline does not fit the inputs.
        """
        with prefix_errors(pipeline.command_argument):
            _create_sides(spark, pipeline, schemas)
            emissions = check_expressions(spark, pipeline, grid, schemas["left"], schemas["right"])
        return cls(spark, pipeline, grid, schemas, emissions)

    @property
    def output_stream(self) -> T.StructType:
        """Schema of the output stream without the lane."""
        return extend_schema(self.emissions, self.pipeline)

    @cached_property
    def keyed_pipeline(self) -> Pipeline:
        """The pipeline with the lane as its last key."""
        join = self.pipeline.join
        keys = [*join.keys, KeyPair(left=LANE, right=LANE)]
        return self.pipeline.model_copy(update={"join": join.model_copy(update={"keys": keys})})

    @cached_property
    def keyed_schemas(self) -> dict[SideName, T.StructType]:
        """Schemas of the inputs with the lane."""
        return {side: with_lane(schema) for side, schema in self.schemas.items()}

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """The sides of the inputs with the lane."""
        return _create_sides(self.spark, self.keyed_pipeline, self.keyed_schemas)

    def create_join(self) -> Join:
        """Create the join, with the lane as its last key."""
        return create_join(self.keyed_pipeline, self.spark, {side: self.keyed_schemas[side] for side in SIDES})

    def create_table(self, side: SideName, rows: Sequence[Values]) -> DataFrame:
        """Create an input table from rows with their lanes."""
        schema = self.keyed_schemas[side]
        if not isinstance(getattr(self.pipeline, side).arrival, TimeColumn | None):
            schema = T.StructType([*schema.fields, T.StructField(ARRIVAL_COLUMN, T.TimestampType())])
        return self.spark.createDataFrame(pa.Table.from_pylist(list(rows), to_arrow_schema(schema)), schema)

    def normalize(self, tables: Mapping[SideName, DataFrame]) -> pa.Table:
        """Return the rows of some inputs as the pipeline reads them (`Side.normalize`), with `lane`."""
        rows = [
            side.normalize(tables[side.name], self.grid, self.grid.start) for side in self.sides if side.name in tables
        ]
        key = key_name(len(self.pipeline.join.keys))
        return unite(rows).withColumn("lane", F.col(key)).toArrow()


def _create_sides(
    spark: SparkSession, pipeline: Pipeline, schemas: Mapping[SideName, T.StructType]
) -> tuple[Side, Side]:
    left, right = (_InMemoryTable(spark, getattr(pipeline, side).table, schemas[side]) for side in SIDES)
    return create_sides(pipeline, left, right)


def with_lane(schema: T.StructType) -> T.StructType:
    """Return a schema with the lane as its last column."""
    return T.StructType([*schema.fields, T.StructField(LANE, T.LongType())])


def unite(rows: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all inputs; a column that one of them lacks is null there."""
    return reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), rows)


def read_arrow(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Create a DataFrame from a table that Spark has written."""
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
