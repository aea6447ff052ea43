"""Vacuums of the simulation: the package's own plan, over files in memory and at the simulated time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tests.simulation.in_memory_lake import InMemoryLake, replace_in_package
from tests.simulation.in_memory_ledger import InMemoryLedger
from tidemark.checkpoints import expiry
from tidemark.delta.log_files import truncate_log
from tidemark.maintenance import unused_files
from tidemark.maintenance.unused_files import _TableFiles


def install_vacuum(lake: InMemoryLake, ledgers: Sequence[InMemoryLedger], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vacuums list and delete files in memory, and record expired checkpoints."""
    remove_runs = expiry._remove_runs

    def record_and_remove(checkpoint: str, runs: Iterable[str]) -> None:
        next(ledger for ledger in ledgers if ledger.tables.checkpoint == checkpoint).expired_runs.update(runs)
        remove_runs(checkpoint, runs)

    monkeypatch.setattr(expiry, "_remove_runs", record_and_remove)
    monkeypatch.setattr(_TableFiles, "read", lambda name, path: lake.step(lambda: _list_files(lake, name, path)))
    now = SimpleNamespace(now=lambda _zone: datetime.fromtimestamp(lake.seconds, UTC))
    monkeypatch.setattr(unused_files, "datetime", now)
    monkeypatch.setattr(unused_files, "_delete", lambda _folder, paths: lake.step(lambda: _delete(lake, paths)))
    replace_in_package(
        monkeypatch,
        truncate_log,
        lambda table, version: lake.step(lambda: lake.first_versions.update({table.path: version})),
    )


def _delete(lake: InMemoryLake, paths: Iterable[str]) -> None:
    lake.deleted |= dict.fromkeys(paths, lake.seconds)


def _list_files(lake: InMemoryLake, name: str, path: str) -> _TableFiles:
    """List a table's files, those on disk and those of its versions, as `_TableFiles.read`."""
    disk_files = {
        file: SimpleNamespace(path=file, mtime=datetime.fromtimestamp(stored.seconds, UTC), size=1)
        for file, stored in lake.files.items()
        if stored.table == path and file not in lake.deleted
    }
    if (versions := lake.tables.get(path)) is None:
        return _TableFiles(name, path, None, disk_files)
    first, current = lake.first_versions.get(path, 0), versions[-1].paths
    removals = {}
    for number in range(max(first, 1), len(versions)):
        for file in versions[number - 1].paths - versions[number].paths - current:
            removals[file] = number, versions[number].seconds * 1000
    log_files = SimpleNamespace(
        table=SimpleNamespace(path=path),
        oldest_version=first,
        commit_versions=range(first, len(versions)),
        list_files_before=lambda version: [SimpleNamespace(path=f"{path}/{version}", size=1)],
    )
    return _TableFiles(
        name,
        path,
        log_files,
        disk_files,
        committed_paths=frozenset().union(*(version.paths for version in versions[first:])),
        removals=removals,
        commit_times={number: versions[number].seconds * 1000 for number in range(first, len(versions))},
    )
