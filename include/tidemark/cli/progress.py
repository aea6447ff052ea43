"""A plan run before people's eyes: how far it is, how long it still takes, and how it is asked to stop."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text
from typing_extensions import override

from tidemark.cli.common import err, out
from tidemark.config.sides import SIDES
from tidemark.execution.job import JobResult
from tidemark.execution.run import execute
from tidemark.formatting import format_count
from tidemark.json_logging import is_json_enabled
from tidemark.planning.duration_estimate import JobCost, PastJob, list_past_jobs
from tidemark.planning.plan import Plan

_LOG = logging.getLogger(__name__)


def run_with_progress(plan: Plan, *, lines: bool = False) -> Iterator[JobResult]:
    """Run a plan, with a progress bar over its slices on a terminal.

    Args:
        plan: The plan.
        lines: Print a line per job where there is no terminal.

    Yields:
        The result of each committed job.

    Raises:
        StoppedError: SIGTERM or Ctrl-C was received. The current job is committed, later jobs have not run.
    """
    remaining_time, finished_slices = RemainingTime(plan), 0
    with _stop_on_signals() as stop, create_progress_bar("slices", _TimeLeft(remaining_time)) as progress_bar:
        task = progress_bar.add_task("starting", total=plan.slice_count)

        def progress(slices: range, step: str) -> None:
            remaining_time.start_job(slices)
            progress_bar.update(task, description=f"{plan.pipeline.name} {plan.grid.label(slices[0])}: {step}")

        for result in execute(plan.spark, plan, progress, lambda: stop.is_requested):
            remaining_time.finish_job()
            finished_slices += len(result.slices)
            progress_bar.advance(task, len(result.slices))
            _LOG.info("committed", extra=_log_fields(plan, result))
            if lines and not err.is_terminal and not is_json_enabled():
                # A cascade grows while it runs.
                total = format_count(max(finished_slices, plan.slice_count), "slice")
                remaining = remaining_time.describe() if finished_slices < plan.slice_count else ""
                suffix = f", {remaining}" if remaining else ""
                out.print(f"{_describe_commit(plan, result)}; {finished_slices:,} of {total}{suffix}", soft_wrap=True)
            yield result
        progress_bar.update(task, description=f"{plan.pipeline.name}: done")


def create_progress_bar(noun: str, *more: ProgressColumn) -> Progress:
    """Create a progress bar that counts, shown only on a terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(noun),
    )
    return Progress(*columns, TimeElapsedColumn(), *more, console=err, disable=not err.is_terminal)


@dataclass
class RemainingTime:
    """Estimate of the remaining time of a plan, from the ledger's history and the finished jobs."""

    plan: Plan
    running: range | None = None
    job_started: float = 0.0
    """Start of the running job, in seconds of `time.monotonic`."""
    pending_rows: dict[range, float] = field(init=False)
    """Rows of each job that has not started."""
    job_rows: float = 0.0
    """Rows of the running job."""
    finished_jobs: list[PastJob] = field(init=False)

    def __post_init__(self) -> None:
        self.finished_jobs = list_past_jobs(self.plan.ledger.rows)
        self.pending_rows = dict(self.plan.rows_by_job)

    def start_job(self, slices: range) -> None:
        """Record that the job of these slices starts, and that the previous job is finished."""
        if slices != self.running:
            self.finish_job()
            self.running, self.job_started, self.job_rows = slices, time.monotonic(), self.pending_rows.pop(slices, 0.0)

    def finish_job(self) -> None:
        """Record that the running job is finished."""
        if self.running is not None:
            self.finished_jobs.append(PastJob(self.job_rows, time.monotonic() - self.job_started))
            self.running = None

    @property
    def seconds(self) -> float | None:
        """Remaining seconds of all jobs; None without history."""
        if not self.finished_jobs:
            return None
        cost = JobCost.from_past_jobs(self.finished_jobs)
        pending_rows = cost.estimate_seconds(sum(self.pending_rows.values()), len(self.pending_rows))
        if self.running is None:
            return pending_rows
        return pending_rows + max(0.0, cost.estimate_seconds(self.job_rows, 1) - (time.monotonic() - self.job_started))

    def describe(self) -> str:
        """Return the remaining time in words; empty without history."""
        if self.seconds is None:
            return ""
        minutes = round(self.seconds / 60)
        if not minutes:
            return "less than a minute left"
        return (
            f"about {minutes} min left"
            if minutes < _MINUTES_SHOWN_AS_HOURS
            else f"about {self.seconds / 3600:.1f} h left"
        )


class _TimeLeft(ProgressColumn):
    max_refresh = 1.0

    def __init__(self, remaining_time: RemainingTime) -> None:
        super().__init__()
        self.remaining_time = remaining_time

    @override
    def render(self, task: Task) -> Text:
        return Text("" if task.finished else self.remaining_time.describe(), style="progress.remaining")


@dataclass
class _StopRequest:
    """Signal handler that records a request to stop. A second signal ends the process at once."""

    is_requested: bool = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.is_requested:
            err.show_cursor()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.is_requested = True
        err.print("stopping after the current job is committed. Send the signal again to end at once.", soft_wrap=True)


@contextmanager
def _stop_on_signals() -> Iterator[_StopRequest]:
    """Handle SIGTERM and Ctrl-C as requests to stop."""
    stop = _StopRequest()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_MINUTES_SHOWN_AS_HOURS = 100
"""Minutes from which the remaining time is shown in hours."""


def _log_fields(plan: Plan, result: JobResult) -> dict[str, Any]:
    """Return the log fields of a committed job."""
    slices = result.slices
    late = {f"{side}_late": sum(row[side]["late"] for row in result.rows) for side in SIDES}
    return {
        "pipeline": plan.pipeline.name,
        "slice": plan.grid.label(slices[0]),
        "run": result.staged.run,
        "until": plan.grid.label(slices[-1] + 1),
        "slices": len(slices),
        "emissions": sum(row["emissions"] for row in result.rows),
        **late,
        "quality": result.validation_result.outcome,
        "seconds": round(result.seconds, 3),
    }


def _describe_commit(plan: Plan, result: JobResult) -> str:
    first, last = result.slices[0], result.slices[-1]
    slices = format_count(len(result.slices), "slice")
    return (
        f"committed {plan.grid.label(first)} to {plan.grid.label(last + 1)}: {slices} in "
        f"{result.seconds:.1f} s, quality {result.validation_result.outcome}"
    )
