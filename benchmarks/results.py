"""What was measured, where and of what: kept as JSON, and asked for by what draws tables and pages."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

FOLDER = Path(__file__).with_name("results")
REFERENCE = "binned"
EXACT = (REFERENCE, "integers", "as written", "flink batch", "polars")
"""Peers whose answer no watermark changes."""


@dataclass(frozen=True)
class Run:
    """One peer on one case, once."""

    case: str
    peer: str
    round: int
    took: dict[str, float]
    """`benchmarks.measure` has the names, and each peer's `counted`; empty where it did not come to an end."""
    error: str | None = None


@dataclass(frozen=True)
class Results:
    """All runs of one command."""

    environment: dict[str, Any]
    rows: int
    """Of an input in most cases."""
    rounds: int
    limit: float
    """Seconds that a run may take."""
    cases: dict[str, dict[str, Any]]
    """What each case is: `told`, and `shape` as `benchmarks.data.Shape` has it."""
    peers: dict[str, str]
    """What each peer is."""
    runs: list[Run]

    @classmethod
    def load(cls, name: str) -> Results:
        """Read what was kept under a name."""
        kept = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        return cls(**{**kept, "runs": [Run(**run) for run in kept["runs"]]})

    def save(self, name: str) -> Path:
        """Keep it under a name."""
        FOLDER.mkdir(exist_ok=True)
        path = FOLDER / f"{name}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path

    def of(self, case: str, peer: str) -> list[Run]:
        """A peer's runs of a case, in order."""
        return [run for run in self.runs if (run.case, run.peer) == (case, peer)]

    def median(self, case: str, peer: str, what: str) -> float | None:
        """Of the runs that came to an end; None where none did, or none tells."""
        found = [run.took[what] for run in self.of(case, peer) if what in run.took]
        return median(found) if found else None

    def ratio(self, one: tuple[str, str], other: tuple[str, str]) -> float | None:
        """How many times as long as the other one (case, peer) takes: the median over the rounds that have both.

        What has one round only is set against the same round of the other.
        """
        seconds = [{run.round: run.took["seconds"] for run in self.of(*each) if run.took} for each in (one, other)]
        both = [seconds[0][number] / seconds[1][number] for number in seconds[0].keys() & seconds[1].keys()]
        return median(both) if both else None

    def outcome(self, case: str, peer: str) -> str | None:
        """Why there are no seconds; None where there are some."""
        runs = self.of(case, peer)
        if not runs or any(run.took for run in runs):
            return None
        return runs[-1].error or f"did not finish in {self.limit:,.0f} s"

    def stopped(self, case: str, peer: str) -> bool:
        """Whether it was ended because it took longer than a run may."""
        runs = self.of(case, peer)
        return bool(runs) and not any(run.took or run.error for run in runs)

    def disagreements(self) -> list[str]:
        """Cases in which exact peers have written different numbers of rows; there should be none."""
        wrong = []
        for case in self.cases:
            rows = {run.peer: int(run.took["rows"]) for run in self.runs if run.case == case and run.took}
            exact = {peer: rows[peer] for peer in EXACT if peer in rows}
            if len(set(exact.values())) > 1:
                wrong.append(f"{case}: " + ", ".join(f"{peer} {count:,} rows" for peer, count in exact.items()))
        return wrong
