"""Plan which slices run, why, and in which Spark jobs; `tidemark plan` shows it, `tidemark run` executes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.candidate_version import cli_arguments
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant, to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import IncompleteInputError, InputError, SliceOrderError
from tidemark.joins.base import Join
from tidemark.joins.factory import create_join
from tidemark.joins.output_schema import check_expressions
from tidemark.joins.rules.spark import list_unbounded_sides
from tidemark.joins.window_output import SEMI_ANTI_TYPES
from tidemark.ledger.checkpoint_files import list_available_checkpoints
from tidemark.ledger.config_fingerprint import serialize_settings, slices_with_other_settings
from tidemark.ledger.erasure_records import predicates_to_json
from tidemark.ledger.ledger import Entry, Ledger
from tidemark.ledger.staleness import consumed_versions, reads, restorable, stale, start_of_chain, waiting
from tidemark.planning.duration_estimate import Estimate, estimate_duration, list_past_jobs
from tidemark.planning.job_sizing import JobCapacity
from tidemark.planning.scan_estimate import InputFiles, ScanEstimate
from tidemark.sources.completeness import InputCompleteness, measure_completeness
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import StoredInput, get_query_trace, get_schemas
from tidemark.spark.lazy_session import is_started, resolve_session
from tidemark.timegrid.slices import Grid, LocalDayGrid, group_consecutive
from tidemark.watermarks.query_trace import QueryTrace

MAX_SMALL_JOBS, MAX_SMALL_ROWS = 3, 50_000
"""Largest numbers of jobs and input rows of a small plan."""
Reason = Literal[
    "new", "gap", "stale", "changed settings", "changed input", "late landing", "reprocess", "expired checkpoint"
]


@dataclass(frozen=True)
class Request:
    """A user's request to run slices."""

    start: datetime | None = None
    """Start of the first slice to run; by default the end of the last committed slice."""
    end: datetime | None = None
    """End of the last slice to run (exclusive); by default after the last row, and not after now."""
    slices_per_job: int | Literal["auto"] = "auto"
    drain: bool = False
    """End the inputs after the last slice: advance the watermarks to infinity."""
    from_empty_state: bool = False
    """Start without a predecessor, like a streaming job without a savepoint."""
    reprocess: bool = False
    """Run committed slices again; without `start` and `end`, the slices with late-arriving rows."""
    atomic: bool = False
    """Commit all jobs in one commit at the end."""
    ignore_completeness: bool = False
    """Run slices even if their inputs are incomplete by the rules of the pipeline file."""
    skip_asset_check: bool = False
    """Assume that the assets in these rules had an event: Airflow checked it."""


@dataclass(frozen=True)
class Segment:
    """Consecutive slices that run for the same reason."""

    slices: range
    reason: Reason
    explanation: str


