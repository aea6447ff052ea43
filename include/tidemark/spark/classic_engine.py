"""Implement the engine for sessions with a JVM of their own, started here or by spark-submit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from tidemark.config.allowed_functions import ColumnCheck
from tidemark.errors import UserError
from tidemark.spark import jvm
from tidemark.spark.engine_protocol import AnalyzedFilter
from tidemark.spark.expression_tree import check_tree

S3_SCHEMES = ("s3a://", "s3://", "s3n://")
"""URI schemes for which Spark's Delta commits are safe only within one driver."""


@dataclass(frozen=True)
class ClassicEngine:
    """Implementation of `engine_protocol.Engine` by private JVM objects."""

    spark: SparkSession

    can_share_session: ClassVar[bool] = True
    observes_checkpoints: ClassVar[bool] = True
    supports_deep_plans: ClassVar[bool] = True

    def get_execution_memory(self) -> int:
        """Return the sum over the registered executors, in bytes."""
        return jvm.get_execution_memory(self.spark)

    def count_cores(self) -> int:
        """Return the scheduler's default parallelism."""
        return self.spark.sparkContext.defaultParallelism

    def override_settings(self, settings: Mapping[str, str]) -> AbstractContextManager[SparkSession]:
        """Copy the session, because other threads may use it."""
        return jvm.separate_session(self.spark, settings)

    def create_empty_dataframe(self, schema: T.StructType) -> DataFrame:
        """Create it from an empty RDD."""
        return self.spark.createDataFrame(self.spark.sparkContext.emptyRDD(), schema)

    def parse_expression(self, expression: str, column_check: ColumnCheck) -> jvm.Expression:
        """Parse an expression, and check the tree that Spark's parser returns."""
        parsed = jvm.Expression.parse(self.spark, expression)
        check_tree(self.spark, expression, parsed, column_check)
        return parsed

    def analyze_filter(self, rows: DataFrame, condition: Column) -> AnalyzedFilter:
        """Read the properties from the analyzed and the optimized plan."""
        return jvm.analyze_filter(rows, condition)

    def is_nondeterministic(self, rows: DataFrame) -> bool:
        """Return True if the plan is not deterministic, or if a rule about the current time changes it."""
        return jvm.is_nondeterministic(rows)

    def load_latest_snapshot(self, path: str) -> jvm.DeltaSnapshot:
        """Load it from Delta's log."""
        return jvm.DeltaSnapshot.load_latest(self.spark, path)

    def supports_conditional_put(self, path: str) -> bool:
        """Put two objects through Hadoop's file system."""
        return jvm.supports_conditional_put(self.spark, path)

    def load_replaceable_snapshot(self, path: str) -> jvm.DeltaSnapshot:
        """Load the latest version, except from S3, where Spark's commits could overwrite those of other drivers."""
        if path.startswith(S3_SCHEMES):
            raise UserError(
                f"The column types or the format of {path} change, which needs a commit by Spark. On S3, Spark's "
                "S3SingleDriverLogStore can overwrite another driver's commit. Choose a new `output`."
            )
        return self.load_latest_snapshot(path)
