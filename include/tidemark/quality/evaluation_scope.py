"""What expectations look at: the rows of a job, and the units of them that are judged each by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config import Expectation
from tidemark.config.local_days import DAY
from tidemark.timegrid.slices import Grid

UTC_DAYS = Grid(0, DAY)


@dataclass(frozen=True)
class Units:
    """Units of rows that are judged each by itself."""

    rows: DataFrame
    unit: Column
    """The unit of a row, a long."""
    slices: Mapping[int, Sequence[int]]
    """Of each unit the slices that its verdict is told in, by their places in the job."""


@dataclass(frozen=True)
class JobRows:
    """What a job has written; or what it is about to join."""

    starts: Sequence[int]
    """Those of its slices, in microseconds."""
    tables: Mapping[str, DataFrame]
    """Rows by what an expectation is `on`, each with the start of its slice as `_slice`."""
    last_of_day: Mapping[int, int] = field(default_factory=dict)
    """The places of slices that are the last ones of their days, by the number of the day since 1970."""
    earlier: Mapping[str, Callable[[], DataFrame | None]] = field(default_factory=dict)
    """What slices before the job have committed of the days that begin before it."""
    figures: pd.DataFrame | None = None
    """Of each slice, and how many times the usual ones they are (`history`)."""
    grid: Grid = UTC_DAYS
    """Whose days they are."""

    def units(self, asked: Expectation) -> Units | None:
        """What an expectation looks at; None where that is not there yet, as of a day that goes on."""
        table, start = "emissions" if asked.on == "pairs" else asked.on, F.unix_micros("_slice")
        rows, day = self.tables[table], self.grid.day_column(start)
        if asked.per == "day":
            if not self.last_of_day:
                return None
            if (before := self.earlier[table]()) is not None:
                rows = rows.unionByName(before, allowMissingColumns=True)
            rows = rows.where(day.isin(list(self.last_of_day)))
        if asked.on == "pairs":
            rows = rows.where(F.col("_emission") == "matched")
        match asked.per:
            case "day":
                return Units(rows, day, {one: (place,) for one, place in self.last_of_day.items()})
            case "job":
                return Units(rows, F.lit(0), {0: range(len(self.starts))})
            case "slice":
                return Units(rows, start, {one: (place,) for place, one in enumerate(self.starts)})


def last_slices_of_days(grid: Grid, slices: range, end: int | None) -> dict[int, int]:
    """The places of those slices that are the last to begin in their days, by day; `end` is behind the last of all."""
    days = [grid.day_of(number) for number in range(slices.start, slices.stop + 1)]
    return {
        days[place]: place for place, number in enumerate(slices) if days[place] != days[place + 1] or number + 1 == end
    }


def slices_before(grid: Grid, slices: range, days: Mapping[int, int]) -> range:
    """The slices before these that begin in one of some days."""
    first = grid.first_from(grid.start_of_day(min(days, default=0)))
    return range(min(slices.start, max(0, first)), slices.start)
