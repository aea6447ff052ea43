"""Track in table `agreement` how far each slice matches what a stream wrote.

The table is not part of the ledger's protocol. A run reads it only for an expectation on `equal_share`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from tidemark.comparison.result import Comparison, ComparisonRequest
from tidemark.config import Pipeline
from tidemark.config.types import parse_instant, to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.formatting import quote_literal
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import COMPACT_EVERY
from tidemark.timegrid.slices import Grid

SCHEMA = """
    slice timestamp, compared_with string, reference string, compared_at timestamp, run string, same long,
    only_batch long, only_stream long, unexplained long, pending long, causes map<string, long>
"""
_COUNTS = ("same", "only_batch", "only_stream", "unexplained", "pending")
_COLUMNS = ("slice", "compared_with", "compared_at", "run", *_COUNTS, "causes")


def save_agreement(
    spark: SparkSession, tables: PipelineTables, comparison: Comparison, request: ComparisonRequest
) -> None:
    """Replace the agreement of the compared slices with the stream's table, in one commit.

    Rows of the stream that belong to no slice are one row with slice null; every comparison finds all of them.
    """
    now = datetime.now(UTC)
    rows = [
        (
            parse_instant(agreement.slice) if agreement.slice else None,
            *(comparison.table, comparison.reference, now, agreement.run),
            *(agreement.same, agreement.only_batch, agreement.only_stream),
            *(agreement.unexplained, agreement.pending, agreement.causes),
        )
        for agreement in comparison.agreement
    ]
    bounds = [
        f"slice {operator} timestamp_micros({to_micros(bound)})"
        for operator, bound in ((">=", request.start), ("<", request.end))
        if bound
    ]
    table = quote_literal(comparison.table)
    replaced = f"compared_with = {table} AND (slice IS NULL OR ({' AND '.join(bounds) or 'true'}))"
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    frame.write.format("delta").mode("overwrite").option("replaceWhere", replaced).save(tables.agreement)
    log = DeltaTableHandle.open(tables.agreement)
    if log and (log.version + 1) % COMPACT_EVERY == 0:
        log.compact()


def find_due_slices(
    pipeline: Pipeline, lake: str, request: ComparisonRequest, reference: Pipeline | None
) -> tuple[datetime, datetime] | None:
    """Find the slices whose agreement with the stream's table is out of date.

    The range begins with the oldest committed slice without agreement, with that of an earlier run, or with pending
    rows; or with `request.start`, if that is earlier and committed. It ends at `request.end`, and where the pipeline or
    the reference ends.

    Returns:
        Start (inclusive) and end (exclusive); None if no comparison is due.

    Raises:
        SliceOrderError: The requested range is off the grid.
    """
    ledger = Ledger.from_pipeline(pipeline, lake)
    grid = ledger.grid
    ledgers = [ledger, *([Ledger.from_pipeline(reference, lake)] if reference else [])]
    ends = [ledger.grid.start_of(ledger.last.number + 1) if ledger.last else ledger.grid.start for ledger in ledgers]
    end = grid.number_at(min(ends))
    if request.end:
        end = min(end, grid.parse_boundary(request.end, "--to"))
    start = grid.parse_boundary(request.start, "--from") if request.start else end
    compared = _read_compared_runs(ledger, request.table)
    due = (
        number
        for number, entry in ledger.entries.items()
        if number < end
        and entry.adopted_from is None
        and (number >= start or compared.get(number) != (entry.output_version, 0))
    )
    first = min(due, default=None)
    return None if first is None else (grid.datetime_of(first), grid.datetime_of(end))


def _read_compared_runs(ledger: Ledger, table: str) -> dict[int, tuple[str | None, int]]:
    """Read by slice number which run was compared with a table, and how many rows were pending."""
    return {number: (row["run"], row["pending"]) for number, row in read_agreement(ledger.tables, ledger.grid, table)}


def read_agreement(
    tables: PipelineTables, grid: Grid, table: str, where: ds.Expression | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the stored agreement with a stream's table.

    Args:
        tables: The pipeline's tables.
        grid: Grid of the slices.
        table: Name of the stream's table in the comparison.
        where: Filter of the rows; None for all slices.

    Yields:
        Number of each slice, and its row. Rows of the stream that belong to no slice are left out.
    """
    log = DeltaTableHandle.open(tables.agreement)
    if log is None:
        return
    in_table = (ds.field("compared_with") == table) & ds.field("slice").is_valid()
    for row in log.read(_COLUMNS, in_table if where is None else in_table & where).to_pylist():
        yield grid.number_at(to_micros(row["slice"])), row
