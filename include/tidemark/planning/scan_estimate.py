"""Estimate how much of an input a plan reads, from Delta's file statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pandas as pd

from tidemark.config.types import to_micros
from tidemark.sources.stored_input import StoredInput
from tidemark.timegrid.slices import Grid

ASSUMED_ROW_BYTES = 10
"""Assumed bytes per row of a file without a row count."""


@dataclass(frozen=True)
class ScanEstimate:
    """Files that may hold rows of the slices, counted completely: an upper bound."""

    files: int
    bytes: int
    rows: int | None
    """Rows of the files; None if a file has no statistics."""


@dataclass(frozen=True)
class InputFiles:
    """Files of an input, with their rows and slices."""

    files: pd.DataFrame
    """One row per file: `size` in bytes, `rows`, and the slices of its smallest and largest clock, `first` and `last`
    (inclusive); NaN without statistics."""
    now: int
    """Slice that contains the current time."""

    @classmethod
    def from_input(cls, source: StoredInput, grid: Grid) -> InputFiles:
        """Read the files of the table version that the plan reads."""
        return cls(_list_files(source, grid).astype("float64"), grid.number_at(to_micros(datetime.now(UTC))))

    def estimate_scan(self, slices: Iterable[range]) -> ScanEstimate:
        """Estimate what these slices read."""
        is_read = np.zeros(len(self.files), dtype=bool)
        for part in slices:
            outside = (self.files["last"] < part[0]) | (self.files["first"] > part[-1])
            is_read |= ~outside.to_numpy()
        read_files = self.files[is_read]
        rows = None if read_files["rows"].isna().any() else int(read_files["rows"].sum())
        return ScanEstimate(len(read_files), int(read_files["size"].sum()), rows)

    def rows_per_slice(self, slices: range) -> npt.NDArray[np.float64]:
        """Estimate the rows of each slice: each file's rows, spread evenly over its slices up to now."""
        rows = self.files["rows"].fillna(self.files["size"] / ASSUMED_ROW_BYTES).to_numpy()
        first = self.files["first"].clip(0, self.now).fillna(slices.start).to_numpy()
        last = self.files["last"].clip(0, self.now).fillna(slices.stop - 1).to_numpy()
        share = rows / (last - first + 1)
        change = np.zeros(len(slices) + 1)
        for boundary, sign in ((first, 1), (last + 1, -1)):
            index = np.clip(boundary - slices.start, 0, len(slices)).astype(np.int64)
            np.add.at(change, index, sign * share)
        rows_by_slice: npt.NDArray[np.float64] = change[:-1].cumsum()
        return rows_by_slice


def _list_files(source: StoredInput, grid: Grid) -> pd.DataFrame:
    # The files of a table do not have the clock of a trace.
    if source.statistics.files is None and (table := source.table.table) is not None:
        return table.files[["size", "rows"]].assign(first=float("nan"), last=float("nan"))
    rows = []
    for file in source.statistics.files or ():
        slices = (float("nan") if clock is None else grid.number_at(clock) for clock in (file.earliest, file.latest))
        rows.append((file.size, float("nan") if file.rows is None else file.rows, *slices))
    return pd.DataFrame(rows, columns=["size", "rows", "first", "last"])
