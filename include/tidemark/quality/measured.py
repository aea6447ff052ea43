"""What expectations came to, as the table `quality` keeps it: a row for each slice and expectation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from tidemark.clock.slices import Grid
from tidemark.quality.findings import Measure, named
from tidemark.quality.project import built
from tidemark.settings import Expectation, Pipeline
from tidemark.settings.expectations import ARGUMENTS

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
Outcome = Literal["passed", "warned", "failed"]


def measured(pipeline: Pipeline, grid: Grid, first: int, run: str, measures: Sequence[Sequence[Measure]]) -> pa.Table:
    """The rows of a run's slices from the `first` on; none where the pipeline file expects nothing."""
    within = {named(built(one).configuration.to_json_dict()): bounds(one) for one in pipeline.quality}
    rows = []
    for number, found in enumerate(measures, first):
        for one in found:
            least, greatest = within[one.expectation, one.severity]
            told = {"expectation": one.expectation, "severity": one.severity, "value": one.value}
            limits = {"least": least, "greatest": greatest, "verdict": outcome(one)}
            rows.append({"slice": grid.datetime_of(number), "run": run, **told, **limits})
    return pa.Table.from_pylist(rows, SCHEMA)


def outcome(measure: Measure) -> Outcome:
    """How an expectation came out in a slice."""
    if measure.passed:
        return "passed"
    return "failed" if measure.severity == "critical" else "warned"


def bounds(expectation: Expectation) -> tuple[float | None, float | None]:
    """The least and the greatest value (`Measure.value`) with which an expectation holds; None for no bound.

    >>> bounds(Expectation(type="expect_column_values_to_not_be_null", kwargs={"column": "k", "mostly": 0.75}))
    (None, 0.25)
    """
    given = expectation.kwargs
    if "mostly" in ARGUMENTS[expectation.type]:
        return None, 1 - given.get("mostly", 1.0)
    low, high = (given.get(name, given.get("value")) for name in ("min_value", "max_value"))
    return _number(low), _number(high)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