@dataclass(frozen=True)
class Plan:
    """The slices to run, in order, grouped into jobs. Pure data: reading it runs no Spark query.

    Slices that turn stale while it runs are run as well, until none is stale
    (docs/decisions/0012-attempts-and-ripple.md).
    """

    pipeline: Pipeline
    grid: Grid
    tables: PipelineTables
    inputs: tuple[StoredInput, StoredInput]
    ledger: Ledger
    """The ledger when the plan was created."""
    segments: tuple[Segment, ...]
    rows_of_jobs: Mapping[range, float]
    """The jobs in order, with the approximate number of rows each reads, by file statistics."""
    scans: tuple[ScanEstimate, ScanEstimate]
    """Files and rows to read of each input, by the same statistics."""
    capacity: JobCapacity | None
    """Capacity by which jobs are sized; None if the user sized them."""
    estimate: Estimate | None
    """Estimated duration of the jobs; None without history, or with nothing to run."""
    available_checkpoints: frozenset[str]
    """Runs whose checkpoints have not expired."""
    skipped: int
    """Requested slices that are committed already."""
    notes: tuple[str, ...]
    """Notes for the user, such as rows outside the slices, or why nothing runs."""
    drain_from: int | None
    """Slice after which the inputs end."""
    slices_to_reprocess: tuple[int, ...] | None = None
    """With `on_late_arriving_rows: reprocess`, committed slices with late-arriving rows that no slice has read."""
    atomic: bool = False
    input_completeness: tuple[InputCompleteness, ...] = ()
    """Completeness of the inputs that have a rule."""
    spark_queries: tuple[str, ...] = ()
    """Questions answered by Spark queries because settings and Delta logs were not sufficient."""

    @cached_property
    def join(self) -> Join:
        """The join. Starts the Spark session."""
        return create_join(self.pipeline, resolve_session(self.spark), get_schemas(self.inputs))

    @property
    def spark(self) -> SparkSession:
        """The session of the plan, which may not have started."""
        return self.inputs[0].table.spark

    @property
    def jobs(self) -> tuple[range, ...]:
        """The slices of each job."""
        return tuple(self.rows_of_jobs)

    @property
    def trace(self) -> QueryTrace | None:
        """Recorded batches of a Spark query, if the arrival clock is a streaming checkpoint."""
        return get_query_trace(self.inputs)

    @property
    def is_small(self) -> bool:
        """True if the plan is so short that JIT warm-up would cost more than it saves."""
        return len(self.jobs) <= MAX_SMALL_JOBS and sum(self.rows_of_jobs.values()) <= MAX_SMALL_ROWS

    @property
    def slices(self) -> int:
        """Number of slices to run."""
        return sum(len(job) for job in self.jobs)

    @property
    def carry_in(self) -> Entry | None:
        """Committed slice whose checkpoint the first job continues; None for empty state."""
        return self.ledger.entry(self.jobs[0][0] - 1) if self.jobs else self.ledger.last

    @cached_property
    def settings(self) -> str:
        """The pipeline's settings as the ledger stores them for a new slice."""
        return serialize_settings(self.pipeline)

    @cached_property
    def excluded_predicates(self) -> str | None:
        """Predicates of erased rows, which no run reads, as the ledger stores them."""
        return predicates_to_json({source.side.name: source.side.excluded_predicates for source in self.inputs})

    @property
    def reprocess_command(self) -> str:
        """Command that recomputes committed slices."""
        return _reprocess_command(self.pipeline)

    @property
    def proposed_command(self) -> str | None:
        """Command that would read the late-arriving rows; None without any."""
        return _reprocess_command(self.pipeline) if self.slices_to_reprocess else None

    def incomplete_inputs(self, number: int) -> list[dict[str, str | None]]:
        """Return the inputs that are incomplete for a new slice, as the ledger stores them; empty if it ran before."""
        if self.ledger.entry(number):
            return []
        end = self.grid.datetime_of(number + 1)
        return [
            {"input": input_.side, **input_.to_dict()} for input_ in self.input_completeness if not input_.covers(end)
        ]

    def number_after(self, ledger: Ledger) -> int:
        """Return the commit number of the next job."""
        return (self.ledger if self.atomic else ledger).number + 1

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-ready dictionary."""
        return {
            "pipeline": self.pipeline.name,
            "clock": self.pipeline.clock,
            "slices": self.slices,
            "already_committed": self.skipped,
            "from": self.grid.name(self.jobs[0][0]) if self.jobs else None,
            "to": self.grid.name(self.jobs[-1][-1] + 1) if self.jobs else None,
            "jobs": [self._extent(job) for job in self.jobs],
            "sizing": self.capacity.reason if self.capacity else None,
            "segments": [
                {**self._extent(item.slices), "reason": item.reason, "because": item.explanation}
                for item in self.segments
            ],
            "why": self._summarize_reasons(),
            "carry_in": self.grid.name(self.carry_in.number) if self.carry_in else None,
            "inputs": {
                source.side.name: {"table": source.table.name, "version": source.table.version, **asdict(scan)}
                for source, scan in zip(self.inputs, self.scans, strict=True)
            },
            "complete": {item.side: item.to_dict() for item in self.input_completeness},
            "estimate": asdict(self.estimate) if self.estimate else None,
            "waiting": [self._extent(slices) for slices in group_consecutive(self.slices_to_reprocess or ())],
            "proposed": self.proposed_command,
            "asked_spark": list(self.spark_queries),
            "drain": self.drain_from is not None,
            "atomic": self.atomic,
            "notes": list(self.notes),
        }

    def _extent(self, slices: range) -> dict[str, Any]:
        return {
            "from": self.grid.name(slices[0]),
            "to": self.grid.name(slices[-1] + 1),
            "slices": len(slices),
        }

    def _summarize_reasons(self) -> str:
        if not self.jobs:
            return "nothing to run"
        return "; ".join(dict.fromkeys(f"{segment.reason}: {segment.explanation}" for segment in self.segments))


@dataclass(frozen=True)
class _Planner:
    """Algorithm that creates a plan from a request, the ledger and the inputs."""

    pipeline: Pipeline
    request: Request
    grid: Grid
    tables: PipelineTables
    inputs: tuple[StoredInput, StoredInput]
    ledger: Ledger
    lake: str
    spark_queries: list[str] = field(default_factory=list)
    """Questions answered by Spark so far."""

    @property
    def spark(self) -> SparkSession:
        """Session, which may not have started."""
        return self.inputs[0].table.spark

    def plan(
        self, segments: Sequence[Segment], skipped: int = 0, notes: Sequence[str] = (), drain: int | None = None
    ) -> Plan:
        """Create the plan of these segments and of the slices that have to run before them."""
        last = self.ledger.last
        available_checkpoints = (
            list_available_checkpoints(self.tables, self.ledger.entries.values(), self.grid) if last else frozenset()
        )
        segments_to_run = [segment for segment in segments if segment.slices]
        if rebuilt := self._find_slices_to_rebuild(segments_to_run, available_checkpoints):
            segments_to_run = [rebuilt, *segments_to_run]
            first, start = (self.grid.name(number) for number in (rebuilt.slices.stop, rebuilt.slices.start))
            notes = [
                *notes,
                f"the checkpoint that slice {first} continues has expired: slices from {start} on run again",
            ]
        notes = [*notes, *self._note_unknown_arrivals(segments_to_run)]
        files = [InputFiles.from_input(source, self.grid) for source in self.inputs] if segments_to_run else []
        capacity = self._compute_capacity() if segments_to_run else None
        rows_of_jobs = {
            job: rows
            for segment in segments_to_run
            for job, rows in _cut_into_jobs(
                segment.slices, files, capacity or self._slices_per_job, self._slices_run_alone
            )
        }
        scans = [input_files.estimate_scan(segment.slices for segment in segments_to_run) for input_files in files] or [
            ScanEstimate(0, 0, 0)
        ] * 2
        notes = [*notes, *self._note_unbounded_state(segments_to_run, files)]
        plan = Plan(
            self.pipeline, self.grid, self.tables, self.inputs, self.ledger,
            tuple(segments_to_run),
            rows_of_jobs,
            scans=(scans[0], scans[1]),
            capacity=capacity,
            estimate=estimate_duration(list_past_jobs(self.ledger.rows), sum(rows_of_jobs.values()), len(rows_of_jobs)),
            available_checkpoints=available_checkpoints,
            skipped=skipped,
            notes=tuple(notes),
            drain_from=last.number if last and last.drained else drain,
            slices_to_reprocess=(
                self.slices_to_reprocess if self.pipeline.on_late_arriving_rows == "reprocess" else None
            ),
            atomic=self.request.atomic,
            input_completeness=self.input_completeness,
            spark_queries=tuple(self.spark_queries),
        )  # fmt: skip
        return self._check_expressions(plan) if plan.jobs else plan

    @property
    def _slices_run_alone(self) -> list[int]:
        """Slices that need a job of their own: those in which Flink SQL's job restarted, replayed row by row."""
        restarts = self.pipeline.restarts if self.pipeline.dialect == "flink-sql" else ()
        return sorted({self.grid.number_at(to_micros(restart)) for restart in restarts})

    def _note_unbounded_state(self, ahead: Sequence[Segment], files: Sequence[InputFiles]) -> Iterator[str]:
        """Yield a note for each input whose rows are never evicted, with the growth of its state."""
        if not ahead or self.pipeline.dialect != "spark":
            return
        carried = dict(zip(SIDES, self.ledger.last.carried if self.ledger.last else (0, 0), strict=True))
        slices = sum(len(segment.slices) for segment in ahead)
        for side, why in list_unbounded_sides(self.pipeline):
            number = SIDES.index(side)
            added_rows = sum(float(files[number].rows_per_slice(segment.slices).sum()) for segment in ahead) / slices
            yield (
                f"no row of {self.inputs[number].table.name} is ever evicted, because {why}: {carried[side]:,} are "
                f"carried, and each slice adds about {added_rows:,.0f}"
            )

    def _note_unknown_arrivals(self, ahead: Sequence[Segment]) -> Iterator[str]:
        """Yield a note for each input whose arrivals are known only from an instant on; refuse earlier slices."""
        for source in self.inputs:
            if ahead:
                source.changes.require_exact_arrivals(self.grid, min(segment.slices[0] for segment in ahead))
            if (exact_start := source.changes.find_exact_arrival_start()) is not None:
                since, why = exact_start
                yield f"arrivals of {source.table.name} are known from {format_instant(since)} on: {why}"

    def _check_expressions(self, plan: Plan) -> Plan:
        """Check the SQL expressions of the pipeline file, if it has any."""
        spark_queries = [f"whether `{side}.where` makes sense" for side in SIDES if getattr(self.pipeline, side).where]
        if any(self.pipeline.join.expression_keys):
            spark_queries.append("which keys are columns, and of which types the others are")
        if self.pipeline.join.condition:
            spark_queries.append("whether `condition` makes sense")
        if self.pipeline.select or self.pipeline.explode:
            spark_queries.append(f"whether `{'select' if self.pipeline.select else 'explode'}` makes sense")
        if spark_queries:
            check_expressions(resolve_session(self.spark), self.pipeline, self.grid, *get_schemas(self.inputs).values())
            _ = plan.join
        return replace(plan, spark_queries=(*plan.spark_queries, *spark_queries))

    @property
    def _slices_per_job(self) -> int:
        assert self.request.slices_per_job != "auto", "the user has sized the jobs"
        return self.request.slices_per_job

    def _compute_capacity(self) -> JobCapacity | None:
        if self.request.slices_per_job != "auto":
            return None
        carried = sum(self.ledger.last.carried) if self.ledger.last else 0
        return JobCapacity.from_session(self.spark, self.inputs, carried)

    def _find_slices_to_rebuild(
        self, ahead: Sequence[Segment], available_checkpoints: frozenset[str]
    ) -> Segment | None:
        """Return the slices to rerun because the checkpoint that the first slice continues has expired, or None."""
        last = self.ledger.last
        if not ahead or last is None or (first := ahead[0].slices[0]) > last.number:
            return None
        start = restorable(self.ledger, first, available_checkpoints)
        if start == first:
            return None
        before, since = self.grid.name(first - 1), self.grid.name(start)
        because = f"the checkpoint after {before} is rebuilt from {since} on"
        return Segment(range(start, first), "expired checkpoint", because)

    @cached_property
    def input_completeness(self) -> tuple[InputCompleteness, ...]:
        """Completeness of the inputs; empty for a reprocess or a drained input, which do not wait."""
        if self.request.reprocess or self.request.drain:
            return ()
        return measure_completeness(self.pipeline, self.lake, assets_updated=self.request.skip_asset_check)

    @cached_property
    def slices_to_reprocess(self) -> tuple[int, ...]:
        """Committed slices with late-arriving rows that no slice has read."""
        if not self.ledger.last:
            return ()
        recorded, after = waiting(self.ledger), self.ledger.last.number + 1
        entries = self.ledger.entries.values()
        numbers = set(recorded[1] if recorded else ())
        for side, source in enumerate(self.inputs):
            consumed = consumed_versions(entries, side)
            if recorded:
                consumed = replace(consumed, by_slice=((None, recorded[0][side]),))
            with self._record_spark_query(f"for which slices rows of {source.table.name} have landed"):
                deleted = self.pipeline.on_input_delete != "ignore"
                numbers |= source.changes.find_changed_slices(self.grid, after, consumed, includes_deleted=deleted)
        return tuple(sorted(numbers & self.ledger.entries.keys()))

    def slices_with_deleted_inputs(self) -> set[int]:
        """Return committed slices that read rows which were changed since, with `on_input_delete: reprocess`."""
        if self.pipeline.on_input_delete != "reprocess" or not self.ledger.last:
            return set()
        after, numbers = self.ledger.last.number + 1, set[int]()
        for side, source in enumerate(self.inputs):
            consumed = consumed_versions(self.ledger.entries.values(), side)
            with self._record_spark_query(f"which slices have read rows of {source.table.name} that are gone"):
                numbers |= source.changes.find_slices_with_lost_rows(
                    self.grid, after, consumed, _reprocess_command(self.pipeline)
                )
        return numbers & self.ledger.entries.keys()

    def require_unchanged_inputs(self, first: int) -> None:
        """Check that rows read by slices before `first` still exist, unless `on_input_delete: ignore`."""
        if self.pipeline.on_input_delete == "ignore":
            return
        entries = [entry for entry in self.ledger.entries.values() if entry.number < first]
        recorded = waiting(self.ledger)
        for side, source in enumerate(self.inputs):
            consumed = consumed_versions(entries, side)
            if recorded and consumed.by_slice:
                consumed = replace(consumed, by_slice=((None, recorded[0][side]),))
            with self._record_spark_query(f"whether rows of {source.table.name} that were read are still there"):
                source.changes.require_unchanged(self.grid, first, consumed, _reprocess_command(self.pipeline))

    def require_emitted_columns(self) -> None:
        """Check that the inputs have all columns that earlier slices emitted, if the file does not name them.

        Raises:
            InputError: A column was dropped or renamed.
        """
        last = self.ledger.last
        if last is None or (self.pipeline.select or self.pipeline.explode) is not None:
            return
        sides = SIDES[:1] if self.pipeline.join.type in SEMI_ANTI_TYPES else SIDES
        for source, version in zip(self.inputs[: len(sides)], last.versions, strict=False):
            before = source.table.get_columns_at(version) if version != source.table.version else None
            if missing := [name for name in before or () if name not in source.table.schema.names]:
                raise InputError(
                    f"input {source.table.name} no longer has {', '.join(missing)}, which slices up to "
                    f"{self.grid.name(last.number + 1)} have emitted. Restore it, or name the columns to emit "
                    "in `select`."
                )

    def require_rereadable_inputs(self, segments: Iterable[Segment]) -> None:
        """Check that rows of reprocessed slices still exist, with `on_input_delete: ignore`."""
        if self.pipeline.on_input_delete != "ignore":
            return
        entries = [entry for segment in segments for number in segment.slices if (entry := self.ledger.entry(number))]
        for side, source in enumerate(self.inputs):
            with self._record_spark_query(f"whether rows of {source.table.name} are there to be read again"):
                source.changes.require_rereadable(self.grid, reads(entries, side))

    @contextmanager
    def _record_spark_query(self, question: str) -> Iterator[None]:
        """Record a question if the block starts the Spark session."""
        was_started = is_started(self.spark)
        yield
        if is_started(self.spark) and not was_started:
            self.spark_queries.append(question)


