"""A session with a JVM of its own, or of spark-submit's."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from tidemark.config.allowed_functions import ColumnCheck
from tidemark.errors import UserError
from tidemark.spark import jvm
from tidemark.spark.engine_protocol import AnalyzedFilter
from tidemark.spark.trees import check_tree

S3_SCHEMES = ("s3a://", "s3://", "s3n://")
"""Where Spark's own commits are safe among those of one driver alone."""


@dataclass(frozen=True)
class ClassicEngine:
    """`asked.Engine` by the JVM's objects."""

    spark: SparkSession

    def get_execution_memory(self) -> int:
        """Ask the executors that there are."""
        return jvm.get_execution_memory(self.spark)

    def count_cores(self) -> int:
        """Ask the scheduler."""
        return self.spark.sparkContext.defaultParallelism

    def create_opaque_empty(self, schema: T.StructType) -> DataFrame:
        """Give an empty RDD's rows."""
        return self.spark.createDataFrame(self.spark.sparkContext.emptyRDD(), schema)

    def parse_expression(self, text: str, columns: ColumnCheck) -> jvm.Expression:
        """Check the tree that Spark's parser gives."""
        parsed = jvm.Expression.parse(self.spark, text)
        check_tree(self.spark, text, parsed, columns)
        return parsed

    def analyze_filter(self, rows: DataFrame, condition: Column) -> AnalyzedFilter:
        """Look into the plans."""
        return jvm.analyze_filter(rows, condition)

    def is_nondeterministic(self, rows: DataFrame) -> bool:
        """Try the optimizer's rules about the clock."""
        return jvm.is_nondeterministic(rows)

    def load_latest_snapshot(self, path: str) -> jvm.DeltaSnapshot:
        """Ask Delta's log, once."""
        return jvm.DeltaSnapshot.load_latest(self.spark, path)

    def supports_conditional_put(self, path: str) -> bool:
        """Put two, by Hadoop."""
        return jvm.supports_conditional_put(self.spark, path)

    def load_replaceable_snapshot(self, path: str) -> jvm.DeltaSnapshot:
        """Give the same; where Spark's commits are not kept apart from others' it is refused."""
        if path.startswith(S3_SCHEMES):
            raise UserError(
                f"{path} is to have other types, or another format, and Spark would commit that; its log store for S3, "
                "S3SingleDriverLogStore, can overwrite another driver's commit: name a new `output`"
            )
        return self.load_latest_snapshot(path)
