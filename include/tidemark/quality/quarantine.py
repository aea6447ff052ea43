"""List and release output rows that were not published because they fail an expectation."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.types import format_instant
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import StagedFiles
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import UserError
from tidemark.formatting import ToDict, quote_identifier
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import read_newest_row
from tidemark.ledger.transaction import LedgerTransaction
from tidemark.tables.run_files import StagedRun, read_slice_rows, read_slices, stage_run
from tidemark.tables.table_changes import QUARANTINED
from tidemark.timegrid.slices import Grid

RUN_COLUMN, FAILED_EXPECTATIONS_COLUMN = "_run", "_failed_expectations"
"""Columns of the table `quarantined` that `emissions` does not have: the run, and the names of failed expectations."""
MAX_EXAMPLES = 3
"""Maximum number of rows whose keys are shown per slice and expectation."""


@dataclass(frozen=True)
class QuarantinedGroup(ToDict):
    """Rows of a slice that fail one expectation. A row that fails several is in several groups."""

    slice: str
    """Start of the slice, UTC."""
    expectation: str
    rows: int
    run: str
    examples: tuple[dict[str, Any], ...]
    """Keys of some rows; empty unless the pipeline file has `expose_row_values`."""


@dataclass(frozen=True)
class ReleaseResult(ToDict):
    """Rows published by a release."""

    pipeline: str
    slice: str
    """Start of the slice, UTC."""
    expectations: tuple[str, ...]
    rows: int
    """Number of published rows."""
    remaining_rows: int
    """Number of rows that remain in quarantine, because they fail other expectations."""


def list_quarantined(pipeline: Pipeline, lake: str) -> list[QuarantinedGroup]:
    """List the rows in quarantine, grouped and ordered by slice and expectation."""
    return _group_quarantined(pipeline, _read_quarantined(Ledger.from_pipeline(pipeline, lake), _list_keys(pipeline)))


def list_quarantined_of_slice(
    pipeline: Pipeline, tables: PipelineTables, grid: Grid, number: int
) -> list[QuarantinedGroup]:
    """List the rows of a slice in quarantine, grouped and ordered by expectation, without changing a table."""
    columns = ("_slice", RUN_COLUMN, FAILED_EXPECTATIONS_COLUMN, *_list_keys(pipeline))
    rows = read_slice_rows(tables, QUARANTINED, grid, range(number, number + 1), columns)
    return [] if rows is None else _group_quarantined(pipeline, rows.to_pylist())


def _list_keys(pipeline: Pipeline) -> list[str]:
    """Return the key columns of the output, whose values may be shown; empty without `expose_row_values`."""
    return list(pipeline.join.key_output_columns) if pipeline.expose_row_values else []


def _group_quarantined(pipeline: Pipeline, rows: Iterable[dict[str, Any]]) -> list[QuarantinedGroup]:
    keys = pipeline.join.key_output_columns
    groups: dict[tuple[datetime, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        row_keys = {name: _format_value(row[name]) for name in keys if name in row}
        for expectation in row[FAILED_EXPECTATIONS_COLUMN]:
            groups.setdefault((row["_slice"], expectation, row[RUN_COLUMN]), []).append(row_keys)
    return [
        QuarantinedGroup(
            format_instant(slice_), expectation, len(rows), run, tuple(row for row in rows[:MAX_EXAMPLES] if row)
        )
        for (slice_, expectation, run), rows in sorted(groups.items())
    ]


def release(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str,
    start: datetime,
    expectation: str | None,
    user: str,
    runs: Collection[str] = (),
) -> ReleaseResult:
    """Publish the quarantined rows of a slice in one commit of the ledger.

    Args:
        spark: Session to rewrite files with.
        pipeline: Its settings.
        lake: Root folder of the lake.
        start: Start of the slice.
        expectation: Name, or part of it, to release only rows that fail no other expectation; None for all rows.
        user: Who releases, for the ledger.
        runs: Runs whose rows may be released; empty for all.

    Raises:
        UserError: No row of the slice is in quarantine, or its rows are of another run.
        SliceOrderError: Another process has committed since; nothing was released.
    """
    ledger = Ledger.from_pipeline(pipeline, lake)
    number = ledger.grid.parse_boundary(start, "--slice")
    entry, quarantined = ledger.entry(number), _read_quarantined(ledger, [], start)
    if entry is None or not quarantined:
        raise UserError(
            f"--slice {format_instant(start)}: no row of this slice is in quarantine. Run tidemark quarantine list "
            f"{format_cli_arguments(pipeline)} to see the slices with quarantined rows."
        )
    if runs and entry.run not in runs:
        raise UserError(
            f"--run: slice {format_instant(start)} has run again since, as {entry.run}. Run tidemark quarantine list "
            f"{format_cli_arguments(pipeline)} to see its rows."
        )
    candidates = sorted({name for row in quarantined for name in row[FAILED_EXPECTATIONS_COLUMN]})
    names = candidates if expectation is None else [match_expectation_name(expectation, candidates)]
    rows = sum(set(row[FAILED_EXPECTATIONS_COLUMN]) <= set(names) for row in quarantined)
    result = ReleaseResult(pipeline.name, ledger.grid.label(number), tuple(names), rows, len(quarantined) - rows)
    tables = {} if expectation is None and not rows else _stage_rows(spark, ledger, number, entry.run, names)
    _commit(spark, ledger, entry, StagedRun(entry.run, range(number, number + 1), tables), result, user)
    return result


def match_expectation_name(text: str, candidates: Iterable[str]) -> str:
    """Return the expectation name that equals a text, or the only one that contains it.

    Raises:
        UserError: None or several match.
    """
    names = list(candidates)
    if text in names:
        return text
    matching = [name for name in names if text in name]
    if len(matching) == 1:
        return matching[0]
    problem = "matches several expectations" if matching else "matches no expectation"
    raise UserError(f"--expectation {text} {problem}. Pass one of: {'; '.join(matching or names)}")


def abbreviate_expectation_name(name: str, candidates: Iterable[str]) -> str:
    """Return a word of an expectation's name that no other candidate contains, for a shell without quotes.

    It is the name of the column if possible, or else the shortest word. Without such a word, it is the whole name.

    >>> names = ["expect_a(column x) on history", "expect_a(column x)", "expect_b(column fare, max_value 1)"]
    >>> [abbreviate_expectation_name(name, names) for name in names]
    ['history', 'expect_a(column x)', 'fare']
    """
    others = [other for other in candidates if other != name]
    columns = re.findall(r"\(column ([A-Za-z_]\w*)[,)]", name, re.ASCII)
    words = sorted(re.findall(r"\b[A-Za-z_]\w{2,}", name, re.ASCII), key=len)
    return next((word for word in (*columns, *words) if not any(word in other for other in others)), name)


def _read_quarantined(ledger: Ledger, columns: Iterable[str], start: datetime | None = None) -> list[dict[str, Any]]:
    log = DeltaTableHandle.open(ledger.tables.quarantined)
    if log is None:
        return []
    predicate = None if start is None else ds.field("_slice") == start
    names = {"_slice", RUN_COLUMN, FAILED_EXPECTATIONS_COLUMN, *columns}
    rows: list[dict[str, Any]] = log.read(names, predicate).to_pylist()
    return rows


def _stage_rows(spark: SparkSession, ledger: Ledger, number: int, run: str, names: list[str]) -> dict[str, StagedFiles]:
    """Write a slice's quarantined rows as files: released rows for `emissions`, remaining rows for `quarantined`."""
    tables = ledger.tables
    rows = read_slices(spark, tables, QUARANTINED, ledger.grid, range(number, number + 1))
    assert rows is not None, "rows of the slice are in quarantine"
    other_names = F.array_except(FAILED_EXPECTATIONS_COLUMN, F.array(*map(F.lit, names)))
    is_released = F.size(other_names) == 0
    remaining = rows.where(~is_released).withColumn(FAILED_EXPECTATIONS_COLUMN, other_names)
    released = _cast_to_emissions(rows.where(is_released), tables.emissions)
    return {
        "emissions": stage_run(released, tables.emissions, run),
        QUARANTINED: stage_run(remaining, tables.quarantined, run),
    }


