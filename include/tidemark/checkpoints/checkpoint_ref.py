"""Refer to the checkpoint at the end of a committed slice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.errors import SliceOrderError
from tidemark.ledger.checkpoint_files import list_available_checkpoints, read_buffered_rows
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.spark.lazy_session import resolve_session
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class CheckpointRef:
    """The state that a pipeline carried from the end of a committed slice."""

    spark: SparkSession
    """The session, which may not have started."""
    pipeline: Pipeline
    lake: str
    ledger: Ledger
    entry: Entry
    """The slice."""

    @classmethod
    def from_ledger(
        cls, spark: SparkSession, pipeline: Pipeline, lake: str, end: datetime | None = None
    ) -> CheckpointRef:
        """Refer to the state at the end of a slice, by default of the last committed one.

        Raises:
            SliceOrderError: No committed slice ends at `end`.
        """
        ledger = Ledger.from_pipeline(pipeline, lake)
        return cls(spark, pipeline, lake, ledger, find_entry_ending_at(pipeline, ledger, end, "--at"))

    @property
    def grid(self) -> Grid:
        """The pipeline's slices."""
        return self.ledger.grid

    @property
    def end_label(self) -> str:
        """The end of the slice, for messages."""
        return self.grid.label(self.entry.number + 1)

    @cached_property
    def runs_with_checkpoint(self) -> frozenset[str]:
        """The runs whose checkpoints have not expired."""
        return list_available_checkpoints(self.ledger.tables, self.ledger.entries.values(), self.grid)

    def has_checkpoint(self, entry: Entry) -> bool:
        """Return True if the checkpoint of a slice has not expired. Empty checkpoints never expire."""
        return not any(entry.carried) or entry.run in self.runs_with_checkpoint

    def read_rows(self, entry: Entry) -> DataFrame:
        """Read the rows in the buffers at the end of a slice from its checkpoint."""
        return read_buffered_rows(resolve_session(self.spark), self.ledger.tables, entry.number, self.grid)


def find_entry_ending_at(pipeline: Pipeline, ledger: Ledger, instant: datetime | None, option: str) -> Entry:
    """Find the committed slice that ends at an instant, by default the last.

    Args:
        pipeline: The pipeline of the ledger.
        ledger: The ledger.
        instant: End of a slice.
        option: The user's option with the instant, for the error message.

    Raises:
        SliceOrderError: No committed slice ends at the instant.
    """
    grid, last = ledger.grid, ledger.last
    if last is None:
        command = f"tidemark run {format_cli_arguments(pipeline)}"
        raise SliceOrderError(f"no slice is committed yet, so there is no state. Run {command}.")
    if instant is None:
        return last
    number = grid.parse_boundary(instant, option)
    entry = ledger.entry(number - 1)
    if entry is None:
        first = next(iter(ledger.entries))
        raise SliceOrderError(
            f"{option} {grid.label(number)}: no committed slice ends there. Name an end between "
            f"{grid.label(first + 1)} and {grid.label(last.number + 1)}."
        )
    return entry
