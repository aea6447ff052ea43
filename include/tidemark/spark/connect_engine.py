"""Implement the engine for Spark Connect sessions, which give no access to JVM objects.

Plans are read from the output of EXPLAIN (`explain_parser`). For DataFrames, PySpark returns this output only from an
undocumented method; the documented one prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.allowed_functions import ColumnCheck
from tidemark.config.expressions import split_conjuncts
from tidemark.errors import PipelineFileError, UserError
from tidemark.formatting import quote_identifier
from tidemark.spark import explain_parser
from tidemark.spark.engine_protocol import AnalyzedFilter, ReplaceableSnapshot
from tidemark.spark.expression_tree import EASTERNMOST_ZONE, RELATIVE_TIME_MESSAGE, WESTERNMOST_ZONE
from tidemark.spark.heap_memory import compute_unified_memory
from tidemark.spark.temporary_settings import override_settings

_TIME_ZONE_SETTING = "spark.sql.session.timeZone"
_FOLDING_RULES = """
    BooleanSimplification CollapseProject ConstantFolding ConstantPropagation FoldablePropagation LikeSimplification
    NullPropagation OptimizeIn PruneFilters ReplaceNullWithFalseInPredicate SimplifyBinaryComparison SimplifyCasts
    SimplifyConditionals UnwrapCastInBinaryComparison
