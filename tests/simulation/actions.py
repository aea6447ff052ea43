"""A shadow that is promoted and rolled back, in memory: an answer that the pipeline has had, in runs of other names."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from pyspark.sql import types as T

from tests.simulation.in_memory_lake import World, described
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import StagedFiles
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import stale
from tidemark.timegrid.slices import Grid
from tidemark.versions import promotion as promoting

SHADOW = PipelineTables("shadow")
_NO_COLUMNS = T.StructType([])


class Moves:
    """What `promote` and `rollback` read and write."""

    def __init__(self, world: World, grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.grid = world, grid
        self.shadow: Ledger | None = None
        self.held: dict[str, dict[str, dict[int, object]]] = {}
        """By table and run, what the shadow has of each slice."""
        self.brought: dict[int, str] = {}
        """By commit of the ledger, what the rows of a promotion or rollback say."""
        self.was: Ledger | None = None
        """What the rollback at hand goes back to."""
        seen = Ledger.read_without_sync
        monkeypatch.setattr(
            Ledger, "read_without_sync", lambda tables, at: self.shadow if tables == SHADOW else seen(tables, at)
        )
        monkeypatch.setattr(Ledger, "from_attempts", lambda _, __, stored: self._then(stored))
        monkeypatch.setattr(promoting, "DeltaTableHandle", SimpleNamespace(open=lambda path: path))
        monkeypatch.setattr(promoting, "read_attempts", lambda *_: world.step(self._attempts))
        monkeypatch.setattr(promoting, "read_candidate_ledger", lambda *_: self.shadow)
        monkeypatch.setattr(promoting, "newest_rows", lambda tables, _=None: self._rows(tables))
        monkeypatch.setattr(promoting, "_copy_files", lambda _, __, name, ___: self._copied(name))
        monkeypatch.setattr(promoting, "_restore_files", lambda _, name, commit, __: self._as_before(name, commit))

    def capture(self) -> None:
        """Let the shadow be what is committed now, if that holds and the tables have come to it."""
        ledger = self.world.ledger(self.grid)
        if not ledger.entries or stale(ledger) or self._is_behind(ledger):
            return
        names = {run: f"{run}.{next(self.world.names)}" for run in {entry.run for entry in ledger.entries.values()}}
        run_of = {number: names[entry.run] for number, entry in ledger.entries.items()}
        entries = {number: replace(entry, run=run_of[number]) for number, entry in ledger.entries.items()}
        self.held = {}
        for name in self.world.tables:
            for number, parts in self.world.read(name).items():
                whole = parts[0] if name == "checkpoint" else sum(parts, Counter())
                self.held.setdefault(name, {}).setdefault(run_of[number], {})[number] = whole
        for name in ("emissions", "quarantined"):
            answer = self.world.answer(self.grid, name)
            for run in names.values():
                mine = {number: rows for number, rows in answer.items() if run_of[number] == run}
                self.world.promised[name, run] = mine
        old = ledger.entries
        self.world.waived |= {
            (number, run) for number, run in run_of.items() if (number, old[number].run) in self.world.waived
        }
        self.shadow = Ledger(SHADOW, self.grid, pd.DataFrame(), entries, frozenset(names.values()), ledger.number)

    def _is_behind(self, ledger: Ledger) -> bool:
        come = {name: versions[-1].number for name, versions in self.world.tables.items()}
        # A table that is made when needed, and nothing is in.
        unused = come.get("quarantined") == 0 and come["emissions"] == ledger.number
        return any(number != ledger.number for name, number in come.items() if name != "quarantined" or not unused)

    def _attempts(self) -> pd.DataFrame:
        commits = sorted({commit for commit, _ in self.world.commits})
        told = pd.Series([self.brought.get(commit) for commit in commits], dtype="object")
        return pd.DataFrame({"commit": commits, "brought": told})

    def _then(self, stored: pd.DataFrame) -> Ledger:
        self.was = self.world.ledger(self.grid, int(stored["commit"].max()) if len(stored) else 0)
        return self.was

    def _rows(self, tables: PipelineTables) -> dict[object, dict[str, object]]:
        source = self.shadow if tables == SHADOW else self.was
        assert source is not None, "it was read before"
        return {self.grid.datetime_of(number): {"entry": entry} for number, entry in source.entries.items()}

    def _copied(self, name: str) -> StagedFiles | None:
        parts = [self.world.stage(name, run, held) for run, held in self.held.get(name, {}).items()]
        files = tuple(file for part in parts for file in part.files)
        return StagedFiles(name, _NO_COLUMNS, files) if files else None

    def _as_before(self, name: str, commit: int) -> StagedFiles | None:
        def act() -> frozenset[str]:
            versions = self.world.tables.get(name, [])
            followed = next((place for place, one in enumerate(versions) if one.number >= commit), 0)
            return versions[followed - 1].paths if followed else frozenset()

        paths = self.world.step(act)
        return StagedFiles(name, _NO_COLUMNS, tuple(described(name, None, sorted(paths)))) if paths else None
