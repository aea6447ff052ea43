"""Erase input rows from everything that a pipeline and its candidate versions store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow.fs as pafs
from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.candidate_version import (
    CANDIDATES_FOLDER,
    format_cli_arguments,
    format_version_name,
    to_candidate,
)
from tidemark.config.sides import SideName
from tidemark.delta.filesystem import delete_file, list_file_sizes, open_filesystem
from tidemark.delta.log_files import LOG_FOLDER, RemovedFiles
from tidemark.delta.pipeline_tables import PipelineTables, list_candidate_folders
from tidemark.erasure.erased_tables import REJECTED_OUTPUT
from tidemark.erasure.file_erasure import delete_files, find_leftover_files, list_files
from tidemark.erasure.plan import ErasurePlan, plan_erasure
from tidemark.erasure.predicates import find_slice_with_other_columns, require_valid_predicate
from tidemark.erasure.row_erasure import erase_rejected_rows, erase_rows
from tidemark.errors import SliceOrderError, UserError
from tidemark.formatting import ToDict
from tidemark.joins.factory import create_join
from tidemark.ledger.config_fingerprint import find_slices_with_other_settings
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx import data_docs
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import get_schemas
from tidemark.spark.lazy_session import resolve_session
from tidemark.timegrid.slices import group_consecutive
from tidemark.versions.candidates import (
    drop_candidate,
    is_being_dropped,
    list_candidates,
    to_candidate_with_stored_slices,
    with_live_settings,
)


@dataclass(frozen=True)
class ErasureResult(ToDict):
    """Rows and files erased from a pipeline's live or candidate version, or to erase in a dry run."""

    pipeline: str
    row_counts: dict[str, int]
    """Number of erased rows, by table."""
    slices: tuple[tuple[str, str], ...]
    """Ranges of slices that lost rows: start of the first, end of the last."""
    deleted_files: RemovedFiles
    """Deleted files with such rows."""
    deleted_docs: RemovedFiles
    """Deleted results of Great Expectations, and their pages."""
    remaining_files: int
    """Number of files with such rows left on disk, with `keep_files`."""
    dry_run: bool


def erase(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str,
    where: Mapping[SideName, str],
    user: str,
    *,
    dry_run: bool = False,
    keep_files: bool = False,
) -> list[ErasureResult]:
    """Erase the input rows that match a predicate, and all rows derived from them.

    First the tables of the pipeline and its candidates lose the rows, and later runs do not read them. Then their
    bytes are deleted. After a crash, the same call completes the erasure.

    Args:
        where: Predicate by side, SQL over the input's own columns.
        dry_run: Only return what would be erased.
        keep_files: Keep the bytes, so that change feeds can still emit the deletes.

    Raises:
        UserError: A predicate is invalid, rows cannot be identified, or some data cannot be erased.
        SliceOrderError: Another process has committed in the meantime.
        FaultError: Rewritten files have other rows, or other processes kept writing to a table.
    """
    session = resolve_session(spark)
    started_at = datetime.now(UTC)
    results: list[ErasureResult] = []
    erased = set[str]()
    # A candidate may commit its first slices during an erasure. Once the live version has committed the erasure, no
    # job commits that was planned without it.
    while versions := {
        version.output: version for version in _list_versions(pipeline, lake) if version.output not in erased
    }:
        plans = [_plan_version(session, version, lake, where) for version in versions.values()]
        results += [_execute(session, plan, user, dry_run=dry_run, keep_files=keep_files) for plan in plans]
        erased |= versions.keys()
    if not erased:
        raise UserError(
            f"{pipeline.name} has committed no slice, so there is nothing to erase. Check its name and --lake."
        )
    for name in list_candidate_folders(PipelineTables.from_config(pipeline, lake)):
        if to_candidate(pipeline, name).output not in erased:
            results += _erase_unfinished_candidate(
                pipeline, lake, name, started_at, dry_run=dry_run, keep_files=keep_files
            )
    return results


def _list_versions(pipeline: Pipeline, lake: str) -> Iterator[Pipeline]:
    """Yield the live version and the candidates, if they have committed slices."""
    names = [candidate.name for candidate in list_candidates(pipeline, lake)]
    for version in (pipeline, *(to_candidate_with_stored_slices(pipeline, lake, name) for name in names)):
        if Ledger.from_pipeline(version, lake).last:
            yield version


