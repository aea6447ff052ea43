"""Metrics of a slice that expectations with `on: history` can bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METRICS = {
    "rows": "number of rows of both inputs",
    "left_rows": "number of rows of the left input",
    "right_rows": "number of rows of the right input",
    "emissions": "number of emitted rows",
    "match_rate": "emissions (or the rows of the join from which `explode` makes them) per row of the left input",
    "late_share": "share of late rows among the rows of both inputs",
    "left_late_share": "share of late rows among the rows of the left input",
    "right_late_share": "share of late rows among the rows of the right input",
    "left_rows_ahead": "number of left rows with an event time more than `allowed_clock_skew` after their arrival",
    "right_rows_ahead": "number of right rows with an event time more than `allowed_clock_skew` after their arrival",
    "rejected_share": "share of rejected rows among the rows of both inputs",
    "carried_rows": "number of rows of both inputs in the checkpoint at the slice's end",
    "left_carried_rows": "number of left rows in the checkpoint at the slice's end",
    "right_carried_rows": "number of right rows in the checkpoint at the slice's end",
}
"""Metrics of a slice with their descriptions. A metric is null if the slice has no rows to compute it from.
The number of rows ahead is null if no row can be ahead of its arrival (`Pipeline.get_allowed_clock_skew`)."""
ROWS_AHEAD = {"left": "left_rows_ahead", "right": "right_rows_ahead"}
"""Metric by side: number of rows whose event time is far ahead of their arrival."""
BASELINE_SUFFIX = "_vs_baseline"
"""Suffix of the ratio of a metric to its baseline, which is the median of earlier slices."""
OLDEST_CARRIED_HOURS, EQUAL_SHARE = "oldest_carried_hours", "equal_share"
METRICS_WITHOUT_BASELINE = {
    OLDEST_CARRIED_HOURS: "age of the oldest row in the checkpoint at the slice's end, on the pipeline's clock",
    EQUAL_SHARE: "share of equal rows in the last saved comparison with a stream, without pending rows",
}
"""Metrics that the ledger does not have, with their descriptions. They are computed if an expectation bounds them."""
METRIC_COLUMNS = (*METRICS, *METRICS_WITHOUT_BASELINE, *(f"{name}{BASELINE_SUFFIX}" for name in METRICS))
RANGE_EXPECTATION = "expect_column_values_to_be_between"
DEFAULT_BOUNDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rows_vs_baseline", {"min_value": 0.5, "max_value": 2}),
    ("match_rate_vs_baseline", {"min_value": 0.5, "max_value": 2}),
    ("late_share_vs_baseline", {"max_value": 3}),
    *((metric, {"max_value": 0}) for metric in ROWS_AHEAD.values()),
)
"""Bounds of the default warnings (`quality_defaults`), by metric column."""
_ARGUMENTS = ("column", "min_value", "max_value", "strict_min", "strict_max")


def check_metric_expectation(name: str, arguments: Mapping[str, Any], per: str) -> None:
    """Check that an expectation with `on: history` bounds one metric of a slice.

    Args:
        name: The expectation type.
        arguments: The keyword arguments of the expectation.
        per: The setting `per` of the expectation.

    Raises:
        ValueError: The type, an argument or the column is not supported.
    """
    if name != RANGE_EXPECTATION or per != "slice":
        raise ValueError(
            f"on: history supports only {RANGE_EXPECTATION} per slice. Bound one of {', '.join(METRIC_COLUMNS)}."
        )
    if unknown := sorted(arguments.keys() - set(_ARGUMENTS)):
        raise ValueError(f"on: history does not support {unknown[0]}. Use {', '.join(_ARGUMENTS)}.")
    if arguments.get("column") not in METRIC_COLUMNS:
        raise ValueError(
            f"on: history has no column {arguments.get('column')}. Choose one of {', '.join(METRIC_COLUMNS)}."
        )
    bounds = [arguments[bound] for bound in ("min_value", "max_value") if arguments.get(bound) is not None]
    if not all(isinstance(bound, int | float) for bound in bounds):
        raise ValueError("on: history needs numbers as bounds. Set min_value, max_value or both.")
