"""Which cases are in which tier of tests, and in which order: docs/testing.md says what each tier proves and takes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

LONGEST_FIRST = (
    "semantics/test_conformance.py",
    "slicing/test_every_join.py",
    "dags/test_airflow_local.py",
    "dags/test_dag_runs.py",
    "comparison/test_compare.py",
    "history/test_reprocess.py",
    "slicing/test_flights_cuts.py",
    "history/test_crash.py",
    "history/test_races.py",
    "history/test_forget.py",
    "history/test_compact.py",
    "history/test_state.py",
    "history/test_formats.py",
    "history/test_plain_reads.py",
    "comparison/test_agreement.py",
    "cli/test_command.py",
    "comparison/test_reproduce.py",
    "inputs/test_bad_input.py",
    "history/test_export.py",
    "spark/test_connect.py",
    "streaming/test_twin.py",
)
"""Files that take long, or wait for processes: begun last, they would leave the other workers without work."""


def place_of(file: Path) -> int:
    """Where a file of tests stands in the order."""
    name = "/".join(file.parts[-2:])
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


def cases(every: Iterable[str], *, fast: Iterable[str]) -> list[Any]:
    """Names of cases as parameters, of which only some are run by `make test`."""
    chosen, names = set(fast), list(every)
    assert chosen < set(names)
    return [pytest.param(name, marks=[] if name in chosen else pytest.mark.slow) for name in names]
