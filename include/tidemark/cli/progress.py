"""Show how far a long command is and how long it still takes, and stop it on signals."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Lock, Thread
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession
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
        lines: Print lines where there is no terminal, at most one every `LINE_INTERVAL_SECONDS`.

    Yields:
        The result of each committed job.

    Raises:
        StoppedError: SIGTERM or Ctrl-C was received. The current job is committed, later jobs have not run.
    """
    run = _RunProgress(plan, RemainingTime(plan))
    has_lines = lines and not err.is_terminal and not is_json_enabled()
    columns = (TextColumn("{task.fields[rows]:,} rows"), _TimeLeft(run.remaining_time))
    with (
        _stop_on_signals() as stop,
        create_progress_bar("slices", *columns) as progress_bar,
        ProgressLines(partial(out.print, soft_wrap=True), run.describe).printing(is_enabled=has_lines) as printed,
    ):
        task = progress_bar.add_task("starting", total=plan.slice_count, rows=0)

        def progress(slices: range, step: str) -> None:
            run.start_step(slices, step)
            progress_bar.update(task, description=run.step)

        for result in execute(plan.spark, plan, progress, lambda: stop.is_requested):
            run.finish_job(result)
            progress_bar.update(task, completed=run.slices, total=run.total, rows=run.rows)
            _LOG.info("committed", extra=_log_fields(plan, result))
            printed.offer(f"{_describe_commit(plan, result)}; {run.describe_done()}")
            yield result
        progress_bar.update(task, description="done")


def create_progress_bar(noun: str, *more: ProgressColumn) -> Progress:
    """Create a progress bar that counts, shown only on a terminal. A narrow one has no bar and no elapsed time."""
    is_wide = err.width >= _WIDTH_WITH_BAR
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *((BarColumn(),) if is_wide else ()),
        MofNCompleteColumn(),
        TextColumn(noun),
        *((TimeElapsedColumn(),) if is_wide else ()),
    )
    return Progress(*columns, *more, console=err, disable=not err.is_terminal)


@contextmanager
def show_activity(title: str, describe: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Show that a long step is running: a spinner on a terminal, otherwise a line every ten seconds.

    Args:
        title: The step, such as `checking files`.
        describe: Function that returns how far the step is; empty if unknown. Called in another thread.
    """
    start = time.monotonic()

    def describe_all() -> str:
        detail = describe()
        return f"{title}{f': {detail}' if detail else ''}, {time.monotonic() - start:,.0f} s"

    if err.is_terminal:
        columns = (SpinnerColumn(), _Described(describe_all))
        with Progress(*columns, console=err, transient=True, redirect_stdout=False) as progress_bar:
            progress_bar.add_task("", total=None)
            yield
        return
    with ProgressLines(partial(err.print, soft_wrap=True), describe_all).printing(is_enabled=not is_json_enabled()):
        yield


def describe_spark_tasks(spark: object) -> str:
    """Return how many tasks of the running Spark stages are done; empty if none runs, and with Spark Connect."""
    if not isinstance(spark, SparkSession):
        return ""
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
    total = sum(stage.numTasks for stage in stages)
    return f"{sum(stage.numCompletedTasks for stage in stages):,} of {total:,} Spark tasks" if total else ""


@dataclass
class ProgressLines:
    """Lines about progress where there is no terminal, at most one every `LINE_INTERVAL_SECONDS`."""

    print_line: Callable[[str], None]
    describe: Callable[[], str]
    """Function that returns a line about the current state, for times at which nothing else is offered."""
    last: float = field(default_factory=time.monotonic)
    """Time of the last line, in seconds of `time.monotonic`."""
    is_enabled: bool = True
    has_printed: bool = False
    pending: str | None = None
    """Newest line that was offered too early to be printed."""
    lock: Lock = field(default_factory=Lock)

    def offer(self, line: str) -> None:
        """Print a line if it is the first or if the interval is over, otherwise keep it for the end."""
        with self.lock:
            if self.has_printed and not self._is_due():
                self.pending = line
            else:
                self._print(line)

    def tick(self) -> None:
        """Print a line about the current state if the interval is over."""
        with self.lock:
            if self._is_due():
                self._print(self.describe())

    @contextmanager
    def printing(self, *, is_enabled: bool) -> Iterator[ProgressLines]:
        """Tick in another thread during the block, and print the last line that was offered at its end."""
        self.is_enabled, ended = is_enabled, Event()

        def tick_until_end() -> None:
            while not ended.wait(1.0):
                self.tick()

        thread = Thread(target=tick_until_end, daemon=True)
        if is_enabled:
            thread.start()
        try:
            yield self
        finally:
            ended.set()
            if is_enabled:
                thread.join()
            if self.pending is not None:
                self._print(self.pending)

    def _is_due(self) -> bool:
        return time.monotonic() - self.last >= LINE_INTERVAL_SECONDS

    def _print(self, line: str) -> None:
        if self.is_enabled:
            self.print_line(line)
        self.last, self.has_printed, self.pending = time.monotonic(), True, None


@dataclass
class _RunProgress:
    """Slices and rows that a plan has run so far, and the current step."""

    plan: Plan
    remaining_time: RemainingTime
    slices: int = 0
    rows: int = 0
    """Input rows that were read."""
    step: str = "starting"
    step_started: float = field(default_factory=time.monotonic)
    """Start of the step, in seconds of `time.monotonic`."""

    def start_step(self, slices: range, step: str) -> None:
        """Record that a step of a job starts."""
        self.remaining_time.start_job(slices)
        self.step = f"{self.plan.grid.label(slices[0])}: {step}"
        self.step_started = time.monotonic()

    def finish_job(self, result: JobResult) -> None:
        """Record that a job is committed."""
        self.remaining_time.finish_job()
        self.slices += len(result.slices)
        self.rows += sum(row[side]["read"] for row in result.rows for side in SIDES)

    @property
    def total(self) -> int:
        """Number of slices to run. A cascade grows while it runs."""
        return max(self.slices, self.plan.slice_count)

    def describe_done(self) -> str:
        """Return slices done, rows read and time left in words."""
        remaining = self.remaining_time.describe() if self.slices < self.plan.slice_count else ""
        done = f"{self.slices:,} of {format_count(self.total, 'slice')}, {format_count(self.rows, 'row')} read"
        return f"{done}, {remaining}" if remaining else done

    def describe(self) -> str:
        """Return the current step and its duration so far, slices done, rows read and time left in words."""
        return f"{self.step}, {time.monotonic() - self.step_started:,.0f} s; {self.describe_done()}"


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
        err.print("stopping after the current job. Send the signal again to end at once.", soft_wrap=True)


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


class _Described(ProgressColumn):
    max_refresh = 0.5

    def __init__(self, describe: Callable[[], str]) -> None:
        super().__init__()
        self.describe = describe

    @override
    def render(self, task: Task) -> Text:
        return Text(self.describe())


LINE_INTERVAL_SECONDS = 10.0
"""Minimum time between two lines of progress where there is no terminal."""
_WIDTH_WITH_BAR = 110
"""Width of a terminal from which a progress bar has a bar and the elapsed time."""
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
