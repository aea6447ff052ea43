"""The page docs/performance.md and its drawing, from what was measured: no figure in it is typed.

Usage: python -m benchmarks.page NAME, of benchmarks/results/NAME.json
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
from benchmarks.table import cells
from tidemark.planning.job_sizing import MOST_SLICES
from tidemark.watermarks.buckets import TARGET_BUCKETS

DOCS = Path(__file__).resolve().parents[1] / "docs"
OURS = "tidemark"
BASE = "base", OURS
LARGER = 1000
"""How many times as large the page imagines things."""


@dataclass(frozen=True)
class Goal:
    """Something that is to be reached."""

    told: str
    found: float | None
    """None where it was not measured."""
    bound: float
    least: bool = False
    """Whether the bound is the least that is wanted, not the most."""
    beyond: bool = False
    """Whether it is more than `found`: who is compared with did not come to an end."""
    failed: str | None = None
    """Why Tidemark did not come to an end, where it did not."""

    @property
    def reached(self) -> bool | None:
        """Whether it is; None where it was not tried, or who is compared with was ended too soon to tell."""
        if self.failed:
            return False
        if self.found is None:
            return None
        if self.beyond and self.found < self.bound:
            return None
        return self.found >= self.bound if self.least else self.found <= self.bound


def goals(results: Results) -> Iterator[Goal]:
    """What Tidemark is to reach."""

    def beside(told: str, case: str, bound: float, other: str = "base") -> Goal:
        ratio = results.ratio((case, OURS), (other, OURS))
        return Goal(f"{told}, to {other}", ratio, bound, failed=results.outcome(case, OURS))

    def slower(peer: str, bound: float, case: str = "base") -> Goal:
        found, seconds = results.ratio((case, peer), (case, OURS)), results.median(case, OURS, "seconds")
        if beyond := seconds is not None and results.stopped(case, peer):
            found = results.limit / seconds
        told = f"{peer}, to Tidemark" + (f", {case}" if case != "base" else "")
        return Goal(told, found, bound, least=True, beyond=beyond, failed=results.outcome(case, OURS))

    for peer, bound in ((REFERENCE, 1.5), ("floor", 2.7)):
        yield Goal(f"Tidemark to {peer}", results.ratio(BASE, ("base", peer)), bound)
    yield slower("as written", 2.5)
    yield slower("integers", 1)
    yield slower("as written", 20, "dense")
    yield beside("rows per key doubled at constant pairs", "doubled", 1.2)
    yield beside("half of all rows on one key", "skewed", 1.5)
    for case in ("base", "skewed"):
        skew = results.median(case, OURS, "skew")
        yield Goal(f"largest input of a task, in medians, {case}", skew, 3, failed=results.outcome(case, OURS))
    yield beside("a year in 8,760 slices", "hourly", 1.2, "dozen")
    yield Goal("one worker to two", results.ratio(("one worker", OURS), ("two workers", OURS)), 1.7, least=True)
    for peer in ("structured streaming", "structured streaming, hourly"):
        yield slower(peer, 20)
    for peer in ("flink batch", "flink streaming"):
        yield slower(peer, 4)
    yield Goal("Tidemark to Polars", results.ratio(BASE, ("base", "polars")), 4)


@dataclass(frozen=True)
class Growth:
    """What Tidemark takes in one case, as a multiple of another."""

    told: str
    of: str
    to: str
    seconds: float
    cpu: float


def growths(results: Results) -> Iterator[Growth]:
    """How cost grows, one thing at a time."""
    steps = (
        ("rows doubled, and keys with them", "base", "half"),
        ("rows of a key doubled, as many pairs", "doubled", "base"),
        ("rows of a key times 50, as many pairs", "dense", "base"),
        ("half of all rows on one key", "skewed", "base"),
        ("10 % of the rows late instead of 1 %", "late", "base"),
        ("8,760 slices instead of a dozen", "hourly", "dozen"),
        ("two workers instead of one", "two workers", "one worker"),
        ("rows times 5, in half the memory", "large", "base"),
    )
    for told, of, to in steps:
        seconds = results.ratio((of, OURS), (to, OURS))
        cpu = [results.median(case, OURS, "cpu_seconds") for case in (of, to)]
        if seconds is not None and cpu[0] is not None and cpu[1]:
            yield Growth(told, of, to, seconds, cpu[0] / cpu[1])


@dataclass(frozen=True)
class Constants:
    """What Tidemark takes of a resource for a unit of work, in case base; of slices in the year's."""

    rows: int
    """Of both inputs."""
    cpu: float
    """Seconds of processor time a million rows."""
    shuffled: float
    """Bytes a row, each time that it is shuffled."""
    state: float
    """Rows in the state at the end, for a key and an hour that interval and delays span."""
    checkpoint: float
    """Bytes a row, for the rows in the state at the end of any slice."""
    ledger: float | None
    """Bytes a slice."""

    @classmethod
    def of(cls, results: Results) -> Constants | None:
        """From the medians; None without the base."""
        names = ("cpu_seconds", "shuffled", "state_rows", "state_bytes")
        cpu, shuffled, state, checkpoint = (results.median(*BASE, name) for name in names)
        if cpu is None or shuffled is None or state is None or checkpoint is None:
            return None
        shape = Shape(**results.cases["base"]["shape"])
        low, high = (timedelta(milliseconds=ms) for ms in shape.interval_ms)
        hours = (high - low + 2 * DELAY) / timedelta(hours=1)
        ledger, slices = (results.median("hourly", OURS, what) for what in ("ledger_bytes", "slices"))
        return cls(
            rows=2 * shape.rows,
            cpu=cpu / (2 * shape.rows / 1e6),
            shuffled=shuffled / (2 * shape.rows),
            state=state / (shape.keys * hours),
            checkpoint=checkpoint / (2 * shape.rows),
            ledger=ledger / slices if ledger and slices else None,
        )


def page(results: Results, name: str) -> str:
    """The page as Markdown."""
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
        cells=cells,
        goals=list(goals(results)),
        growths=list(growths(results)),
        constants=Constants.of(results),
        larger=LARGER,
        size=lambda count: filesize.decimal(int(count)),
        reference=REFERENCE,
        ours=OURS,
        buckets=TARGET_BUCKETS,
        slices=MOST_SLICES,
    )


def drawing(results: Results) -> Any:
    """Seconds of each peer on the base, and of Tidemark in each case as multiples of the plain join's."""
    peers = [
        {"name": peer, "value": value, "own": peer == OURS}
        for peer in results.peers
        if (value := results.median("base", peer, "seconds")) is not None
    ]
    ratios = [
        {"name": case, "value": value, "own": True}
        for case in results.cases
        if (value := results.ratio((case, OURS), (case, REFERENCE))) is not None
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
    """Write both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="of benchmarks/results/NAME.json")
    name = parser.parse_args().name
    results = Results.load(name)
    (DOCS / "performance.md").write_text(page(results, name), encoding="utf-8")
    drawing(results).save(DOCS / "images" / "performance.svg")


if __name__ == "__main__":
    main()
