"""How much of an input a plan would read, by the statistics that Delta keeps of each file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pandas as pd

from tidemark.config.types import micros
from tidemark.sources.stored_input import StoredInput
from tidemark.timegrid.slices import Grid

LEAST_BYTES = 10
"""A row is taken to fill so many bytes of a file that does not tell how many it has."""


@dataclass(frozen=True)
class ScanEstimate:
    """Files that may hold rows of the slices: whole files, so an upper bound."""

    files: int
    bytes: int
    rows: int | None
    """How many rows they have; None where a file has no statistics."""


@dataclass(frozen=True)
class InputFiles:
    """The files of an input: what each holds, and of which slices."""

    files: pd.DataFrame
    """One row per file: `size` in bytes, `rows`, and the slices of its least and greatest clock, `first` and `last`
    (inclusive); NaN where there are no statistics."""
    now: int
    """The slice that is not over yet."""

    @classmethod
    def of(cls, source: StoredInput, grid: Grid) -> InputFiles:
        """Read the log of the version that the plan reads."""
        return cls(_files(source, grid).astype("float64"), grid.number_at(micros(datetime.now(UTC))))

    def to_read(self, slices: Iterable[range]) -> ScanEstimate:
        """What these slices read."""
        wanted = np.zeros(len(self.files), dtype=bool)
        for part in slices:
            outside = (self.files["last"] < part[0]) | (self.files["first"] > part[-1])
            wanted |= ~outside.to_numpy()
        found = self.files[wanted]
        rows = None if found["rows"].isna().any() else int(found["rows"].sum())
        return ScanEstimate(len(found), int(found["size"].sum()), rows)

    def rows_per_slice(self, slices: range) -> npt.NDArray[np.float64]:
        """About how many rows each slice has, each file's spread evenly over its slices (up to now)."""
        rows = self.files["rows"].fillna(self.files["size"] / LEAST_BYTES).to_numpy()
        first = self.files["first"].clip(0, self.now).fillna(slices.start).to_numpy()
        last = self.files["last"].clip(0, self.now).fillna(slices.stop - 1).to_numpy()
        share = rows / (last - first + 1)
        change = np.zeros(len(slices) + 1)
        for place, sign in ((first, 1), (last + 1, -1)):
            number = np.clip(place - slices.start, 0, len(slices)).astype(np.int64)
            np.add.at(change, number, sign * share)
        found: npt.NDArray[np.float64] = change[:-1].cumsum()
        return found


def _files(source: StoredInput, grid: Grid) -> pd.DataFrame:
    rows = []
    for one in source.files or ():
        ends = (float("nan") if end is None else grid.number_at(end) for end in (one.low, one.high))
        rows.append((one.size, float("nan") if one.rows is None else one.rows, *ends))
    if source.files is None and (log := source.table.log) is not None:  # a trace's clock is beside the table
        nowhere = {"first": float("nan"), "last": float("nan")}
        return log.files[["size", "rows"]].assign(**nowhere)
    return pd.DataFrame(rows, columns=["size", "rows", "first", "last"])
