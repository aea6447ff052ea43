"""Format results as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from benchmarks.results import REFERENCE, Results, Run
from tidemark.formatting import format_count

COLUMNS = ("seconds", f"to {REFERENCE}", "CPU s", "memory", "rows", "late", "shuffled a row", "spilled", "largest task")


def create_table(results: Results) -> Table:
    """Create a table with a row per case and peer: medians over the rounds."""
    table = Table("case", "peer", title=f"{results.rows:,} rows an input, {format_count(results.rounds, 'round')}")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for case in results.cases:
        for peer in results.peers:
            if results.get_runs(case, peer):
                table.add_row(case, peer, *format_cells(results, case, peer))
        table.add_section()
    return table


def format_cells(results: Results, case: str, peer: str) -> list[str]:
    """Format the cells of a peer on a case."""
    if failure := results.explain_failure(case, peer):
        return [failure]

    def format_median(measurement: str, form: str, scale: float = 1) -> str:
        value = results.compute_median(case, peer, measurement)
        return "" if value is None else form.format(value / scale)

    inputs = 2 * results.cases[case]["shape"]["rows"]
    ratio = results.compute_ratio((case, peer), (case, REFERENCE))
    return [
        format_median("seconds", "{:,.1f}"),
        "" if ratio is None else f"{ratio:.2f}",
        format_median("cpu_seconds", "{:,.1f}"),
        format_median("memory", "{:,.1f} GB", 1e9),
        format_median("rows", "{:,.0f}"),
        format_median("late", "{:,.0f}"),
        format_median("shuffled", "{:,.0f} B", inputs),
        format_median("spilled", "{:,.1f} GB", 1e9),
        format_median("skew", "{:.1f} medians"),
    ]


def format_run(run: Run) -> str:
    """Format one run."""
    outcome = (
        f"{run.measurements['seconds']:8.1f} s  {run.measurements['rows']:>14,.0f} rows"
        if run.measurements
        else run.error or "did not finish"
    )
    return f"round {run.round + 1}  {run.case:12} {run.peer:30} {outcome}"
