"""Interface of all peers: a run that reads the same Delta tables and writes the joined rows."""

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

    def get_input_path(self, side: str) -> str:
        """Return the path of an input."""
        return str(self.lake / side)

    @property
    def output_path(self) -> str:
        """Path of the output."""
        return str(self.lake / self.output)


class Peer(ABC):
    """An implementation of the work of a case."""

    name: str
    description: str
    """Description in a phrase."""
    uses_spark: bool = True
    """True if it runs in a Spark session."""
    has_own_process: bool = False
    """True if it has its own process, and is measured once."""

    def prepare(self, work: Work) -> None:  # noqa: B027 - most read the tables as they are
        """Prepare the inputs; this is not measured."""

    @abstractmethod
    def run(self, work: Work) -> None:
        """Read the inputs, join, write."""

    def count_output(self, work: Work) -> dict[str, float]:
        """Return measurements of the output: `rows`, and others."""
        return {"rows": DeltaTable(work.output_path).count()}
