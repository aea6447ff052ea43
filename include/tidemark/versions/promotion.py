"""Promote a candidate version, or roll back, in one commit of the ledger and of each table.

Files of the candidate are copied into the live tables' folders. Replaced files stay until they are vacuumed, so both
directions are commits by reference, like a rerun of all slices: docs/decisions/0009-candidate-versions.md.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import pandas as pd
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments, to_candidate
from tidemark.config.types import format_instant
from tidemark.delta.filesystem import open_filesystem
from tidemark.delta.staging import StagedFiles, read_data_files
from tidemark.delta.table import DataFile, DeltaTableHandle
from tidemark.errors import FaultError, LedgerConflictError, UserError
from tidemark.ledger.config_fingerprint import find_slices_with_other_settings, serialize_settings
from tidemark.ledger.entry import Entry
from tidemark.ledger.erasure_records import find_last_erasure_commit, list_erasures, predicates_from_json
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import PROMOTED, ROLLED_BACK, read_attempts, read_newest_rows
from tidemark.ledger.staleness import find_stale_slices
from tidemark.ledger.transaction import LedgerTransaction
from tidemark.tables.run_files import FOLDER, StagedRun, parse_run
from tidemark.tables.table_changes import LEDGER_MANAGED_TABLES
from tidemark.timegrid.slices import group_consecutive
from tidemark.versions.candidates import read_candidate_ledger

_COPY_THREADS = 8
"""Number of files copied in parallel."""


@dataclass(frozen=True)
class PromotionResult:
    """Result of a promotion or rollback."""

    pipeline: str
    candidate: str
    commit: int
    """Number of the ledger's commit."""
    slices: int
    start: str
    end: str
    """End of the last slice, exclusive."""
    files: int
    bytes: int
    slices_to_rerun: tuple[tuple[str, str], ...]
    """Ranges of slices (end exclusive) that are stale and that the next run recomputes."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-ready dictionary."""
        return asdict(self)


def promote(spark: SparkSession, pipeline: Pipeline, lake: str, name: str, user: str) -> PromotionResult:
    """Make a candidate version live in place of all live slices.

    Args:
        spark: A session.
        pipeline: The pipeline with the settings of the candidate.
        lake: The lake root.
        name: Name of the candidate.
        user: User to record in the ledger.

    Raises:
        UserError: There is no such candidate, it ran under other settings than the pipeline's, has stale slices, lacks
            live slices, may have erased rows, or is live already.
        SliceOrderError: Another process committed to either version meanwhile. The live version does not change.
        FaultError: A copy does not have the rows of its file.
    """
    candidate, live = read_candidate_ledger(pipeline, lake, name), Ledger.from_pipeline(pipeline, lake)
    _require_promotable(pipeline, name, candidate, live)
    _require_erased(pipeline, name, candidate, live)
    token = uuid4().hex[:8]
    staged = {table: part for table in LEDGER_MANAGED_TABLES if (part := copy_files(candidate, live, table, token))}
    # The slices keep the order of their commits; the last of them gets the number of this commit.
    later = live.last_commit + 1 - candidate.last_commit
    original_commits = {number: entry.commit + later for number, entry in candidate.entries.items()}
    rows = read_newest_rows(candidate.tables)
    record = {PROMOTED: name, "user": user}
    if Ledger.read_without_sync(candidate.tables, candidate.grid).last_commit != candidate.last_commit:
        raise LedgerConflictError(f"slices of candidate {name} were committed meanwhile. Run the same command again.")
    return _commit_promotion(spark, pipeline, live, rows, original_commits, staged, record)


