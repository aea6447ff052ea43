"""Golden vectors: what the real engines did, and where a test cuts them into slices."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemark.errors import UserError

Vector = dict[str, Any]

MOST_CHARACTERS = 10_000_000
"""Of a vector, once it is unpacked."""


def steps(vector: Vector) -> int:
    """How many steps a vector has: events one by one, or micro-batches."""
    return len(vector["batches"] if "batches" in vector else vector["events"])


@dataclass(frozen=True)
class Cut:
    """Where a vector is cut: numbers of the steps that begin a new slice, and whether each slice is a job."""

    name: str
    starts: tuple[int, ...]
    one_job: bool = False

    def slice_of(self, step: int) -> int:
        """Number of the slice that holds a step."""
        return sum(start <= step for start in self.starts)


@dataclass(frozen=True)
class Case:
    """One vector under one cut."""

    vector: Vector
    cut: Cut

    @property
    def drain(self) -> int | None:
        """The slice after which the vector's input ends; None where it goes on, or the engine's job failed."""
        fails = isinstance(self.vector["expected"], dict) and "error" in self.vector["expected"]
        return len(self.cut.starts) if self.vector.get("drain", True) and not fails else None


@dataclass(frozen=True)
class Verdict:
    """One vector under one cut: rows missing and rows too many, each with its count; both empty if it passed."""

    vector: str
    cut: str
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the answer is the engine's."""
        return not (self.missing or self.unexpected)

    def describe(self) -> dict[str, Any]:
        """The verdict for scripts: JSON-ready."""
        return {**asdict(self), "passed": self.passed}


def read_vectors(path: Path) -> Iterator[Vector]:
    """The vectors of a JSON-lines file, gzipped or not.

    Raises:
        UserError: the file is missing or is not JSON lines.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            while line := lines.readline(MOST_CHARACTERS + 1):
                if len(line) > MOST_CHARACTERS:
                    raise UserError(f"{path} has a line of more than {MOST_CHARACTERS:,} characters; split the vector")
                if line.strip():
                    yield _vector(json.loads(line))
    except (EOFError, OSError, RecursionError, ValueError, zlib.error) as error:
        told = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as a vector file (JSON lines, may be gzipped): {told}") from None


def _vector(content: Any) -> Vector:
    if isinstance(content, dict):
        return content
    raise ValueError(f"a vector is an object with fields, not {type(content).__name__}")


def parse_cuts(text: str, vector: Vector) -> list[Cut]:
    """Cuts of one vector from an option such as `1,2,7,random:5,each`.

    Raises:
        UserError: a part is not a number above 0, `each`, or `random:SEED`.
    """
    return [_cut(part.strip(), vector) for part in text.split(",")]


def _cut(text: str, vector: Vector) -> Cut:
    last = steps(vector)
    if text == "each":
        return Cut(text, tuple(range(1, last)), one_job=True)
    if text.startswith("random:") and text[7:].isdecimal():
        chosen = random.Random(f"{text}/{vector['name']}")  # noqa: S311 - a seed, not a secret
        inner = range(1, last)
        return Cut(text, tuple(sorted(chosen.sample(inner, chosen.randint(min(1, len(inner)), min(3, len(inner)))))))
    if text.isdecimal() and int(text) > 0:
        count = min(int(text), last)
        return Cut(text, tuple(last * n // count for n in range(1, count)))
    raise UserError(f"--cuts {text}: a cut is a number of slices above 0, 'each', or random:SEED")
