"""Summarize a validation result as a notification, and send it to the receivers of the pipeline file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark.config.notify import Receiver
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.formatting import ToDict, format_count, to_single_line
from tidemark.quality.gx.project import open_project
from tidemark.quality.results import ValidationResult
from tidemark.timegrid.slices import Grid

MAX_LISTED = 10
"""Maximum number of failures in a message, and of slices listed per failure."""
MAX_LENGTH = 300
"""Maximum number of characters of a failure's name and of its detail."""


@dataclass(frozen=True)
class FailureSummary:
    """Failed expectation and its slices."""

    expectation: str
    severity: str
    outcome: str
    """Outcome of the slices: `failed`, `quarantined`, `waived` or `warned`."""
    detail: str
    """Observed values in the first of the slices; single values only if the pipeline file has `expose_row_values`."""
    slices: tuple[str, ...]
    """Starts of the first `MAX_LISTED` slices."""
    slice_count: int

    def format_line(self) -> str:
        """Format the failure in one line."""
        first = self.slices[0]
        where = first if self.slice_count == 1 else f"{format_count(self.slice_count, 'slice')} from {first}"
        return f"{self.outcome} ({self.severity}): {self.expectation} {self.detail}, in {where}"


@dataclass(frozen=True)
class Notification(ToDict):
    """Summary of a validation result. Webhooks receive it as JSON."""

    pipeline: str
    outcome: str
    run: str
    start: str
    """Start of the first slice, UTC."""
    end: str
    """End of the last slice, exclusive, UTC."""
    slice_count: int
    failures: tuple[FailureSummary, ...]
    docs_index: str
    """Path of Data Docs' first page."""

    @classmethod
    def from_result(
        cls, pipeline: str, grid: Grid, slices: Sequence[int], run: str, result: ValidationResult
    ) -> Notification:
        """Summarize a validation result of slices with these numbers."""
        failed_slices: dict[tuple[str, str, str], list[int]] = {}
        details: dict[tuple[str, str, str], str] = {}
        for number, failures in zip(slices, result.failures_by_slice, strict=True):
            for failure in failures:
                key = failure.outcome, failure.severity, failure.expectation
                failed_slices.setdefault(key, []).append(number)
                details.setdefault(key, failure.detail)
        summaries = tuple(
            FailureSummary(
                to_single_line(name)[:MAX_LENGTH],
                severity,
                outcome,
                to_single_line(details[outcome, severity, name])[:MAX_LENGTH],
                tuple(map(grid.label, numbers[:MAX_LISTED])),
                len(numbers),
            )
            for (outcome, severity, name), numbers in sorted(
                failed_slices.items(), key=lambda item: item[0][0] != "failed"
            )
        )
        start, end = grid.label(slices[0]), grid.label(slices[-1] + 1)
        return cls(pipeline, result.outcome, run, start, end, len(slices), summaries, result.docs_index)

    @property
    def title(self) -> str:
        """Subject line."""
        return f"{self.pipeline}: quality {self.outcome}"

    @property
    def lines(self) -> list[str]:
        """Message for people, line by line."""
        more = len(self.failures) - MAX_LISTED
        return [
            f"{format_count(self.slice_count, 'slice')} from {self.start} to {self.end} (run {self.run})",
            *(failure.format_line() for failure in self.failures[:MAX_LISTED]),
            *([f"and {format_count(more, 'other expectation')}"] if more > 0 else []),
            f"Data Docs: {self.docs_index}",
        ]


def send_notification(
    notification: Notification, receivers: Iterable[Receiver], tables: PipelineTables, result: ValidationResult
) -> None:
    """Send a notification to the receivers that accept its outcome. A failure to send is only logged as a warning."""
    if accepting := [receiver for receiver in receivers if receiver.accepts(notification.outcome)]:
        from tidemark.quality.gx import notification_channels  # noqa: PLC0415 - imports Great Expectations

        with open_project(tables) as context:
            notification_channels.send(notification, accepting, context, next(iter(result.gx_result_ids), None))
