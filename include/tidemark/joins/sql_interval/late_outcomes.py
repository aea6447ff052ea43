"""Select the late and rejected rows of Flink SQL's interval join, with the outcome of each."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.joins.base import JobRows, add_late_reason, select_rejected
from tidemark.joins.join_type import JoinType
from tidemark.joins.sql_interval.labels import is_late
from tidemark.joins.sql_interval.match_tracking import is_padded


def select_late(rows: DataFrame, job_rows: JobRows, join_type: JoinType) -> DataFrame:
    """Select late rows with their outcome, the first that applies: cached (matched or not), matched, padded, lost."""
    outcome = (
        F.when(F.col("is_cached"), "cached")
        .when(F.col("first_match_slice").isNotNull(), "matched")
        .when(is_padded(F.col("side"), join_type), "padded")
        .otherwise("lost")
    )
    late = add_late_reason(rows.where(is_late(job_rows.watermarks.first_slice)), F.lit("late_but_processed"))
    return late.select(
        *job_rows.late_candidates.columns, "reason", "window_start", "window_end", outcome.alias("outcome")
    )


def select_rejected_without_outcome(job_rows: JobRows) -> DataFrame:
    """Select rejected rows, in the columns of `select_late`."""
    rejected = select_rejected(job_rows.late_candidates)
    columns = [*job_rows.late_candidates.columns, "reason", "window_start", "window_end"]
    return rejected.select(*columns, F.lit(None).cast("string").alias("outcome"))
