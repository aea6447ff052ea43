"""Read and write the tables `quality` and `rejection_results`: measurements by slice and expectation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidemark.config import Expectation, Pipeline
from tidemark.config.allowed_expectations import ALLOWED_ARGUMENTS
from tidemark.config.types import format_instant
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.retry import append_with_retry
from tidemark.delta.table import DeltaTableHandle
from tidemark.formatting import ToDict
from tidemark.quality.gx.expectations import get_expectation_name
from tidemark.quality.results import ValidationResult
from tidemark.tables.run_files import read_slice_rows
from tidemark.timegrid.slices import Grid

SCHEMA = pa.schema(
    {
        "slice": pa.timestamp("us", tz="UTC"),
        "run": pa.string(),
        "expectation": pa.string(),
        "severity": pa.string(),
        "value": pa.float64(),
        "min_value": pa.float64(),
        "max_value": pa.float64(),
        "outcome": pa.string(),
    }
)
"""Columns of `quality`. `value` as in `Measurement`. `min_value` and `max_value` bound it, inclusive unless the
expectation is strict."""
REJECTED_AT = pa.field("rejected_at", pa.timestamp("us", tz="UTC"))
"""Additional column of `rejection_results`: instant of the rejection, which no commit of the ledger records."""
OUTCOMES = ("passed", "warned", "failed", "waived", "quarantined")


@dataclass(frozen=True)
class ExpectationHistory(ToDict):
    """Results of one expectation over all slices."""

    expectation: str
    severity: str
    evaluated: int
    """Number of evaluations: committed slices, and rejected attempts of slices."""
    outcomes: dict[str, int]
    """Number of evaluations by outcome (`OUTCOMES`), without zeros. `failed` are rejected attempts."""
    min_value: float | None
    """Lower bound of the value in the newest slice; None if there is none."""
    max_value: float | None
    """Upper bound of the value in the newest slice; None if there is none."""
    worst_value: float | None
    """Value furthest outside its bounds among evaluations that did not pass. If all passed, the value nearest to a
    bound. None if they have no values or no bounds."""
    worst_slice: str | None
    """Start of the first slice with that value, UTC. Without the value, the first slice that did not pass."""
    worst_outcome: str | None = None
    """Outcome of that slice; `passed` if no slice failed."""

    @property
    def is_share(self) -> bool:
        """True if the values are shares (0 to 1) of values that violate an expectation on single rows."""
        return _measures_share(self.expectation.partition("(")[0], is_metric=self.expectation.endswith(" on history"))


def create_result_rows(pipeline: Pipeline, grid: Grid, first: int, run: str, result: ValidationResult) -> pa.Table:
    """Create the rows of a run's slices, one per slice and measurement.

    Args:
        pipeline: Its expectations, which have the bounds.
        grid: Grid of the slices.
        first: Number of the first slice.
        run: Run of the slices in the ledger.
        result: Result of validating the run.
    """
    expectations = (*pipeline.quality, *pipeline.default_expectations)
    bounds = {get_expectation_name(expectation): get_value_bounds(expectation) for expectation in expectations}
    rows = []
    by_slice = zip(result.measurements_by_slice, result.failures_by_slice, strict=True)
    for number, (measurements, failures) in enumerate(by_slice, first):
        outcomes = {(failure.expectation, failure.severity): failure.outcome for failure in failures}
        for measurement in measurements:
            min_value, max_value = bounds[measurement.expectation]
            key = measurement.expectation, measurement.severity
            rows.append(
                {
                    "slice": grid.datetime_of(number),
                    "run": run,
                    "expectation": measurement.expectation,
                    "severity": measurement.severity,
                    "value": measurement.value,
                    "min_value": min_value,
                    "max_value": max_value,
                    "outcome": "passed" if measurement.passed else outcomes[key],
                }
            )
    return pa.Table.from_pylist(rows, SCHEMA)


def append_rejection_results(tables: PipelineTables, rows: pa.Table) -> None:
    """Append the failed rows of a rejected slice to `rejection_results`; `quality` contains committed slices only.

    Every rejected attempt adds rows. Passed expectations are left out.
    """
    failed = rows.filter(pc.field("outcome") == "failed")
    if failed.num_rows:
        now = pa.repeat(pa.scalar(datetime.now(UTC), REJECTED_AT.type), failed.num_rows)
        append_with_retry(tables.rejection_results, failed.append_column(REJECTED_AT, now))


def get_value_bounds(expectation: Expectation) -> tuple[float | None, float | None]:
    """Return the bounds of `Measurement.value` between which an expectation passes; None for no bound.

    >>> not_null = {"type": "expect_column_values_to_not_be_null", "column": "k", "mostly": 0.75}
    >>> get_value_bounds(Expectation.model_validate(not_null))
    (None, 0.25)
    """
    arguments = expectation.kwargs
    if _measures_share(expectation.type, is_metric=expectation.on == "history"):
        return None, 1 - arguments.get("mostly", 1.0)
    low, high = (arguments.get(name, arguments.get("value")) for name in ("min_value", "max_value"))
    return _to_float(low), _to_float(high)


def _measures_share(expectation_type: str, *, is_metric: bool) -> bool:
    """Return True if `Measurement.value` is the share of values that violate the expectation."""
    return "mostly" in ALLOWED_ARGUMENTS.get(expectation_type, ()) and not is_metric


def _to_float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_results(path: str, where: ds.Expression | None = None) -> pd.DataFrame:
    """Read the table `quality` or `rejection_results`, ordered by slice; empty if there is no table.

    Args:
        path: Path of the table.
        where: Filter of its rows; None for all rows.
    """
    log = DeltaTableHandle.open(path)
    if log is None:
        return pd.DataFrame(SCHEMA.empty_table().to_pydict())
    rows: pd.DataFrame = log.read(SCHEMA.names, where).to_pandas().sort_values("slice", kind="stable")
    return rows


def read_slice_results(tables: PipelineTables, grid: Grid, number: int) -> pd.DataFrame:
    """Read the rows of a committed slice in the table `quality`; empty if there are none."""
    rows = read_slice_rows(tables, "quality", grid, range(number, number + 1), SCHEMA.names)
    return pd.DataFrame(SCHEMA.empty_table().to_pydict()) if rows is None else rows.to_pandas()


def summarize_results(*tables: pd.DataFrame) -> list[ExpectationHistory]:
    """Summarize each expectation over several tables, those with most failures first."""
    rows = pd.concat([table for table in tables if len(table)] or tables).sort_values("slice", kind="stable")
    histories = list(_summarize_expectations(rows))
    return sorted(histories, key=lambda history: history.outcomes.get("passed", 0) - history.evaluated)


def _summarize_expectations(rows: pd.DataFrame) -> Iterator[ExpectationHistory]:
    for (expectation, severity), group in rows.groupby(["expectation", "severity"], sort=False):
        (value, worst), newest = _find_worst(group), group.iloc[-1]
        yield ExpectationHistory(
            str(expectation),
            str(severity),
            len(group),
            {name: int(count) for name in OUTCOMES if (count := (group["outcome"] == name).sum())},
            _replace_nan(newest["min_value"]),
            _replace_nan(newest["max_value"]),
            value,
            None if worst is None else format_instant(worst["slice"].to_pydatetime()),
            None if worst is None else str(worst["outcome"]),
        )


def _find_worst(rows: pd.DataFrame) -> tuple[float | None, pd.Series[Any] | None]:
    """Find the row with the largest excess among those that did not pass, or among all rows if all passed.

    Returns:
        The value and the row. Without any excess, None and the first row that did not pass, if any.
    """
    failed = rows[rows["outcome"] != "passed"]
    candidates = rows if failed.empty else failed
    excess = _compute_excess(candidates)
    if excess.notna().any():
        worst = candidates.iloc[int(excess.argmax())]
        return float(worst["value"]), worst
    return None, None if failed.empty else failed.iloc[0]


def _compute_excess(rows: pd.DataFrame) -> pd.Series[float]:
    """Return by how much values exceed the nearer bound, negative within; NaN without a value or bound."""
    below, above = rows["min_value"] - rows["value"], rows["value"] - rows["max_value"]
    return pd.concat([below, above], axis=1).max(axis=1)


def _replace_nan(value: float) -> float | None:
    return None if pd.isna(value) else float(value)
