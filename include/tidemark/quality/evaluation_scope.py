"""Select the rows that an expectation is on, and the units of them that are evaluated separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config import Expectation
from tidemark.config.local_days import DAY_MICROS
from tidemark.timegrid.slices import Grid

UTC_DAYS = Grid(0, DAY_MICROS)


@dataclass(frozen=True)
class EvaluationUnits:
    """Rows in units that are evaluated separately."""

    rows: DataFrame
    unit: Column
    """A row's unit, a long."""
    slices: Mapping[int, Sequence[int]]
    """Slices that report the results of each unit, by their index in the job."""


@dataclass(frozen=True)
class ValidationRows:
    """Output rows of a job, or input rows that it is about to join."""

    slice_starts: Sequence[int]
    """Start of each slice, in microseconds UTC."""
    tables: Mapping[str, DataFrame]
    """Rows by `Expectation.on`, with the start of their slice in the column `_slice`."""
    last_slices: Mapping[int, int] = field(default_factory=dict)
    """Index of the last slice of each day that ends in the job, by the number of the day since 1970."""
    read_earlier_rows: Mapping[str, Callable[[], DataFrame | None]] = field(default_factory=dict)
    """Readers of rows, by `Expectation.on`, that earlier slices of those days have committed."""
    metrics: pd.DataFrame | None = None
    """Metrics of each slice, and their ratios to the baseline (`compare_with_baseline`)."""
    metric_details: Mapping[tuple[int, str], str] = field(default_factory=dict)
    """Details for the messages about failed metrics (`baseline_checks.MetricDetails`)."""
    grid: Grid = UTC_DAYS
    """Grid that defines the days."""

    def select_units(self, expectation: Expectation) -> EvaluationUnits | None:
        """Select the units that an expectation is evaluated on; None if there are none, such as no day that ends."""
        table = "emissions" if expectation.on == "pairs" else expectation.on
        slice_start = F.unix_micros("_slice")
        rows = self.tables[table]
        day = self.grid.day_column(slice_start)
        if expectation.per == "day":
            if not self.last_slices:
                return None
            if (earlier_rows := self.read_earlier_rows[table]()) is not None:
                rows = rows.unionByName(earlier_rows, allowMissingColumns=True)
            rows = rows.where(day.isin(list(self.last_slices)))
        if expectation.on == "pairs":
            rows = rows.where(F.col("_emission") == "matched")
        match expectation.per:
            case "day":
                slices = {day_number: (index,) for day_number, index in self.last_slices.items()}
                return EvaluationUnits(rows, day, slices)
            case "job":
                return EvaluationUnits(rows, F.lit(0), {0: range(len(self.slice_starts))})
            case "slice":
                slices = {start: (index,) for index, start in enumerate(self.slice_starts)}
                return EvaluationUnits(rows, slice_start, slices)


def find_last_slices_of_days(grid: Grid, slices: range, end: int | None) -> dict[int, int]:
    """Return the index of the last slice of each day that ends in these slices, by the number of the day.

    Args:
        grid: Grid of the slices.
        slices: Slice numbers of the job.
        end: Number of the slice after the pipeline's last; None without a last slice.
    """
    days = [grid.day_of(number) for number in range(slices.start, slices.stop + 1)]
    return {
        days[index]: index for index, number in enumerate(slices) if days[index] != days[index + 1] or number + 1 == end
    }


def find_earlier_slices(grid: Grid, slices: range, days: Mapping[int, int]) -> range:
    """Return the slices before these that begin on or after the earliest of some days."""
    first = grid.first_from(grid.start_of_day(min(days, default=0)))
    return range(min(slices.start, max(0, first)), slices.start)
