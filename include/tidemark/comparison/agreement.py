"""How far each slice agrees with what a stream wrote, kept in a table from one comparison to the next.

The table has no part in the ledger's protocol: nothing that runs a pipeline reads it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from tidemark.comparison.compare import Asked, Comparison
from tidemark.config import Pipeline
from tidemark.config.types import micros, parse_instant
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaLog
from tidemark.ledger.ledger import COMPACT_EVERY, Ledger

SCHEMA = """
    slice timestamp, compared_with string, story string, compared_at timestamp, run string, same long, only_batch long,
    only_stream long, unexplained long, pending long, causes map<string, long>
"""


def record(spark: SparkSession, tables: PipelineTables, comparison: Comparison, asked: Asked) -> None:
    """Write a comparison's agreement, in one commit, in place of what stood there for its slices and its table.

    Rows of the stream that belong to no slice, which every comparison finds all of, are one row whose slice is null.
    """
    at = datetime.now(UTC)
    rows = [
        (
            parse_instant(one.slice) if one.slice else None,
            *(comparison.table, comparison.reference, at, one.run),
            *(one.same, one.only_batch, one.only_stream, one.unexplained, one.pending, one.causes),
        )
        for one in comparison.agreement
    ]
    inside = [
        f"slice {sign} timestamp_micros({micros(bound)})"
        for sign, bound in ((">=", asked.start), ("<", asked.end))
        if bound
    ]
    table = comparison.table.replace("\\", "\\\\").replace("'", "\\'")
    replaced = f"compared_with = '{table}' AND (slice IS NULL OR ({' AND '.join(inside) or 'true'}))"
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    frame.write.format("delta").mode("overwrite").option("replaceWhere", replaced).save(tables.agreement)
    log = DeltaLog.open(tables.agreement)
    if log and (log.version + 1) % COMPACT_EVERY == 0:
        log.compact()


def due(pipeline: Pipeline, lake: str, asked: Asked, reference: Pipeline | None) -> tuple[datetime, datetime] | None:
    """The slices, from (inclusive) and to (exclusive), for which a comparison is due; None where it is not.

    It begins with the oldest committed slice whose agreement with the stream's table is missing, is that of an older
    attempt, or counts pending rows; with `asked.start` where that is earlier and committed. It ends at `asked.end`, and
    where the pipeline, and the reference, have come to.

    Raises:
        SliceOrderError: the range asked for is off the grid.
    """
    ledger = Ledger.of(pipeline, lake)
    grid, ends = ledger.grid, [ledger]
    ends += [Ledger.of(reference, lake)] if reference else []
    come = [one.grid.start_of(one.last.number + 1) if one.last else one.grid.start for one in ends]
    end = grid.number_at(min(come))
    if asked.end:
        end = min(end, grid.boundary(asked.end, "--to"))
    start = grid.boundary(asked.start, "--from") if asked.start else end
    agreed = _agreed(ledger, asked.table)
    wanted = (
        n for n, entry in ledger.entries.items() if n < end and (n >= start or agreed.get(n) != (entry.answer, 0))
    )
    first = min(wanted, default=None)
    return None if first is None else (grid.datetime_of(first), grid.datetime_of(end))


def _agreed(ledger: Ledger, table: str) -> dict[int, tuple[str | None, int]]:
    """The run that was compared with a table, and how many rows were pending, by the number of the slice."""
    log = DeltaLog.open(ledger.tables.agreement)
    if log is None:
        return {}
    mine = (ds.field("compared_with") == table) & ds.field("slice").is_valid()
    rows = log.read(["slice", "compared_with", "run", "pending"], mine).to_pylist()
    return {ledger.grid.number_at(micros(row["slice"])): (row["run"], row["pending"]) for row in rows}
