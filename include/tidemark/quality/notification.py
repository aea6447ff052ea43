"""A job's verdict as people are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.formatting import counted, in_one_line
from tidemark.quality.results import Verdict
from tidemark.timegrid.slices import Grid

SHOWN = 10
"""How many findings stand in a message; and how many slices of each."""
LONGEST = 300
"""Letters of what is said of one finding."""


@dataclass(frozen=True)
class Found:
    """An expectation that did not hold, and in which slices."""

    expectation: str
    severity: str
    outcome: str
    """What came of it: `failed`, `quarantined`, `waived` or `warned`."""
    detail: str
    """What was found in the first of the slices; single values only where the file lets rows be shown."""
    slices: tuple[str, ...]
    """Their starts, the first `SHOWN`."""
    of: int
    """How many slices there are of it."""

    def told(self) -> str:
        """In one line."""
        where = self.slices[0] if self.of == 1 else f"{counted(self.of, 'slice')} from {self.slices[0]}"
        return f"{self.outcome} ({self.severity}): {self.expectation} {self.detail}, in {where}"


@dataclass(frozen=True)
class Notice:
    """What is sent."""

    pipeline: str
    outcome: str
    run: str
    start: str
    """Of the first slice that was judged, UTC."""
    end: str
    """Of the last one, exclusive."""
    slices: int
    found: tuple[Found, ...]
    docs: str
    """Data Docs' first page."""

    @classmethod
    def of(cls, pipeline: str, grid: Grid, slices: Sequence[int], run: str, verdict: Verdict) -> Notice:
        """That of a verdict on slices."""
        where: dict[tuple[str, str, str], list[int]] = {}
        details: dict[tuple[str, str, str], str] = {}
        for number, findings in zip(slices, verdict.by_slice, strict=True):
            for one in findings:
                where.setdefault((one.outcome, one.severity, one.expectation), []).append(number)
                details.setdefault((one.outcome, one.severity, one.expectation), one.detail)
        found = tuple(
            Found(
                in_one_line(name)[:LONGEST],
                severity,
                outcome,
                in_one_line(details[outcome, severity, name])[:LONGEST],
                tuple(map(grid.name, numbers[:SHOWN])),
                len(numbers),
            )
            for (outcome, severity, name), numbers in sorted(where.items(), key=lambda one: one[0][0] != "failed")
        )
        start, end = grid.name(slices[0]), grid.name(slices[-1] + 1)
        return cls(pipeline, verdict.outcome, run, start, end, len(slices), found, verdict.docs)

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)

    @property
    def title(self) -> str:
        """What and how, in a few words."""
        return f"{self.pipeline}: quality {self.outcome}"

    @property
    def lines(self) -> list[str]:
        """All of it, for people."""
        more = len(self.found) - SHOWN
        return [
            f"{counted(self.slices, 'slice')} from {self.start} to {self.end} (run {self.run})",
            *(one.told() for one in self.found[:SHOWN]),
            *([f"and {counted(more, 'other expectation')}"] if more > 0 else []),
            f"Data Docs: {self.docs}",
        ]
