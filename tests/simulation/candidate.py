"""A candidate version in memory: output that the live version had, in runs of other names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.in_memory_lake import NO_COLUMNS, InMemoryLake, replace_in_package
from tidemark.delta.staging import StagedFiles
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import stale
from tidemark.versions import promotion


def install_candidate(lake: InMemoryLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let promotions copy the files of the candidate in memory."""
    replace_in_package(
        monkeypatch, promotion.copy_files, lambda _candidate, _live, name, _token: _copy_files(lake, name)
    )


def capture_candidate(lake: InMemoryLake) -> None:
    """Make the committed output the candidate, unless slices are stale or a table has not applied the last commit."""
    ledger = lake.read_ledger()
    if not ledger.entries or stale(ledger) or _has_unapplied_commit(lake, ledger):
        return
    names = {run: f"{run}.{next(lake.ids)}" for run in {entry.run for entry in ledger.entries.values()}}
    run_by_slice = {number: names[entry.run] for number, entry in ledger.entries.items()}
    contents: dict[str, dict[str, dict[int, Any]]] = {}
    for name in lake.tables:
        for number, rows in lake.read_table(name).items():
            contents.setdefault(name, {}).setdefault(run_by_slice[number], {})[number] = rows
    for name in ("emissions", "quarantined"):
        output = lake.get_committed_output(name)
        for run in names.values():
            lake.intended_output[name, run] = {
                number: rows for number, rows in output.items() if run_by_slice[number] == run
            }
    lake.waived_runs |= {
        (number, run)
        for number, run in run_by_slice.items()
        if (number, ledger.entries[number].run) in lake.waived_runs
    }
    lake.candidate_contents = contents
    lake.candidate_attempts = [
        (ledger.number, replace(entry, run=run_by_slice[number])) for number, entry in ledger.entries.items()
    ]


def _has_unapplied_commit(lake: InMemoryLake, ledger: Ledger) -> bool:
    applied = {name: versions[-1].commit for name, versions in lake.tables.items()}
    # The table is created when rows are quarantined, and applies no commit before.
    is_unused = applied.get("quarantined") == 0 and applied["emissions"] == ledger.number
    return any(commit != ledger.number for name, commit in applied.items() if name != "quarantined" or not is_unused)


def _copy_files(lake: InMemoryLake, name: str) -> StagedFiles | None:
    staged = [lake.stage(name, run, contents) for run, contents in lake.candidate_contents.get(name, {}).items()]
    files = tuple(file for part in staged for file in part.files)
    return StagedFiles(f"lake/{name}", NO_COLUMNS, files) if files else None
