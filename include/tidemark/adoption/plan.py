"""Plan an adoption: which slices run for the state, and whether a later start gives the same state.

The slices run in a candidate version with a reserved name, so that they can be compared before anything is live.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments, to_candidate
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import CheckFailedError, SliceOrderError, UserError, prefix_errors
from tidemark.formatting import format_count
from tidemark.ledger.adoption import AdoptedTable, require_no_output_stream
from tidemark.ledger.config_fingerprint import remove_later_restarts, serialize_settings
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Plan
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.sources.resolution import open_inputs
from tidemark.timegrid.slices import Grid
from tidemark.versions.candidates import drop_candidate

WARM_UP, SHORTER_WARM_UP = "adopt-warm-up", "adopt-shorter-warm-up"
"""Names of the candidate versions in which slices run before an adoption."""


@dataclass(frozen=True)
class AdoptionPlan:
    """Slices to run before a pipeline can take over from a table."""

    pipeline: Pipeline
    lake: str
    source: AdoptedTable
    slices: range
    """Slices to adopt, without a gap."""
    warm_up: Plan
    """Plan of those slices that have not run yet."""
    shorter_warm_up: Plan | None
    """Plan of the second half of the slices; None if they begin with the pipeline's first slice."""

    @property
    def grid(self) -> Grid:
        """Grid of the slices."""
        return self.warm_up.grid

    @property
    def candidate(self) -> Pipeline:
        """Candidate version in which the slices run."""
        return to_candidate(self.pipeline, WARM_UP)

    def read_warm_up(self) -> Ledger:
        """Read the ledger of the slices that ran, after the last one."""
        ledger = Ledger.from_pipeline(self.candidate, self.lake)
        assert ledger.entry(self.slices[-1]) is ledger.last is not None, "the warm-up is complete"
        return ledger

    def drop_warm_up(self) -> None:
        """Delete the tables of the warm-up."""
        for name in (WARM_UP, SHORTER_WARM_UP):
            _drop_candidate(self.pipeline, self.lake, name)


def create_adoption_plan(
    spark: SparkSession, pipeline: Pipeline, lake: str, table: str, until: datetime, start: datetime | None = None
) -> AdoptionPlan:
    """Plan the slices to run before a pipeline can take over from a table.

    Args:
        spark: A session, which may not have started (`spark.lazy_session`).
        pipeline: The pipeline.
        lake: The lake root.
        table: Table with the output before `until`: a path relative to the lake root, or a name in the catalog.
        until: End of the slices to adopt (exclusive).
        start: Start of the first slice to run; by default that of the pipeline's first slice.

    Raises:
        SliceOrderError: The pipeline has committed slices, or an instant is not a slice boundary.
        UserError: The pipeline writes an output stream.
        InputError: There is no such table, or an input is not valid.
    """
    require_no_output_stream(pipeline)
    require_no_committed_slice(Ledger.from_pipeline(pipeline, lake), pipeline)
    slices = _parse_slices(pipeline, until, start)
    with prefix_errors("TABLE"):
        source = AdoptedTable(table, DeltaInput.find(spark, lake, table).version)
    if not _can_continue(spark, pipeline, lake, slices):
        _drop_candidate(pipeline, lake, WARM_UP)
    warm_up = _plan_slices(spark, pipeline, lake, WARM_UP, slices)
    shorter = None
    if slices.start > 0:
        _drop_candidate(pipeline, lake, SHORTER_WARM_UP)
        middle = (slices.start + slices.stop) // 2
        shorter = _plan_slices(spark, pipeline, lake, SHORTER_WARM_UP, range(middle, slices.stop))
    return AdoptionPlan(pipeline, lake, source, slices, warm_up, shorter)


def require_no_committed_slice(ledger: Ledger, pipeline: Pipeline) -> None:
    """Check that a pipeline has no output of its own.

    Raises:
        SliceOrderError: It has committed slices.
    """
    if ledger.last:
        raise SliceOrderError(
            f"{pipeline.name} has committed {format_count(len(ledger.entries), 'slice')} up to "
            f"{ledger.grid.label(ledger.last.number + 1)}, so it cannot adopt a table. Give it a new `output`."
        )


def require_same_state(plan: AdoptionPlan) -> None:
    """Check that the second half of the warm-up alone gives the same state.

    Raises:
        CheckFailedError: The state depends on the first half, so it may depend on rows before it.
    """
    if plan.shorter_warm_up is None:
        return
    shorter = Ledger.from_pipeline(to_candidate(plan.pipeline, SHORTER_WARM_UP), plan.lake)
    first, last = plan.shorter_warm_up.jobs[0][0], plan.slices[-1]
    if _get_state(shorter.entry(last)) != _get_state(plan.read_warm_up().entry(last)):
        label = plan.grid.label
        raise CheckFailedError(
            f"the state at {label(last + 1)} is another one if the slices before {label(first)} do not run, so rows "
            f"before {label(plan.slices.start)} may matter too. Pass an earlier --from, or none"
        )


def _get_state(entry: Entry | None) -> tuple[str | None, tuple[int, int]]:
    assert entry, "the slice has run"
    return entry.fingerprint, entry.carried


def _parse_slices(pipeline: Pipeline, until: datetime, start: datetime | None) -> range:
    """Return the slices to adopt.

    Raises:
        SliceOrderError: An instant is not a slice boundary, or there are too few slices.
    """
    grid = Grid.from_config(pipeline.slices)
    end = grid.parse_boundary(until, "--until")
    first = grid.parse_boundary(start, "--from") if start else 0
    if end == 0:
        raise SliceOrderError(
            f"--until {grid.label(end)} is the start of the pipeline's first slice, so no slice can be adopted. Pass a "
            f"later --until, or use tidemark run {format_cli_arguments(pipeline)}."
        )
    # The second half of a warm-up runs again (`require_same_state`), so it has at least two slices.
    least = first + 1 if first == 0 else first + 2
    if end < least:
        raise SliceOrderError(
            f"--from {grid.label(first)} is too late for --until {grid.label(end)}, because a warm-up has two slices "
            f"at least. Pass {grid.label(max(0, end - 2))} or earlier."
        )
    return range(first, end)


def _can_continue(spark: SparkSession, pipeline: Pipeline, lake: str, slices: range) -> bool:
    """Return True if an earlier warm-up has run the first of these slices under the same settings and inputs."""
    try:
        ledger = Ledger.from_pipeline(to_candidate(pipeline, WARM_UP), lake)
    except SliceOrderError:  # it has other slices
        return False
    if ledger.last is None:
        return False
    settings = remove_later_restarts(serialize_settings(pipeline), ledger.grid, ledger.last.number)
    versions = tuple(source.table.version for source in open_inputs(spark, pipeline, lake))
    return (
        next(iter(ledger.entries)) == slices.start
        and ledger.last.number in slices
        and ledger.last.settings == settings
        and {entry.versions for entry in ledger.entries.values()} == {versions}
    )


def _plan_slices(spark: SparkSession, pipeline: Pipeline, lake: str, name: str, slices: range) -> Plan:
    """Plan slices that start with empty state in a candidate version."""
    grid = Grid.from_config(pipeline.slices)
    request = Request(grid.datetime_of(slices.start), grid.datetime_of(slices.stop), from_empty_state=True)
    return create_plan(spark, to_candidate(pipeline, name), lake, request)


def _drop_candidate(pipeline: Pipeline, lake: str, name: str) -> None:
    """Delete a candidate version, if there is one."""
    with suppress(UserError):
        drop_candidate(pipeline, lake, name)
