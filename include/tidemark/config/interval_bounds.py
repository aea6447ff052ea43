"""Inclusive and exclusive bounds, in the one place that tells them apart."""

from __future__ import annotations

from typing import TypeVar

BoundT = TypeVar("BoundT", int, int | None)


def closed_bounds(
    lower: BoundT, upper: BoundT, *, lower_inclusive: bool = True, upper_inclusive: bool = True
) -> tuple[BoundT, BoundT]:
    """Write both bounds as inclusive ones, in whole ticks: an exclusive bound moves inwards by one.

    Lower may then exceed upper: legal, and matches nothing. None stands for no bound.

    >>> closed_bounds(-5, 10, upper_inclusive=False)
    (-5, 9)
    """
    if lower is not None:
        lower = lower + (not lower_inclusive)
    if upper is not None:
        upper = upper - (not upper_inclusive)
    return lower, upper


def comparisons(*, lower_inclusive: bool, upper_inclusive: bool) -> tuple[str, str]:
    """Give SQL's operators of both bounds, for `time OPERATOR bound`.

    >>> comparisons(lower_inclusive=True, upper_inclusive=False)
    ('>=', '<')
    """
    return ">=" if lower_inclusive else ">", "<=" if upper_inclusive else "<"