def create_plan(spark: SparkSession, pipeline: Pipeline, lake: str, request: Request) -> Plan:
    """Plan the slices of a request against the current ledger and inputs.

    Settings and Delta logs answer nearly everything. Spark queries answer the rest (`Plan.spark_queries`) and start the
    session if needed (`spark.lazy_session`).

    Raises:
        SliceOrderError: The range is off the grid or has a gap, a predecessor is missing, settings changed, or the
            input was drained.
        IncompleteInputError: Inputs are incomplete up to the requested end, by the rules of the pipeline file.
        InputError: An input is not valid, or rows that slices read were deleted.
        PipelineFileError: The condition or the output columns do not fit the inputs.
    """
    PipelineTables.from_config(pipeline, lake).check_writable()
    inputs, ledger = open_inputs(spark, pipeline, lake), Ledger.from_pipeline(pipeline, lake)
    planner = _Planner(pipeline, request, ledger.grid, ledger.tables, inputs, ledger, lake)
    _require_same_local_days(planner)
    return _plan_to_reprocess(planner) if request.reprocess else _plan_to_run(planner)


def _plan_to_run(planner: _Planner) -> Plan:
    """Plan stale slices first, then new slices."""
    request, grid, last = planner.request, planner.grid, planner.ledger.last
    _require_same_settings(planner)
    after = last.number + 1 if last else 0
    first = grid.parse_boundary(request.start, "--from") if request.start else after
    end, notes = _find_end(planner, first_time=last is None)
    end = _limit_to_pipeline_end(planner, end, notes)
    end = _limit_to_complete_inputs(planner, max(first, after), end, notes)
    if request.start and request.end and end <= first:
        raise SliceOrderError(f"--to {grid.name(end)} is not after --from {grid.name(first)}; --to is exclusive")
    if first > after and not request.from_empty_state:
        _raise_gap(first, last, grid)
    start = first if request.from_empty_state and first > after else max(first, after)
    if last and last.drained and end > start:
        raise SliceOrderError(
            f"the input was drained at slice {grid.name(last.number)}, so no slice can follow it; "
            "give the pipeline a new `output` to run it again without --drain"
        )
    new = range(start, end)
    rereads = _segments_with_deleted_inputs(planner)
    repairs = sorted((*_stale_segments(planner.ledger, grid), *rereads), key=lambda segment: segment.slices.start)
    segments = [*repairs, Segment(new, "new", _explain_new_slices(start, after, last, grid))]
    ahead = [segment for segment in segments if segment.slices]
    if ahead and last:
        planner.require_unchanged_inputs(rereads[0].slices.start if rereads else after)
        planner.require_emitted_columns()
    if not new:
        notes.append(f"all slices up to {grid.name(after)} are committed" if last else "the inputs hold no rows to run")
    if len(ahead) > bool(new):
        notes.append("slices after one that runs again follow until the state is again what they have continued")
    drain = end - 1 if request.drain and new else None
    return planner.plan(segments, max(0, min(start, end) - first), notes, drain)