"""
"""Optimizer rules that can fold a comparison with the current time to true or false, which hides the time."""
_WITHOUT_FOLDING = {
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in _FOLDING_RULES.split()
    ),
    # Otherwise the server would reuse a plan that it has analyzed in another time zone.
    "spark.connect.session.planCache.enabled": "false",
}


@dataclass(frozen=True)
class ConnectEngine:
    """Implementation of `engine_protocol.Engine` by public commands of a server."""

    spark: SparkSession

    can_share_session: ClassVar[bool] = False
    observes_checkpoints: ClassVar[bool] = False
    supports_deep_plans: ClassVar[bool] = False

    def get_execution_memory(self) -> int:
        """Compute it from the memory and core settings of the server."""
        if str(self.spark.conf.get("spark.master", "local")).startswith("local"):
            return compute_unified_memory(self.spark.conf.get("spark.driver.memory", None) or "1g")
        cores = self.count_cores()
        executors = max(1, cores // int(self.spark.conf.get("spark.executor.cores", None) or cores))
        return executors * compute_unified_memory(self.spark.conf.get("spark.executor.memory", None) or "1g")

    def count_cores(self) -> int:
        """Return the number of partitions of a `range`, which is the server's default parallelism."""
        match = re.search(r"splits=(\d+)", self.spark.range(1)._explain_string())  # type: ignore[operator]  # noqa: SLF001
        return int(match[1]) if match else 1

    @contextmanager
    def override_settings(self, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        """Change the settings of the session itself. Threads do not share one (`can_share_session`)."""
        with override_settings(self.spark, settings):
            yield self.spark

    def create_empty_dataframe(self, schema: T.StructType) -> DataFrame:
        """Create it as the output of a Python function, which the optimizer cannot inspect; it is never called."""
        return self.spark.range(1).mapInArrow(_pass_through, schema)

    def parse_expression(self, expression: str, column_check: ColumnCheck) -> ExplainedExpression:  # noqa: ARG002 - `check_expression` has checked the columns
        """Parse an expression, and check the parsed plan that EXPLAIN prints."""
        return _parse_expression(self.spark, expression)

    def analyze_filter(self, rows: DataFrame, condition: Column) -> AnalyzedFilter:
        """Read the properties from the plans that EXPLAIN prints."""
        try:
            return explain_parser.parse_filter(_explain(rows.where(condition)), rows.schema)
        except ValueError as error:
            raise PipelineFileError(f"join.condition {error}. Run this pipeline without Spark Connect.") from None

    def is_nondeterministic(self, rows: DataFrame) -> bool:
        """Return True if the optimized plans in two time zones that never have the same date differ in their times."""
        plans = []
        for zone in (EASTERNMOST_ZONE, WESTERNMOST_ZONE):
            with override_settings(self.spark, {_TIME_ZONE_SETTING: zone, **_WITHOUT_FOLDING}):
                plans.append(explain_parser.extract_optimized_plan(_explain(rows)).replace(zone, "zone"))
        return not explain_parser.is_zone_independent(*plans)

    def load_latest_snapshot(self, path: str) -> ConnectSnapshot:
        """Look up the latest version in the table's history."""
        latest = self.spark.sql(f"DESCRIBE HISTORY delta.{quote_identifier(path)} LIMIT 1").first()
        assert latest is not None, "a table has a first commit"
        return ConnectSnapshot(self.spark, path, int(latest["version"]))

    def supports_conditional_put(self, _: str) -> None:
        """Return None: no public command puts an object."""

    def load_replaceable_snapshot(self, path: str) -> ReplaceableSnapshot:
        """Raise an error, because no public command commits a new schema together with new files."""
        raise UserError(
            f"The column types or the format of {path} change, which Spark Connect cannot commit. Run the same command "
            "once without Spark Connect (without --warm and with TIDEMARK_MASTER=local[*], or by spark-submit), then "
            "continue here."
        )


@dataclass(frozen=True)
class ExplainedExpression:
    """An expression with Spark's parsed plan of it, as EXPLAIN prints it."""

    spark: SparkSession
    expression: str
    parsed_plan: str

    @property
    def column(self) -> Column:
        """The expression as a column; the server parses it again."""
        return F.expr(self.expression)

    def split_conjuncts(self) -> list[ExplainedExpression]:
        """Split the expression at each AND, and check that Spark's parse has the same conjuncts."""
        conjuncts = split_conjuncts(self.expression)
        if len(conjuncts) == 1:
            return [self]
        parts = [part for sql in conjuncts for part in _parse_expression(self.spark, sql).split_conjuncts()]
        joined = explain_parser.join_without_parentheses([part.parsed_plan for part in parts])
        if joined != explain_parser.join_without_parentheses([self.parsed_plan]):
            raise PipelineFileError(
                f"expression {self.expression!r} is ambiguous at AND. Put parentheses around both sides of AND."
            )
        return parts


@dataclass(frozen=True)
class ConnectSnapshot:
    """Implementation of `engine_protocol.Snapshot` by a version number."""

    spark: SparkSession
    path: str
    version: int

    def read(self) -> DataFrame:
        """Return the rows of this version, by time travel."""
        return self.spark.read.format("delta").option("versionAsOf", self.version).load(self.path)


@lru_cache(maxsize=1000)
def _parse_expression(spark: SparkSession, expression: str) -> ExplainedExpression:
    """Parse and check an expression on the server; results are cached, because each is three requests."""
    parsed_plan = _explain_expression(spark, expression)
    explain_parser.check_function_calls(parsed_plan)
    plans = []
    for zone in (EASTERNMOST_ZONE, WESTERNMOST_ZONE):
        with override_settings(spark, {_TIME_ZONE_SETTING: zone}):
            plans.append(_explain_expression(spark, expression))
    if not explain_parser.is_zone_independent(*plans):
        raise ValueError(RELATIVE_TIME_MESSAGE.format(expression))
    return ExplainedExpression(spark, expression, parsed_plan)


def _explain_expression(spark: SparkSession, expression: str) -> str:
    row = spark.sql(f"EXPLAIN EXTENDED SELECT {quote_identifier(explain_parser.MISSING_COLUMN)}, {expression}").first()
    return explain_parser.extract_parsed_expression(row[0] if row else "")


def _explain(rows: DataFrame) -> str:
    return str(rows._explain_string(extended=True))  # type: ignore[operator]  # noqa: SLF001


def _pass_through(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches
