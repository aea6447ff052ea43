"""Group the failed expectations of committed slices, and render them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from rich.text import Text

from tidemark.cli.rich_table import create_unwrapped_line
from tidemark.formatting import ToDict, format_count
from tidemark.quality.results import ExpectationResult
from tidemark.quality.results_table import summarize_results
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class FailedExpectation(ToDict):
    """Expectation that failed in committed slices, with the worst of them."""

    expectation: str
    severity: str
    outcomes: dict[str, int]
    """Number of slices by outcome: `warned`, `waived` or `quarantined`."""
    worst_slice: str
    """Start of the slice with the worst value, UTC. If no value is a number, the newest slice that failed."""
    detail: str
    """Observed value in that slice."""


def group_failures(ledger_rows: pd.DataFrame, results: pd.DataFrame, grid: Grid) -> list[FailedExpectation]:
    """Group the failures of committed slices by expectation, those with most slices first.

    Args:
        ledger_rows: Ledger rows of the slices, in order.
        results: Rows of the table `quality`, which have the values.
        grid: Grid of the slices.
    """
    details: dict[tuple[str, str], dict[str, str]] = {}
    outcomes: dict[tuple[str, str], Counter[str]] = {}
    for number, stored in zip(ledger_rows["number"], ledger_rows["quality_results"], strict=True):
        for result in (ExpectationResult(**fields) for fields in json.loads(stored)):
            key = result.expectation, result.severity
            details.setdefault(key, {})[grid.label(int(number))] = result.detail
            outcomes.setdefault(key, Counter())[result.outcome] += 1
    histories = {(history.expectation, history.severity): history for history in summarize_results(results)}
    groups = []
    for key, by_slice in details.items():
        worst_slice = histories[key].worst_slice if key in histories else None
        start = worst_slice if worst_slice in by_slice else next(reversed(by_slice))
        groups.append(FailedExpectation(*key, dict(outcomes[key]), start, by_slice[start]))
    return sorted(groups, key=lambda group: -sum(group.outcomes.values()))


def render_failures(cli_arguments: str, slices: int, failures: Sequence[FailedExpectation]) -> Iterator[Text]:
    """Yield a line for each failed expectation of a pipeline, and the command that shows all values.

    Args:
        cli_arguments: Command line arguments that select the pipeline.
        slices: Number of its committed slices.
        failures: The failed expectations.
    """
    yield from render_failure_lines(slices, failures)
    if failures:
        yield create_unwrapped_line(f"All values: tidemark quality show {cli_arguments}")


def render_failure_lines(slices: int, failures: Sequence[FailedExpectation]) -> Iterator[Text]:
    """Yield a line for each failed expectation.

    Args:
        slices: Number of committed slices.
        failures: The failed expectations.
    """
    for failure in failures:
        counts = f"{_describe_outcomes(failure.outcomes)} of {format_count(slices, 'slice')}"
        worst = f"worst in {failure.worst_slice}: {failure.detail}"
        yield Text(f"warning: {failure.expectation}: {counts}, {worst}", "yellow")


def _describe_outcomes(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())
