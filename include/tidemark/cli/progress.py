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
from tidemark.formatting import counted
from tidemark.json_logging import are_json
from tidemark.planning.duration_estimate import Cost, PastJob, past_jobs
from tidemark.planning.plan import Plan

_LOG = logging.getLogger(__name__)


def run_with_progress(made: Plan, *, lines: bool = False) -> Iterator[JobResult]:
    """Run a plan, with a bar over its slices on a terminal; `lines` has it tell of each job where there is no terminal.

    Raises:
        StoppedError: SIGTERM or Ctrl-C came; the job that ran then is committed, those behind it have not run.
    """
    pace, done = Pace(made), 0
    with _stop_on_signals() as stop, bar("slices", _TimeLeft(pace)) as shown:
        task = shown.add_task("starting", total=made.slices)

        def progress(slices: range, step: str) -> None:
            pace.at(slices)
            shown.update(task, description=f"{made.pipeline.name} {made.grid.name(slices[0])}: {step}")

        for result in execute(made.spark, made, progress, lambda: stop.asked):
            pace.done()
            done += len(result.slices)
            shown.advance(task, len(result.slices))
            _LOG.info("committed", extra=_as_record(made, result))
            if lines and not err.is_terminal and not are_json():
                total = counted(max(done, made.slices), "slice")  # what follows from a reprocess is known as it goes
                left = f", {remaining}" if (remaining := pace.remaining()) and done < made.slices else ""
                out.print(f"{_committed(made, result)}; {done:,} of {total}{left}", soft_wrap=True)
            yield result
        shown.update(task, description=f"{made.pipeline.name}: done")


def bar(noun: str, *more: ProgressColumn) -> Progress:
    """A bar that counts, shown on a terminal alone."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(noun),
    )
    return Progress(*columns, TimeElapsedColumn(), *more, console=err, disable=not err.is_terminal)


@dataclass
class Pace:
    """How long the jobs of a plan still take, by the ledger's history and by those that have run."""

    plan: Plan
    running: range | None = None
    since: float = 0.0
    """When the job that runs began: `time.monotonic`."""
    ahead: dict[range, float] = field(init=False)
    """Rows of each job that has not begun."""
    rows: float = 0.0
    """Rows of the job that runs."""
    past: list[PastJob] = field(init=False)

    def __post_init__(self) -> None:
        self.past = past_jobs(self.plan.ledger.rows)
        self.ahead = dict(self.plan.rows_of_jobs)

    def at(self, slices: range) -> None:
        """The job of these slices runs, and the one before it is done."""
        if slices != self.running:
            self.done()
            self.running, self.since, self.rows = slices, time.monotonic(), self.ahead.pop(slices, 0.0)

    def done(self) -> None:
        """The job that ran is done."""
        if self.running is not None:
            self.past.append(PastJob(self.rows, time.monotonic() - self.since))
            self.running = None

    @property
    def left(self) -> float | None:
        """Seconds that all jobs still take; None as long as nothing is known."""
        if not self.past:
            return None
        cost = Cost.of(self.past)
        ahead = cost.seconds(sum(self.ahead.values()), len(self.ahead))
        if self.running is None:
            return ahead
        return ahead + max(0.0, cost.seconds(self.rows, 1) - (time.monotonic() - self.since))

    def remaining(self) -> str:
        """The time left as people say it; empty as long as nothing is known."""
        if self.left is None:
            return ""
        minutes = round(self.left / 60)
        if not minutes:
            return "less than a minute left"
        return f"about {minutes} min left" if minutes < _HOURS_FROM else f"about {self.left / 3600:.1f} h left"


class _TimeLeft(ProgressColumn):
    max_refresh = 1.0

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace

    @override
    def render(self, task: Task) -> Text:
        return Text("" if task.finished else self.pace.remaining(), style="progress.remaining")


@dataclass
class _Stop:
    """Whether someone has asked this process to stop; who asks again ends it at once."""

    asked: bool = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            err.show_cursor()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked = True
        err.print("stopping once the job at hand is committed; the same again ends it at once", soft_wrap=True)


@contextmanager
def _stop_on_signals() -> Iterator[_Stop]:
    """Take SIGTERM and Ctrl-C for a request to stop."""
    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_HOURS_FROM = 100
"""Minutes from which on hours are told."""


def _as_record(made: Plan, result: JobResult) -> dict[str, Any]:
    """What a log has of a job that is committed."""
    slices = result.slices
    late = {f"{side}_late": sum(row[side]["late"] for row in result.rows) for side in SIDES}
    return {
        "pipeline": made.pipeline.name,
        "slice": made.grid.name(slices[0]),
        "run": result.staged.run,
        "until": made.grid.name(slices[-1] + 1),
        "slices": len(slices),
        "emissions": sum(row["emissions"] for row in result.rows),
        **late,
        "quality": result.verdict.outcome,
        "seconds": round(result.seconds, 3),
    }


def _committed(made: Plan, result: JobResult) -> str:
    first, last = result.slices[0], result.slices[-1]
    return (
        f"committed {made.grid.name(first)} to {made.grid.name(last + 1)}: {counted(len(result.slices), 'slice')} in "
        f"{result.seconds:.1f} s, quality {result.verdict.outcome}"
    )
