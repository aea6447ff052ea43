"""A session with a JVM of its own, or of spark-submit's."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from tidemark.spark import jvm
from tidemark.spark.asked import AnalysedFilter
from tidemark.spark.trees import check_tree


@dataclass(frozen=True)
class ClassicEngine:
    """`asked.Engine` by the JVM's objects."""

    spark: SparkSession

    def memory(self) -> int:
        """Ask the executors that there are."""
        return jvm.execution_memory(self.spark)

    def cores(self) -> int:
        """Ask the scheduler."""
        return self.spark.sparkContext.defaultParallelism

    def empty(self, schema: T.StructType) -> DataFrame:
        """Give an empty RDD's rows."""
        return self.spark.createDataFrame(self.spark.sparkContext.emptyRDD(), schema)

    def confined(self, text: str) -> jvm.Expression:
        """Check the tree that Spark's parser gives."""
        parsed = jvm.Expression.parse(self.spark, text)
        check_tree(self.spark, text, parsed)
        return parsed

    def analysed(self, rows: DataFrame, condition: Column) -> AnalysedFilter:
        """Look into the plans."""
        return jvm.analysed(rows, condition)

    def depends_on_the_run(self, rows: DataFrame) -> bool:
        """Try the optimizer's rules about the clock."""
        return jvm.depends_on_the_run(rows)

    def newest(self, path: str) -> jvm.DeltaSnapshot:
        """Ask Delta's log, once."""
        return jvm.DeltaSnapshot.newest(self.spark, path)

    def changeable(self, path: str) -> jvm.DeltaSnapshot:
        """Give the same."""
        return self.newest(path)