def rollback(spark: SparkSession, pipeline: Pipeline, lake: str, name: str, user: str) -> PromotionResult:
    """Return to the version that was live before a promotion.

    Args:
        spark: A session.
        pipeline: The pipeline with the settings of the earlier version.
        lake: The lake root.
        name: Name of the promoted candidate.
        user: User to record in the ledger.

    Raises:
        UserError: A later promotion is live, files of the earlier version were vacuumed, or rows were erased since.
        SliceOrderError: Another process committed meanwhile. The live version does not change.
    """
    live = Ledger.from_pipeline(pipeline, lake)
    log = DeltaTableHandle.open(live.tables.ledger)
    stored = read_attempts(log, live.grid) if log else live.rows
    promoted = _find_promotion(stored, name) if log else None
    if promoted is None:
        raise UserError(f"no promotion of candidate {name} of {pipeline.name} is live. There is nothing to roll back.")
    earlier = Ledger.from_attempts(live.tables, live.grid, stored[stored["commit"] < promoted])
    if find_last_erasure_commit(live.tables) > promoted:
        raise UserError(
            f"rows were erased since candidate {name} was promoted, and the earlier version may have them. Restore the "
            "old settings of the pipeline file, and run it as a candidate."
        )
    if earlier.last is None:
        raise UserError(f"no slice was live before candidate {name} was promoted. There is nothing to roll back to.")
    staged = {table: part for table in LEDGER_MANAGED_TABLES if (part := _restore_files(live, table, promoted, name))}
    original_commits = {number: entry.commit for number, entry in earlier.entries.items()}
    rows = read_newest_rows(live.tables, ds.field("commit") < promoted)
    record = {ROLLED_BACK: name, "user": user}
    return _commit_promotion(spark, pipeline, live, rows, original_commits, staged, record)


def _require_promotable(pipeline: Pipeline, name: str, candidate: Ledger, live: Ledger) -> None:
    """Check that a candidate can replace the live version."""
    grid = candidate.grid
    command = f"tidemark run {format_cli_arguments(to_candidate(pipeline, name))}"
    settings = serialize_settings(pipeline)
    if other := next(find_slices_with_other_settings(candidate.entries.values(), settings, grid), None):
        first = grid.label(other[0])
        setting_diff = other[1]
        raise UserError(
            f"slices of candidate {name} from {first} on ran under other settings than the pipeline file has "
            f"({setting_diff}). Promote it with the file that it ran with, or run tidemark reprocess "
            f"{format_cli_arguments(to_candidate(pipeline, name))} --from {first}."
        )
    if stale_slices := find_stale_slices(candidate):
        since = grid.label(min(stale_slices))
        raise UserError(f"slices of candidate {name} are stale from {since} on. Recompute them with {command}.")
    if missing := list(group_consecutive(number for number in live.entries if number not in candidate.entries)):
        first, end = grid.label(missing[0].start), grid.label(missing[-1].stop)
        before = max((number for number in candidate.entries if number < missing[0].start), default=-1)
        if candidate.last and candidate.last.number > before:  # a run begins after the last slice
            arguments, end_of_gap = format_cli_arguments(to_candidate(pipeline, name)), grid.label(missing[0].stop)
            command = f"tidemark reprocess {arguments} --from {grid.label(before + 1)} --to {end_of_gap}"
        else:
            command = f"{command} --to {end}"
        raise UserError(f"candidate {name} lacks live slices from {first} to {end} (exclusive). Run {command}.")
    if all((now := live.entry(number)) and now.run == entry.run for number, entry in candidate.entries.items()):
        raise UserError(f"candidate {name} is the live version of {pipeline.name} already.")


def _require_erased(pipeline: Pipeline, name: str, candidate: Ledger, live: Ledger) -> None:
    """Require that a candidate has no rows that were erased from the live version.

    Raises:
        UserError: It may have some.
    """
    erased = [record.predicates for record in list_erasures(candidate.tables)]
    excluded = [predicates_from_json(entry.excluded_predicates) for entry in candidate.entries.values()]
    for record in list_erasures(live.tables):
        is_excluded = all(
            text in predicates.get(side, ()) for predicates in excluded for side, text in record.predicates.items()
        )
        if record.predicates not in erased and not is_excluded:
            raise UserError(
                f"rows of {pipeline.name} were erased at {record.at}, and candidate {name} may still have them. Run "
                "the same tidemark tables erase again, then promote."
            )


