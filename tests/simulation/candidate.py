"""A candidate version in memory: output that the live version had, in runs of other names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.in_memory_lake import NO_COLUMNS, replace_in_package
from tests.simulation.in_memory_ledger import OUTPUT_TABLES, InMemoryLedger, find_ledger
from tidemark.delta.staging import StagedFiles
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import find_stale_slices
from tidemark.versions import promotion


def install_candidates(ledgers: Sequence[InMemoryLedger], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let promotions copy the files of candidates in memory."""
    replace_in_package(
        monkeypatch,
        promotion.copy_files,
        lambda _candidate, live, name, _token: _copy_files(find_ledger(ledgers, live.tables), name),
    )


def capture_candidate(record: InMemoryLedger) -> None:
    """Make the committed output the candidate, unless slices are stale or a table has not applied the last commit."""
    ledger = record.read()
    if not ledger.entries or find_stale_slices(ledger) or _has_unapplied_commit(record, ledger):
        return
    names = {run: f"{run}.{next(record.lake.ids)}" for run in {entry.run for entry in ledger.entries.values()}}
    run_by_slice = {number: names[entry.run] for number, entry in ledger.entries.items()}
    contents: dict[str, dict[str, dict[int, Any]]] = {}
    for name in record.versions:
        for number, rows in record.read_table(name).items():
            contents.setdefault(name, {}).setdefault(run_by_slice[number], {})[number] = rows
    for name in OUTPUT_TABLES:
        output = record.get_committed_output(name)
        for run in names.values():
            record.intended_output[name, run] = {
                number: rows for number, rows in output.items() if run_by_slice[number] == run
            }
    for number, run in run_by_slice.items():
        record.rows_read[number, run] = record.rows_read[number, ledger.entries[number].run]
    record.expired_runs |= {names[run] for run in record.expired_runs & names.keys()}
    record.waived_runs |= {
        (number, run)
        for number, run in run_by_slice.items()
        if (number, ledger.entries[number].run) in record.waived_runs
    }
    record.candidate_contents = contents
    record.candidate_attempts = [
        (ledger.last_commit, replace(entry, run=run_by_slice[number])) for number, entry in ledger.entries.items()
    ]


def _has_unapplied_commit(record: InMemoryLedger, ledger: Ledger) -> bool:
    applied = {name: versions[-1] for name, versions in record.versions.items()}
    return any(
        version.commit != ledger.last_commit and not record.is_unused(name, version)
        for name, version in applied.items()
    )


def _copy_files(record: InMemoryLedger, name: str) -> StagedFiles | None:
    path = getattr(record.tables, name)
    staged = [record.lake.stage(path, run, rows) for run, rows in record.candidate_contents.get(name, {}).items()]
    files = tuple(file for part in staged for file in part.files)
    return StagedFiles(path, NO_COLUMNS, files) if files else None
