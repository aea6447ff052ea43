"""Assign tests to tiers and order test files; docs/testing.md describes the tiers.

A test belongs to one tier:

- `unit`: it neither uses the Spark session nor starts processes (mark `process`).
- `promise`: it is the witness of a promise, and the mark says which.
- All others run in `make test-rest` only.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

LONGEST_FIRST = (
    "semantics/test_conformance_datastream.py",
    "semantics/test_conformance.py",
    "semantics/test_conformance_chain.py",
    "slice_invariance/test_every_join.py",
    "dags/test_airflow_local.py",
    "dags/test_dag_runs.py",
    "comparison/test_compare.py",
    "ledger/test_reprocess.py",
    "slice_invariance/test_flights_cuts.py",
    "ledger/test_chain.py",
    "ledger/test_races.py",
    "ledger/test_crash.py",
    "ledger/test_quarantine.py",
    "simulation/test_protocol.py",
    "ledger/test_erasure.py",
    "ledger/test_compact.py",
    "ledger/test_checkpoints.py",
    "ledger/test_plain_reads.py",
    "comparison/test_agreement.py",
    "cli/test_command.py",
    "pipeline_tests/test_run.py",
    "comparison/test_minimal_example.py",
    "sources/test_invalid_input.py",
    "ledger/test_export.py",
    "spark/test_connect.py",
    "streaming/test_live_query.py",
)
"""Files that take long or wait for processes. If they started last, the other workers would be idle."""


STARTING_PROCESSES = {"spark", "browser", "environment"}
"""Fixtures that start a JVM, a browser or an Airflow."""


def is_unit(item: pytest.Item) -> bool:
    """Return True if a test needs neither a JVM nor a server."""
    names = getattr(item, "fixturenames", ())
    return not STARTING_PROCESSES & set(names) and not any(map(item.get_closest_marker, ("process", "slow")))


def name_promise(item: pytest.Item, report: pytest.TestReport) -> None:
    """Begin the text of a failed test with the promise that it is the witness of."""
    promise = item.get_closest_marker("promise")
    trace = getattr(report.longrepr, "reprtraceback", None)
    if report.failed and promise and trace and trace.reprentries:
        trace.reprentries[0].lines.insert(0, f"Broken promise: {promise.args[0]}")


def get_order(file: Path) -> int:
    """Return the position of a test file in the order of files."""
    name = "/".join(file.parts[-2:])
    return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)


def cases(names: Iterable[str], *, fast: Iterable[str], witnesses: Iterable[str] = (), promise: str = "") -> list[Any]:
    """Return names of cases as pytest parameters, with their marks.

    Args:
        names: All cases.
        fast: Cases that are not slow.
        witnesses: Fast cases that are witnesses of a promise.
        promise: This promise.
    """
    all_names, fast_names, witness_names = list(names), set(fast), set(witnesses)
    assert witness_names <= fast_names < set(all_names)

    def get_mark(name: str) -> list[pytest.MarkDecorator]:
        if name in witness_names:
            return [pytest.mark.promise(promise)]
        return [] if name in fast_names else [pytest.mark.slow]

    return [pytest.param(name, marks=get_mark(name)) for name in all_names]
