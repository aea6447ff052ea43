"""Inputs of the simulation: the package's own code over tables in memory.

Only conditions on rows are replaced, because Spark evaluates them. Here they are functions of the slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from pyspark.errors import PySparkException

from tests.simulation.in_memory_lake import CLOCK, LAKE, NO_COLUMNS, Frame, InMemoryLake, replace_in_package
from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.delta.paths import resolve_path
from tidemark.delta.table_reader import DeltaInput
from tidemark.planning.job_sizing import JobCapacity
from tidemark.planning.scan_estimate import InputFiles, ScanEstimate
from tidemark.sources import input_changes, upstream
from tidemark.sources.late_arrivals import ChangeDetector
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import StoredInput
from tidemark.timegrid.slices import Grid

MAX_SLICES_PER_JOB = 3
"""Number of slices of a job whose size a command chooses."""


class NoFiles(InputFiles):
    """No statistics by which slices would be cut into jobs."""

    def rows_per_slice(self, slices: range) -> npt.NDArray[np.float64]:
        """Return zeros."""
        return np.zeros(len(slices))

    def estimate_scan(self, _slices: Iterable[range]) -> ScanEstimate:
        """Return zeros."""
        return ScanEstimate(0, 0, 0)


NO_FILES = NoFiles(pd.DataFrame(columns=["size", "rows", "first", "last"], dtype="float64"), now=0)


def install_inputs(lake: InMemoryLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace inputs of the package by those of the simulation."""
    replace_in_package(monkeypatch, open_inputs, lambda _spark, pipeline, *_: open_simulated_inputs(lake, pipeline))
    replace_in_package(monkeypatch, InputFiles, SimpleNamespace(from_input=lambda *_: NO_FILES))
    monkeypatch.setattr(JobCapacity, "from_session", lambda *_: MAX_SLICES_PER_JOB)
    monkeypatch.setattr(input_changes, "_subtract_rows", subtract_rows)
    monkeypatch.setattr(upstream, "format_upstream_arguments", lambda pipeline, side: pipeline.upstreams[side].pipeline)


def open_simulated_inputs(lake: InMemoryLake, pipeline: Pipeline) -> tuple[StoredInput, ...]:
    """Open both inputs of a pipeline, each in one step."""
    return tuple(SimulatedInput.open(lake, pipeline, name) for name in SIDES)


def subtract_rows(rows: Frame, subtracted: Frame) -> Frame:
    """Return the multiset difference of rows."""
    return Frame({number: part - subtracted.contents.get(number, Counter()) for number, part in rows.contents.items()})


class SimulatedChanges(ChangeDetector):
    """Changes of an input whose conditions are functions of a row's slice."""

    def _is_in_slices(self, _grid: Grid, spans: Sequence[tuple[int | None, int]], **_: object) -> Callable[[int], bool]:
        return lambda number: any((start or 0) <= number < stop for start, stop in spans)

    def _collect_owning_slices(self, rows: Frame, _grid: Grid) -> set[int]:
        return {number for number, part in rows.contents.items() if part}

    def _find_first_slice(
        self, read_rows: Callable[[], Frame | None], is_consumed: Callable[[], Any], grid: Grid
    ) -> int | None:
        try:
            rows = read_rows()
        except PySparkException:
            return 0
        return None if rows is None else min(self._collect_owning_slices(rows.where(is_consumed()), grid), default=None)


@dataclass(frozen=True)
class SimulatedInput(StoredInput):
    """One input at the version of a plan."""

    lake: InMemoryLake

    @classmethod
    def open(cls, lake: InMemoryLake, pipeline: Pipeline, name: str) -> SimulatedInput:
        """Open an input in one step."""
        settings = getattr(pipeline, name)
        path = resolve_path(LAKE, settings.table)
        # A version, because two threads that compute a cached property of a class wait for each other.
        version = lake.open_table(path).version
        table = DeltaInput(None, settings.table, path, pinned_version=version, lake=LAKE)
        side = SimpleNamespace(
            name=name,
            settings=settings,
            schema=NO_COLUMNS,
            clock=SimpleNamespace(name=CLOCK),
            time_bounds=None,
            substitute_clock=None,
            excluded_predicates=(),
            filters_at_source=False,
            drop_rows_outside_source=lambda rows: rows,
            normalize=lambda rows, *_: rows,
        )
        return cls(side, table, lake)

    @cached_property
    def changes(self) -> ChangeDetector:
        """Changes of the table since slices consumed it."""
        return SimulatedChanges(self.side, self.table, self.statistics)

    def _read_between(self, start: int, end: int, **_: object) -> Frame:
        paths: Collection[str] | None = self.statistics.select_paths(start, end)
        rows = self.lake.step(lambda: self.table.read(paths=paths))
        return rows.where(lambda number: start <= self.lake.grid.start_of(number) < end)


def list_rows(frame: Frame) -> Iterable[tuple[Any, int]]:
    """Yield rows with their slices."""
    for number, part in frame.contents.items():
        for row in part.elements():
            yield row, number
