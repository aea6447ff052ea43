"""What Tidemark asks of a session beyond the DataFrames that each kind of session has.

A session of this process's own JVM answers by private objects (`jvm`), one of a Spark Connect server by what the server
tells everybody (`connect`). `engine.get_engine` has the one for a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from tidemark.config.allowed_functions import ColumnCheck


@dataclass(frozen=True)
class Comparison:
    """A column compared with a number: `column operator number`."""

    operator: str
    number: float


@dataclass(frozen=True)
class AnalyzedFilter:
    """What Spark makes of a filter over rows; nothing runs."""

    references: Sequence[str]
    """The columns that it reads."""
    not_null: Sequence[str]
    """The columns that its optimized conjuncts ask not to be null."""
    comparisons: Sequence[Comparison]
    """Its optimized conjuncts that compare a column with a number."""


class Expression(Protocol):
    """A user's expression as Spark has parsed it."""

    @property
    def column(self) -> Column:
        """The expression as a column."""

    def split_conjuncts(self) -> Sequence[Expression]:
        """Take it apart at each AND."""


class Snapshot(Protocol):
    """A Delta table as it stood when it was looked at; what is committed later does not change it."""

    def read(self) -> DataFrame:
        """Give the table's rows."""

    @property
    def version(self) -> int:
        """Give the version that this is."""


class ReplaceableSnapshot(Snapshot, Protocol):
    """One on top of which another table, of other columns or partitions, can be committed."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Give columns, partitions and properties, as the log has them."""

    def replace(self, actions: list[str]) -> None:
        """Commit actions, JSON as the log has it, on top of this version: what the table is, too.

        Raises:
            DeltaConcurrentModificationException: another process has committed files meanwhile.
        """


class Engine(Protocol):
    """A session's other answers."""

    def get_execution_memory(self) -> int:
        """Add up the bytes that executors share between execution and storage."""

    def count_cores(self) -> int:
        """Tell how many tasks run at once."""

    def create_opaque_empty(self, schema: T.StructType) -> DataFrame:
        """Give no rows, of which the optimizer does not know that they are none."""

    def parse_expression(self, text: str, columns: ColumnCheck) -> Expression:
        """Parse SQL that has passed the first parser, and see that to Spark, too, it has nothing else.

        Raises:
            ParseException: it is none.
            ValueError: says what it may not hold.
        """

    def analyze_filter(self, rows: DataFrame, condition: Column) -> AnalyzedFilter:
        """Analyse and optimize a filter over rows of `empty`.

        Raises:
            AnalysisException: it makes no sense over these rows.
        """

    def is_nondeterministic(self, rows: DataFrame) -> bool:
        """Tell whether rows, made of those of `empty`, would be others in another run: by chance or the clock.

        Raises:
            AnalysisException: they make no sense.
        """

    def load_latest_snapshot(self, path: str) -> Snapshot:
        """Look at a Delta table now; one that is not there is an AnalysisException by the time rows are asked for."""

    def supports_conditional_put(self, path: str) -> bool | None:
        """Whether a store of S3's kind refuses the second of two conditional puts; None where that cannot be told."""

    def load_replaceable_snapshot(self, path: str) -> ReplaceableSnapshot:
        """Look at a Delta table that is to become another.

        Raises:
            UserError: this kind of session has no commit for that.
        """
