"""Erase rows from a pipeline's tables by one commit of the ledger and of each table.

A file with erased and other rows is first split in two without data change. Then the files with erased rows are
removed, so change feeds show only their deletes: docs/decisions/0010-erasure.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_instant
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.retry import retry_on_conflict
from tidemark.delta.staging import PRUNING_COLUMNS, read_files, stage_rows
from tidemark.delta.table import DataFile, DeltaTableHandle
from tidemark.erasure.erased_tables import REJECTED_OUTPUT
from tidemark.erasure.plan import ErasurePlan, count_rejected_rows
from tidemark.erasure.predicates import list_unidentifiable_files, match_rows
from tidemark.errors import FaultError, LedgerConflictError
from tidemark.ledger.checkpoint_files import with_slice_numbers
from tidemark.ledger.entry import Counts, Entry
from tidemark.ledger.erasure_records import ErasureRecord, list_erasures, parse_erasure_records
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import read_newest_rows
from tidemark.ledger.rewrite_verification import verify_same_rows
from tidemark.ledger.state_fingerprint import compute_fingerprints, state_parts
from tidemark.ledger.transaction import LedgerTransaction
from tidemark.tables.run_files import FOLDER, SLICE_COLUMNS, list_slices_by_file, parse_run, stage_run
from tidemark.tables.table_changes import QUARANTINED, TableChanges
from tidemark.timegrid.slices import group_consecutive


def count_erased_carried_rows(entry: Entry) -> int:
    """Count the rows of the state after a slice that were erased since it ran."""
    return sum(record.slice_row_counts.get("checkpoint", 0) for record in parse_erasure_records(entry.erasures))


def erase_rows(spark: SparkSession, plan: ErasurePlan, user: str) -> ErasureRecord:
    """Erase the planned rows from the tables and record it in the ledger.

    Returns:
        The new record, or the earlier record of the same predicates if no row is left.

    Raises:
        SliceOrderError: Another process has committed since the plan; nothing is erased.
        FaultError: The rewritten files do not have the remaining rows.
    """
    previous = next((record for record in list_erasures(plan.ledger.tables) if record.predicates == plan.where), None)
    if previous and not plan.matching_files:
        return previous
    ledger = plan.ledger
    removed_files = {name: _isolate_matching_rows(spark, plan, name) for name in plan.matching_files}
    logs = {name: DeltaTableHandle.open(getattr(ledger.tables, name)) for name in ("emissions", "late", "checkpoint")}
    before = {name: log.version for name, log in logs.items() if log}
    record = ErasureRecord(dict(plan.where), user, format_instant(datetime.now(UTC)), plan.row_counts, {})
    fingerprints = _compute_fingerprints(spark, plan)
    transaction = LedgerTransaction(
        ledger, ledger.last_commit + 1, TableChanges({}, removed_files=removed_files), before
    )
    transaction.commit(list(_create_ledger_rows(plan, record, transaction, fingerprints)))
    return record


def _isolate_matching_rows(spark: SparkSession, plan: ErasurePlan, name: str) -> tuple[str, ...]:
    """Split the files of a table so that matching rows are in files of their own, and return these.

    Raises:
        SliceOrderError: Another process has changed the files since the plan.
    """
    path = getattr(plan.ledger.tables, name)
    matching = plan.matching_files[name]
    log = _require_files(DeltaTableHandle.open(path), path, matching)
    rows = dict(zip(log.files["path"], log.files["rows"], strict=True))
    mixed = [file for file, count in matching.items() if rows[file] != count]
    is_match = match_rows(spark, plan.pipeline, plan.where, log, name)
    remaining_files: list[DataFile] = []
    isolated_files: list[DataFile] = []
    for run in sorted(set(map(parse_run, mixed))):
        run_files = [file for file in mixed if parse_run(file) == run]
        source = read_files(spark, log.path, log.schema, run_files)
        remaining_rows, matching_rows = source.where(~is_match), source.where(is_match).coalesce(1)
        remaining, isolated = stage_run(remaining_rows, log.path, run), stage_run(matching_rows, log.path, run)
        verify_same_rows(remaining_rows, remaining, SLICE_COLUMNS[name][0])
        if sum(file.rows for file in (*remaining.files, *isolated.files)) != sum(rows[file] for file in run_files):
            raise FaultError(
                f"{log.path}: files of run {run} have another number of rows after the rewrite. Run the command again."
            )
        remaining_files += remaining.files
        isolated_files += (replace(file, stats=strip_value_statistics(file.stats)) for file in isolated.files)
    if mixed:
        _replace_files(path, [*remaining_files, *isolated_files], mixed)
    return (*(file for file in matching if file not in mixed), *(file.path for file in isolated_files))


def _replace_files(path: str, added: Sequence[DataFile], removed: Sequence[str]) -> None:
    def attempt() -> None:
        _require_files(DeltaTableHandle.open(path), path, removed).commit(added, removed, changes_data=False)

    retry_on_conflict(attempt, path)


def _require_files(log: DeltaTableHandle | None, path: str, files: Iterable[str]) -> DeltaTableHandle:
    if log is None or not set(files) <= set(log.files["path"]):
        raise LedgerConflictError(
            f"another process has changed files of {path} in the meantime, so nothing was erased. Run the command "
            "again."
        )
    return log


def strip_value_statistics(stats: str) -> str:
    """Reduce a file's statistics to the number of rows and the slices."""
    statistics = json.loads(stats)
    pruning_values = {
        key: {name: value for name, value in statistics.get(key, {}).items() if name in PRUNING_COLUMNS}
        for key in ("minValues", "maxValues", "nullCount")
    }
    return json.dumps({"numRecords": statistics["numRecords"], **pruning_values})


