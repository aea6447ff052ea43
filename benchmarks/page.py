"""Generate docs/performance.md and its chart from benchmark results; all figures in it are generated.

Usage: python -m benchmarks.page NAME, which reads benchmarks/results/NAME.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import altair as alt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich import filesize

from benchmarks.cases import DELAY
from benchmarks.data import Shape
from benchmarks.results import REFERENCE, Results
from benchmarks.table import format_cells
from tidemark.planning.job_sizing import MAX_SLICES
from tidemark.watermarks.buckets import TARGET_BUCKETS

DOCS = Path(__file__).resolve().parents[1] / "docs"
OURS = "tidemark"
BASE = "base", OURS
SCALE = 1000
"""Factor of the page's extrapolation."""


@dataclass(frozen=True)
class Goal:
    """A performance goal."""

    description: str
    ratio: float | None
    """Measured ratio; None if not measured."""
    bound: float
    is_lower_bound: bool = False
    """True if the bound is a lower bound."""
    is_unbounded: bool = False
    """True if the real ratio is larger, because the other peer did not finish."""
    failure: str | None = None
    """Reason why Tidemark did not finish; None if it did."""

    @property
    def is_reached(self) -> bool | None:
        """True if the goal is reached; None if not measured, or if the other peer was stopped too early to decide."""
        if self.failure:
            return False
        if self.ratio is None:
            return None
        if self.is_unbounded and self.ratio < self.bound:
            return None
        return self.ratio >= self.bound if self.is_lower_bound else self.ratio <= self.bound


def list_goals(results: Results) -> Iterator[Goal]:
    """Yield Tidemark's performance goals."""

    def compare_cases(description: str, case: str, bound: float, other: str = "base") -> Goal:
        ratio = results.compute_ratio((case, OURS), (other, OURS))
        return Goal(f"{description}, to {other}", ratio, bound, failure=results.explain_failure(case, OURS))

    def compare_peer(peer: str, bound: float, case: str = "base") -> Goal:
        ratio = results.compute_ratio((case, peer), (case, OURS))
        seconds = results.compute_median(case, OURS, "seconds")
        if is_unbounded := seconds is not None and results.was_stopped(case, peer):
            ratio = results.limit / seconds
        description = f"{peer}, to Tidemark" + (f", {case}" if case != "base" else "")
        return Goal(
            description,
            ratio,
            bound,
            is_lower_bound=True,
            is_unbounded=is_unbounded,
            failure=results.explain_failure(case, OURS),
        )

    for peer, bound in ((REFERENCE, 1.5), ("floor", 2.7)):
        yield Goal(f"Tidemark to {peer}", results.compute_ratio(BASE, ("base", peer)), bound)
    yield compare_peer("as written", 2.5)
    yield compare_peer("integers", 1)
    yield compare_peer("as written", 20, "dense")
    yield compare_cases("rows per key doubled at constant pairs", "doubled", 1.2)
    yield compare_cases("half of all rows on one key", "skewed", 1.5)
    for case in ("base", "skewed"):
        skew = results.compute_median(case, OURS, "skew")
        yield Goal(f"largest input of a task, in medians, {case}", skew, 3, failure=results.explain_failure(case, OURS))
    yield compare_cases("a year in 8,760 slices", "hourly", 1.2, "dozen")
    yield Goal(
        "one worker to two",
        results.compute_ratio(("one worker", OURS), ("two workers", OURS)),
        1.7,
        is_lower_bound=True,
    )
    for peer in ("structured streaming", "structured streaming, hourly"):
        yield compare_peer(peer, 20)
    for peer in ("flink batch", "flink streaming"):
        yield compare_peer(peer, 4)
    yield Goal("Tidemark to Polars", results.compute_ratio(BASE, ("base", "polars")), 4)


@dataclass(frozen=True)
class Growth:
    """Cost of one case as a multiple of another."""

    description: str
    case: str
    base: str
    seconds: float
    cpu: float