def _cast_to_emissions(rows: DataFrame, path: str) -> DataFrame:
    """Cast rows to the current types of the table `emissions`, which may have been widened since."""
    log = DeltaTableHandle.open(path)
    assert log is not None, "the first slice creates the table"
    dtypes = {field.name: field.dataType for field in log.schema}
    names = [name for name in rows.columns if name not in {RUN_COLUMN, FAILED_EXPECTATIONS_COLUMN}]
    return rows.select(*(F.col(quote_identifier(name)).cast(dtypes[name]).alias(name) for name in names)).coalesce(1)


def _commit(
    spark: SparkSession, ledger: Ledger, entry: Entry, staged: StagedRun, result: ReleaseResult, user: str
) -> None:
    transaction = LedgerTransaction.prepare(spark, ledger, ledger.last_commit + 1, [staged], released=[entry.number])
    stored = read_newest_row(ledger.tables, ledger.grid.datetime_of(entry.number))
    at = format_instant(transaction.committed_at)
    release_ = {"rows": result.rows, "expectations": result.expectations, "user": user, "at": at}
    row = transaction.amend_row(
        stored,
        entry.commit,
        emissions=stored["emissions"] + result.rows,
        quarantined=result.remaining_rows,
        quality="quarantined" if result.remaining_rows else "released",
        releases=json.dumps([*json.loads(stored["releases"] or "[]"), release_]),
    )
    transaction.commit([row])


def _format_value(value: Any) -> Any:
    return format_instant(value) if isinstance(value, datetime) else value
