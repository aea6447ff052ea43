"""Inputs and a job of the simulation, with a join without Spark.

A slice emits each row that it reads, together with the rows that the two slices before it read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pandas as pd
import pytest
from pyspark.sql import types as T

from tests.simulation.in_memory_lake import InMemoryLake, get_failed_expectation, replace_in_package
from tidemark.delta.staging import StagedFiles
from tidemark.errors import CheckFailedError
from tidemark.execution.job import JobResult, run_job
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import ConsumedVersions, consumed_versions
from tidemark.planning.plan import Plan
from tidemark.planning.scan_estimate import InputFiles
from tidemark.quality import quarantine
from tidemark.sources.resolution import open_inputs
from tidemark.tables.run_files import StagedRun, new_run
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.values import Watermarks

State = frozenset[tuple[int, int]]
"""Rows in the buffers, with the slices that read them."""
NO_FILES = InputFiles(pd.DataFrame(columns=["size", "rows", "first", "last"], dtype="float64"), now=0)


def install_job(lake: InMemoryLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace inputs and jobs of the package by those of the simulation."""
    for original, substitute in {
        open_inputs: lambda *_: tuple(InMemoryInput.open(lake, name) for name in ("left", "right")),
        InputFiles: SimpleNamespace(from_input=lambda *_: NO_FILES),
        run_job: lambda _spark, plan, ledger, slices, uncommitted, _progress: simulate_job(
            lake, plan, ledger, slices, uncommitted
        ),
        quarantine._stage_rows: lambda _spark, _ledger, *arguments: stage_released_rows(lake, *arguments),
    }.items():
        replace_in_package(monkeypatch, original, substitute)


@dataclass(frozen=True)
class InMemoryInput:
    """One input at the version of a plan, in place of `sources.stored_input.StoredInput`."""

    lake: InMemoryLake
    side: SimpleNamespace
    table: SimpleNamespace
    has_rows: bool

    @classmethod
    def open(cls, lake: InMemoryLake, name: str) -> InMemoryInput:
        """Open an input in one step. The left one has all rows."""
        version = lake.step(lambda: lake.input_version)
        table = SimpleNamespace(name=name, version=version, spark=None, get_schema_at=lambda _: None, void_paths=())
        return cls(lake, SimpleNamespace(name=name, schema=T.StructType()), table, name == "left")

    def read_slices(self, first: int, last: int, consumed: ConsumedVersions) -> list[tuple[int, int]]:
        """Return rows of some slices and late-arriving rows of earlier ones, each with its slice."""
        rows = [(row, number) for row, number, _ in self._list_rows() if first <= number <= last]
        return rows + self._list_late_arriving(first, consumed)

    @property
    def changes(self) -> InMemoryInput:
        """The detector of changes, in place of `ChangeDetector`."""
        return self

    def find_changed_slices(self, _grid: Grid, first: int, consumed: ConsumedVersions, **_: object) -> set[int]:
        return {number for _, number in self._list_late_arriving(first, consumed)}

    def require_exact_arrivals(self, *_: object) -> None:
        """Accept the input: all arrivals are known."""

    def find_exact_arrival_start(self) -> None:
        """Return None: all arrivals are known."""

    def require_unchanged(self, *_: object) -> None:
        """Accept the input: rows are only appended."""

    def measure_extent(self, _grid: Grid) -> tuple[int | None, int]:
        return max((number for _, number, _ in self._list_rows()), default=None), 0

    def _list_rows(self) -> list[tuple[int, int, int]]:
        rows = self.lake.rows if self.has_rows else {}
        return [(row, number, version) for row, (number, version) in rows.items() if version <= self.table.version]

    def _list_late_arriving(self, first: int, consumed: ConsumedVersions) -> list[tuple[int, int]]:
        if not consumed.by_slice:
            return []
        ends = [*(start for start, _ in consumed.by_slice[1:]), first]
        parts = list(zip(consumed.by_slice, ends, strict=True))

        def get_consumed_version(number: int) -> int:
            return next(
                version for (start, version), end in parts if (start is None or start <= number) and number < end
            )

        return [
            (row, number)
            for row, number, version in self._list_rows()
            if number < first and version > get_consumed_version(number)
        ]


def update_state(state: State, rows: State, number: int) -> State:
    """Return the rows in the buffers after a slice: those of the slice and the one before it."""
    return frozenset(item for item in state | rows if item[1] > number - 2)


def join_rows(state: State, rows: State) -> Counter:
    """Emit each row of a slice with the rows in the buffers."""
    buffered = tuple(sorted(row for row, _ in state))
    return Counter((row, buffered) for row, _ in rows)


