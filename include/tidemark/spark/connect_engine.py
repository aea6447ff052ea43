"""A session of a Spark Connect server, of which no JVM object can be asked.

What it tells of plans is what EXPLAIN prints (`plans`); PySpark gives that as a text by a method that it does not
document, and prints it by one that it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

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
from tidemark.spark.memory import compute_unified_memory
from tidemark.spark.temporary_settings import override_settings
from tidemark.spark.trees import EASTERNMOST_ZONE, RELATIVE_TIME_MESSAGE, WESTERNMOST_ZONE

_TIME_ZONE_SETTING = "spark.sql.session.timeZone"
_FOLDING_RULES = """
    BooleanSimplification CollapseProject ConstantFolding ConstantPropagation FoldablePropagation LikeSimplification
    NullPropagation OptimizeIn PruneFilters ReplaceNullWithFalseInPredicate SimplifyBinaryComparison SimplifyCasts
    SimplifyConditionals UnwrapCastInBinaryComparison
"""
"""Rules of the optimizer behind which a time of the run is no more to be seen: it has become true or false."""
_WITHOUT_FOLDING = {
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in _FOLDING_RULES.split()
    ),
    # Else the server would keep what it has analysed in another zone.
    "spark.connect.session.planCache.enabled": "false",
}


@dataclass(frozen=True)
class ConnectEngine:
    """`asked.Engine` by what a server tells every client."""

    spark: SparkSession

    def get_execution_memory(self) -> int:
        """Reckon with the settings of the server."""
        if str(self.spark.conf.get("spark.master", "local")).startswith("local"):
            return compute_unified_memory(self.spark.conf.get("spark.driver.memory", None) or "1g")
        count_cores = self.count_cores()
        of_each = int(self.spark.conf.get("spark.executor.cores", None) or count_cores)
        return compute_unified_memory(self.spark.conf.get("spark.executor.memory", None) or "1g") * max(
            1, count_cores // of_each
        )

    def count_cores(self) -> int:
        """Count the parts into which the server cuts rows."""
        found = re.search(r"splits=(\d+)", self.spark.range(1)._explain_string())  # type: ignore[operator]  # noqa: SLF001
        return int(found[1]) if found else 1

    def create_opaque_empty(self, schema: T.StructType) -> DataFrame:
        """Give what a function in Python would, which nobody calls."""
        return self.spark.range(1).mapInArrow(_pass_through, schema)

    def parse_expression(self, text: str, columns: ColumnCheck) -> ExplainedExpression:  # noqa: ARG002 - the first parser has asked
        """Check what EXPLAIN shows of Spark's parse."""
        return _parse_expression(self.spark, text)

    def analyze_filter(self, rows: DataFrame, condition: Column) -> AnalyzedFilter:
        """Read it off the plans."""
        try:
            return explain_parser.parse_filter(_explain(rows.where(condition)), rows.schema)
        except ValueError as error:
            raise PipelineFileError(f"join.condition {error}; run this pipeline without Spark Connect") from None

    def is_nondeterministic(self, rows: DataFrame) -> bool:
        """Look for times that move, in two zones in which it is never the same day."""
        shown = []
        for zone in (EASTERNMOST_ZONE, WESTERNMOST_ZONE):
            with override_settings(self.spark, {_TIME_ZONE_SETTING: zone, **_WITHOUT_FOLDING}):
                shown.append(explain_parser.extract_optimized_plan(_explain(rows)).replace(zone, "zone"))
        return not explain_parser.is_zone_independent(*shown)

    def load_latest_snapshot(self, path: str) -> ConnectSnapshot:
        """Ask the table's history for its last version."""
        last = self.spark.sql(f"DESCRIBE HISTORY delta.{quote_identifier(path)} LIMIT 1").first()
        assert last is not None, "a table has a first commit"
        return ConnectSnapshot(self.spark, path, int(last["version"]))

    def supports_conditional_put(self, _: str) -> None:
        """No public call puts an object."""

    def load_replaceable_snapshot(self, path: str) -> ReplaceableSnapshot:
        """Refuse: no public call commits other columns together with other files."""
        raise UserError(
            f"{path} is to have other types, or another format, and Spark Connect has no commit for that; run the same "
            "command once on Spark itself (TIDEMARK_MASTER=local[*], or spark-submit), and go on here"
        )


@dataclass(frozen=True)
class ExplainedExpression:
    """An expression, and how EXPLAIN shows what Spark has parsed."""

    spark: SparkSession
    sql: str
    parsed_plan: str

    @property
    def column(self) -> Column:
        """The expression as a column, which the server parses again."""
        return F.expr(self.sql)

    def split_conjuncts(self) -> list[ExplainedExpression]:
        """Take it apart at each AND, and see that Spark has found the same."""
        texts = split_conjuncts(self.sql)
        if len(texts) == 1:
            return [self]
        parts = [part for sql in texts for part in _parse_expression(self.spark, sql).split_conjuncts()]
        if explain_parser.join_without_brackets(
            [part.parsed_plan for part in parts]
        ) != explain_parser.join_without_brackets([self.parsed_plan]):
            raise PipelineFileError(f"expression {self.sql!r} is unclear at AND; put brackets around its sides")
        return parts


@dataclass(frozen=True)
class ConnectSnapshot:
    """`asked.Snapshot` by a version's number."""

    spark: SparkSession
    path: str
    version: int

    def read(self) -> DataFrame:
        """Read that version."""
        return self.spark.read.format("delta").option("versionAsOf", self.version).load(self.path)


@lru_cache(maxsize=1000)
def _parse_expression(spark: SparkSession, text: str) -> ExplainedExpression:
    """One question to the server for each text, however often it is used."""
    shown = _explain_expression(spark, text)
    explain_parser.check_parsed(shown)
    by_zone = []
    for zone in (EASTERNMOST_ZONE, WESTERNMOST_ZONE):
        with override_settings(spark, {_TIME_ZONE_SETTING: zone}):
            by_zone.append(_explain_expression(spark, text))
    if not explain_parser.is_zone_independent(*by_zone):
        raise ValueError(RELATIVE_TIME_MESSAGE.format(text))
    return ExplainedExpression(spark, text, shown)


def _explain_expression(spark: SparkSession, text: str) -> str:
    found = spark.sql(f"EXPLAIN EXTENDED SELECT {quote_identifier(explain_parser.MISSING_COLUMN)}, {text}").first()
    return explain_parser.extract_parsed_expression(found[0] if found else "")


def _explain(rows: DataFrame) -> str:
    return str(rows._explain_string(extended=True))  # type: ignore[operator]  # noqa: SLF001


def _pass_through(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches
