"""Store benchmark results as JSON, and compute medians and ratios from them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

FOLDER = Path(__file__).with_name("results")
REFERENCE = "binned"
EXACT = (REFERENCE, "integers", "as written", "flink batch", "polars")
"""Peers whose output does not depend on watermarks."""


@dataclass(frozen=True)
class Run:
    """One run of a peer on a case."""

    case: str
    peer: str
    round: int
    measurements: dict[str, float]
    """Values by the names of `benchmarks.measure` and `Peer.count_output`; empty if the run did not finish."""
    error: str | None = None


@dataclass(frozen=True)
class Results:
    """All runs of one command, with their environment."""

    environment: dict[str, Any]
    rows: int
    """Rows per input in most cases."""
    rounds: int
    limit: float
    """Time limit of a run in seconds."""
    cases: dict[str, dict[str, Any]]
    """`description` and `shape` (`benchmarks.data.Shape`) of each case."""
    peers: dict[str, str]
    """Description of each peer."""
    runs: list[Run]

    @classmethod
    def load(cls, name: str) -> Results:
        """Read the results with a name."""
        content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        return cls(**{**content, "runs": [Run(**run) for run in content["runs"]]})

    def save(self, name: str) -> Path:
        """Save the results under a name."""
        FOLDER.mkdir(exist_ok=True)
        path = FOLDER / f"{name}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path

    def get_runs(self, case: str, peer: str) -> list[Run]:
        """Return a peer's runs of a case, in order."""
        return [run for run in self.runs if (run.case, run.peer) == (case, peer)]

    def compute_median(self, case: str, peer: str, name: str) -> float | None:
        """Return the median of a measurement over finished runs; None without values."""
        values = [run.measurements[name] for run in self.get_runs(case, peer) if name in run.measurements]
        return median(values) if values else None

    def compute_ratio(self, first: tuple[str, str], second: tuple[str, str]) -> float | None:
        """Return the run time of one (case, peer) as a multiple of another: the median over rounds with both."""
        seconds = [
            {run.round: run.measurements["seconds"] for run in self.get_runs(*pair) if run.measurements}
            for pair in (first, second)
        ]
        ratios = [seconds[0][number] / seconds[1][number] for number in seconds[0].keys() & seconds[1].keys()]
        return median(ratios) if ratios else None

    def explain_failure(self, case: str, peer: str) -> str | None:
        """Return the reason why no run finished; None if one did."""
        runs = self.get_runs(case, peer)
        if not runs or any(run.measurements for run in runs):
            return None
        return runs[-1].error or f"did not finish in {self.limit:,.0f} s"

    def was_stopped(self, case: str, peer: str) -> bool:
        """Return True if all runs exceeded the time limit."""
        runs = self.get_runs(case, peer)
        return bool(runs) and not any(run.measurements or run.error for run in runs)

    def find_disagreements(self) -> list[str]:
        """Describe cases in which exact peers wrote different numbers of rows in any runs; there should be none."""
        disagreements = []
        for case in self.cases:
            counts = {
                peer: sorted({int(run.measurements["rows"]) for run in self.get_runs(case, peer) if run.measurements})
                for peer in EXACT
            }
            if len(set().union(*counts.values())) > 1:
                described = (f"{peer} {' or '.join(f'{n:,}' for n in ns)} rows" for peer, ns in counts.items() if ns)
                disagreements.append(f"{case}: " + ", ".join(described))
        return disagreements
