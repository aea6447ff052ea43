"""How many rows a change of a pipeline file would change: both files' settings, replayed over the same slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidemark.comparison.in_memory_replay import replayed
from tidemark.config import Pipeline
from tidemark.errors import UserError
from tidemark.joins.output_schema import emissions
from tidemark.ledger.emission_diff import Change, emission_changes
from tidemark.sources.stored_input import stored_inputs
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class ChangedRows:
    """Emissions of one version that the other does not have."""

    start: str
    end: str
    """Exclusive."""
    added: int
    removed: int
    same: int
    slices: int
    """How many of them have other rows."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def changed_rows(spark: SparkSession, old: Pipeline, new: Pipeline, lake: str, slices: range) -> ChangedRows:
    """Replay slices from empty state under the settings of both, their inputs ending behind them; nothing is written.

    Raises:
        UserError: their slices are others.
        InputError: an input does not serve.
    """
    grid = Grid.of(new.slices)
    if grid != Grid.of(old.slices):
        raise UserError("--rows: both files must have the same slices, which rows are counted by")
    found = emission_changes(_answer(spark, old, lake, slices), _answer(spark, new, lake, slices), slices, grid)
    return _told(found, grid, slices)


def _answer(spark: SparkSession, pipeline: Pipeline, lake: str, slices: range) -> DataFrame:
    inputs = stored_inputs(spark, pipeline, lake)
    replay = replayed(pipeline, inputs, slices, drain=True)
    return emissions(replay.joined, pipeline, Grid.of(pipeline.slices))


def _told(found: Mapping[int, Change], grid: Grid, slices: range) -> ChangedRows:
    added, removed, same = (sum(getattr(one, name) for one in found.values()) for name in ("added", "removed", "same"))
    other = sum(one.added + one.removed > 0 for one in found.values())
    return ChangedRows(grid.name(slices[0]), grid.name(slices[-1] + 1), added, removed, same, other)
