"""Golden vectors: what the real engines did, replayed through the code that `run` uses.

A vector's events are rows of two in-memory tables on the arrival clock. A cut into n slices runs n jobs of one slice,
with the buffered rows and watermarks carried between them; the cut `each` runs one job with a slice per event.
Emissions and late rows must be those of the engine, each in the slice in which the engine emitted it.

A Spark job costs seconds whatever its size, so hundreds of vectors share one: each is a lane of the replay, with its
number and its parameters among the join keys.
"""

from tidemark_conformance.runner import check, check_files, replays
from tidemark_conformance.vectors import Case, Cut, Vector, Verdict, parse_cuts, read_vectors

__all__ = ["Case", "Cut", "Vector", "Verdict", "check", "check_files", "parse_cuts", "read_vectors", "replays"]
