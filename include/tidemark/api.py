"""What other programs call: the functions behind the commands, which are exported from `tidemark` itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from tidemark import comparison
from tidemark.comparison import Asked, Comparison
from tidemark.comparison.row_history import Life
from tidemark.comparison.row_history import explain as lives_of
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.sides import SideName
from tidemark.delta.paths import lake_root
from tidemark.errors import SliceOrderError
from tidemark.execution.job import JobResult
from tidemark.execution.run import execute
from tidemark.ledger.committed_snapshot import committed
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Plan, Request, make_plan
from tidemark.spark.session import spark_session

__all__ = [
    "Asked",
    "Comparison",
    "JobResult",
    "Life",
    "Pipeline",
    "Plan",
    "Request",
    "compare",
    "explain",
    "load_pipeline",
    "plan",
    "read_committed",
    "run",
    "spark_session",
]


def plan(spark: SparkSession, pipeline: Pipeline, lake: str | Path, **request: Any) -> Plan:
    """Plan the slices that would run, and why; nothing is written. `request` has the fields of `Request`.

    Raises:
        SliceOrderError: off the grid, a gap, a missing predecessor, other settings, a drained input.
        InputError: an input does not serve, or rows that slices have read are gone.
        PipelineFileError: the condition or the output columns do not suit the inputs.
    """
    return make_plan(spark, pipeline, lake_root(str(lake)), Request(**request))


def run(
    spark: SparkSession, planned: Plan, progress: Callable[[range, str], None] = lambda *_: None
) -> tuple[JobResult, ...]:
    """Run a plan to its end, job by job; each is committed before the next begins, an atomic plan's at the end.

    `progress` is told the slices of a job, by number, and the step that begins.

    Raises:
        CheckFailedError: quality or conservation; the slices before the first that fails are committed.
        SliceOrderError: another process committed meanwhile; the job at hand published nothing.
        FaultError: the disk is full.
    """
    return tuple(execute(spark, planned, progress))


def read_committed(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str | Path,
    table: Literal["emissions", "late"] = "emissions",
    as_of: datetime | int | None = None,
) -> DataFrame:
    """The rows of committed slices, as readers should see them.

    `as_of` is a combined watermark, an instant or ms since 1970 UTC: what they saw while it stood there.

    Raises:
        SliceOrderError: nothing is committed.
    """
    ledger = Ledger.of(pipeline, lake_root(str(lake)))
    if not ledger.last:
        raise SliceOrderError(f"{pipeline.name} has no committed slice to read; run it first, with tidemark run")
    return committed(spark, ledger, table, as_of)


def explain(
    spark: SparkSession, pipeline: Pipeline, lake: str | Path, side: SideName, wanted: Mapping[str, str]
) -> tuple[Life, ...]:
    """The lives of the rows of an input that have these values, told from what is committed.

    Raises:
        UserError: no such column, no such row, or too many of them.
        SliceOrderError: nothing is committed.
    """
    return lives_of(spark, pipeline, lake_root(str(lake)), side, wanted)


def compare(
    spark: SparkSession, pipeline: Pipeline, lake: str | Path, asked: Asked | str, reference: Pipeline | None = None
) -> Comparison:
    """Compare what is committed with a stream's table, by its name or with all that can be asked; nothing is written.

    `reference` is a pipeline that says how the stream ran, and has run itself.

    Raises:
        InputError: a table or column is missing, or types do not go together.
        SliceOrderError: nothing is committed, or the range is off the grid.
    """
    question = Asked(asked) if isinstance(asked, str) else asked
    return comparison.compare(spark, pipeline, lake_root(str(lake)), question, reference)