def _plan_to_reprocess(planner: _Planner) -> Plan:
    request, grid, last = planner.request, planner.grid, planner.ledger.last
    if last is None:
        raise SliceOrderError("no slice is committed yet, so none can be reprocessed; use tidemark run")
    if request.start is None and request.end is None:
        because = "rows landed for them after they were committed"
        segments = [
            Segment(slices, "late landing", because) for slices in group_consecutive(planner.slices_to_reprocess)
        ]
        notes = [] if segments else ["no rows have landed for committed slices since they were read"]
    else:
        segments, notes = _requested_range(planner, last), []
    if segments:
        first = segments[0].slices[0]
        _require_continuable_settings(planner, first)
        planner.require_unchanged_inputs(first)
        planner.require_rereadable_inputs(segments)
        following = segments[0].slices[-1] + 1
        if following <= last.number:
            notes.append(
                f"slices from {grid.name(following)} on follow until the state is again what they have continued, "
                f"at most up to {grid.name(last.number + 1)}"
            )
    return planner.plan(segments, notes=notes)


def _requested_range(planner: _Planner, last: Entry) -> list[Segment]:
    """Return the segments of the requested range; slices that were never committed fill a gap."""
    request, grid, entries = planner.request, planner.grid, planner.ledger.entries
    start = next(iter(entries))
    first = grid.parse_boundary(request.start, "--from") if request.start else start
    end = grid.parse_boundary(request.end, "--to") if request.end else last.number + 1
    if end <= first:
        raise SliceOrderError(f"--to {grid.name(end)} is not after --from {grid.name(first)}; --to is exclusive")
    if end > last.number + 1:
        raise SliceOrderError(
            f"the last committed slice is {grid.name(last.number)}; reprocess up to {grid.name(last.number + 1)} "
            "at most, and run what comes after"
        )
    if first > 0 and first not in entries and first - 1 not in entries:
        before = max((number for number in entries if number < first), default=-1)
        raise SliceOrderError(
            f"checkpoint before slice {grid.name(first)} is missing; reprocess from {grid.name(before + 1)}"
        )
    requested = range(first, end)
    segments = [
        Segment(part, "reprocess", "asked for") for part in group_consecutive(n for n in requested if n in entries)
    ]
    gaps = group_consecutive(number for number in requested if number not in entries)
    segments += [Segment(part, "gap", "never committed") for part in gaps]
    return sorted(segments, key=lambda segment: segment.slices[0])


