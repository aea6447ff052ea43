"""Cut vectors into slices. Each slice is a separate Spark job for all lanes."""

import random

import tidemark_conformance as conformance
from tidemark_conformance.vectors import count_steps

CUTS = ["1", "2", "3", "each", "unevenly"]
MAX_CUTS = 3
"""Enough cuts for state to be carried through a slice that does not use it."""


def cut_vector(vector, name, seed=""):
    """Cut a vector as an option of the command does, or `unevenly`: into slices of random lengths."""
    if name != "unevenly":
        [parsed] = conformance.parse_cuts(name, vector)
        return conformance.Case(vector, parsed)
    rng, inner = random.Random(f"{seed} of {vector['name']}"), range(1, count_steps(vector))
    starts = rng.sample(inner, min(rng.randrange(1, MAX_CUTS), len(inner)))
    return conformance.Case(vector, conformance.Cut(name, tuple(sorted(starts))))
