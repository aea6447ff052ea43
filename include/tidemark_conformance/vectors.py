"""Read golden vectors, and cut them into slices."""

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

MAX_CHARACTERS = 10_000_000
"""Limit on one unpacked vector."""


def count_steps(vector: Vector) -> int:
    """Count the steps of a vector: events, or micro-batches."""
    return len(vector["batches"] if "batches" in vector else vector["events"])


def failed_at_drain(vector: Vector) -> bool:
    """Return True if the engine's job failed at the end of the input, after it had read all events."""
    expected = vector["expected"]
    return isinstance(expected, dict) and str(expected.get("error")).split(":")[0] == "at drain"


@dataclass(frozen=True)
class Cut:
    """Division of a vector into slices."""

    name: str
    starts: tuple[int, ...]
    """Numbers of the steps that begin a new slice."""
    single_job: bool = False
    """True if one job runs all slices; otherwise each slice is a job."""

    def slice_of(self, step: int) -> int:
        """Return the number of the slice that contains a step."""
        return sum(start <= step for start in self.starts)


@dataclass(frozen=True)
class Case:
    """One vector under one cut."""

    vector: Vector
    cut: Cut

    @property
    def drain(self) -> int | None:
        """The slice after which the input ends; None if it does not end, or if the engine's job failed before."""
        fails = isinstance(self.vector["expected"], dict) and "error" in self.vector["expected"]
        reaches_end = not fails or failed_at_drain(self.vector)
        return len(self.cut.starts) if self.vector.get("drain", True) and reaches_end else None


@dataclass(frozen=True)
class ConformanceResult:
    """Differences of one vector under one cut, each row with its count; none if it passed."""

    vector: str
    cut: str
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if the output equals the engine's."""
        return not (self.missing or self.unexpected)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `passed` as a JSON-ready dictionary."""
        return {**asdict(self), "passed": self.passed}


def read_vectors(path: Path) -> Iterator[Vector]:
    """Read the vectors of a JSON-lines file, gzipped or not.

    Raises:
        UserError: The file is missing or not JSON lines.
    """
    open_file = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rt", encoding="utf-8") as lines:
            while line := lines.readline(MAX_CHARACTERS + 1):
                if len(line) > MAX_CHARACTERS:
                    raise UserError(f"{path}: a line has more than {MAX_CHARACTERS:,} characters. Split the vector.")
                if line.strip():
                    yield _parse_vector(json.loads(line))
    except (EOFError, OSError, RecursionError, ValueError, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a readable vector file: {reason}. Pass JSON lines, plain or gzipped.") from None


def _parse_vector(content: Any) -> Vector:
    if isinstance(content, dict):
        return content
    raise ValueError(f"a vector is an object with fields, not {type(content).__name__}")


def parse_cuts(text: str, vector: Vector) -> list[Cut]:
    """Parse the cuts of one vector from an option such as `1,2,7,random:5,each`.

    Raises:
        UserError: A part is not a number above 0, `each`, or `random:SEED`.
    """
    return [_parse_cut(part.strip(), vector) for part in text.split(",")]


def _parse_cut(text: str, vector: Vector) -> Cut:
    end = count_steps(vector)
    if text == "each":
        return Cut(text, tuple(range(1, end)), single_job=True)
    if text.startswith("random:") and text[7:].isdecimal():
        generator = random.Random(f"{text}/{vector['name']}")  # noqa: S311 - a seed, not a secret
        inner = range(1, end)
        count = generator.randint(min(1, len(inner)), min(3, len(inner)))
        return Cut(text, tuple(sorted(generator.sample(inner, count))))
    if text.isdecimal() and int(text) > 0:
        count = min(int(text), end)
        return Cut(text, tuple(end * n // count for n in range(1, count)))
    raise UserError(f"--cuts {text}: unknown cut. Pass a number of slices above 0, each, or random:SEED.")
