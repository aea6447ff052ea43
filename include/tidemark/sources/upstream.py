"""Find up to when the pipelines are committed whose output a pipeline reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.config import Input, Pipeline
from tidemark.config.chain_files import format_upstream_arguments
from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.config.sides import SideName
from tidemark.delta.paths import resolve_path
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import find_stale_slices
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class UpstreamState:
    """Committed slices of a pipeline whose output is an input. Its grid is that of the pipeline that reads it."""

    side: SideName
    pipeline: str
    cli_arguments: str
    """Command line arguments that select its file."""
    end: int | None
    """First slice that may not be read (exclusive end). From the first committed slice up to it there is no gap and no
    stale slice. None without slices."""
    stale_slice: int | None
    """First stale slice, if there is one: `end` is before it."""
    drained_slice: int | None
    """Last slice before its inputs ended (`--drain`); None if they have not ended."""
    ledger: Ledger
    """Its ledger, as it was read."""
    ledger_version: int | None = None
    """Version of the ledger's table before it was read; None if unknown."""

    @classmethod
    def from_ledger(
        cls, side: SideName, pipeline: str, cli_arguments: str, ledger: Ledger, ledger_version: int | None
    ) -> UpstreamState:
        """Find the state of a pipeline by its ledger."""
        numbers, stale_slice = list(ledger.entries), min(find_stale_slices(ledger), default=None)
        gap = next((number + 1 for number in numbers if number + 1 not in ledger.entries), None)
        end = gap if stale_slice is None or gap is None else min(gap, stale_slice)
        drained = ledger.last.number if ledger.last and ledger.last.drained else None
        return cls(side, pipeline, cli_arguments, end, stale_slice, drained, ledger, ledger_version)

    def count_emissions(self, slices: range) -> dict[int, int]:
        """Count the emissions of slices in its output stream, by slice.

        Slices that have changed since its ledger was read are left out, and those of which rows were erased.
        """
        tables = self.ledger.tables
        is_unchanged = self.ledger_version is not None and _find_version(tables) == self.ledger_version
        ledger = self.ledger if is_unchanged else Ledger.read_without_sync(tables, self.ledger.grid)
        entries = (entry for number in slices if (entry := self.ledger.entry(number)))
        return {
            entry.number: entry.emissions
            for entry in entries
            if entry.emissions is not None and entry.erasures is None and entry == ledger.entry(entry.number)
        }

    def explain(self, grid: Grid) -> str:
        """Describe in one line what is committed, and how to commit more."""
        command = f"Run tidemark run {self.cli_arguments} first."
        if self.end is None:
            return f"{self.pipeline} has no committed slice. {command}"
        if self.stale_slice == self.end:
            return f"slice {grid.label(self.end)} of {self.pipeline} is stale. {command}"
        if self.ledger.last and self.end <= self.ledger.last.number:
            slice_start = grid.label(self.end)
            return (
                f"slice {slice_start} of {self.pipeline} was never committed. Run tidemark reprocess "
                f"{self.cli_arguments} --from {slice_start} first."
            )
        return f"{self.pipeline} is committed up to {grid.label(self.end)}. {command}"


def find_readable_end(upstreams: Iterable[UpstreamState]) -> int | None:
    """Return the first slice that may not be read (`UpstreamState.end`), by all upstreams; None if all may."""
    return min((state.end for state in upstreams if state.end is not None), default=None)


def read_upstreams(pipeline: Pipeline, lake: str, *, applies_commits: bool) -> list[UpstreamState]:
    """Read the state of the pipelines whose output a pipeline reads.

    Args:
        pipeline: The pipeline that reads.
        lake: Folder or URI of the pipelines' tables.
        applies_commits: Apply commits of their ledgers that their tables lack, so that a reader sees all rows.
    """
    grid = Grid.from_config(pipeline.slices)
    read = Ledger.read if applies_commits else Ledger.read_without_sync
    states = []
    for side, upstream in pipeline.upstreams.items():
        tables = _locate_tables(getattr(pipeline, side), lake)
        # Before the ledger: a commit in between then counts as a change of what was read.
        version = _find_version(tables)
        arguments = format_upstream_arguments(pipeline, side)
        ledger = read(tables, grid)
        ledger.require_same_slices(pipeline)  # the reader has the slices of its upstream
        states.append(UpstreamState.from_ledger(side, upstream.pipeline, arguments, ledger, version))
    return states


def _find_version(tables: PipelineTables) -> int | None:
    log = DeltaTableHandle.open(tables.ledger)
    return log.version if log else None


def _locate_tables(source: Input, lake: str) -> PipelineTables:
    """Return the tables of the pipeline whose output stream is an input."""
    return PipelineTables(resolve_path(lake, source.table.removesuffix(f"/{OUTPUT_STREAM}")))
