"""How much of an input a plan would read, by the statistics that Delta keeps of each file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.clock.slices import Grid
from tidemark.delta.lake import files_in_log
from tidemark.inputs.stored import StoredInput
from tidemark.settings.values import micros

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
        return cls(_files(source, grid).toPandas().astype("float64"), grid.number_at(micros(datetime.now(UTC))))

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


def _files(source: StoredInput, grid: Grid) -> DataFrame:
    clock = source.side.clock
    files = files_in_log(source.table.spark, source.table.path).select(
        F.col("size").alias("_size"),
        F.get_json_object("stats", "$.numRecords").cast("long").alias("_rows"),
        F.col("stats").alias("_stats"),
    )
    if clock.name not in source.side.schema.names:  # a trace's clock is beside the table
        files = files.withColumns(dict.fromkeys(("_first", "_last"), F.lit(None).cast("long")))
    else:
        kind = source.side.schema[clock.name].dataType
        # Statistics of times are cut to whole milliseconds.
        for name, bound, cut in (("_first", "minValues", 0), ("_last", "maxValues", 999)):
            extreme = F.get_json_object("_stats", f"$.{bound}['{clock.name}']").try_cast(kind)
            files = files.withColumn(clock.name, extreme)
            files = files.withColumn(name, grid.number_column(clock.micros + F.lit(cut)))
    return files.select(*(F.col(f"_{name}").alias(name) for name in ("size", "rows", "first", "last")))
