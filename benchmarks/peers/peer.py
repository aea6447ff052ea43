"""What every peer has: a name, and a run from the same Delta tables to rows that it has written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.cases import Case


@dataclass(frozen=True)
class Work:
    """One run: a case, the lake with its inputs `left` and `right`, and the folder of the lake to write into."""

    case: Case
    lake: Path
    output: str

    def input(self, side: str) -> str:
        """Where an input lies."""
        return str(self.lake / side)

    @property
    def out(self) -> str:
        """Where the result goes."""
        return str(self.lake / self.output)


class Peer(ABC):
    """A way to do a case's work."""

    name: str
    told: str
    """What it is, in a phrase."""
    spark: bool = True
    """Whether it runs in a Spark session."""
    alone: bool = False
    """Whether it has a process of its own, and is measured once."""

    def prepare(self, work: Work) -> None:  # noqa: B027 - most read the tables as they are
        """Bring the inputs into the order in which it reads them; this is not measured."""

    @abstractmethod
    def run(self, work: Work) -> None:
        """Read the inputs, join, write."""

    def counted(self, work: Work) -> dict[str, float]:
        """What it has written: `rows`, and more where it tells more."""
        return {"rows": DeltaTable(work.out).count()}
