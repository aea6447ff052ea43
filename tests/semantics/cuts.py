"""Into how many slices the tests cut vectors: each slice is a Spark job of its own for all lanes of a job."""

import random

import tidemark_conformance as conformance
from tidemark_conformance.vectors import steps

CUTS = ["1", "2", "3", "each", "unevenly"]
MOST = 3
"""Slices, so that some state is carried through one in which nothing comes of it."""


def cut(vector, name, seed=""):
    """A vector in slices, as an option of the command says, or `unevenly`: in two or three of whatever lengths."""
    if name != "unevenly":
        [found] = conformance.parse_cuts(name, vector)
        return conformance.Case(vector, found)
    chance, inner = random.Random(f"{seed} of {vector['name']}"), range(1, steps(vector))
    places = chance.sample(inner, min(chance.randrange(1, MOST), len(inner)))
    return conformance.Case(vector, conformance.Cut(name, tuple(sorted(places))))
