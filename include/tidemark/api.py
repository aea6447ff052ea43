"""Public functions for Python programs, exported from `tidemark` itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from tidemark import comparison
from tidemark.comparison import Comparison, ComparisonRequest
from tidemark.comparison.chain_history import explain_rows
from tidemark.comparison.row_history import RowHistory
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.sides import SideName
from tidemark.delta.paths import resolve_lake_root
from tidemark.errors import SliceOrderError
from tidemark.execution.job import JobResult
from tidemark.execution.run import execute
from tidemark.ledger.committed_snapshot import read_committed_rows
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Plan
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.session import get_spark_session

__all__ = [
    "Comparison",
    "ComparisonRequest",
    "JobResult",
    "Pipeline",
    "Plan",
    "Request",
    "RowHistory",
    "compare",
    "explain",
    "get_spark_session",
    "load_pipeline",
    "plan",
    "read_committed",
    "run",
]


def plan(spark: SparkSession, pipeline: Pipeline, lake: str | Path, **request: Any) -> Plan:
    """Plan which slices to run, and why. Writes nothing.

    Args:
        spark: A session with Delta Lake (`get_spark_session`).
        pipeline: A pipeline (`load_pipeline`).
        lake: The lake root: a folder or a URI.
        request: Fields of `Request`, such as `start` and `end`.

    Returns:
        The plan, for `run`.

    Raises:
        SliceOrderError: The range is off the grid, has a gap or no predecessor, or settings changed.
        InputError: An input is missing or not valid, or rows that slices read were deleted.
        PipelineFileError: The condition or the output columns do not fit the inputs.
    """
    return create_plan(spark, pipeline, resolve_lake_root(str(lake)), Request(**request))


def run(
    spark: SparkSession, plan: Plan, progress: Callable[[range, str], None] = lambda *_: None
) -> tuple[JobResult, ...]:
    """Run a plan job by job. Each job is committed before the next one starts; an atomic plan commits at the end.

    Args:
        spark: The session of the plan.
        plan: The plan.
        progress: Called with the slices of a job, by number, and the name of the step that starts.

    Returns:
        The result of each job, in order.

    Raises:
        CheckFailedError: Quality or conservation failed. Slices before the first failing slice are committed.
        SliceOrderError: Another process committed meanwhile. The current job published nothing.
        FaultError: The disk is full.
    """
    return tuple(execute(spark, plan, progress))


def read_committed(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str | Path,
    table: Literal["emissions", "late"] = "emissions",
    as_of: datetime | int | None = None,
) -> DataFrame:
    """Read the rows of committed slices.

    Args:
        spark: A session with Delta Lake.
        pipeline: The pipeline.
        lake: The lake root: a folder or a URI.
        table: Which table to read.
        as_of: A combined watermark: an instant (UTC without a zone), or ms since 1970. Reads the slices whose watermark
            at their end is at most this, as readers saw them then. None reads all committed slices.

    Raises:
        SliceOrderError: No slice is committed.
    """
    ledger = Ledger.from_pipeline(pipeline, resolve_lake_root(str(lake)))
    if not ledger.last:
        command = f"tidemark run {format_cli_arguments(pipeline)}"
        raise SliceOrderError(f"{pipeline.name} has no committed slice to read. Run {command} first.")
    return read_committed_rows(spark, ledger, table, as_of)


def explain(
    spark: SparkSession, pipeline: Pipeline, lake: str | Path, side: SideName, values: Mapping[str, str | None]
) -> tuple[RowHistory, ...]:
    """Explain what happened to input rows, and in a chain to their emissions in later joins. Read-only.

    Args:
        spark: A session with Delta Lake.
        pipeline: The pipeline.
        lake: The lake root: a folder or a URI.
        side: The input.
        values: Column values, as text or None for null, that select the rows.

    Raises:
        UserError: No such column, no such row, or too many rows.
        SliceOrderError: No slice is committed.
        PipelineFileError: There is no file of a pipeline whose output is an input.
    """
    return explain_rows(spark, pipeline, resolve_lake_root(str(lake)), side, values)


def compare(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str | Path,
    request: ComparisonRequest | str,
    reference: Pipeline | None = None,
) -> Comparison:
    """Compare committed emissions with the table that a stream wrote. Writes nothing.

    Args:
        spark: A session with Delta Lake.
        pipeline: The pipeline.
        lake: The lake root: a folder or a URI.
        request: Name of the streamed table, or a request with further options.
        reference: A pipeline with the settings of the stream, which has run itself.

    Raises:
        InputError: A table or column is missing, or types do not fit.
        SliceOrderError: No slice is committed, or the range is off the grid.
    """
    request_ = ComparisonRequest(request) if isinstance(request, str) else request
    return comparison.compare(spark, pipeline, resolve_lake_root(str(lake)), request_, reference)