def _cut_into_jobs(
    slices: range, files: Sequence[InputFiles], size: JobCapacity | int, run_alone: Sequence[int]
) -> Iterator[tuple[range, float]]:
    """Cut a segment into jobs.

    Args:
        slices: The slices of the segment.
        files: The files of both inputs.
        size: Slices per job, or a capacity in rows.
        run_alone: Numbers of slices, in order, that get a job of their own.

    Yields:
        The slices of a job, and the approximate number of rows that it reads.
    """
    rows = np.sum([input_files.rows_per_slice(slices) for input_files in files], axis=0)
    rows_before = np.append(0.0, rows.cumsum())
    ends = [at for number in run_alone for at in (number, number + 1) if at in slices]
    for start, stop in pairwise([slices.start, *ends, slices.stop]):
        part = range(start, stop)
        if isinstance(size, JobCapacity):
            jobs = size.cut_jobs(part, rows[start - slices.start : stop - slices.start])
        else:
            jobs = (part[first : first + size] for first in range(0, len(part), size))
        for job in jobs:
            yield job, float(rows_before[job.stop - slices.start] - rows_before[job.start - slices.start])


def _stale_segments(ledger: Ledger, grid: Grid) -> Iterable[Segment]:
    """Yield the stale committed slices, grouped, each group with the reason of its first slice."""
    reasons = stale(ledger)
    for slices in group_consecutive(reasons):
        why = reasons[slices[0]]
        if why == "changed settings":
            yield Segment(slices, "changed settings", f"{grid.name(slices[0] - 1)} has run under the present settings")
        else:
            cause = "has another state now" if why == "another state" else "or one before has taken rows that it had"
            yield Segment(slices, "stale", f"{grid.name(slices[0] - 1)} {cause}")


