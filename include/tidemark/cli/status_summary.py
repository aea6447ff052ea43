"""Summarize what a pipeline has committed, from its ledger and its late table."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

import pandas as pd

from tidemark.cli.quality_warnings import FailedExpectation, group_failures
from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.sides import SIDES, SideName
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.execution.replay import LATE_BUT_BUFFERED_REASONS, LOSS_REASONS
from tidemark.formatting import ToDict
from tidemark.ledger.adoption import find_adoption
from tidemark.ledger.entry import format_watermark
from tidemark.ledger.erasure_records import list_erasures
from tidemark.ledger.ledger import Ledger
from tidemark.planning.deleted_inputs import DeletedInputs
from tidemark.quality.pending_rejections import PendingRejection, list_pending_rejections
from tidemark.quality.results_table import read_results
from tidemark.quality.waivers import list_pending_waivers
from tidemark.sources.upstream import read_upstreams
from tidemark.tables.run_files import read_slice_rows
from tidemark.tables.table_changes import open_tables
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class SideStatus:
    """Figures about one input over all committed slices."""

    table: str
    read: int = 0
    late: int = 0
    rejected: int = 0
    evicted: int = 0
    carried: int = 0
    """Rows in the buffers after the last slice."""
    filtered: int | None = None
    """Rows that `where` left out, not included in `read`; None without `where` or if it filters at the source."""
    where: str | None = None
    """Filter of the input. `read` counts only the rows that meet it."""
    late_but_processed: int = 0
    """Late rows that the interval join of flink-sql has processed, which are not in `late`."""
    lateness: dict[str, int] = field(default_factory=dict)
    """Quantiles p50, p99 and max of the lateness of late rows in ms; empty without late rows."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Rejected rows by reason."""
    watermark: str | None = None
    """Watermark of this input, UTC."""


@dataclass(frozen=True, kw_only=True)
class Status(ToDict):
    """Figures about a pipeline's committed slices."""

    pipeline: str
    cli_arguments: str
    """Command line arguments that select the pipeline's file and candidate version."""
    clock: str
    left: SideStatus
    right: SideStatus
    slices: int = 0
    jobs: int = 0
    first: str | None = None
    """Start of the first slice."""
    end: str | None = None
    """End of the last slice, exclusive."""
    emissions: int = 0
    pairs: int | None = None
    """Rows of the join, padded ones included, from which `explode` made the emissions; None without it."""
    floored_event_times: int = 0
    """Rows whose event times were floored to ms."""
    quality: dict[str, int] = field(default_factory=dict)
    """Committed slices by validation outcome."""
    failed_expectations: list[str] = field(default_factory=list)
    """Failed expectations that did not stop their slice, with each observed value, newest first."""
    grouped_failures: list[FailedExpectation] = field(default_factory=list)
    """The same failures by expectation, those with most slices first."""
    quarantined: int = 0
    """Rows withheld from the emissions because they fail an expectation."""
    rejections: list[PendingRejection] = field(default_factory=list)
    """Slices that the quality gate rejected and that are not committed since, in order."""
    waivers: list[dict[str, Any]] = field(default_factory=list)
    """Waivers for the next run of their slice, newest first."""
    seconds: float = 0
    """Duration of the committed jobs in seconds."""
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    """`version`, `files` and `bytes` of the ledger and of each table that follows it."""
    oldest_versions: dict[str, int] = field(default_factory=dict)
    """Oldest readable version of each table, if requested."""
    deleted_inputs: DeletedInputs | None = None
    """Input rows that were deleted or changed after slices read them; None without any, or if not requested."""
    erasures: list[dict[str, Any]] = field(default_factory=list)
    """Erasures, oldest first."""
    adopted: dict[str, Any] | None = None
    """`table` and `version` with the output of adopted slices, and `until`, the start of the first own slice."""
    upstreams: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """Pipelines whose output an input is, by side: `pipeline`, the `end` of its last readable slice (exclusive), and
    `stale`, the start of its first stale slice."""