def list_growths(results: Results) -> Iterator[Growth]:
    """Yield the growth of cost by one factor at a time."""
    comparisons = (
        ("rows doubled, and keys with them", "base", "half"),
        ("rows of a key doubled, as many pairs", "doubled", "base"),
        ("rows of a key times 50, as many pairs", "dense", "base"),
        ("half of all rows on one key", "skewed", "base"),
        ("10 % of the rows late instead of 1 %", "late", "base"),
        ("8,760 slices instead of a dozen", "hourly", "dozen"),
        ("two workers instead of one", "two workers", "one worker"),
        ("rows times 5, in half the memory", "large", "base"),
    )
    for description, case, base in comparisons:
        seconds = results.compute_ratio((case, OURS), (base, OURS))
        cpu = [results.compute_median(name, OURS, "cpu_seconds") for name in (case, base)]
        if seconds is not None and cpu[0] is not None and cpu[1]:
            yield Growth(description, case, base, seconds, cpu[0] / cpu[1])


@dataclass(frozen=True)
class Constants:
    """Cost per unit of work in case base; of slices in the case with a year of them."""

    rows: int
    """Rows of both inputs."""
    cpu: float
    """CPU seconds per million rows."""
    shuffled: float
    """Shuffled bytes per row."""
    state: float
    """Rows in the final state per key, and per hour of interval and delays."""
    checkpoint: float
    """Bytes per row, of rows that are in the state at the end of a slice."""
    ledger: float | None
    """Bytes per slice."""

    @classmethod
    def from_results(cls, results: Results) -> Constants | None:
        """Compute the constants from medians; None without case base."""
        names = ("cpu_seconds", "shuffled", "state_rows", "state_bytes")
        cpu, shuffled, state, checkpoint = (results.compute_median(*BASE, name) for name in names)
        if cpu is None or shuffled is None or state is None or checkpoint is None:
            return None
        shape = Shape(**results.cases["base"]["shape"])
        low, high = (timedelta(milliseconds=ms) for ms in shape.interval_ms)
        hours = (high - low + 2 * DELAY) / timedelta(hours=1)
        ledger, slices = (results.compute_median("hourly", OURS, name) for name in ("ledger_bytes", "slices"))
        return cls(
            rows=2 * shape.rows,
            cpu=cpu / (2 * shape.rows / 1e6),
            shuffled=shuffled / (2 * shape.rows),
            state=state / (shape.keys * hours),
            checkpoint=checkpoint / (2 * shape.rows),
            ledger=ledger / slices if ledger and slices else None,
        )


def render_page(results: Results, name: str) -> str:
    """Render the page as Markdown."""
    environment = Environment(  # noqa: S701 - Markdown
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("performance.md.j2").render(
        results=results,
        name=name,
        cells=format_cells,
        goals=list(list_goals(results)),
        growths=list(list_growths(results)),
        constants=Constants.from_results(results),
        scale=SCALE,
        size=lambda count: filesize.decimal(int(count)),
        reference=REFERENCE,
        ours=OURS,
        buckets=TARGET_BUCKETS,
        slices=MAX_SLICES,
    )


def draw_charts(results: Results) -> Any:
    """Draw the seconds of each peer in case base, and of Tidemark in each case as multiples of the plain join."""
    peers = [
        {"name": peer, "value": value, "own": peer == OURS}
        for peer in results.peers
        if (value := results.compute_median("base", peer, "seconds")) is not None
    ]
    ratios = [
        {"name": case, "value": value, "own": True}
        for case in results.cases
        if (value := results.compute_ratio((case, OURS), (case, REFERENCE))) is not None
    ]
    charts = _bars(peers, "seconds, case base"), _bars(ratios, f"Tidemark's seconds, times those of {REFERENCE}")
    return alt.vconcat(*charts).configure(background="white", font="sans-serif")


def _bars(rows: list[dict[str, Any]], title: str) -> Any:
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("name:N", sort=None, title=None),
        x=alt.X("value:Q", title=title),
        color=alt.condition("datum.own", alt.value("#1f6f8b"), alt.value("#b8c4cc")),
    )
    numbers = base.mark_text(align="left", dx=4).encode(
        text=alt.Text("value:Q", format=",.2~f"), color=alt.value("#222")
    )
    return (base.mark_bar() + numbers).properties(width=520)


def main() -> None:
    """Write page and chart."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="name of the results: benchmarks/results/NAME.json")
    name = parser.parse_args().name
    results = Results.load(name)
    (DOCS / "performance.md").write_text(render_page(results, name), encoding="utf-8")
    draw_charts(results).save(DOCS / "images" / "performance.svg")


if __name__ == "__main__":
    main()