def _segments_with_deleted_inputs(planner: _Planner) -> list[Segment]:
    """Return slices to rerun because rows that they read were deleted, except slices that are stale anyway."""
    because = "rows that they have read were deleted or changed"
    numbers = planner.slices_with_deleted_inputs() - set(stale(planner.ledger))
    return [Segment(slices, "changed input", because) for slices in group_consecutive(numbers)]


def _explain_new_slices(start: int, after: int, last: Entry | None, grid: Grid) -> str:
    if last is None and start == 0:
        return "no slice is committed yet"
    return f"continues slice {grid.name(start - 1)}" if last and start == after else "starts from empty state"


def _find_end(planner: _Planner, *, first_time: bool) -> tuple[int, list[str]]:
    request, grid, inputs = planner.request, planner.grid, planner.inputs
    trace, now = get_query_trace(inputs), grid.number_at(to_micros(datetime.now(UTC)))
    if trace and request.drain:
        raise SliceOrderError("--drain: a trace tells which batches ran; none follows its last")
    if trace and request.end and grid.parse_boundary(request.end, "--to") > trace.find_end_slice(grid):
        raise SliceOrderError(
            f"--to {grid.name(grid.parse_boundary(request.end, '--to'))} is after the end of the trace: the batches of "
            f"{trace.checkpoint} are known for slices before {grid.name(trace.find_end_slice(grid))}"
        )
    if request.end:
        return grid.parse_boundary(request.end, "--to"), []
    if trace:
        waits = "the last batch lies in a slice that is not over yet; --to takes it all the same"
        return max(0, min(trace.find_end_slice(grid), now)), [waits] if now < trace.find_end_slice(grid) else []
    notes, last = [], -1
    for source in inputs:
        extent = source.measure_extent(grid, count_before=first_time)
        newest, before = extent.newest_slice, extent.rows_before_start
        if not extent.is_from_statistics:
            planner.spark_queries.append(f"how far {source.table.name} reaches")
        if before:
            notes.append(f"{before} rows of {source.table.name} lie before the first slice and take no part")
        if newest is not None and newest >= now:
            notes.append(f"{source.table.name} reaches to {grid.name(newest)}; slices that are not over yet wait")
        last = max(last, -1 if newest is None else min(newest, now - 1))
    return last + 1, notes


