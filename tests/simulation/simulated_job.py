"""Jobs of the simulation, with a join without Spark.

A slice emits each row that it reads, together with the rows that the two slices before it read. Its output stream also
has a watermark. Rows of an output stream are rows of the next join, its watermarks too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from tests.simulation.in_memory_lake import get_failed_expectation, replace_in_package
from tests.simulation.in_memory_ledger import InMemoryLedger, find_ledger
from tests.simulation.simulated_input import list_rows
from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.delta.staging import StagedFiles
from tidemark.errors import CheckFailedError, FaultError
from tidemark.execution import job
from tidemark.execution.job import JobResult, run_job
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.read import read_input_rows
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Plan
from tidemark.quality import quarantine
from tidemark.tables.run_files import StagedRun
from tidemark.watermarks.values import Watermarks

State = frozenset[tuple[Any, int]]
"""Rows in the buffers, with the slices that read them."""
WATERMARK = "watermark"


class RowCountError(AssertionError):
    """A job has read other rows of an output stream than its pipeline has emitted."""


def install_job(ledgers: Sequence[InMemoryLedger], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace jobs of the package by those of the simulation."""
    for original, substitute in {
        run_job: lambda _spark, plan, ledger, slices, uncommitted, _progress, **_: simulate_job(
            find_ledger(ledgers, plan.tables), plan, ledger, slices, uncommitted
        ),
        quarantine._stage_rows: lambda _spark, ledger, *arguments: stage_released_rows(
            find_ledger(ledgers, ledger.tables), *arguments
        ),
    }.items():
        replace_in_package(monkeypatch, original, substitute)


def update_state(state: State, rows: State, number: int) -> State:
    """Return the rows in the buffers after a slice: those of the slice and the one before it."""
    return frozenset(item for item in state | rows if item[1] > number - 2)


def join_rows(state: State, rows: Collection[Any]) -> Counter:
    """Emit each row of a slice with the rows in the buffers."""
    buffered = tuple(sorted((row for row, _ in state), key=repr))
    return Counter((row, buffered) for row in rows)


def create_watermark(number: int, state: State) -> tuple[str, int, int]:
    """Return the watermark in the output stream of a slice: the greatest row in the buffers after it."""
    return WATERMARK, number, max((row for row, _ in state), default=-1)


def stage_released_rows(record: InMemoryLedger, number: int, run: str, names: Iterable[str]) -> dict[str, StagedFiles]:
    """Stage released and remaining rows of a slice, in place of the rewrite by Spark."""
    lake, tables = record.lake, record.tables
    parts = lake.step(lambda: lake.read_files_by_slice(tables.quarantined).get(number, []))
    rows = sum(parts, Counter())
    released = Counter({item: count for item, count in rows.items() if get_failed_expectation(item[0]) in names})
    return {
        "emissions": lake.stage(tables.emissions, run, {number: released}),
        "quarantined": lake.stage(tables.quarantined, run, {number: rows - released} if rows - released else {}),
    }


