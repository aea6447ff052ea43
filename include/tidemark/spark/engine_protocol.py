"""Define the operations that Tidemark needs from Spark beyond the public DataFrame API.

`classic_engine` implements them with private JVM objects, `connect_engine` with the public commands of a Spark Connect
server. `engine.get_engine` selects the implementation for a session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from tidemark.config.allowed_functions import ColumnCheck


@dataclass(frozen=True)
class NumericComparison:
    """Comparison of a column with a number; the column is the left operand."""

    operator: str
    number: float


@dataclass(frozen=True)
class AnalyzedFilter:
    """Properties of a filter in Spark's analyzed and optimized plans."""

    references: Sequence[str]
    """Columns that the filter reads."""
    not_null: Sequence[str]
    """Columns with an IS NOT NULL conjunct in the optimized plan."""
    comparisons: Sequence[NumericComparison]
    """Conjuncts of the optimized plan that compare a column with a number."""


class Expression(Protocol):
    """A user's SQL expression, parsed by Spark."""

    @property
    def column(self) -> Column:
        """The expression as a column."""

    def split_conjuncts(self) -> Sequence[Expression]:
        """Split the expression at each AND outside of other operators."""


class Snapshot(Protocol):
    """One version of a Delta table; later commits do not affect it."""

    def read(self) -> DataFrame:
        """Return the rows of this version."""

    @property
    def version(self) -> int:
        """Version of the table."""


class ReplaceableSnapshot(Snapshot, Protocol):
    """A version to which a commit can be made that changes the schema or the partitioning."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Columns, partition columns and properties, as in the `metaData` action of the Delta log."""

    def commit_replacement(self, actions: list[str]) -> None:
        """Commit actions, including metadata, on top of this version; each is JSON as in the Delta log.

        Raises:
            DeltaConcurrentModificationException: Another process has committed files since this version.
        """


class Engine(Protocol):
    """Operations of a session that differ between classic Spark and Spark Connect."""

    can_share_session: ClassVar[bool]
    """True if threads can use the session at the same time: no analysis of an expression changes its settings."""

    observes_checkpoints: ClassVar[bool]
    """True if an `Observation` receives the values of rows that `localCheckpoint` computes."""

    supports_deep_plans: ClassVar[bool]
    """True if plans may have any depth. With Spark Connect, protobuf ends the process when it frees very deep ones."""

    def get_execution_memory(self) -> int:
        """Return the bytes that all executors share between execution and storage."""

    def count_cores(self) -> int:
        """Return the number of tasks that can run at once."""

    def override_settings(self, settings: Mapping[str, str]) -> AbstractContextManager[SparkSession]:
        """Provide a session with changed settings in which to analyze expressions, as long as the context is open."""

    def create_empty_dataframe(self, schema: T.StructType) -> DataFrame:
        """Create a DataFrame without rows that the optimizer does not recognize as empty."""

    def parse_expression(self, expression: str, column_check: ColumnCheck) -> Expression:
        """Parse SQL that has passed `check_expression`, and check that Spark's parse contains allowed parts only.

        Raises:
            ParseException: The SQL is invalid.
            ValueError: The expression contains something that is not allowed. The message names it.
        """

    def analyze_filter(self, rows: DataFrame, condition: Column) -> AnalyzedFilter:
        """Analyze and optimize a filter over the result of `create_empty_dataframe`; nothing runs.

        Raises:
            AnalysisException: The condition is invalid for these columns.
        """

    def is_nondeterministic(self, rows: DataFrame) -> bool:
        """Return True if expressions over `create_empty_dataframe` depend on random numbers or the clock; nothing runs.

        Raises:
            AnalysisException: An expression is invalid for these columns.
        """

    def load_latest_snapshot(self, path: str) -> Snapshot:
        """Load the latest version of a Delta table. If it is missing, this or `read` raises an AnalysisException."""

    def supports_conditional_put(self, path: str) -> bool | None:
        """Return True if an S3 store refuses the second of two puts with `If-None-Match`. None if unknown."""

    def load_replaceable_snapshot(self, path: str) -> ReplaceableSnapshot:
        """Load the latest version of a Delta table to change its schema or partitioning.

        Raises:
            UserError: The session cannot commit such a change safely. The message has the remedy.
        """
