"""Collect the facts that a plan is made from, each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import compute_consumed_versions, find_compared_versions, find_slices_to_reprocess
from tidemark.planning.plan import format_reprocess_command
from tidemark.planning.request import Request
from tidemark.sources.completeness import InputCompleteness, measure_completeness
from tidemark.sources.stored_input import StoredInput
from tidemark.sources.upstream import UpstreamState
from tidemark.spark.lazy_session import is_started
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class PlanningContext:
    """Settings, request, ledger and inputs of a plan to create, with the facts that follow from them."""

    pipeline: Pipeline
    request: Request
    ledger: Ledger
    inputs: tuple[StoredInput, StoredInput]
    available_checkpoints: frozenset[str]
    """Runs whose checkpoints have not expired."""
    lake: str
    upstreams: Sequence[UpstreamState] = ()
    """Pipelines whose output is an input, as they were before the inputs were opened."""
    spark_queries: list[str] = field(default_factory=list)
    """Questions answered by Spark so far."""

    @property
    def grid(self) -> Grid:
        """Grid of the slices."""
        return self.ledger.grid

    @property
    def last(self) -> Entry | None:
        """Last committed slice."""
        return self.ledger.last

    @property
    def next_slice(self) -> int:
        """Slice after the last committed one."""
        return self.last.number + 1 if self.last else 0

    @property
    def committed(self) -> range:
        """From the first to the last committed slice; there may be gaps."""
        return range(min(self.ledger.entries, default=0), self.next_slice)

    @cached_property
    def first_requested(self) -> int:
        """First slice that a run was asked for."""
        start = self.request.start
        return self.grid.parse_boundary(start, "--from") if start else self.next_slice

    @property
    def starts_from_empty_state(self) -> bool:
        """True for a run that skips slices after the last committed one, and so continues no state."""
        return self.request.from_empty_state and self.first_requested > self.next_slice

    @property
    def spark(self) -> SparkSession:
        """Session, which may not have started."""
        return self.inputs[0].table.spark

    @property
    def reprocess_command(self) -> str:
        """Command that recomputes committed slices."""
        return format_reprocess_command(self.pipeline)

    @cached_property
    def input_completeness(self) -> tuple[InputCompleteness, ...]:
        """Completeness of the inputs; empty for a reprocess or a drained input, which do not wait."""
        if self.request.reprocess or self.request.drain:
            return ()
        return measure_completeness(
            self.pipeline, self.lake, assets_updated=self.request.skip_asset_check, upstreams=self.upstreams
        )

    @cached_property
    def slices_to_reprocess(self) -> tuple[int, ...]:
        """Committed slices whose input rows have arrived late and were not read, or have changed or been deleted since.

        With `on_input_delete: ignore`, changed and deleted rows do not count.
        """
        if not self.last:
            return ()
        recorded = find_slices_to_reprocess(self.ledger)
        numbers = set(recorded[1] if recorded else ())
        for side, source in enumerate(self.inputs):
            consumed = find_compared_versions(self.ledger, side, self.committed.stop)
            with self.record_spark_query(f"for which slices rows of {source.table.name} arrived late"):
                deleted = self.pipeline.on_input_delete != "ignore"
                numbers |= source.changes.find_changed_slices(
                    self.grid, self.committed, consumed, includes_deleted=deleted
                )
        return tuple(sorted(numbers & self.ledger.entries.keys()))

    @cached_property
    def late_arriving_rows(self) -> float:
        """Rows of committed slices that the next new slice reads, approximately; 0 unless they are appended."""
        if not self.last or self.request.reprocess or self.pipeline.on_late_arriving_rows != "append":
            return 0.0
        first_new = self.last.number + 1
        entries = self.ledger.entries.values()
        return sum(
            source.changes.estimate_late_arriving_rows(self.grid, first_new, compute_consumed_versions(entries, side))
            for side, source in enumerate(self.inputs)
        )

    @cached_property
    def slices_with_deleted_inputs(self) -> set[int]:
        """Committed slices that read rows which were changed since, with `on_input_delete: reprocess`.

        With `refuse`, only for a reprocess, which applies the changes.
        """
        policies = {"reprocess", "refuse"} if self.request.reprocess else {"reprocess"}
        if self.pipeline.on_input_delete not in policies or not self.last:
            return set()
        numbers = set[int]()
        recorded = find_slices_to_reprocess(self.ledger)
        for side, source in enumerate(self.inputs):
            consumed = find_compared_versions(self.ledger, side, self.committed.stop, recorded[1] if recorded else ())
            with self.record_spark_query(f"which slices have read rows of {source.table.name} that are gone"):
                numbers |= source.changes.find_slices_with_lost_rows(
                    self.grid, self.committed, consumed, self.reprocess_command
                )
        return numbers & self.ledger.entries.keys()

    @contextmanager
    def record_spark_query(self, question: str) -> Iterator[None]:
        """Record a question if the block starts the Spark session."""
        was_started = is_started(self.spark)
        yield
        if is_started(self.spark) and not was_started:
            self.spark_queries.append(question)