def simulate_job(
    record: InMemoryLedger, plan: Plan, ledger: Ledger, slices: range, uncommitted: Mapping[str, StagedRun]
) -> JobResult:
    """Run a job as `execution.job.run_job`, with the join of the simulation."""
    spec, lake, first = JobSpec.create(plan, ledger, slices, uncommitted), record.lake, slices[0]
    rows = list(list_rows(read_input_rows(spec)))
    assert len(rows) == len(set(rows)), "a row is read twice"
    late_arriving = [number for _, number in rows if number < first]
    require_all_emissions(spec, rows, len(late_arriving))
    state: State = frozenset()
    if spec.predecessor and any(spec.predecessor.carried):
        state = _restore_state(record, spec.predecessor, uncommitted)
    emissions, quarantined, output_stream, states, entries = {}, {}, {}, {}, []
    fingerprint = spec.predecessor.fingerprint if spec.predecessor else None
    for number in slices:
        slice_rows = frozenset(row for row, row_slice in rows if max(row_slice, first) == number)
        record.rows_read[number, spec.run] = slice_rows
        emissions[number] = join_rows(state, slice_rows)
        state = update_state(state, frozenset((row, number) for row in slice_rows), number)
        if plan.pipeline.output_stream:
            output_stream[number] = emissions[number] + Counter([create_watermark(number, state)])
        emission_count = emissions[number].total()
        if record.has_expectations and (number, spec.attempts[number]) in record.waivers:
            record.waived_runs.add((number, spec.run))
        elif record.has_expectations:
            quarantined[number] = Counter(
                {item: count for item, count in emissions[number].items() if get_failed_expectation(item[0])}
            )
            emissions[number] -= quarantined[number]
        states[number] = state
        entry = Entry(
            number=number,
            run=spec.run,
            attempt=spec.attempts[number],
            commit=spec.commit,
            settings=plan.settings_json,
            versions=tuple(source.table.version for source in plan.inputs),
            watermarks=Watermarks(),
            read=(len(slice_rows), 0),
            carried=(len(state), 0),
            drained=False,
            fingerprint=repr(sorted(state, key=repr)),
            carried_in_fingerprint=fingerprint,
            late_arrival_policy=spec.late_arrival_policy,
            late_arriving_rows=len(late_arriving) if number == first else None,
            late_arriving_from=min(late_arriving) if number == first and late_arriving else None,
            slices_to_reprocess=plan.slices_to_reprocess,
            emissions=emission_count,
        )
        entries.append(entry)
        fingerprint = entry.fingerprint
    output = {"emissions": emissions, "quarantined": quarantined, OUTPUT_STREAM: output_stream}
    for name, contents in output.items():
        record.intended_output[name, spec.run] = contents
    tables = {"emissions": lake.stage(plan.tables.emissions, spec.run, select_non_empty(emissions))}
    for name in ("quarantined", OUTPUT_STREAM):
        if contents := select_non_empty(output[name]):
            tables[name] = lake.stage(getattr(plan.tables, name), spec.run, contents)
    tables["checkpoint"] = lake.stage(plan.tables.checkpoint, spec.run, states)
    return JobResult(
        slices,
        StagedRun(spec.run, slices, tables),
        tuple(entries),
        tuple({"commit": spec.commit, "entry": entry} for entry in entries),
        SimpleNamespace(gx_result_ids=()),
        0.0,
        {},
    )


def select_non_empty(contents: Mapping[int, Counter]) -> dict[int, Counter]:
    """Return the slices that have rows."""
    return {number: rows for number, rows in contents.items() if rows}


def require_all_emissions(spec: JobSpec, rows: Iterable[tuple[Any, int]], late_arriving_rows: int) -> None:
    """Check that a job has read each emission of an output stream, by the package's own check.

    Raises:
        RowCountError: It has not. Nobody deletes rows of an output stream here.
    """
    read = Counter(number for row, number in rows if isinstance(row, tuple) and row[0] != WATERMARK)
    counts = pd.DataFrame({"left_rows": [read[number] for number in spec.slices]}, index=spec.slices)
    counts["late_arriving_rows"] = late_arriving_rows
    try:
        job._require_all_emissions(spec, SimpleNamespace(row_counts=counts))
    except FaultError as error:
        raise RowCountError(str(error)) from error


def _restore_state(record: InMemoryLedger, entry: Entry, uncommitted: Mapping[str, StagedRun]) -> State:
    """Read the rows in the buffers after a slice, from the files of an uncommitted run or from the checkpoint."""
    lake, path = record.lake, record.tables.checkpoint
    if staged := uncommitted.get(entry.run):
        return lake.read_files(file.path for file in staged.tables["checkpoint"].files)[entry.number]
    parts = lake.step(lambda: lake.read_files_by_slice(path).get(entry.number))
    if parts is None:
        raise CheckFailedError("rows are unaccounted for: the checkpoint is empty")
    [state] = parts
    return state