def _limit_to_pipeline_end(planner: _Planner, end: int, notes: list[str]) -> int:
    """Limit the end to that of the pipeline's last slice."""
    request, grid, bound = planner.request, planner.grid, planner.pipeline.slices.end
    if bound is None or end <= (last_end := grid.number_at(to_micros(bound))):
        return end
    if request.end:
        raise SliceOrderError(
            f"--to {grid.name(end)} is after the pipeline's last slice (slices.end is {grid.name(last_end)}); use --to "
            f"{grid.name(last_end)}"
        )
    notes.append(f"rows lie after slices.end, {grid.name(last_end)}, and take no part")
    return last_end


def _limit_to_complete_inputs(planner: _Planner, first: int, end: int, notes: list[str]) -> int:
    """Limit the end to slices whose inputs are complete, with a note; refuse a later requested end."""
    request, grid = planner.request, planner.grid
    if end <= first:
        return end
    incomplete = [input_ for input_ in planner.input_completeness if not input_.covers(grid.datetime_of(end))]
    if not incomplete or request.ignore_completeness:
        return end
    reached = min(0 if input_.until is None else grid.number_at(to_micros(input_.until)) for input_ in incomplete)
    details = "; ".join(input_.explain() for input_ in incomplete)
    if request.end:
        alternative = f"run up to {grid.name(reached)}, or " if reached > first else "wait for it, or "
        raise IncompleteInputError(
            f"slices up to {grid.name(end)} are not complete yet: {details}; {alternative}pass --ignore-completeness"
        )
    notes.append(f"slices from {grid.name(max(reached, first))} on wait: {details}")
    return max(reached, first)


