"""Which cases are in which tier of tests: docs/testing.md says what each tier proves and takes."""

from collections.abc import Iterable
from typing import Any

import pytest


def cases(every: Iterable[str], *, fast: Iterable[str]) -> list[Any]:
    """Names of cases as parameters, of which only some are run by `make test`."""
    chosen, names = set(fast), list(every)
    assert chosen < set(names)
    return [pytest.param(name, marks=[] if name in chosen else pytest.mark.slow) for name in names]
