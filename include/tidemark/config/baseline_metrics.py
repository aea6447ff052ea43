"""What can be expected of a slice beside earlier ones: figures of the ledger, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIGURES = {
    "rows": "how many rows both inputs had",
    "left_rows": "how many rows the left input had",
    "right_rows": "how many rows the right input had",
    "emissions": "how many rows were emitted",
    "match_rate": "emissions, or the pairs that `flatten` makes them of, for each row of the left input",
    "late_share": "the share of both inputs' rows that were late",
    "left_late_share": "that of the left input",
    "right_late_share": "that of the right input",
    "rejected_share": "the share of both inputs' rows that were rejected",
}
"""Figures of a slice, null where nothing is there to reckon with."""
TO_USUAL = "_to_usual"
"""Behind a figure's name: how many times it is the usual one, the median of earlier slices."""
COLUMNS = (*FIGURES, *(f"{name}{TO_USUAL}" for name in FIGURES))
TYPE = "expect_column_values_to_be_between"
_ARGUMENTS = ("column", "min_value", "max_value", "strict_min", "strict_max")


def check_history(name: str, arguments: Mapping[str, Any], per: str) -> None:
    """See that an expectation on history bounds a figure of a slice.

    Raises:
        ValueError: says what it has to be.
    """
    if name != TYPE or per != "slice":
        raise ValueError(f"on: history takes {TYPE} per slice; bound one of {', '.join(COLUMNS)}")
    if unknown := sorted(arguments.keys() - set(_ARGUMENTS)):
        raise ValueError(f"on: history has no {unknown[0]}; it takes {', '.join(_ARGUMENTS)}")
    if arguments.get("column") not in COLUMNS:
        raise ValueError(f"on: history has no column {arguments.get('column')}; it has {', '.join(COLUMNS)}")
    bounds = [arguments[bound] for bound in ("min_value", "max_value") if arguments.get(bound) is not None]
    if not bounds or not all(isinstance(one, int | float) for one in bounds):
        raise ValueError("on: history takes numbers as min_value and max_value, one of them at least")


DEFAULTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rows_to_usual", {"min_value": 0.5, "max_value": 2}),
    ("match_rate_to_usual", {"min_value": 0.5, "max_value": 2}),
    ("late_share_to_usual", {"max_value": 3}),
)
"""What every pipeline warns of, unless its file has `quality_defaults: off`."""