def _find_promotion(stored: pd.DataFrame, name: str) -> int | None:
    """Return the commit that promoted a candidate, if that is the last promotion that was not rolled back.

    Raises:
        UserError: Another candidate was promoted later.
    """
    standing: list[tuple[str, int]] = []
    records = stored[["commit", "promotion"]].dropna().drop_duplicates().sort_values("commit")
    for commit, record_json in records.itertuples(index=False):
        record = json.loads(record_json)
        if PROMOTED in record:
            standing.append((record[PROMOTED], int(commit)))
        else:
            standing.pop()
    if standing and standing[-1][0] != name and name in dict(standing):
        raise UserError(f"candidate {standing[-1][0]} was promoted after {name}. Roll that back first.")
    return standing[-1][1] if standing and standing[-1][0] == name else None


def copy_files(candidate: Ledger, live: Ledger, name: str, token: str) -> StagedFiles | None:
    """Copy the files of a candidate's table into the live table's folder. The live table's log does not have them."""
    source_table, table = DeltaTableHandle.open(getattr(candidate.tables, name)), getattr(live.tables, name)
    if source_table is None or source_table.files.empty:
        return None
    target = open_filesystem(table)
    paths = {
        path: f"{FOLDER}{parse_run(path)}/{token}/{n}.parquet" for n, path in enumerate(source_table.files["path"])
    }
    for folder in {path.rpartition("/")[0] for path in paths.values()}:
        target.create_dir(folder)

    def copy(path: str) -> None:
        with (
            source_table.filesystem.open_input_stream(path) as source,
            target.open_output_stream(paths[path]) as written,
        ):
            shutil.copyfileobj(source, written)

    with ThreadPoolExecutor(_COPY_THREADS) as pool:
        list(pool.map(copy, paths))
    files = tuple(read_data_files(table, source_table.schema, paths.values()))
    if (rows := sum(file.rows for file in files)) != source_table.files["rows"].sum():
        raise FaultError(
            f"{table}: copies of the files of {source_table.path} have {rows:,} rows instead of those of the "
            "originals. Run the same command again."
        )
    return StagedFiles(table, source_table.schema, files)


def _restore_files(live: Ledger, name: str, promoted: int, candidate: str) -> StagedFiles | None:
    """Return the files that a table had before a commit of the ledger."""
    table = DeltaTableHandle.open(getattr(live.tables, name))
    if table is None:
        return None
    try:
        before = table.open_before_txn(promoted)
        files = tuple(read_data_files(table.path, table.schema, before.files["path"] if before else ()))
    except FileNotFoundError as error:
        raise UserError(
            f"files of {table.path} from before the promotion of candidate {candidate} were vacuumed ({error}). "
            "Restore the old settings of the pipeline file, and run it as a candidate."
        ) from None
    return StagedFiles(table.path, table.schema, files)


def _commit_promotion(
    spark: SparkSession,
    pipeline: Pipeline,
    live: Ledger,
    rows: Mapping[datetime, dict[str, Any]],
    original_commits: Mapping[int, int],
    staged: Mapping[str, StagedFiles],
    record: Mapping[str, str],
) -> PromotionResult:
    """Commit files as those of slices, with ledger rows that name each slice's original commit; other files leave."""
    grid = live.grid
    start, end = min(original_commits), max(original_commits) + 1
    run = StagedRun(uuid4().hex, range(start, end), staged)
    rerun_slices = [number for number in original_commits if live.entry(number)]
    transaction = LedgerTransaction.prepare(spark, live, live.last_commit + 1, [run], rerun_slices)
    promotion = json.dumps({**record, "at": format_instant(transaction.committed_at)})
    transaction.commit(
        [
            transaction.amend_row(
                rows[grid.datetime_of(number)],
                original_commit,
                attempt=_next_attempt(live.entry(number)),
                promotion=promotion,
            )
            for number, original_commit in original_commits.items()
        ]
    )
    files: list[DataFile] = [file for part in staged.values() for file in part.files]
    stale_slices = group_consecutive(find_stale_slices(Ledger.read(live.tables, grid)))
    return PromotionResult(
        pipeline.name,
        next(iter(record.values())),
        transaction.number,
        len(original_commits),
        grid.label(start),
        grid.label(end),
        len(files),
        sum(file.size for file in files),
        tuple((grid.label(part.start), grid.label(part.stop)) for part in stale_slices),
    )


def _next_attempt(before: Entry | None) -> int:
    return before.attempt + 1 if before else 1
