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
from tidemark.spark.engine_protocol import AnalysedFilter, ChangeableSnapshot
from tidemark.spark.memory import shared_of
from tidemark.spark.temporary_settings import session_settings
from tidemark.spark.trees import AHEAD, BEHIND, MOVING

_ZONE = "spark.sql.session.timeZone"
_FOLDING = """
    BooleanSimplification CollapseProject ConstantFolding ConstantPropagation FoldablePropagation LikeSimplification
    NullPropagation OptimizeIn PruneFilters ReplaceNullWithFalseInPredicate SimplifyBinaryComparison SimplifyCasts
    SimplifyConditionals UnwrapCastInBinaryComparison
"""
"""Rules of the optimizer behind which a time of the run is no more to be seen: it has become true or false."""
_UNFOLDED = {
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in _FOLDING.split()
    ),
    # Else the server would keep what it has analysed in another zone.
    "spark.connect.session.planCache.enabled": "false",
}


@dataclass(frozen=True)
class ConnectEngine:
    """`asked.Engine` by what a server tells every client."""

    spark: SparkSession

    def memory(self) -> int:
        """Reckon with the settings of the server."""
        if str(self.spark.conf.get("spark.master", "local")).startswith("local"):
            return shared_of(self.spark.conf.get("spark.driver.memory", None) or "1g")
        cores = self.cores()
        of_each = int(self.spark.conf.get("spark.executor.cores", None) or cores)
        return shared_of(self.spark.conf.get("spark.executor.memory", None) or "1g") * max(1, cores // of_each)

    def cores(self) -> int:
        """Count the parts into which the server cuts rows."""
        found = re.search(r"splits=(\d+)", self.spark.range(1)._explain_string())  # type: ignore[operator]  # noqa: SLF001
        return int(found[1]) if found else 1

    def empty(self, schema: T.StructType) -> DataFrame:
        """Give what a function in Python would, which nobody calls."""
        return self.spark.range(1).mapInArrow(_nothing, schema)

    def confined(self, text: str, columns: ColumnCheck) -> ShownExpression:  # noqa: ARG002 - the first parser has asked
        """Check what EXPLAIN shows of Spark's parse."""
        return _confined(self.spark, text)

    def analysed(self, rows: DataFrame, condition: Column) -> AnalysedFilter:
        """Read it off the plans."""
        try:
            return explain_parser.analysed(_explained(rows.where(condition)), rows.schema)
        except ValueError as error:
            raise PipelineFileError(f"join.condition {error}; run this pipeline without Spark Connect") from None

    def depends_on_the_run(self, rows: DataFrame) -> bool:
        """Look for times that move, in two zones in which it is never the same day."""
        shown = []
        for zone in (AHEAD, BEHIND):
            with session_settings(self.spark, {_ZONE: zone, **_UNFOLDED}):
                shown.append(explain_parser.optimized(_explained(rows)).replace(zone, "zone"))
        return not explain_parser.same_again(*shown)

    def newest(self, path: str) -> ConnectSnapshot:
        """Ask the table's history for its last version."""
        last = self.spark.sql(f"DESCRIBE HISTORY delta.{quote_identifier(path)} LIMIT 1").first()
        assert last is not None, "a table has a first commit"
        return ConnectSnapshot(self.spark, path, int(last["version"]))

    def keeps_first_put(self, _: str) -> None:
        """No public call puts an object."""

    def changeable(self, path: str) -> ChangeableSnapshot:
        """Refuse: no public call commits other columns together with other files."""
        raise UserError(
            f"{path} is to have other types, or another format, and Spark Connect has no commit for that; run the same "
            "command once on Spark itself (TIDEMARK_MASTER=local[*], or spark-submit), and go on here"
        )


@dataclass(frozen=True)
class ShownExpression:
    """An expression, and how EXPLAIN shows what Spark has parsed."""

    spark: SparkSession
    text: str
    shown: str

    @property
    def column(self) -> Column:
        """The expression as a column, which the server parses again."""
        return F.expr(self.text)

    def conjuncts(self) -> list[ShownExpression]:
        """Take it apart at each AND, and see that Spark has found the same."""
        texts = split_conjuncts(self.text)
        if len(texts) == 1:
            return [self]
        parts = [part for text in texts for part in _confined(self.spark, text).conjuncts()]
        if explain_parser.without_brackets([part.shown for part in parts]) != explain_parser.without_brackets(
            [self.shown]
        ):
            raise PipelineFileError(f"expression {self.text!r} is unclear at AND; put brackets around its sides")
        return parts


@dataclass(frozen=True)
class ConnectSnapshot:
    """`asked.Snapshot` by a version's number."""

    spark: SparkSession
    path: str
    version: int

    def rows(self) -> DataFrame:
        """Read that version."""
        return self.spark.read.format("delta").option("versionAsOf", self.version).load(self.path)


@lru_cache(maxsize=1000)
def _confined(spark: SparkSession, text: str) -> ShownExpression:
    """One question to the server for each text, however often it is used."""
    shown = _parsed(spark, text)
    explain_parser.check_parsed(shown)
    by_zone = []
    for zone in (AHEAD, BEHIND):
        with session_settings(spark, {_ZONE: zone}):
            by_zone.append(_parsed(spark, text))
    if not explain_parser.same_again(*by_zone):
        raise ValueError(MOVING.format(text))
    return ShownExpression(spark, text, shown)


def _parsed(spark: SparkSession, text: str) -> str:
    found = spark.sql(f"EXPLAIN EXTENDED SELECT {quote_identifier(explain_parser.NOWHERE)}, {text}").first()
    return explain_parser.parsed(found[0] if found else "")


def _explained(rows: DataFrame) -> str:
    return str(rows._explain_string(extended=True))  # type: ignore[operator]  # noqa: SLF001


def _nothing(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches
