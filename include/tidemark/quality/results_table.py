"""What expectations came to, as the table `quality` keeps it: a row for each slice and expectation."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.config import Expectation, Pipeline
from tidemark.config.allowed_expectations import ARGUMENTS
from tidemark.config.quality import default_expectations
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.gx.project import name_of
from tidemark.quality.results import Verdict
from tidemark.tables.append import append
from tidemark.timegrid.slices import Grid

SCHEMA = pa.schema(
    {
        "slice": pa.timestamp("us", tz="UTC"),
        "run": pa.string(),
        "expectation": pa.string(),
        "severity": pa.string(),
        "value": pa.float64(),
        "least": pa.float64(),
        "greatest": pa.float64(),
        "verdict": pa.string(),
    }
)
"""`value` as in `Measure`; `least` and `greatest` bound it, both inclusive unless the expectation says strict."""
AT = pa.field("at", pa.timestamp("us", tz="UTC"))
"""When a slice was refused, for there is no commit that tells."""


def measured(pipeline: Pipeline, grid: Grid, first: int, run: str, verdict: Verdict) -> pa.Table:
    """The rows of a run's slices from the `first` on; none where nothing is expected."""
    within = {name_of(one): bounds(one) for one in (*pipeline.quality, *default_expectations())}
    rows = []
    for number, (found, findings) in enumerate(zip(verdict.measures, verdict.by_slice, strict=True), first):
        outcomes = {(one.expectation, one.severity): one.outcome for one in findings}
        for one in found:
            least, greatest = within[one.expectation]
            told = {"expectation": one.expectation, "severity": one.severity, "value": one.value}
            limits = {
                "least": least,
                "greatest": greatest,
                "verdict": "passed" if one.passed else outcomes[one.expectation, one.severity],
            }
            rows.append({"slice": grid.datetime_of(number), "run": run, **told, **limits})
    return pa.Table.from_pylist(rows, SCHEMA)


def keep_refused(tables: PipelineTables, rows: pa.Table) -> None:
    """Keep what a slice was refused for, in a table beside `quality`, which has committed slices alone.

    Each attempt that is refused has rows of its own; what held of it is left out.
    """
    failed = rows.filter(pc.field("verdict") == "failed")
    if failed.num_rows:
        now = pa.repeat(pa.scalar(datetime.now(UTC), AT.type), failed.num_rows)
        append(tables.refused, failed.append_column(AT, now))


def bounds(expectation: Expectation) -> tuple[float | None, float | None]:
    """The least and the greatest value (`Measure.value`) with which an expectation holds; None for no bound.

    >>> bounds(Expectation(type="expect_column_values_to_not_be_null", kwargs={"column": "k", "mostly": 0.75}))
    (None, 0.25)
    """
    given = expectation.kwargs
    if "mostly" in ARGUMENTS[expectation.type] and expectation.on != "history":
        return None, 1 - given.get("mostly", 1.0)
    low, high = (given.get(name, given.get("value")) for name in ("min_value", "max_value"))
    return _number(low), _number(high)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
