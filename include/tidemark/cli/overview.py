"""Implement the commands `tidemark status` and `tidemark list`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from deltalake.exceptions import DeltaError
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemark.cli.common import CandidateOption, PipelinesArgument, get_lake_root, print_result
from tidemark.cli.render_status import render_status
from tidemark.cli.status_summary import summarize_status
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import to_candidate
from tidemark.config.loader import Owners, find_conflicts, get_pipelines_folder, list_pipeline_files
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import UserError
from tidemark.formatting import ToDict, format_count, to_single_line
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import find_stale_slices
from tidemark.maintenance.recovery_horizon import find_oldest_readable_versions
from tidemark.planning.deleted_inputs import find_deleted_inputs
from tidemark.quality.pending_rejections import list_pending_rejections
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class PipelineSummary(ToDict):
    """State of one pipeline file."""

    pipeline: str
    """Name of the pipeline; of the file, if it is not valid."""
    state: str
    """`invalid`, `rejected` (the quality gate rejected a slice that is not committed since), `no slices`, `stale`
    (committed slices run again at the next run) or `committed`."""
    file: str
    """Name of the pipeline file."""
    slices: int = 0
    """Number of committed slices."""
    uncommitted: int = 0
    """Number of slices after them that have ended by now. Inputs are not read: `tidemark plan` shows if they have
    rows."""
    end: str | None = None
    """End of the last committed slice, UTC."""
    age_seconds: float | None = None
    """Time from the end of the last committed slice until now, in seconds."""
    problem: str | None = None
    """Message of the error, if the file or the ledger is not valid or cannot be read."""
    conflicts: list[str] = field(default_factory=list)
    """Settings that must differ between the files of the folder, with the file that has the same value."""


def status(pipelines: PipelinesArgument, candidate: CandidateOption = None) -> None:
    """Show what pipelines have committed, one column per pipeline.

    Example: `tidemark status flights_weather flights_weather_event_time`
    """
    loaded = [to_candidate(load_pipeline(name), candidate) for name in pipelines]
    root = get_lake_root()
    statuses = [
        replace(
            summarize_status(pipeline, root),
            oldest_versions=find_oldest_readable_versions(pipeline, root),
            deleted_inputs=find_deleted_inputs(pipeline, root),
        )
        for pipeline in loaded
    ]
    print_result([status_.to_dict() for status_ in statuses], lambda: render_status(*statuses))


def list_() -> None:
    """List the pipeline files with their state, last committed slice and its age.

    Column due counts slices that have ended and are not committed, by the clock of this machine. `tidemark plan` shows
    which of them would run. Files with the name or the output of another file are reported.

    Pipeline files are in `TIDEMARK_PIPELINES`, by default `include/pipelines`.

    Example: `tidemark list`
    """
    files = list_pipeline_files()
    if not files:
        raise UserError(f"there is no pipeline file in {get_pipelines_folder()}. Set TIDEMARK_PIPELINES to a folder.")
    root, now = get_lake_root(), datetime.now(UTC)
    summaries = list(_summarize_files(files, root, now))
    print_result([summary.to_dict() for summary in summaries], lambda: _render(summaries), soft_wrap=True)


def _summarize_files(files: Iterable[Path], root: str, now: datetime) -> Iterator[PipelineSummary]:
    owners: Owners = {}
    for file in files:
        try:
            pipeline = load_pipeline(file)
        except UserError as error:
            yield PipelineSummary(file.name, "invalid", file.name, problem=str(error))
            continue
        summary = _summarize(pipeline, file.name, root, now)
        yield replace(summary, conflicts=find_conflicts(pipeline, file.name, owners))


def _summarize(pipeline: Pipeline, file: str, root: str, now: datetime) -> PipelineSummary:
    grid = Grid.from_config(pipeline.slices)
    try:
        ledger = Ledger.read_without_sync(PipelineTables.from_config(pipeline, root), grid)
        ledger.require_same_slices(pipeline)
        is_rejected = bool(list_pending_rejections(ledger))
    except UserError as error:
        return PipelineSummary(pipeline.name, "invalid", file, problem=str(error))
    except (DeltaError, OSError) as error:
        problem = f"its tables cannot be read: {to_single_line(str(error))}. Check their folder."
        return PipelineSummary(pipeline.name, "invalid", file, problem=problem)
    state = "stale" if find_stale_slices(ledger) else "committed" if ledger.entries else "no slices"
    if is_rejected:
        state = "rejected"
    uncommitted = ledger.count_uncommitted(pipeline.slices, now)
    if ledger.last is None:
        return PipelineSummary(pipeline.name, state, file, uncommitted=uncommitted)
    end = ledger.last.number + 1
    return PipelineSummary(
        pipeline.name,
        state,
        file,
        len(ledger.entries),
        uncommitted,
        grid.label(end),
        (now - grid.datetime_of(end)).total_seconds(),
    )


def _render(summaries: list[PipelineSummary]) -> RenderableType:
    headers = ("pipeline", "state", "slices", "committed up to", "age", "due")
    table = Table(*headers, box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for column in table.columns[1:-1]:
        column.no_wrap = True
    for summary in summaries:
        table.add_row(*_describe(summary))
    problems = (Text(f"{summary.pipeline}: {summary.problem}") for summary in summaries if summary.problem)
    conflicts = (
        Text(f"warning: {summary.file}: has {' and '.join(summary.conflicts)}. Change one of the files.", "yellow")
        for summary in summaries
        if summary.conflicts
    )
    return Group(table, *problems, *conflicts)


def _describe(summary: PipelineSummary) -> Iterator[str | Text]:
    yield summary.pipeline
    yield summary.state
    yield f"{summary.slices:,}"
    yield summary.end or ""
    yield "" if summary.age_seconds is None else _describe_age(summary.age_seconds)
    yield f"{summary.uncommitted:,}" if summary.uncommitted else ""


def _describe_age(seconds: float) -> str:
    """Describe an age by its largest unit.

    >>> _describe_age(3 * 86400 + 7200)
    '3 days'
    >>> _describe_age(1)
    '0 minutes'
    """
    for unit, length in (("day", 86_400), ("hour", 3_600)):
        if seconds >= length:
            return format_count(int(seconds // length), unit)
    return format_count(int(max(0, seconds) // 60), "minute")
