"""Describe the slices to run, why, and in which Spark jobs. `tidemark plan` shows a plan, `tidemark run` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.joins.base import Join
from tidemark.joins.factory import create_join
from tidemark.ledger.config_fingerprint import serialize_settings
from tidemark.ledger.entry import Entry
from tidemark.ledger.erasure_records import predicates_to_json
from tidemark.ledger.ledger import Ledger
from tidemark.planning.duration_estimate import Estimate
from tidemark.planning.job_sizing import JobCapacity
from tidemark.planning.replay_strategy import DEFAULT_LIMITS, ReplayLimits
from tidemark.planning.scan_estimate import ScanEstimate
from tidemark.sources.completeness import InputCompleteness
from tidemark.sources.stored_input import StoredInput, get_query_trace, get_schemas
from tidemark.sources.upstream import UpstreamState
from tidemark.spark.lazy_session import resolve_session
from tidemark.timegrid.slices import Grid, group_consecutive
from tidemark.watermarks.query_trace import QueryTrace

MAX_BRIEF_JOBS, MAX_BRIEF_ROWS = 3, 50_000
"""Largest numbers of jobs and input rows of a brief plan."""
Reason = Literal[
    "new", "gap", "stale", "changed settings", "changed input", "late arrival", "reprocess", "expired checkpoint"
]


@dataclass(frozen=True)
class SliceRange:
    """Consecutive slices that run for the same reason."""

    slices: range
    reason: Reason
    explanation: str


@dataclass(frozen=True)
class SliceSelection:
    """Slices that a request selects, before they are cut into jobs."""

    slice_ranges: tuple[SliceRange, ...]
    """The slices in order. No range is empty."""
    notes: tuple[str, ...]
    """Notes for the user."""
    already_committed: int = 0
    """Number of requested slices that are committed already."""
    drain_after: int | None = None
    """Slice after which the request ends the inputs."""
    is_atomic: bool = False
    """True if all of them must be committed, or none, although the request does not say so."""


@dataclass(frozen=True)
class Plan:
    """The slices to run, in order, grouped into jobs. Pure data: reading it runs no Spark query.

    Slices that turn stale while it runs are run as well, until none is stale
    (docs/decisions/0004-fingerprints-and-cascade.md).
    """

    spark: SparkSession
    """The session, which may not have started."""
    pipeline: Pipeline
    lake: str
    """The lake root."""
    grid: Grid
    tables: PipelineTables
    inputs: tuple[StoredInput, ...]
    """Left and right input; empty in a plan without slices that waits for the first slice of another pipeline."""
    ledger: Ledger
    """The ledger when the plan was created."""
    slice_ranges: tuple[SliceRange, ...]
    rows_by_job: Mapping[range, float]
    """The jobs in order, with the approximate number of rows each reads, by file statistics."""
    scan_estimates: tuple[ScanEstimate, ...]
    """Files and rows to read of each input, by the same statistics."""
    capacity: JobCapacity | None
    """Capacity by which jobs are sized; None if the user sized them."""
    estimate: Estimate | None
    """Estimated duration of the jobs; None without history, or with nothing to run."""
    available_checkpoints: frozenset[str]
    """Runs whose checkpoints have not expired."""
    already_committed: int
    """Requested slices that are committed already."""
    notes: tuple[str, ...]
    """Notes for the user, such as rows outside the slices, or why nothing runs."""
    drain_after: int | None
    """Slice after which the inputs end."""
    slices_to_reprocess: tuple[int, ...] | None = None
    """With `on_late_arriving_rows: reprocess`, committed slices whose input rows have arrived or changed since."""
    atomic: bool = False
    upstreams: tuple[UpstreamState, ...] = ()
    """States of the pipelines whose output is an input."""
    input_completeness: tuple[InputCompleteness, ...] = ()
    """Completeness of the inputs that have a rule."""
    spark_queries: tuple[str, ...] = ()
    """Questions answered by Spark queries because settings and Delta logs were not sufficient."""
    replay_limits: ReplayLimits = DEFAULT_LIMITS
    """Thresholds by which each job chooses its replay strategy."""

    @cached_property
    def join(self) -> Join:
        """The join. Starts the Spark session."""
        return create_join(self.pipeline, resolve_session(self.spark), get_schemas(self.inputs))

    def create_join_now(self) -> None:
        """Create `join` before its first use, to find errors in keys and condition early. Starts the Spark session."""
        _ = self.join

    @property
    def jobs(self) -> tuple[range, ...]:
        """The slices of each job."""
        return tuple(self.rows_by_job)

    @property
    def trace(self) -> QueryTrace | None:
        """Recorded batches of a Spark query, if the arrival clock is a streaming checkpoint."""
        return get_query_trace(self.inputs)

    @property
    def is_cut_by_memory(self) -> bool:
        """True if two consecutive jobs are separate because their rows do not fit in memory together."""
        if self.capacity is None:
            return False
        pairs = pairwise(self.rows_by_job.items())
        return any(
            first.stop == second.start and first_rows + second_rows > self.capacity.rows
            for (first, first_rows), (second, second_rows) in pairs
        )

    @property
    def is_brief(self) -> bool:
        """True if the plan is so short that JIT warm-up would cost more than it saves."""
        return len(self.jobs) <= MAX_BRIEF_JOBS and sum(self.rows_by_job.values()) <= MAX_BRIEF_ROWS

    @property
    def slice_count(self) -> int:
        """Number of slices to run."""
        return sum(len(job) for job in self.jobs)

    @property
    def _continued_entry(self) -> Entry | None:
        """Committed slice whose checkpoint the first job continues; None for empty state."""
        return self.ledger.entry(self.jobs[0][0] - 1) if self.jobs else self.ledger.last

    @cached_property
    def settings_json(self) -> str:
        """The pipeline's settings as the ledger stores them for a new slice."""
        return serialize_settings(self.pipeline)

    @cached_property
    def excluded_predicates_json(self) -> str | None:
        """Predicates of erased rows, which no run reads, as the ledger stores them."""
        return predicates_to_json({source.side.name: source.side.excluded_predicates for source in self.inputs})

    @property
    def reprocess_command(self) -> str:
        """Command that recomputes committed slices."""
        return format_reprocess_command(self.pipeline)

    @property
    def slices_left_outdated(self) -> tuple[int, ...]:
        """Slices whose input rows have arrived or changed since, and that this plan does not rerun."""
        return tuple(
            number
            for number in self.slices_to_reprocess or ()
            if not any(number in slice_range.slices for slice_range in self.slice_ranges)
        )

    @property
    def proposed_command(self) -> str | None:
        """Command that reruns slices whose input rows have arrived or changed since, and that this plan does not rerun.

        None without such slices.
        """
        return format_reprocess_command(self.pipeline) if self.slices_left_outdated else None

    @property
    def slices_that_may_follow(self) -> tuple[int, ...]:
        """Committed slices that the plan does not run, but that follow if the state before them changes."""
        first = min((slice_range.slices[0] for slice_range in self.slice_ranges), default=None)
        if first is None:
            return ()
        planned = {number for slice_range in self.slice_ranges for number in slice_range.slices}
        return tuple(number for number in self.ledger.entries if number > first and number not in planned)

    def list_incomplete_inputs(self, number: int) -> list[dict[str, str | None]]:
        """Return the inputs that are incomplete for a new slice, as the ledger stores them; empty if it ran before."""
        if self.ledger.entry(number):
            return []
        end = self.grid.datetime_of(number + 1)
        return [
            {"input": input_.side, **input_.to_dict()} for input_ in self.input_completeness if not input_.covers(end)
        ]

    def next_commit_number(self, ledger: Ledger) -> int:
        """Return the number of the commit with the next job. An atomic plan has one commit for all jobs.

        Args:
            ledger: The ledger after the jobs before.
        """
        return (self.ledger if self.atomic else ledger).last_commit + 1

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-ready dictionary."""
        return {
            "pipeline": self.pipeline.name,
            "clock": self.pipeline.clock,
            "slices": self.slice_count,
            "estimated_rows": round(sum(self.rows_by_job.values())),
            "already_committed": self.already_committed,
            "from": self.grid.label(self.jobs[0][0]) if self.jobs else None,
            "to": self.grid.label(self.jobs[-1][-1] + 1) if self.jobs else None,
            "jobs": [
                {**self._extent(job), "replay": self.replay_limits.describe_expected_strategy(rows)}
                for job, rows in self.rows_by_job.items()
            ],
            "job_size_reason": self.capacity.reason if self.capacity else None,
            "slice_ranges": [
                {**self._extent(part.slices), "reason": part.reason, "explanation": part.explanation}
                for part in self.slice_ranges
            ],
            "explanation": self._summarize_reasons(),
            "continues": self.grid.label(self._continued_entry.number) if self._continued_entry else None,
            "inputs": {
                source.side.name: {"table": source.table.name, "version": source.table.version, **asdict(scan)}
                for source, scan in zip(self.inputs, self.scan_estimates, strict=True)
            },
            "input_completeness": {item.side: item.to_dict() for item in self.input_completeness},
            "estimate": asdict(self.estimate) if self.estimate else None,
            "may_follow": [self._extent(slices) for slices in group_consecutive(self.slices_that_may_follow)],
            "slices_to_reprocess": [self._extent(slices) for slices in group_consecutive(self.slices_left_outdated)],
            "proposed_command": self.proposed_command,
            "spark_queries": list(self.spark_queries),
            "drain": self.drain_after is not None,
            "atomic": self.atomic,
            "notes": list(self.notes),
        }

    def _extent(self, slices: range) -> dict[str, Any]:
        return {
            "from": self.grid.label(slices[0]),
            "to": self.grid.label(slices[-1] + 1),
            "slices": len(slices),
        }

    def _summarize_reasons(self) -> str:
        if not self.jobs:
            return "nothing to run"
        return "; ".join(dict.fromkeys(f"{part.reason}: {part.explanation}" for part in self.slice_ranges))


def format_reprocess_command(pipeline: Pipeline) -> str:
    """Return the command that recomputes committed slices of a pipeline."""
    return f"tidemark reprocess {format_cli_arguments(pipeline)}"