def summarize_status(pipeline: Pipeline, lake: str, *, since: int = 0) -> Status:
    """Return the status of all committed slices from number `since` (inclusive)."""
    ledger = Ledger.from_pipeline(pipeline, lake)
    rows, tables, grid = ledger.rows, ledger.tables, ledger.grid
    rows = rows[rows["number"] >= since]
    if rows.empty:
        empty = {side: SideStatus(table=getattr(pipeline, side).table) for side in SIDES}
        return Status(
            pipeline=pipeline.name,
            cli_arguments=format_cli_arguments(pipeline),
            clock=pipeline.clock,
            left=empty["left"],
            right=empty["right"],
            rejections=list_pending_rejections(ledger),
            waivers=list_pending_waivers(ledger),
            tables=_table_sizes(tables),
            upstreams=_describe_upstreams(pipeline, lake, grid),
        )
    late_rows = read_late_rows(tables, grid, range(since, int(rows["number"].max()) + 1))
    lateness_by_reason = {key: group["lateness_ms"] for key, group in late_rows.items()}
    last = rows.iloc[-1]
    jobs = rows.drop_duplicates("run")
    sides = {}
    for side in SIDES:
        counts = list(rows[side])
        lateness_of_side = {reason: lateness for (name, reason), lateness in lateness_by_reason.items() if name == side}
        sides[side] = SideStatus(
            table=getattr(pipeline, side).table,
            **{name: sum(row[name] for row in counts) for name in ("read", "late", "rejected", "evicted")},
            carried=last[side]["carried_out"],
            filtered=_count_filtered(pipeline, side, rows[f"{side}_filtered"]),
            where=getattr(pipeline, side).where,
            late_but_processed=len(lateness_of_side.get("late_but_processed", ())),
            lateness=next(
                (_quantiles(lateness) for reason, lateness in lateness_of_side.items() if reason in _LATE_REASONS), {}
            ),
            reasons={
                reason: len(rows)
                for reason, rows in lateness_of_side.items()
                if reason not in {"late", *LATE_BUT_BUFFERED_REASONS, *LOSS_REASONS}
            },
            watermark=_format_watermark(last[f"{side}_watermark_ms"]),
        )
    return Status(
        pipeline=pipeline.name,
        cli_arguments=format_cli_arguments(pipeline),
        clock=pipeline.clock,
        slices=len(rows),
        jobs=len(jobs),
        first=grid.label(int(rows["number"].iloc[0])),
        end=grid.label(int(last["number"]) + 1),
        emissions=int(rows["emissions"].sum()),
        pairs=None if pipeline.explode is None else int(pd.to_numeric(rows["pairs"]).sum()),
        floored_event_times=int(rows["floored_event_times"].sum()),
        left=sides["left"],
        right=sides["right"],
        quality=dict(Counter(rows["quality"])),
        failed_expectations=_failed_expectations(rows["quality_results"]),
        grouped_failures=_group_failures(rows, tables, grid),
        quarantined=int(pd.to_numeric(rows["quarantined"]).sum()),
        rejections=list_pending_rejections(ledger),
        waivers=list_pending_waivers(ledger),
        seconds=float(jobs["job_seconds"].sum()),
        tables=_table_sizes(tables),
        erasures=[erasure.to_dict() for erasure in list_erasures(tables)],
        adopted=_describe_adoption(ledger),
        upstreams=_describe_upstreams(pipeline, lake, grid),
    )


def _describe_upstreams(pipeline: Pipeline, lake: str, grid: Grid) -> dict[str, dict[str, str | None]]:
    return {
        state.side: {
            "pipeline": state.pipeline,
            "end": None if state.end is None else grid.label(state.end),
            "stale": None if state.stale_slice is None else grid.label(state.stale_slice),
        }
        for state in read_upstreams(pipeline, lake, applies_commits=False)
    }


def _describe_adoption(ledger: Ledger) -> dict[str, Any] | None:
    adoption = find_adoption(ledger.entries)
    return {**asdict(adoption.source), "until": ledger.grid.label(adoption.end)} if adoption else None


def _count_filtered(pipeline: Pipeline, side: SideName, counts: pd.Series[Any]) -> int | None:
    source = getattr(pipeline, side)
    if source.where is None or pipeline.has_filter_before_watermark(source):
        return None
    return int(pd.to_numeric(counts).sum())


_LATE_REASONS = ("late", "late_but_processed")
_QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def _table_sizes(tables: PipelineTables) -> dict[str, dict[str, int]]:
    return {
        name: {"version": log.version, "files": len(log.files), "bytes": int(log.files["size"].sum())}
        for name, log in open_tables(tables).items()
    }


def read_late_rows(tables: PipelineTables, grid: Grid, slices: range) -> dict[tuple[str, str], pd.DataFrame]:
    """Read `lateness_ms` and `would_match` of the late and rejected rows of some slices, by side and reason."""
    table = read_slice_rows(tables, "late", grid, slices, ["_slice", "side", "reason", "lateness_ms", "would_match"])
    if table is None:
        return {}
    return {(str(side), str(reason)): rows for (side, reason), rows in table.to_pandas().groupby(["side", "reason"])}


def _quantiles(lateness: pd.Series[int]) -> dict[str, int]:
    """Return quantiles by the nearest-rank method."""
    ordered = lateness.sort_values().to_numpy()
    return {name: int(ordered[max(0, ceil(part * len(ordered)) - 1)]) for name, part in _QUANTILES.items()}


def _failed_expectations(stored: Any) -> list[str]:
    findings = [f"{f['expectation']} {f['detail']}" for text in reversed(list(stored)) for f in json.loads(text)]
    return list(dict.fromkeys(findings))


def _group_failures(rows: pd.DataFrame, tables: PipelineTables, grid: Grid) -> list[FailedExpectation]:
    """Group the failures of slices; the table `quality` is read only if there are any."""
    failed = rows[rows["quality_results"] != "[]"]
    if failed.empty:
        return []
    results = read_results(tables.quality)
    start = grid.datetime_of(int(failed["number"].iloc[0]))
    return group_failures(failed, results[results["slice"] >= start], grid)


def _format_watermark(watermark: int | None) -> str | None:
    return None if pd.isna(watermark) else format_watermark(int(watermark))