def _raise_gap(first: int, last: Entry | None, grid: Grid) -> None:
    committed = f"the last committed slice is {grid.name(last.number)}" if last else "no slice is committed yet"
    raise SliceOrderError(
        f"checkpoint before slice {grid.name(first)} is missing: {committed}; "
        f"run from {grid.name(last.number + 1 if last else 0)}, or pass --from-empty-state"
    )


def _require_same_settings(planner: _Planner) -> None:
    other = next(_slices_with_other_settings(planner, planner.ledger.last), None)
    if other and stale(planner.ledger).get(other[0]) != "changed settings":
        label = planner.grid.name(other[0])
        raise SliceOrderError(
            f"slices from {label} on were written under other settings ({other[1]}), whose state lacks what the "
            f"present ones need; restore them, or {_reprocess_command(planner.pipeline)} --from {label}, or fill "
            "the new version as a candidate, with tidemark run --candidate NAME"
        )


def _require_same_local_days(planner: _Planner) -> None:
    """Check that committed local days have the same bounds by the current time zone database."""
    ledger, grid = planner.ledger, planner.grid
    if not isinstance(grid, LocalDayGrid) or ledger.rows.empty:
        return
    changed_slices = dict(
        slices_with_other_settings(ledger.entries.values(), serialize_settings(planner.pipeline), grid)
    )
    for row in ledger.rows[["number", "slice", "slice_end"]].to_dict("records"):
        number, was = int(row["number"]), (row["slice"], row["slice_end"])
        now = grid.datetime_of(number), grid.datetime_of(number + 1)
        if was != now and number not in changed_slices:
            then, here = (" to ".join(map(format_instant, bounds)) for bounds in (was, now))
            raise SliceOrderError(
                f"a slice was committed as the day {then} of {grid.zone}, which is {here} by Python's time zone "
                "database; use the one of then, or give the pipeline a new `output`"
            )


def _require_continuable_settings(planner: _Planner, first: int) -> None:
    before = planner.ledger.entry(first - 1)
    changed_slices = dict(_slices_with_other_settings(planner, before))
    if before and before.number in changed_slices:
        raise SliceOrderError(
            f"slice {planner.grid.name(before.number)} was written under other settings "
            f"({changed_slices[before.number]}), so "
            f"its checkpoint cannot be continued; reprocess from {planner.grid.name(min(changed_slices))}"
        )


def _slices_with_other_settings(planner: _Planner, last: Entry | None) -> Iterator[tuple[int, str]]:
    """Return the slices before one, without a gap, that ran under other settings, and the settings that differ."""
    start = start_of_chain(planner.ledger, last)
    if start is None or last is None:
        return iter(())
    chain = (planner.ledger.entries[number] for number in range(start.number, last.number + 1))
    return slices_with_other_settings(chain, serialize_settings(planner.pipeline), planner.grid)


def _reprocess_command(pipeline: Pipeline) -> str:
    return f"tidemark reprocess {cli_arguments(pipeline)}"
