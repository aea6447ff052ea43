"""Base class that translates vectors of one dialect into pipelines, joins and comparable text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.execution.replay import ReplayResult
from tidemark.joins.base import Join
from tidemark.joins.keys import key_name
from tidemark.watermarks.lanes import Lane
from tidemark_conformance.vectors import Cut, Vector

KEYS = ("key", "lane")
REFUSED = "refused"
"""The only output of a join that the engine refuses."""
Params = dict[str, int | str | bool]
Row = dict[str, Any]


@dataclass(frozen=True)
class VectorAdapter(ABC):
    """A vector as a lane of a job."""

    vector: Vector

    steps_per_bucket = 3
    """More than one, so that rows are sorted inside buckets too, not only between them."""
    columns: ClassVar[tuple[tuple[str, type], ...]] = ()
    """Further columns of the rows, with their types."""

    @property
    @abstractmethod
    def job_key(self) -> object:
        """Key of the vectors that can share a job."""

    @cached_property
    @abstractmethod
    def params(self) -> Params:
        """Parameters that differ between the vectors of a job: further join keys, constant in a lane."""

    @abstractmethod
    def create_pipeline(self) -> Pipeline:
        """Return the equivalent pipeline file, without `time_bounds`."""

    @abstractmethod
    def create_join(self, spark: SparkSession, adapters: Sequence[VectorAdapter]) -> Join:
        """Return the join of a job with these vectors; its rules read the parameter columns."""

    @abstractmethod
    def create_lane(self, pipeline: Pipeline, clocks: Sequence[int]) -> Lane:
        """Return the lane before its first slice.

        Args:
            clocks: Arrival of each step, in microseconds.
        """

    def processing_times(self, cut: Cut, slices: range) -> dict[int, int]:  # noqa: ARG002
        """Return the processing time (ms) at the end of slices, if the vector has it."""
        return {}

    @property
    def is_refused(self) -> bool:
        """True if the engine refused the join, and the pipeline file is invalid too."""
        return False

    @abstractmethod
    def read_steps(self) -> Iterator[list[Row]]:
        """Yield the rows of each step, with `side` (left or right), `key`, `ts` and `id`."""

    @abstractmethod
    def format_expected(self, cut: Cut) -> Iterator[str]:
        """Yield one text per emission and late row of the engine."""

    @abstractmethod
    def format_replay(self, answer: ReplayResult) -> Iterator[tuple[int, str]]:
        """Yield lane and text of each emission and late row of a replay."""

    def is_undecidable(self, cut: Cut, text: str) -> bool:  # noqa: ARG002
        """Return True if the engine's output cannot confirm a text, because its job had ended."""
        return False

    def param_column(self, name: str) -> Column:
        """Return the column of a parameter."""
        return F.col(key_name(len(KEYS) + list(self.params).index(name)))

    def create_settings(self, left: dict[str, Any], right: dict[str, Any], unit: str, **more: Any) -> dict[str, Any]:
        """Return the content of a pipeline file, with event times in `unit`."""
        times = {"event_time": {"column": "ts", "unit": unit}, "arrival": {"column": "arrival", "unit": "us"}}
        return {
            "name": "vector",
            "left": {"table": "left", **left, **times},
            "right": {"table": "right", **right, **times},
            "slices": {"every": "1 s", "start": "1970-01-01T00:00:00Z"},
            "time_bounds": False,
            **more,
        }
