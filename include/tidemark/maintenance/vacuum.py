"""What nobody needs of a pipeline's folder, by its `retention`: states, garbage, superseded files, logs, Data Docs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from tidemark.checkpoints.expiry import Expired, expire, slices_within
from tidemark.config import Pipeline
from tidemark.delta.log_files import Removed
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance.recovery_horizon import Reach, reach_of
from tidemark.maintenance.unused_files import vacuum_tables
from tidemark.quality.gx.project import forget


@dataclass(frozen=True)
class Cleared:
    """What was removed of a pipeline's folder, or would be."""

    pipeline: str
    garbage: Removed
    """What was written and never committed."""
    superseded: Removed
    """What a table had once."""
    logs: Removed
    """Commits of tables' logs, and checkpoints of them."""
    docs: Removed
    """Results of Great Expectations, and their pages."""
    states: Removed
    """What the checkpoint no longer has of states that have expired: files that are superseded from then on."""
    recent: int
    """How many files that no commit has were written too lately to be taken for left behind."""
    reach: Reach
    """How far back one can go then."""
    dry_run: bool

    @property
    def gone(self) -> Removed:
        """All files that go."""
        kinds = (self.garbage, self.superseded, self.logs, self.docs)
        return Removed(tuple(sorted(path for kind in kinds for path in kind.files)), sum(one.bytes for one in kinds))

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self) | asdict(self.gone)


def vacuum(
    pipeline: Pipeline,
    lake: str,
    older_than: timedelta | None = None,
    *,
    spark: SparkSession | None = None,
    dry_run: bool = False,
) -> Cleared:
    """Remove what the pipeline's `retention` says; `older_than` comes before its `garbage`.

    Without a session, which may not have started, states are left: what a plan needs of them may have to be asked.

    Raises:
        InputError: rows that slices have read are gone, so that it cannot be told which states a plan needs.
        FaultError: another process never lets go of a table, or a log cannot do without what would go.
    """
    tables = vacuum_tables(pipeline, lake, older_than, dry_run=dry_run)
    docs = Removed()
    if (span := pipeline.retention.docs) is not None:
        docs = forget(PipelineTables.of(pipeline, lake), datetime.now(UTC) - span, dry_run=dry_run)
    expired = _expire(spark, pipeline, lake, dry_run=dry_run)
    states, given_up = Removed(), frozenset[str]()
    if expired:
        states = Removed(tuple(f"checkpoint/{path}" for path in expired.files), expired.bytes)
        given_up = frozenset(expired.removed)
    return Cleared(
        pipeline.name,
        **{name: getattr(tables, name) for name in ("garbage", "superseded", "logs", "recent")},
        docs=docs,
        states=states,
        reach=reach_of(pipeline, lake, tables.readable_from, given_up),
        dry_run=dry_run,
    )


def _expire(spark: SparkSession | None, pipeline: Pipeline, lake: str, *, dry_run: bool) -> Expired | None:
    span = pipeline.retention.states
    if spark is None or span is None or not (keep := slices_within(Ledger.of(pipeline, lake), span)):
        return None
    return expire(spark, pipeline, lake, keep, None, dry_run=dry_run)
