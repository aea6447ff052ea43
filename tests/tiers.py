"""Which cases are in which tier of tests, and in which order: docs/testing.md says what each tier proves and takes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

LONGEST_FIRST = (
    "semantics/test_conformance.py",
    "slice_invariance/test_every_join.py",
    "dags/test_airflow_local.py",
    "dags/test_dag_runs.py",
    "comparison/test_compare.py",
    "ledger/test_reprocess.py",
    "slice_invariance/test_flights_cuts.py",
    "ledger/test_crash.py",
    "ledger/test_races.py",
    "ledger/test_erasure.py",
    "ledger/test_compact.py",
    "ledger/test_checkpoints.py",
    "ledger/test_plain_reads.py",
    "comparison/test_agreement.py",
    "cli/test_command.py",
    "comparison/test_minimal_example.py",
    "sources/test_invalid_input.py",
    "ledger/test_export.py",
    "spark/test_connect.py",
    "streaming/test_live_query.py",
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
