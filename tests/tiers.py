"""Assign cases to tiers and order test files; docs/testing.md describes the tiers."""

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
"""Files that take long or wait for processes. If they started last, the other workers would be idle."""


def get_order(file: Path) -> int:
    """Return the position of a test file in the order of files."""
    name = "/".join(file.parts[-2:])
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


def cases(names: Iterable[str], *, fast: Iterable[str]) -> list[Any]:
    """Return names of cases as pytest parameters; `make test` runs only the fast ones."""
    all_names, fast_names = list(names), set(fast)
    assert fast_names < set(all_names)
    return [pytest.param(name, marks=[] if name in fast_names else pytest.mark.slow) for name in all_names]
