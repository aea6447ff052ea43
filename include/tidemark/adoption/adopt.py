"""Compare the last slices before an adoption with the adopted table, and commit the adoption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from tidemark.adoption.plan import AdoptionPlan, require_no_committed_slice
from tidemark.comparison.compare import compare
from tidemark.comparison.result import Comparison, ComparisonRequest
from tidemark.config import Pipeline, with_overrides
from tidemark.config.sides import SIDES
from tidemark.config.types import parse_allowance, to_micros
from tidemark.delta.staging import StagedFiles
from tidemark.delta.table import DeltaTableHandle
from tidemark.ledger.entry import Entry, format_watermark
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import read_newest_rows
from tidemark.ledger.transaction import LedgerTransaction
from tidemark.tables.run_files import StagedRun
from tidemark.versions.promotion import copy_files


@dataclass(frozen=True)
class AdoptionResult:
    """A committed adoption."""

    pipeline: str
    table: str
    version: int
    """Version of the adopted table."""
    start: str
    """Start of the first slice that ran for the state."""
    until: str
    """Instant from which on the output is the pipeline's own."""
    slices: int
    commit: int
    """Number of the ledger's commit."""
    carried: Mapping[str, int]
    """Number of rows in the buffers at `until`, by side."""
    watermarks: Mapping[str, str | None]
    """Watermarks at `until`, by side, UTC."""
    shorter_start: str | None
    """Later start that gives the same state; None if the slices begin with the pipeline's first one."""
    comparison: Comparison | None
    """Comparison of the last slices before `until`; None if it was skipped."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-ready dictionary."""
        comparison = None if self.comparison is None else self.comparison.to_dict()
        plain = asdict(replace(self, comparison=None))
        return {**plain, "comparison": comparison}


def compare_last_slices(
    spark: SparkSession, plan: AdoptionPlan, period: timedelta, reference: Pipeline | None
) -> Comparison:
    """Compare the last slices of a warm-up with the adopted table, by `compare` of the pipeline file.

    The compared version of the table is the one that the ledger records, although a stream may write to the table.
    Any difference exceeds the budget, unless `compare.budget.differing` allows it.

    Args:
        spark: A session.
        plan: The plan, whose slices have run.
        period: Time before the end of the slices, extended to whole slices and not beyond the first one.
        reference: Pipeline with the settings of the stream, with committed slices; None without one.
    """
    table = plan.source.table
    settings = with_overrides(plan.pipeline, {"compare.table": table}).compare
    assert settings, "the table is named"
    grid = plan.grid
    end = plan.grid.datetime_of(plan.slices.stop)
    first = max(plan.slices.start, grid.number_at(to_micros(end - period)))
    budget = settings.budget
    if budget.differing is None:
        budget = budget.model_copy(update={"differing": parse_allowance(0)})
    request = ComparisonRequest(
        table=table,
        version=plan.source.version,
        start=grid.datetime_of(first),
        end=end,
        key_columns=tuple(settings.key_columns),
        ignore_columns=tuple(settings.ignore_columns),
        float_tolerance=settings.float_tolerance,
        try_settings=settings.try_settings,
        budget=budget,
        origin="TABLE",
    )
    return compare(spark, plan.candidate, plan.lake, request, reference)


def commit_adoption(spark: SparkSession, plan: AdoptionPlan, comparison: Comparison | None = None) -> AdoptionResult:
    """Commit the slices of a warm-up as adopted: their state, and none of their output.

    Raises:
        SliceOrderError: The pipeline has committed slices meanwhile.
        FaultError: A copy does not have the rows of its file.
    """
    live, warm_up = Ledger.from_pipeline(plan.pipeline, plan.lake), plan.read_warm_up()
    require_no_committed_slice(live, plan.pipeline)
    staged = {name: _stage_empty(warm_up, live, name) for name in ("emissions", "late")}
    token = uuid4().hex[:8]
    copies = {name: copy_files(warm_up, live, name, token) for name in ("checkpoint", "quality")}
    staged |= {name: files for name, files in copies.items() if files}
    staged.setdefault("checkpoint", _stage_empty(warm_up, live, "checkpoint"))
    run = StagedRun(uuid4().hex, plan.slices, staged)
    transaction = LedgerTransaction.prepare(spark, live, live.last_commit + 1, [run])
    rows = read_newest_rows(warm_up.tables).values()
    transaction.commit([_adopt_row(row, transaction, plan) for row in rows])
    last = warm_up.last
    assert last, "the warm-up is complete"
    return _summarize(plan, last, transaction.number, comparison)


def _stage_empty(warm_up: Ledger, live: Ledger, name: str) -> StagedFiles:
    """Return no files, with the schema of a table of the warm-up, so that the live table exists."""
    log = DeltaTableHandle.open(getattr(warm_up.tables, name))
    assert log is not None, "the first job creates the table"
    return StagedFiles(getattr(live.tables, name), log.schema, ())


def _adopt_row(row: Mapping[str, Any], transaction: LedgerTransaction, plan: AdoptionPlan) -> dict[str, Any]:
    """Convert the ledger row of a slice of the warm-up to that of an adopted slice."""
    return {
        **row,
        "commit": transaction.number,
        "committed_at": transaction.committed_at,
        "attempt": 1,
        "emissions": 0,
        "pairs": None,
        "quarantined": None,
        "original_commit": None,
        "promotion": None,
        "adopted_from": plan.source.to_json(),
    }


def _summarize(plan: AdoptionPlan, last: Entry, commit: int, comparison: Comparison | None) -> AdoptionResult:
    label = plan.grid.label
    shorter = plan.shorter_warm_up
    return AdoptionResult(
        plan.pipeline.name,
        plan.source.table,
        plan.source.version,
        label(plan.slices.start),
        label(plan.slices.stop),
        len(plan.slices),
        commit,
        dict(zip(SIDES, last.carried, strict=True)),
        {side: format_watermark(getattr(last.watermarks, side)) for side in SIDES},
        label(shorter.jobs[0][0]) if shorter else None,
        comparison,
    )
