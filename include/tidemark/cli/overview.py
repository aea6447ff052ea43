"""Implement the commands `tidemark status` and `tidemark list`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemark.cli.common import CandidateOption, PipelinesArgument, get_lake_root, print_result
from tidemark.cli.render import render_status
from tidemark.cli.status import summarize_status
from tidemark.config import load_pipeline
from tidemark.config.candidate_version import to_candidate
from tidemark.config.loader import get_pipelines_folder, list_pipeline_files
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import UserError
from tidemark.formatting import ToDict, format_count
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import stale
from tidemark.maintenance.recovery_horizon import find_oldest_readable_versions
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class PipelineSummary(ToDict):
    """State of one pipeline file."""

    pipeline: str
    """Name of the pipeline; of the file, if it is not valid."""
    state: str
    """`invalid`, `no slices`, `stale` (committed slices run again at the next run) or `committed`. Whether more slices
    are due depends on the inputs, which are not read: `tidemark plan` shows it."""
    slices: int = 0
    """Number of committed slices."""
    end: str | None = None
    """End of the last committed slice, UTC."""
    age_seconds: float | None = None
    """Time from the end of the last committed slice until now, in seconds."""
    problem: str | None = None
    """Message of the error, if the file or the ledger is not valid."""


def status(pipelines: PipelinesArgument, candidate: CandidateOption = None) -> None:
    """Show what pipelines have committed, one column per pipeline.

    Example: `tidemark status flights_weather flights_weather_event_time`
    """
    loaded, root = [to_candidate(load_pipeline(name), candidate) for name in pipelines], get_lake_root()
    statuses = [
        replace(summarize_status(pipeline, root), oldest_versions=find_oldest_readable_versions(pipeline, root))
        for pipeline in loaded
    ]
    print_result([status_.to_dict() for status_ in statuses], lambda: render_status(*statuses))


def list_() -> None:
    """List the pipeline files with their state, last committed slice and its age.

    `tidemark plan` shows which slices are due.

    Pipeline files are in `TIDEMARK_PIPELINES`, by default `include/pipelines`.

    Example: `tidemark list`
    """
    files = list_pipeline_files()
    if not files:
        raise UserError(f"there is no pipeline file in {get_pipelines_folder()}. Set TIDEMARK_PIPELINES to a folder.")
    root, now = get_lake_root(), datetime.now(UTC)
    summaries = [_summarize(file, root, now) for file in files]
    print_result([summary.to_dict() for summary in summaries], lambda: _render(summaries), soft_wrap=True)


def _summarize(file: Path, root: str, now: datetime) -> PipelineSummary:
    try:
        pipeline = load_pipeline(file)
    except UserError as error:
        return PipelineSummary(file.name, "invalid", problem=str(error))
    grid = Grid.from_config(pipeline.slices)
    try:
        ledger = Ledger.read_without_sync(PipelineTables.from_config(pipeline, root), grid)
    except UserError as error:
        return PipelineSummary(pipeline.name, "invalid", problem=str(error))
    if ledger.last is None:
        return PipelineSummary(pipeline.name, "no slices")
    end = ledger.last.number + 1
    return PipelineSummary(
        pipeline.name,
        "stale" if stale(ledger) else "committed",
        len(ledger.entries),
        grid.label(end),
        (now - grid.datetime_of(end)).total_seconds(),
    )


def _render(summaries: list[PipelineSummary]) -> RenderableType:
    table = Table("pipeline", "state", "slices", "committed up to", "age", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for summary in summaries:
        table.add_row(*_describe(summary))
    problems = (Text(f"{summary.pipeline}: {summary.problem}") for summary in summaries if summary.problem)
    return Group(table, *problems)


def _describe(summary: PipelineSummary) -> Iterator[str | Text]:
    yield summary.pipeline
    yield summary.state
    yield f"{summary.slices:,}"
    yield summary.end or ""
    yield "" if summary.age_seconds is None else _describe_age(summary.age_seconds)


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
