"""Count the rows that a change of a pipeline file would change."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tidemark.comparison.in_memory_replay import replay_slices
from tidemark.config import Pipeline
from tidemark.errors import UserError
from tidemark.formatting import ToDict
from tidemark.joins.output_schema import select_emissions
from tidemark.ledger.emission_diff import compare_emissions
from tidemark.sources.resolution import open_inputs
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class ChangedRows(ToDict):
    """Number of emissions that only one version of a pipeline file gives."""

    start: str
    end: str
    """Exclusive."""
    added: int
    removed: int
    same: int
    slices: int
    """Number of slices with different rows."""


def count_changed_rows(spark: SparkSession, old: Pipeline, new: Pipeline, lake: str, slices: range) -> ChangedRows:
    """Replay slices from empty state under both versions, and count the difference; nothing is written.

    The inputs end after the last slice.

    Raises:
        UserError: The versions have different slices.
        InputError: An input is missing or unusable.
    """
    grid = Grid.from_config(new.slices)
    if grid != Grid.from_config(old.slices):
        raise UserError("--rows: the files have different slices. Give both the same `slices`.")
    before, after = (_replay_emissions(spark, pipeline, lake, slices) for pipeline in (old, new))
    changes = compare_emissions(before, after, slices, grid).values()
    return ChangedRows(
        start=grid.label(slices[0]),
        end=grid.label(slices[-1] + 1),
        added=sum(change.added for change in changes),
        removed=sum(change.removed for change in changes),
        same=sum(change.same for change in changes),
        slices=sum(change.added + change.removed > 0 for change in changes),
    )


def _replay_emissions(spark: SparkSession, pipeline: Pipeline, lake: str, slices: range) -> DataFrame:
    result = replay_slices(pipeline, open_inputs(spark, pipeline, lake), slices, drain=True)
    return select_emissions(result.joined, pipeline, Grid.from_config(pipeline.slices))
