"""Tests of grouping the failed expectations of a pipeline for people."""

import json

import pandas as pd
import pytest
from rich.console import Console

from tidemark.cli.quality_warnings import group_failures, render_failures
from tidemark.cli.render_status import render_status
from tidemark.cli.status_summary import SideStatus, Status
from tidemark.quality.results_table import SCHEMA
from tidemark.timegrid.slices import Grid

GRID = Grid(0, 3_600_000_000)
SHARE = "expect_column_values_to_be_between(column late_share_vs_baseline, max_value 3) on history"
SET = "expect_column_distinct_values_to_be_in_set(column left_k, value_set ['a'])"


def create_ledger_rows(failures):
    """Create ledger rows of slices 0 and so on; `failures` has the expectation and detail of each failure by slice."""
    results = [
        json.dumps([
            {"expectation": name, "severity": "warning", "detail": detail, "on_failure": consequence}
            for name, detail, consequence in slice_failures
        ])
        for slice_failures in failures
    ]  # fmt: skip
    return pd.DataFrame({"number": range(len(results)), "quality_results": results})


def create_results(values):
    """Create rows of the table `quality`, with a value of `SHARE` per slice."""
    rows = [
        (GRID.datetime_of(number), "run", SHARE, "warning", value, None, 3.0, "warned" if value > 3 else "passed")
        for number, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=SCHEMA.names).astype({"slice": "datetime64[us, UTC]"})


def test_group_failures_has_a_line_per_expectation_with_the_worst_slice():
    ledger_rows = create_ledger_rows([
        [(SHARE, "found 4", "warn")],
        [(SHARE, "found 9.5", "warn"), (SET, "found ['b']", "warn")],
        [(SHARE, "found 5", "waived")],
        [],
    ])  # fmt: skip

    failures = group_failures(ledger_rows, create_results([4, 9.5, 5, 1]), GRID)

    assert [str(line) for line in render_failures("orders", 4, failures)] == [
        f"warning: {SHARE}: 2 warned, 1 waived of 4 slices, worst in 1970-01-01T01:00Z: found 9.5",
        f"warning: {SET}: 1 warned of 4 slices, worst in 1970-01-01T01:00Z: found ['b']",
        "All values: tidemark quality show orders",
    ]


@pytest.mark.parametrize("values", [[], [1, 9, 1]])
def test_group_failures_without_value_of_a_failed_slice_shows_the_newest(values):
    ledger_rows = create_ledger_rows([[(SHARE, "first", "warn")], [], [(SHARE, "second", "warn")]])

    [failure] = group_failures(ledger_rows, create_results(values), GRID)

    assert (failure.worst_slice, failure.detail) == ("1970-01-01T02:00Z", "second")


def test_render_status_names_each_failed_expectation_once():
    details = [f"found {number}" for number in range(40)]
    ledger_rows = create_ledger_rows([[(SHARE, detail, "warn")] for detail in details])
    failures = group_failures(ledger_rows, create_results([]), GRID)
    sides = {side: SideStatus(table=side) for side in ("left", "right")}
    lines = [f"{SHARE} {detail}" for detail in details]
    status = Status(
        pipeline="orders",
        cli_arguments="orders",
        clock="arrival",
        slices=40,
        failed_expectations=lines,
        grouped_failures=failures,
        **sides,
    )
    console = Console(width=200, record=True)

    with console.capture() as capture:
        console.print(render_status(status))

    assert capture.get().count(SHARE) == 1
    assert "40 warned of 40 slices" in capture.get()


def test_render_failures_without_failures_has_no_line():
    assert list(render_failures("orders", 4, [])) == []