def stage_released_rows(lake: InMemoryLake, number: int, run: str, names: Iterable[str]) -> dict[str, StagedFiles]:
    """Stage released and remaining rows of a slice, in place of the rewrite by Spark."""
    parts = lake.step(lambda: lake.read_files_by_slice("quarantined").get(number, []))
    rows = sum(parts, Counter())
    released = Counter({item: count for item, count in rows.items() if get_failed_expectation(item[0]) in names})
    return {
        "emissions": lake.stage("emissions", run, {number: released}),
        "quarantined": lake.stage("quarantined", run, {number: rows - released} if rows - released else {}),
    }


def simulate_job(
    lake: InMemoryLake, plan: Plan, ledger: Ledger, slices: range, uncommitted: Mapping[str, StagedRun]
) -> JobResult:
    """Run a job as `execution.job.run_job`, with the join of the simulation."""
    first, carry_in = slices[0], ledger.entry(slices[0] - 1)
    earlier_attempts = {number: ledger.entry(number) for number in slices}
    attempts = {number: entry.attempt + 1 if entry else 1 for number, entry in earlier_attempts.items()}
    commit = plan.next_commit_number(ledger)
    run = new_run(plan.grid, first, attempts[first], commit)
    policy = plan.pipeline.on_late_arriving_rows if carry_in else "exclude"
    earlier_entries = [entry for entry in ledger.entries.values() if entry.number < first]
    rows = []
    for side, source in enumerate(plan.inputs):
        consumed = consumed_versions(earlier_entries, side)
        rows += source.read_slices(
            first, slices[-1], consumed if policy == "append" else replace(consumed, by_slice=())
        )
    late_arriving = [number for _, number in rows if number < first]
    state: State = frozenset()
    if carry_in and any(carry_in.carried):
        state = _restore_state(lake, carry_in, uncommitted)
    emissions, quarantined, states, entries = {}, {}, {}, []
    fingerprint = carry_in.fingerprint if carry_in else None
    for number in slices:
        slice_rows = frozenset((row, number) for row, row_slice in rows if max(row_slice, first) == number)
        emissions[number], state = join_rows(state, slice_rows), update_state(state, slice_rows, number)
        if lake.has_expectations and (number, attempts[number]) in lake.waivers:
            lake.waived_runs.add((number, run))
        elif lake.has_expectations:
            quarantined[number] = Counter(
                {item: count for item, count in emissions[number].items() if get_failed_expectation(item[0])}
            )
            emissions[number] -= quarantined[number]
        states[number] = state
        entry = Entry(
            number=number,
            run=run,
            attempt=attempts[number],
            commit=commit,
            settings=plan.settings_json,
            versions=tuple(source.table.version for source in plan.inputs),
            watermarks=Watermarks(),
            read=(len(slice_rows), 0),
            carried=(len(state), 0),
            drained=False,
            fingerprint=str(sorted(state)),
            carried_in_fingerprint=fingerprint,
            late_arrival_policy=policy,
            late_arriving_rows=len(late_arriving) if number == first else None,
            late_arriving_from=min(late_arriving) if number == first and late_arriving else None,
            slices_to_reprocess=plan.slices_to_reprocess,
        )
        entries.append(entry)
        fingerprint = entry.fingerprint
    lake.intended_output["emissions", run], lake.intended_output["quarantined", run] = emissions, quarantined
    tables = {
        "emissions": lake.stage("emissions", run, {number: rows for number, rows in emissions.items() if rows}),
        "checkpoint": lake.stage("checkpoint", run, states),
    }
    if any(quarantined.values()):
        contents = {number: rows for number, rows in quarantined.items() if rows}
        tables["quarantined"] = lake.stage("quarantined", run, contents)
    return JobResult(
        slices,
        StagedRun(run, slices, tables),
        tuple(entries),
        tuple({"commit": commit, "entry": entry} for entry in entries),
        SimpleNamespace(gx_result_ids=()),
        0.0,
        {},
    )


def _restore_state(lake: InMemoryLake, entry: Entry, uncommitted: Mapping[str, StagedRun]) -> State:
    """Read the rows in the buffers after a slice, from the files of an uncommitted run or from the checkpoint."""
    if staged := uncommitted.get(entry.run):
        return lake.merge_contents(file.path for file in staged.tables["checkpoint"].files)[entry.number]
    parts = lake.step(lambda: lake.read_files_by_slice("checkpoint").get(entry.number))
    if parts is None:
        raise CheckFailedError("rows are unaccounted for: the checkpoint is empty")
    [state] = parts
    return state
