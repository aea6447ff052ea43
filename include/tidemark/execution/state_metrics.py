"""Compute metrics of `on: history` that need a query, if an expectation bounds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.baseline_metrics import EQUAL_SHARE, OLDEST_CARRIED_HOURS
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.write import WrittenOutput
from tidemark.timegrid.slices import Grid

_HOUR_MICROS = 3_600_000_000


def compute_bounded_metrics(spec: JobSpec, written: WrittenOutput) -> Mapping[str, pd.Series[float] | float]:
    """Compute the metrics that an expectation of the pipeline file bounds, by name: of each slice, or of all."""
    pipeline = spec.plan.pipeline
    functions: dict[str, Callable[[], pd.Series[float] | float]] = {
        OLDEST_CARRIED_HOURS: lambda: compute_carried_age(_read_carried(written), spec.slices, spec.plan.grid),
        EQUAL_SHARE: lambda: read_equal_share(spec.plan.tables, pipeline),
    }
    bounded = {expectation.kwargs["column"] for expectation in pipeline.quality if expectation.on == "history"}
    return {name: compute() for name, compute in functions.items() if name in bounded}


def _read_carried(written: WrittenOutput) -> pd.DataFrame:
    """Read the earliest `clock` (µs) of the rows that are carried in slices since <= n < until (starts, µs)."""
    rows = written.staged.tables["checkpoint"].read(written.emissions.sparkSession)
    bounds = (F.unix_micros("carried_from").alias("since"), F.unix_micros("carried_until").alias("until"))
    return rows.groupBy(*bounds).agg(F.min("clock").alias("clock")).toPandas()


def compute_carried_age(carried: pd.DataFrame, slices: range, grid: Grid) -> pd.Series[float]:
    """Compute the age of the oldest carried row at the end of each slice, in hours on the pipeline's clock.

    Args:
        carried: Rows in groups: earliest `clock`, and starts of the slices since (inclusive) and until (exclusive)
            which they are carried, all in microseconds UTC.
        slices: Numbers of the slices.
        grid: Their grid.

    Returns:
        Ages by slice number; NaN for a slice that carries no row.
    """
    ages = {}
    for number in slices:
        start, end = grid.start_of(number), grid.start_of(number + 1)
        oldest = carried.loc[(carried["since"] <= start) & (carried["until"] > start), "clock"].min()
        ages[number] = np.nan if pd.isna(oldest) else (end - oldest) / _HOUR_MICROS
    return pd.Series(ages, dtype="float64")


def read_equal_share(tables: PipelineTables, pipeline: Pipeline) -> float:
    """Read the share of equal rows among those of the last saved comparison, without pending rows.

    If the pipeline file has `compare`, comparisons with other tables do not count.

    Returns:
        The share, 0 to 1; NaN without a comparison or compared rows.
    """
    log = DeltaTableHandle.open(tables.agreement)
    if log is None:
        return np.nan
    predicate = ds.field("compared_with") == pipeline.compare.table if pipeline.compare else None
    counts = ("same", "only_batch", "only_stream")
    rows = log.read(["compared_with", "compared_at", *counts], predicate)
    last = rows.filter(pc.equal(rows["compared_at"], pc.max(rows["compared_at"])))
    same, *differing = (pc.sum(last[name]).as_py() or 0 for name in counts)
    return same / total if (total := same + sum(differing)) else np.nan
