"""Vacuum a pipeline's folder: delete the files that its setting `retention` lets go."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from tidemark.checkpoints.expiry import count_slices_within, expire_checkpoints
from tidemark.config import Pipeline
from tidemark.delta.log_files import RemovedFiles
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance.recovery_horizon import RecoveryHorizon, compute_recovery_horizon
from tidemark.maintenance.unused_files import UnusedFiles, delete_unused_files, find_unused_files
from tidemark.quality.gx.data_docs import delete_results_before


@dataclass(frozen=True)
class RetentionPlan:
    """Everything that a pipeline's `retention` lets go at one time."""

    unused_files: UnusedFiles
    """Files of the pipeline's tables."""
    docs_before: datetime | None
    """Results of Great Expectations before this instant go; None keeps all."""
    newest_checkpoints: int
    """Number of newest slices whose checkpoints stay; 0 keeps all."""


@dataclass(frozen=True)
class VacuumResult:
    """Files that were deleted from a pipeline's folder, or would be in a dry run."""

    pipeline: str
    uncommitted_files: RemovedFiles
    """Files that were never committed."""
    replaced_files: RemovedFiles
    """Files that a table once had."""
    log_files: RemovedFiles
    """Commits and checkpoints in the tables' logs."""
    data_docs: RemovedFiles
    """Results of Great Expectations and their pages."""
    checkpoints: RemovedFiles
    """Files of expired checkpoints. They become replaced files, which a later vacuum deletes."""
    recent_files: int
    """Number of uncommitted files that may belong to an active run."""
    recovery_horizon: RecoveryHorizon
    """Oldest versions and slices that can be read, reprocessed and verified afterwards."""
    dry_run: bool

    @property
    def deleted_files(self) -> RemovedFiles:
        """All deleted files, except those of expired checkpoints."""
        kinds = (self.uncommitted_files, self.replaced_files, self.log_files, self.data_docs)
        return RemovedFiles(
            tuple(sorted(path for kind in kinds for path in kind.files)), sum(kind.bytes for kind in kinds)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-ready dictionary; `files` and `bytes` sum up all deleted files."""
        return asdict(self) | asdict(self.deleted_files)


def plan_retention(pipeline: Pipeline, lake: str, older_than: timedelta | None = None) -> RetentionPlan:
    """Plan what `retention` lets go now.

    Args:
        older_than: Replaces `retention.uncommitted_files`.
    """
    retention = pipeline.retention
    docs_before = None if retention.data_docs is None else datetime.now(UTC) - retention.data_docs
    span = retention.checkpoints
    newest_checkpoints = 0 if span is None else count_slices_within(Ledger.from_pipeline(pipeline, lake), span)
    return RetentionPlan(find_unused_files(pipeline, lake, older_than), docs_before, newest_checkpoints)


def vacuum(
    pipeline: Pipeline,
    lake: str,
    older_than: timedelta | None = None,
    *,
    spark: SparkSession | None = None,
    dry_run: bool = False,
) -> VacuumResult:
    """Delete the files that the pipeline's `retention` lets go.

    Args:
        older_than: Replaces `retention.uncommitted_files`.
        spark: The session, which may not have started. Without one no checkpoint expires, as the plan of the next run
            may need Spark.
        dry_run: Only return what would be deleted.

    Raises:
        InputError: Rows that slices have read are gone, so the checkpoints that a plan needs are unknown.
        FaultError: Other processes kept writing to a table, or a log could not be truncated.
    """
    plan = plan_retention(pipeline, lake, older_than)
    data_docs, checkpoints, expired_runs = RemovedFiles(), RemovedFiles(), frozenset[str]()
    if spark is not None and plan.newest_checkpoints:
        expiry = expire_checkpoints(spark, pipeline, lake, plan.newest_checkpoints, None, dry_run=dry_run)
        checkpoints = RemovedFiles(tuple(f"checkpoint/{path}" for path in expiry.files), expiry.bytes)
        expired_runs = frozenset(expiry.expired_runs)
    if not dry_run:
        delete_unused_files(pipeline, lake, plan.unused_files)
    if plan.docs_before is not None:
        data_docs = delete_results_before(PipelineTables.from_config(pipeline, lake), plan.docs_before, dry_run=dry_run)
    unused = plan.unused_files
    return VacuumResult(
        pipeline.name,
        unused.uncommitted_files,
        unused.replaced_files,
        unused.log_files,
        data_docs,
        checkpoints,
        unused.recent_files,
        compute_recovery_horizon(pipeline, lake, unused.readable_from, expired_runs),
        dry_run,
    )
