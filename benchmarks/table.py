"""Results as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from benchmarks.results import REFERENCE, Results, Run
from tidemark.formatting import counted

COLUMNS = ("seconds", f"to {REFERENCE}", "CPU s", "memory", "rows", "late", "shuffled a row", "spilled", "largest task")


def table(results: Results) -> Table:
    """A line for each case and peer: medians over the rounds."""
    drawn = Table("case", "peer", title=f"{results.rows:,} rows an input, {counted(results.rounds, 'round')}")
    for name in COLUMNS:
        drawn.add_column(name, justify="right")
    for case in results.cases:
        for peer in results.peers:
            if results.of(case, peer):
                drawn.add_row(case, peer, *cells(results, case, peer))
        drawn.add_section()
    return drawn


def cells(results: Results, case: str, peer: str) -> list[str]:
    """What a line says of a peer on a case."""
    if outcome := results.outcome(case, peer):
        return [outcome]

    def told(what: str, form: str, scale: float = 1) -> str:
        value = results.median(case, peer, what)
        return "" if value is None else form.format(value / scale)

    inputs = 2 * results.cases[case]["shape"]["rows"]
    ratio = results.ratio((case, peer), (case, REFERENCE))
    return [
        told("seconds", "{:,.1f}"),
        "" if ratio is None else f"{ratio:.2f}",
        told("cpu_seconds", "{:,.1f}"),
        told("memory", "{:,.1f} GB", 1e9),
        told("rows", "{:,.0f}"),
        told("late", "{:,.0f}"),
        told("shuffled", "{:,.0f} B", inputs),
        told("spilled", "{:,.1f} GB", 1e9),
        told("skew", "{:.1f} medians"),
    ]


def line(run: Run) -> str:
    """One run, as soon as it has ended."""
    took = (
        f"{run.took['seconds']:8.1f} s  {run.took['rows']:>14,.0f} rows" if run.took else run.error or "did not finish"
    )
    return f"round {run.round + 1}  {run.case:12} {run.peer:30} {took}"
