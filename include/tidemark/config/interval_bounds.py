"""Convert inclusive and exclusive interval bounds."""

from __future__ import annotations

from typing import TypeVar

BoundT = TypeVar("BoundT", int, int | None)


def to_closed_bounds(
    lower: BoundT, upper: BoundT, *, lower_inclusive: bool = True, upper_inclusive: bool = True
) -> tuple[BoundT, BoundT]:
    """Convert both bounds to inclusive ones: an exclusive bound moves inwards by one tick.

    Args:
        lower: Lower bound in ticks, None for no bound.
        upper: Upper bound in ticks, None for no bound.
        lower_inclusive: True if the lower bound itself matches.
        upper_inclusive: True if the upper bound itself matches.

    Returns:
        The inclusive bounds. The lower one may exceed the upper one; then nothing matches.

    >>> to_closed_bounds(-5, 10, upper_inclusive=False)
    (-5, 9)
    """
    if lower is not None:
        lower = lower + (not lower_inclusive)
    if upper is not None:
        upper = upper - (not upper_inclusive)
    return lower, upper


def bound_operators(*, lower_inclusive: bool, upper_inclusive: bool) -> tuple[str, str]:
    """Return the SQL operators of the lower and the upper bound, for `time OPERATOR bound`.

    >>> bound_operators(lower_inclusive=True, upper_inclusive=False)
    ('>=', '<')
    """
    return ">=" if lower_inclusive else ">", "<=" if upper_inclusive else "<"
