"""A state, named by the instant at which a slice ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from tidemark.config import Pipeline
from tidemark.errors import SliceOrderError
from tidemark.ledger.checkpoint_files import kept_runs, restore
from tidemark.ledger.ledger import Entry, Ledger
from tidemark.spark.lazy_session import awake
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class SavedState:
    """What a pipeline carried on from the end of a committed slice."""

    spark: SparkSession
    """The session, which may not have started."""
    pipeline: Pipeline
    lake: str
    ledger: Ledger
    entry: Entry
    """The slice."""

    @classmethod
    def at(cls, spark: SparkSession, pipeline: Pipeline, lake: str, at: datetime | None = None) -> SavedState:
        """The state at the end of a slice, by default of the last committed one.

        Raises:
            SliceOrderError: no committed slice ends at `at`.
        """
        ledger = Ledger.of(pipeline, lake)
        return cls(spark, pipeline, lake, ledger, entry_before(ledger, at, "--at"))

    @property
    def grid(self) -> Grid:
        """The pipeline's slices."""
        return self.ledger.grid

    @property
    def label(self) -> str:
        """The end of the slice, as people write it."""
        return self.grid.name(self.entry.number + 1)

    @cached_property
    def kept(self) -> frozenset[str]:
        """The runs whose checkpoints have not expired."""
        return kept_runs(self.ledger.tables, self.ledger.entries.values(), self.grid)

    def is_kept(self, entry: Entry) -> bool:
        """Whether the checkpoint of a slice has not expired; an empty one never does."""
        return not any(entry.carried) or entry.run in self.kept

    def rows(self, entry: Entry) -> DataFrame:
        """The rows in the buffers at the end of a slice, from its checkpoint."""
        return restore(awake(self.spark), self.ledger.tables, entry.number, self.grid)


def entry_before(ledger: Ledger, instant: datetime | None, option: str) -> Entry:
    """The committed slice that ends at an instant given by the user, by default the last.

    Raises:
        SliceOrderError: there is none; names the option and what there is.
    """
    grid, last = ledger.grid, ledger.last
    if last is None:
        raise SliceOrderError("no slice is committed yet, so there is no state; use tidemark run")
    if instant is None:
        return last
    number = grid.boundary(instant, option)
    entry = ledger.entry(number - 1)
    if entry is None:
        first = next(iter(ledger.entries))
        raise SliceOrderError(
            f"{option} {grid.name(number)}: no committed slice ends there; they end at {grid.name(first + 1)} to "
            f"{grid.name(last.number + 1)}"
        )
    return entry
