"""What the vectors of one dialect have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.execution.replay import Replay
from tidemark.joins import Join
from tidemark.joins.keys import key_name
from tidemark.watermarks.buckets import Lane
from tidemark_conformance.vectors import Cut, Vector

KEYS = ("key", "lane")
REFUSED = "refused"
"""What is told of a join that there is not."""
Params = dict[str, int | str | bool]
Row = dict[str, Any]


@dataclass(frozen=True)
class Kind(ABC):
    """A vector, as a lane of a job."""

    vector: Vector

    steps_per_bucket = 3
    """More than one, so that rows are put in order inside buckets, not only between them."""
    columns: ClassVar[tuple[tuple[str, type], ...]] = ()
    """Further columns of the rows, and their types."""

    @property
    @abstractmethod
    def group(self) -> object:
        """Vectors of equal groups can be lanes of one job."""

    @cached_property
    @abstractmethod
    def params(self) -> Params:
        """What differs between the vectors of a group: further join keys, of one value in a lane."""

    @abstractmethod
    def pipeline(self) -> Pipeline:
        """The pipeline file that the vector stands for, with guards off."""

    @abstractmethod
    def join(self, spark: SparkSession, others: Sequence[Kind]) -> Join:
        """The join of a group's job, its rules reading `param`."""

    @abstractmethod
    def lane(self, pipeline: Pipeline, clocks: Sequence[int]) -> Lane:
        """The lane before its first slice, with the clock of each step."""

    def clocks(self, cut: Cut, slices: range) -> dict[int, int]:  # noqa: ARG002
        """The processing time at the end of slices, where the vector tells it."""
        return {}

    @property
    def refused(self) -> bool:
        """Whether the engine refused the join, and so does the pipeline file."""
        return False

    @abstractmethod
    def steps(self) -> Iterator[list[Row]]:
        """The rows of each step, with `side` (left or right), `key`, `ts` and `id`."""

    @abstractmethod
    def expected(self, cut: Cut) -> Iterator[str]:
        """What the engine did, one text per emission and late row."""

    @abstractmethod
    def found(self, answer: Replay) -> Iterator[tuple[int, str]]:
        """Lane and text of each emission and late row of a replay."""

    def is_beyond(self, cut: Cut, text: str) -> bool:  # noqa: ARG002
        """Whether of what was found the engine cannot tell, because its job had ended."""
        return False

    def param(self, name: str) -> Column:
        """The column of a parameter."""
        return F.col(key_name(len(KEYS) + list(self.params).index(name)))

    def settings(self, left: dict[str, Any], right: dict[str, Any], unit: str, **more: Any) -> dict[str, Any]:
        """A pipeline file's content."""
        times = {"event_time": {"column": "ts", "unit": unit}, "arrival": {"column": "arrival", "unit": "us"}}
        return {
            "name": "vector",
            "left": {"table": "left", **left, **times},
            "right": {"table": "right", **right, **times},
            "slices": {"every": "1 s", "start": "1970-01-01T00:00:00Z"},
            "guard": False,
            **more,
        }
