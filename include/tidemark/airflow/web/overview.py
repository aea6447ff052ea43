"""Count the slices of a pipeline by state, and list those that need attention."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from tidemark.airflow.web.repair_commands import RepairCommand, list_commands
from tidemark.airflow.web.slice_states import STATES, PipelineSlices, SliceStates, State
from tidemark.config import Pipeline
from tidemark.errors import UserError
from tidemark.ledger.ledger import count_ended_slices
from tidemark.timegrid.slices import Grid, group_consecutive

_LOG = logging.getLogger(__name__)
MAX_RANGES = 5
"""Maximum number of ranges of slices that are listed for a state."""
_URGENT: tuple[State, ...] = ("rejected", "stale", "quarantined", "due")


@dataclass(frozen=True)
class PipelineOverview:
    """State of a pipeline's slices."""

    name: str
    counts: dict[State, int]
    """Number of slices by state, the most urgent first, without zeros."""
    end: str | None = None
    """End of the last committed slice, UTC; None before the first."""
    problem: str | None = None
    """Reason why the tables cannot be shown; None if they can."""


@dataclass(frozen=True)
class SliceRange:
    """Consecutive slices in one state."""

    start: str
    end: str
    """End of the last slice, exclusive."""
    slices: int


@dataclass(frozen=True)
class Attention:
    """Slices in a state in which somebody should act."""

    state: State
    slices: int
    ranges: tuple[SliceRange, ...]
    """The first ranges, at most `MAX_RANGES`."""
    remaining: int
    """Number of further ranges."""
    commands: tuple[RepairCommand, ...]
    """Commands for the first range."""


def count_ended(pipeline: Pipeline, now: datetime) -> int:
    """Return the number of slices that have ended by now."""
    return max(0, count_ended_slices(Grid.from_config(pipeline.slices), pipeline.slices, now))


def summarize_pipeline(states: SliceStates, pipeline: Pipeline, lake: str, now: datetime) -> PipelineOverview:
    """Summarize a pipeline. Tables that cannot be read are a problem of this pipeline only."""
    try:
        slices = states.read(pipeline, lake)
    except UserError as error:
        return PipelineOverview(pipeline.name, {}, problem=str(error))
    except Exception as error:  # noqa: BLE001 - libraries of tables and storage raise many kinds
        _LOG.error("slices of %s could not be shown", pipeline.name, exc_info=error)
        return PipelineOverview(pipeline.name, {}, problem="The API server cannot read its tables. Check their folder.")
    end = None if slices.last is None else slices.grid.label(slices.end)
    return PipelineOverview(pipeline.name, count_states(slices, count_ended(pipeline, now)), end)


def count_states(slices: PipelineSlices, ended: int) -> dict[State, int]:
    """Count slices by state, the most urgent first, without zeros.

    Args:
        slices: The slices.
        ended: Number of slices that have ended by now.
    """
    counts = Counter(summary.state for summary in slices.summaries.values())
    counts["due"] = sum(map(len, list_due(slices, ended)))
    counts["skipped"] = slices.end - sum(summary.is_committed for summary in slices.summaries.values())
    return {state: counts[state] for state in STATES if counts[state]}


def list_due(slices: PipelineSlices, ended: int) -> Iterator[range]:
    """Yield the ranges of slices after the last committed one that have ended and were not rejected."""
    start = slices.end
    for number in (number for number in slices.summaries if number >= start):
        if number > start:
            yield range(start, number)
        start = number + 1
    if start < ended:
        yield range(start, ended)


def list_attention(slices: PipelineSlices, ended: int) -> Iterator[Attention]:
    """Yield the states in which somebody should act, with their slices, the most urgent first."""
    grid = slices.grid
    for state in _URGENT:
        ranges = list(list_due(slices, ended)) if state == "due" else _group_by_commands(slices, state)
        if ranges:
            listed = tuple(
                SliceRange(grid.label(part.start), grid.label(part.stop), len(part)) for part in ranges[:MAX_RANGES]
            )
            rejection = slices.rejections.get(ranges[0].start)
            commands = list_commands(
                slices.pipeline,
                replace(slices.summarize(ranges[0].start), match=None),
                listed[0].start,
                listed[0].end,
                rejection.expectations if rejection else (),
            )
            yield Attention(state, sum(map(len, ranges)), listed, len(ranges) - len(listed), tuple(commands))


def _group_by_commands(slices: PipelineSlices, state: State) -> list[range]:
    """Group the slices in a state into ranges with the same commands."""
    groups: dict[tuple[bool, bool], list[int]] = {}
    for number, summary in slices.summaries.items():
        if summary.state == state:
            groups.setdefault((summary.is_committed, summary.has_quarantined_rows), []).append(number)
    ranges = [part for numbers in groups.values() for part in group_consecutive(numbers)]
    return sorted(ranges, key=lambda part: part.start)