def _erase_unfinished_candidate(
    pipeline: Pipeline, lake: str, name: str, before: datetime, *, dry_run: bool, keep_files: bool
) -> list[ErasureResult]:
    """Delete the files of a candidate version without committed slices: those of killed runs, or of a killed deletion.

    Files written after `before` may belong to a run that does not read the erased rows.
    """
    live = PipelineTables.from_config(pipeline, lake)
    root = f"{live.root}/{CANDIDATES_FOLDER}/{name}"
    is_dropped = is_being_dropped(live, name)
    version = to_candidate(pipeline, name)
    sizes = {
        info.path: info.size
        for info in open_filesystem(root).get_file_info(pafs.FileSelector("", recursive=True))
        if info.is_file and (is_dropped or (info.mtime < before and LOG_FOLDER not in info.path.split("/")))
    }
    if not sizes:
        return []
    remaining_files, deleted_files = (len(sizes), RemovedFiles()) if keep_files else (0, RemovedFiles.from_sizes(sizes))
    if not is_dropped and Ledger.from_pipeline(version, lake).last:
        raise SliceOrderError(
            f"{format_version_name(version)} committed its first slices during the erasure. Run the same command again."
        )
    if is_dropped and not (dry_run or keep_files):
        drop_candidate(pipeline, lake, name)
    elif not (dry_run or keep_files):
        for path in sizes:
            delete_file(root, path)
    return [
        ErasureResult(format_version_name(version), {}, (), deleted_files, RemovedFiles(), remaining_files, dry_run)
    ]


def _plan_version(spark: SparkSession, pipeline: Pipeline, lake: str, where: Mapping[SideName, str]) -> ErasurePlan:
    version = with_live_settings(pipeline, lake)
    ledger = Ledger.from_pipeline(version, lake)
    settings = ledger.last.settings if ledger.last else ""
    if mismatch := next(find_slices_with_other_settings(ledger.entries.values(), settings, ledger.grid), None):
        first = ledger.grid.label(mismatch[0])
        raise UserError(
            f"slices of {format_version_name(version)} from {first} on ran under other settings than the last one. Run "
            f"tidemark reprocess {format_cli_arguments(version)} --from {first} first."
        )
    if (other := find_slice_with_other_columns(ledger, version, where)) is not None:
        first = ledger.grid.label(other)
        raise UserError(
            f"slices of {format_version_name(version)} from {first} on ran with another `select`, so columns that the "
            f"predicate needs may have other values. Run tidemark reprocess {format_cli_arguments(version)} --from "
            f"{first} first."
        )
    if version.join.api == "cogroup":
        raise UserError(
            f"{format_version_name(version)} emits groups of rows (api: cogroup), from which no row can be erased. "
            "Delete the rows in the input and reprocess their slices."
        )
    if list_file_sizes(open_filesystem(ledger.tables.live_query)):
        raise UserError(
            f"{format_version_name(version)} has a live query, whose tables and checkpoint cannot be erased. "
            f"Remove the folder {ledger.tables.live_query} and run the command again."
        )
    inputs = open_inputs(spark, version, lake)
    for source in inputs:
        if (predicate := where.get(source.side.name)) is not None:
            require_valid_predicate(spark, source.side.name, predicate, source.side.schema)
    return plan_erasure(spark, version, create_join(version, spark, get_schemas(inputs)), ledger, where)


def _execute(spark: SparkSession, plan: ErasurePlan, user: str, *, dry_run: bool, keep_files: bool) -> ErasureResult:
    tables, grid, where = plan.ledger.tables, plan.ledger.grid, plan.where
    row_counts = plan.row_counts | ({REJECTED_OUTPUT: plan.rejected_rows} if plan.rejected_rows else {})
    slices = tuple((grid.label(span.start), grid.label(span.stop)) for span in group_consecutive(plan.slice_numbers))
    deleted_files = RemovedFiles()
    remaining_files = 0
    if dry_run:
        now = datetime.now(UTC)
        deleted_files = list_files(find_leftover_files(spark, plan.pipeline, tables, where, now))
        deleted_docs = data_docs.delete_results_before(tables, now, dry_run=True)
    else:
        record = erase_rows(spark, plan, user)
        erase_rejected_rows(spark, plan.pipeline, tables, where)
        at = datetime.fromisoformat(record.at)
        deleted_docs = data_docs.delete_results_before(tables, at, dry_run=False)
        files = find_leftover_files(spark, plan.pipeline, tables, where, at)
        if keep_files:
            remaining_files = len(list_files(files).files)
        else:
            deleted_files = delete_files(tables, files, record)
    return ErasureResult(
        format_version_name(plan.pipeline), row_counts, slices, deleted_files, deleted_docs, remaining_files, dry_run
    )
