"""Check Tidemark against recorded output of the real engines, through the code that `run` uses.

A golden vector contains the events of two in-memory tables on the arrival clock. A cut into n slices runs n jobs of one
slice, which carry buffered rows and watermarks on; the cut `each` runs one job with a slice per event. Emissions and
late rows must equal the engine's, each in the slice in which the engine emitted it.

A Spark job costs seconds whatever its size, so hundreds of vectors share one. Each is a lane of the replay, with its
number and its parameters among the join keys.
"""

from tidemark_conformance.runner import check_cases, check_files, replay_cases
from tidemark_conformance.vectors import Case, ConformanceResult, Cut, Vector, parse_cuts, read_vectors

__all__ = [
    "Case",
    "ConformanceResult",
    "Cut",
    "Vector",
    "check_cases",
    "check_files",
    "parse_cuts",
    "read_vectors",
    "replay_cases",
]