def _compute_fingerprints(spark: SparkSession, plan: ErasurePlan) -> dict[int, str]:
    """Compute the fingerprint, without the erased rows, of each state that loses rows."""
    ledger = plan.ledger
    log = DeltaTableHandle.open(plan.ledger.tables.checkpoint)
    if log is None or not plan.carried_rows:
        return {}
    slices_of_file = list_slices_by_file(log, "checkpoint", ledger.grid)
    changed_slices = set(plan.carried_rows)
    paths = [path for path, span in slices_of_file.items() if span is None or changed_slices.intersection(span)]
    stored_slices = {number for path in paths for number in slices_of_file[path] or ledger.entries}
    rows = read_files(spark, log.path, log.schema, paths)
    remaining = rows.where(~match_rows(spark, plan.pipeline, plan.where, log, "checkpoint"))
    parts = state_parts(with_slice_numbers(remaining, ledger.grid), plan.join).toPandas()
    erased = {
        number: count_erased_carried_rows(ledger.entries[number]) + sum(rows_by_side.values())
        for number, rows_by_side in plan.carried_rows.items()
    }
    fingerprints: dict[int, str] = {}
    for slices in group_consecutive(stored_slices.intersection(ledger.entries)):
        ends = {number: ledger.entries[number].watermarks for number in slices}
        parts_of_slices = parts[(parts["since"] >= slices.start) & (parts["since"] < slices.stop)]
        fingerprints |= compute_fingerprints(parts_of_slices, ends, erased)
    return {number: fingerprints[number] for number in changed_slices}


def _create_ledger_rows(
    plan: ErasurePlan, record: ErasureRecord, transaction: LedgerTransaction, fingerprints: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    """Yield ledger rows of slices that lose rows or continue a state that does, and of the last slice."""
    ledger = plan.ledger
    stored = read_newest_rows(ledger.tables)
    last = ledger.last
    assert last is not None, "something is committed"
    continued = {n + 1 for n in fingerprints if _is_continuation(ledger, n + 1)}
    for number in sorted({*plan.slice_numbers, *continued, last.number}):
        entry, before = ledger.entries[number], stored[ledger.grid.datetime_of(number)]
        erased = {name: slices[number] for name, slices in plan.rows_by_slice.items() if slices.get(number)}
        records = [
            *map(asdict, parse_erasure_records(entry.erasures)),
            asdict(replace(record, slice_row_counts=erased)),
        ]
        erased_before = plan.carried_rows[number - 1] if number in continued else Counter[SideName]()
        quarantined, erased_after = before.get("quarantined"), plan.carried_rows.get(number, Counter[SideName]())
        counts = {
            str(side): _subtract_carried_rows(before[side], erased_before[side], erased_after[side]) for side in SIDES
        }
        yield transaction.amend_row(
            before,
            entry.commit,
            emissions=before["emissions"] - erased.get("emissions", 0),
            quarantined=quarantined and quarantined - erased.get(QUARANTINED, 0),
            **counts,
            fingerprint=entry.fingerprint and fingerprints.get(number, entry.fingerprint),
            carried_in_fingerprint=fingerprints[number - 1] if number in continued else entry.carried_in_fingerprint,
            erasures=json.dumps(records),
        )


def _is_continuation(ledger: Ledger, number: int) -> bool:
    """Return True if a slice continued the current state of the slice before."""
    entry, before = ledger.entry(number), ledger.entry(number - 1)
    return bool(
        entry and before and entry.carried_in_fingerprint and entry.carried_in_fingerprint == before.fingerprint
    )


def _subtract_carried_rows(row: Mapping[str, int], carried_in: int, carried_out: int) -> dict[str, int]:
    """Subtract erased rows from the carried counts. Read rows stay; the erased ones count as evicted."""
    counts = Counts(**row)
    return asdict(
        Counts.with_remaining_evicted(
            counts.read, counts.carried_in - carried_in, counts.late, counts.rejected, counts.carried_out - carried_out
        )
    )


def erase_rejected_rows(
    spark: SparkSession, pipeline: Pipeline, tables: PipelineTables, where: Mapping[SideName, str]
) -> None:
    """Erase rows of rejected output, which is not in the ledger."""

    def attempt() -> None:
        log = DeltaTableHandle.open(tables.rejected_output)
        matching = count_rejected_rows(spark, pipeline, log, where)
        if log is None or not matching:
            return
        rows = read_files(
            spark, log.path, log.schema, matching.keys() - list_unidentifiable_files(pipeline, where, log)
        )
        remaining = rows.where(~match_rows(spark, pipeline, where, log, REJECTED_OUTPUT)).coalesce(1)
        staged = stage_rows(remaining, log.path, f"{FOLDER}rewritten/{uuid4().hex[:8]}")
        log.commit(staged.files, matching)

    retry_on_conflict(attempt, tables.rejected_output)
