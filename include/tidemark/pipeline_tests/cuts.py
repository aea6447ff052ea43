"""Cut the rows of test cases into slices and jobs in several ways, as lanes of the same jobs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tidemark.config import Pipeline
from tidemark.timegrid.slices import SYNTHETIC_GRID, Grid

OWN_SLICES, SLICE_PER_ROW, TWO_JOBS = "own slices", "a slice for each row", "two jobs"
"""Cuts: the pipeline's slices in one job, a slice for each row in one job, and random slices in two jobs."""


def depends_on_clock(pipeline: Pipeline) -> bool:
    """Return True if the clock does more than order the rows, so that a case needs its own times."""
    join = pipeline.join
    has_processing_time_timers = join.time == "processing" or join.effective_trigger.kind.endswith("processing_time")
    has_idle_inputs = any(source.idle_timeout for source in (pipeline.left, pipeline.right))
    return bool(has_processing_time_timers or has_idle_inputs or pipeline.restarts)


def list_cuts(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the cuts that give the same rows in the engine.

    In dialect spark each slice is a micro-batch, so its slices are not cut. Timers on the clock run at the ends of
    slices, so the slices of their cases are not cut, either.
    """
    if pipeline.dialect == "spark" or depends_on_clock(pipeline):
        return (OWN_SLICES, TWO_JOBS)
    return (OWN_SLICES, SLICE_PER_ROW, TWO_JOBS)


@dataclass(frozen=True)
class LaneCut:
    """Slices of a lane's rows."""

    clocks: tuple[int, ...]
    """Distinct arrivals of the lane's rows, in microseconds, in order."""
    slices: tuple[int, ...]
    """Slice of each arrival."""
    own_slices: tuple[int, ...]
    """Slice of each arrival on the pipeline's grid."""

    @property
    def last(self) -> int:
        """Last slice of the lane; 0 for a lane without rows."""
        return self.slices[-1] if self.slices else 0

    def to_clock(self, position: int) -> int:
        """Return the synthetic clock of an arrival, by its index in `clocks`."""
        return SYNTHETIC_GRID.start_of(self.slices[position]) + position

    def from_own_clock(self, clock: int) -> int:
        """Return the synthetic clock of an arrival. The end of the inputs is the end of the last slice."""
        position = self._positions.get(clock)
        return SYNTHETIC_GRID.start_of(self.last + 1) - 1 if position is None else self.to_clock(position)

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {clock: position for position, clock in enumerate(self.clocks)}

    def to_own_clock(self, clock: int, grid: Grid) -> int:
        """Return the arrival at a synthetic clock, or the end of the last slice at the end of the inputs.

        Args:
            clock: The synthetic clock.
            grid: Grid of the pipeline.
        """
        if _is_end_of_inputs(clock):
            return grid.start_of(self.to_own_slice(clock) + 1) - 1
        return self.clocks[clock % SYNTHETIC_GRID.every]

    def to_own_slice(self, clock: int) -> int:
        """Return the pipeline's slice of a synthetic clock."""
        if _is_end_of_inputs(clock):
            return self.own_slices[-1] if self.own_slices else 0
        return self.own_slices[clock % SYNTHETIC_GRID.every]

    def own_slice_of(self, slice_number: int) -> int:
        """Return the pipeline's slice of a synthetic slice that holds rows of one slice."""
        return self.own_slices[self.slices.index(slice_number)]

    def find_slice(self, own_slice: int) -> int:
        """Return the last synthetic slice at or before a slice of the pipeline; -1 for none."""
        pairs = zip(self.slices, self.own_slices, strict=True)
        return max((number for number, own in pairs if own <= own_slice), default=-1)


def _is_end_of_inputs(clock: int) -> bool:
    """Return True for the last clock of a synthetic slice, at which inputs end."""
    return clock % SYNTHETIC_GRID.every == SYNTHETIC_GRID.every - 1


def cut_lanes(
    positions: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], names: Sequence[str], cuts: Sequence[str], seed: str
) -> tuple[list[LaneCut], list[range]]:
    """Cut cases into synthetic slices, with a lane for each case and cut.

    Args:
        positions: Distinct arrivals of each case, in order, and the pipeline's slice of each.
        names: Names of the cases.
        cuts: The cuts; lanes of a case are in this order.
        seed: Seed of the random cuts.

    Returns:
        The lanes, and the slices of each job. Lanes with one job have all of their slices in the first one.
    """
    is_by_slice = SLICE_PER_ROW not in cuts
    lanes = {}
    for number, (clocks, own) in enumerate(positions):
        dense = _rank(own)
        lanes[number, OWN_SLICES] = LaneCut(clocks, dense, own)
        lanes[number, SLICE_PER_ROW] = LaneCut(clocks, tuple(range(len(clocks))), own)
    selected = [lane for (_, cut), lane in lanes.items() if cut in cuts]
    boundary = 1 + max((lane.last for lane in selected), default=0)
    for number, (clocks, own) in enumerate(positions):
        units = _rank(own) if is_by_slice else tuple(range(len(clocks)))
        generator = random.Random(f"{seed} {names[number]}")  # noqa: S311 - a seed, not a secret
        lanes[number, TWO_JOBS] = LaneCut(clocks, _cut_at_random(units, boundary, generator, is_by_slice), own)
    ordered = [lanes[number, cut] for number in range(len(positions)) for cut in cuts]
    stop = 1 + max((lane.last for lane in ordered), default=0)
    return ordered, [range(boundary), *([range(boundary, stop)] if stop > boundary else [])]


def _rank(values: Sequence[int]) -> tuple[int, ...]:
    """Replace the values of a sorted sequence by their rank, from 0.

    >>> _rank([5, 5, 9])
    (0, 0, 1)
    """
    order = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return tuple(order[value] for value in values)


def _cut_at_random(
    units: Sequence[int],
    boundary: int,
    generator: random.Random,
    is_whole: bool,  # noqa: FBT001 - one caller
) -> tuple[int, ...]:
    """Cut units into slices at random; from a random unit on, slices are those of the second job.

    Args:
        units: Number of the unit of each arrival: units are not divided.
        boundary: First slice of the second job.
        generator: Generator of random numbers.
        is_whole: True if each unit stays a slice of its own.
    """
    count = units[-1] + 1 if units else 0
    if count < 2:  # noqa: PLR2004 - nothing to cut
        return tuple(units)
    split = generator.randrange(1, count)
    starts = [1 if is_whole else generator.randrange(2) for _ in range(count)]
    numbers = [*_count_slices(starts[:split], 0), *_count_slices(starts[split:], boundary)]
    return tuple(numbers[unit] for unit in units)


def _count_slices(starts: Sequence[int], first: int) -> list[int]:
    return list(accumulate(starts[1:], initial=first))
