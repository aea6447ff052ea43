"""What maintenance would gain now, as the tables' logs and folders tell: nothing is written, and no JVM takes part."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tidemark.config import Pipeline
from tidemark.delta.log_files import Removed, oldest_whole
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.maintenance.compaction import plan_compaction
from tidemark.maintenance.unused_files import vacuum_tables
from tidemark.quality.gx.project import forget
from tidemark.tables.table_changes import logs_of


@dataclass(frozen=True)
class Gain:
    """What `tidemark vacuum` and `tidemark compact` would do; states that would expire are not among it."""

    vacuum_files: int
    """How many files would go."""
    vacuum_bytes: int
    compact_files: int
    """How many files would be merged."""
    compact_into: int
    """How many they would become."""


def gain_of(pipeline: Pipeline, lake: str) -> Gain:
    """What there is to gain: it lists the tables' folders and reads their logs, half a second for 2,500 files."""
    found = vacuum_tables(pipeline, lake, dry_run=True)
    docs = Removed()
    if (span := pipeline.retention.docs) is not None:
        docs = forget(PipelineTables.of(pipeline, lake), datetime.now(UTC) - span, dry_run=True)
    kinds = (found.garbage, found.superseded, found.logs, docs)
    merges = plan_compaction(pipeline, lake).merges if pipeline.compact else ()
    return Gain(
        sum(len(kind.files) for kind in kinds),
        sum(kind.bytes for kind in kinds),
        sum(len(one.files) for one in merges),
        sum(one.into for one in merges),
    )


def oldest_versions(pipeline: Pipeline, lake: str) -> dict[str, int]:
    """The oldest version of each table from which on all can be read, 0 the first."""
    tables = PipelineTables.of(pipeline, lake)
    return {name: oldest_whole(log) for name, log in logs_of(tables).items()}
