"""Names of inputs and outputs in test cases of a chain. Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tidemark.config import Pipeline, load_pipeline
from tidemark.config.chain_files import list_upstreams
from tidemark.config.sides import SIDES, SideName

TESTED = ""
"""Name of the tested pipeline among the joins of its chain. Others have the name of their pipeline."""


def format_name(join: str, part: str) -> str:
    """Return the name of an input or of an output in a test file.

    >>> format_name("", "left"), format_name("orders_payments", "late")
    ('left', 'orders_payments.late')
    """
    return f"{join}.{part}" if join else part


def split_name(name: str) -> tuple[str, str]:
    """Split the name of an input or of an output into the name of the join and the rest.

    >>> split_name("left"), split_name("orders_payments.late")
    (('', 'left'), ('orders_payments', 'late'))
    """
    join, _, part = name.rpartition(".")
    return join, part


@dataclass(frozen=True)
class TableInput:
    """An input that is a table, and so has rows in test cases."""

    join: str
    pipeline: Pipeline
    side: SideName

    @property
    def name(self) -> str:
        """Name in a test file."""
        return format_name(self.join, self.side)


@dataclass(frozen=True)
class Chain:
    """The tested pipeline, and the pipelines whose output it reads, directly or through others."""

    joins: Mapping[str, Pipeline]
    """Pipelines by their names in test files, each after those that it reads. The last one is tested."""

    @classmethod
    def load(cls, pipeline_file: Path) -> Chain:
        """Load a pipeline and those that it reads.

        Raises:
            PipelineFileError: A file is missing or invalid.
        """
        return cls.from_pipeline(load_pipeline(pipeline_file))

    @classmethod
    def from_pipeline(cls, pipeline: Pipeline) -> Chain:
        """Load the pipelines that a pipeline reads.

        Raises:
            PipelineFileError: There is no valid file of such a pipeline.
        """
        return cls({**{upstream.name: upstream for upstream in list_upstreams(pipeline)}, TESTED: pipeline})

    @property
    def pipeline(self) -> Pipeline:
        """The tested pipeline."""
        return self.joins[TESTED]

    @property
    def upstream_names(self) -> list[str]:
        """Names of the earlier joins."""
        return [name for name in self.joins if name != TESTED]

    @cached_property
    def inputs(self) -> tuple[TableInput, ...]:
        """The inputs that are tables, those of the tested pipeline first."""
        return tuple(
            TableInput(name, pipeline, side)
            for name, pipeline in reversed(list(self.joins.items()))
            for side in SIDES
            if side not in pipeline.upstreams
        )

    def list_readers(self, join: str) -> Iterator[tuple[str, SideName]]:
        """Yield the joins that read the output of a join, each with the side of that input."""
        for reader, pipeline in self.joins.items():
            for side, upstream in pipeline.upstreams.items():
                if upstream.pipeline == join:
                    yield reader, side

    def find_output_columns(self, join: str, input_name: str, column: str) -> list[str]:
        """Return the names that a column of an input has in the emissions of a join without `select`.

        Args:
            join: Name of the join.
            input_name: Name of the input, of this join or of an earlier one.
            column: Name of the column.
        """
        input_join, side = split_name(input_name)
        if input_join == join:
            return [f"{side}_{column}"]
        return [
            f"{own_side}_{name}"
            for own_side, upstream in self.joins[join].upstreams.items()
            for name in self.find_output_columns(upstream.pipeline, input_name, column)
        ]
