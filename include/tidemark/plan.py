"""What would run and why, as data: `explain` shows it, `run` executes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pyspark.sql import SparkSession

from tidemark.errors import SliceOrderError
from tidemark.inputs import StoredInput, stored_inputs
from tidemark.joins import Join, join_of
from tidemark.lake import PipelineTables
from tidemark.ledger import Entry, Ledger
from tidemark.publish import check_expressions
from tidemark.slices import Grid
from tidemark.spec import Pipeline
from tidemark.spec.values import micros
from tidemark.traces import QueryTrace, TracedInput


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    start: datetime | None = None
    """First slice to run (inclusive); after the last committed one by default."""
    end: datetime | None = None
    """End of the last slice to run (exclusive); after the last row, and not after now, by default."""
    slices_per_job: int | Literal["auto"] = "auto"
    drain: bool = False
    """End the input after the last slice: watermark to infinity."""
    from_empty_state: bool = False
    """Start without a predecessor, as a job without a savepoint does."""


@dataclass(frozen=True)
class Plan:
    """The slices that would run, in order, grouped into jobs."""

    pipeline: Pipeline
    grid: Grid
    tables: PipelineTables
    inputs: tuple[StoredInput, StoredInput]
    join: Join
    carry_in: Entry | None
    """The committed slice whose checkpoint the first job continues; None for empty state."""
    jobs: tuple[range, ...]
    skipped: int
    """Slices asked for that are committed already."""
    notes: tuple[str, ...]
    """What a user should know: rows outside the slices, why nothing runs."""
    drain: bool

    @property
    def trace(self) -> QueryTrace | None:
        """The query whose batches the slices are made of, None where each slice is its own."""
        return _trace_of(self.inputs)

    @property
    def slices(self) -> int:
        """How many slices would run."""
        return sum(len(job) for job in self.jobs)

    def describe(self) -> dict[str, Any]:
        """The plan for scripts: JSON-ready."""
        left, right = (source.table for source in self.inputs)
        return {
            "pipeline": self.pipeline.name,
            "clock": self.pipeline.clock,
            "slices": self.slices,
            "already_committed": self.skipped,
            "from": self.grid.label(self.jobs[0][0]) if self.jobs else None,
            "to": self.grid.label(self.jobs[-1][-1] + 1) if self.jobs else None,
            "jobs": [
                {"from": self.grid.label(job[0]), "to": self.grid.label(job[-1] + 1), "slices": len(job)}
                for job in self.jobs
            ],
            "why": self._why(),
            "carry_in": self.grid.label(self.carry_in.number) if self.carry_in else None,
            "inputs": {
                "left": {"table": left.name, "version": left.version},
                "right": {"table": right.name, "version": right.version},
            },
            "drain": self.drain,
            "notes": list(self.notes),
        }

    def _why(self) -> str:
        if not self.jobs:
            return "nothing to run"
        if self.carry_in is None:
            return "new: no slice is committed yet" if self.jobs[0][0] == 0 else "new: starts from empty state"
        return f"new: continues slice {self.grid.label(self.carry_in.number)}"


def make_plan(spark: SparkSession, pipeline: Pipeline, lake: str, request: Request) -> Plan:
    """Plan the slices of a request against the ledger and the inputs as they stand now.

    Raises:
        SliceOrderError: off the grid, a gap, a missing predecessor, other settings, a drained input.
        InputError: an input does not serve.
        PipelineFileError: the condition or the output columns do not suit the inputs.
    """
    grid, tables = Grid.of(pipeline.slices), PipelineTables(f"{lake}/{pipeline.output}")
    inputs = stored_inputs(spark, pipeline, lake)
    check_expressions(spark, pipeline, grid, *(source.side.schema for source in inputs))
    join = join_of(pipeline, spark, {source.side.name: source.side.schema for source in inputs})
    ledger = Ledger(spark, tables, grid)
    last = ledger.last
    if last:
        _refuse_other_settings(pipeline, last, grid)
    after = last.number + 1 if last else 0
    first = grid.boundary(request.start, "--from") if request.start else after
    end, notes = _end(request, grid, inputs)
    if request.start and request.end and end <= first:
        raise SliceOrderError(f"--to {grid.label(end)} is not after --from {grid.label(first)}; --to is exclusive")
    if first > after and not request.from_empty_state:
        _refuse_gap(first, last, grid)
    start = first if request.from_empty_state and first > after else max(first, after)
    if last and last.drained and end > start:
        raise SliceOrderError(
            f"the input was drained at slice {grid.label(last.number)}, so no slice can follow it; "
            "give the pipeline a new `output` to run it again without --drain"
        )
    carry_in = ledger.entry(start - 1)
    if not range(start, end):
        notes.append(
            f"all slices up to {grid.label(after)} are committed" if last else "the inputs hold no rows to run"
        )
    return Plan(
        pipeline, grid, tables, inputs, join, carry_in, _jobs(range(start, end), request.slices_per_job),
        skipped=max(0, min(start, end) - first), notes=tuple(notes), drain=request.drain,
    )  # fmt: skip


def _trace_of(inputs: tuple[StoredInput, StoredInput]) -> QueryTrace | None:
    table = inputs[0].table
    return table.trace if isinstance(table, TracedInput) else None


def _end(request: Request, grid: Grid, inputs: tuple[StoredInput, StoredInput]) -> tuple[int, list[str]]:
    trace, now = _trace_of(inputs), grid.number_at(micros(datetime.now(UTC)))
    if trace and request.drain:
        raise SliceOrderError("--drain: a trace tells which batches ran; none follows its last")
    if trace and request.end and grid.boundary(request.end, "--to") > trace.end(grid):
        raise SliceOrderError(
            f"--to {grid.label(grid.boundary(request.end, '--to'))} is after the end of the trace: the batches of "
            f"{trace.checkpoint} are known for slices before {grid.label(trace.end(grid))}"
        )
    if request.end:
        return grid.boundary(request.end, "--to"), []
    if trace:
        waits = "the last batch lies in a slice that is not over yet; --to takes it all the same"
        return max(0, min(trace.end(grid), now)), [waits] if now < trace.end(grid) else []
    notes, last = [], -1
    for source in inputs:
        newest, before = source.extent(grid)
        if before:
            notes.append(f"{before} rows of {source.table.name} lie before the first slice and take no part")
        if newest is not None and newest >= now:
            notes.append(f"{source.table.name} reaches to {grid.label(newest)}; slices that are not over yet wait")
        last = max(last, -1 if newest is None else min(newest, now - 1))
    return last + 1, notes


def _refuse_gap(first: int, last: Entry | None, grid: Grid) -> None:
    known = f"the last committed slice is {grid.label(last.number)}" if last else "no slice is committed yet"
    raise SliceOrderError(
        f"checkpoint before slice {grid.label(first)} is missing: {known}; "
        f"run from {grid.label(last.number + 1 if last else 0)}, or pass --from-empty-state"
    )


def _refuse_other_settings(pipeline: Pipeline, last: Entry, grid: Grid) -> None:
    was, now = _flat(last.settings), _flat(pipeline.semantic_settings())
    changed = [f"{k} was {was.get(k)}, now {now.get(k)}" for k in sorted(was | now) if was.get(k) != now.get(k)]
    if changed:
        raise SliceOrderError(
            f"slice {grid.label(last.number)} was written under other settings ({'; '.join(changed)}); "
            "restore them, or give the pipeline a new `output` to run it from its start"
        )


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(settings, dict | list):
        return {prefix: settings}
    items = settings.items() if isinstance(settings, dict) else enumerate(settings)
    return {k: v for key, part in items for k, v in _flat(part, f"{prefix}.{key}" if prefix else str(key)).items()}


def _jobs(slices: range, per_job: int | Literal["auto"]) -> tuple[range, ...]:
    size = max(1, len(slices)) if per_job == "auto" else per_job
    return tuple(slices[i : i + size] for i in range(0, len(slices), size))
