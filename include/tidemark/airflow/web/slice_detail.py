"""Read what the tables say about one slice, without changing them and without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from tidemark.airflow.status_queries import find_data_docs, find_report
from tidemark.airflow.web.repair_commands import RepairCommand, list_commands
from tidemark.airflow.web.slice_states import PipelineSlices, SliceSummary
from tidemark.airflow_provider.settings import read_option
from tidemark.cli.status_summary import read_late_rows
from tidemark.comparison.agreement import read_agreement
from tidemark.config.sides import SIDES
from tidemark.ledger.entry import format_watermark
from tidemark.ledger.ledger_table import read_newest_rows
from tidemark.quality.quarantine import QuarantinedGroup, list_quarantined_of_slice
from tidemark.quality.results_table import read_results, read_slice_results
from tidemark.quality.waivers import read_waivers


@dataclass(frozen=True)
class LateRows:
    """Late or rejected rows of one input with one reason."""

    side: str
    reason: str
    rows: int
    would_match: int
    """Number of rows that would have been matched."""
    max_lateness_ms: int | None
    """Largest time behind the watermark in ms; None for rejected rows."""


@dataclass(frozen=True)
class SliceDetail:
    """One slice."""

    start: str
    end: str
    """End of the slice, exclusive."""
    summary: SliceSummary
    stale_reason: str | None
    committed: Mapping[str, Any] | None
    """Row of the ledger; None if the slice is not committed."""
    watermarks: Mapping[str, str]
    """Watermark at the end of the slice by input, UTC."""
    late: tuple[LateRows, ...]
    results: tuple[Mapping[str, Any], ...]
    """Results of expectations that the committed run was validated with."""
    rejections: tuple[Mapping[str, Any], ...]
    """Failed expectations of rejected runs."""
    failures: tuple[Mapping[str, Any], ...]
    """Failures that did not stop the slice, with details."""
    quarantined: tuple[QuarantinedGroup, ...]
    used_waivers: tuple[Mapping[str, Any], ...]
    pending_waivers: tuple[Mapping[str, Any], ...]
    agreement: Mapping[str, Any] | None
    """Row of the table `agreement`; None if the slice was not compared."""
    commands: tuple[RepairCommand, ...]
    links: Mapping[str, str]
    """Addresses of other pages by title."""
    previous: str | None
    next: str | None


def read_slice(slices: PipelineSlices, lake: str, number: int, end: int) -> SliceDetail:
    """Read a slice.

    Args:
        slices: The slices of its pipeline.
        lake: The lake root.
        number: Number of the slice.
        end: Number after the last slice of the grid.
    """
    pipeline, tables, grid = slices.pipeline, slices.tables, slices.grid
    summary = slices.summarize(number)
    start, start_label, end_label = grid.datetime_of(number), grid.label(number), grid.label(number + 1)
    row = _read_ledger_row(slices, start)
    is_start = ds.field("slice") == pa.scalar(start, pa.timestamp("us", "UTC"))
    rejection = slices.rejections.get(number)
    failed = rejection.expectations if rejection else ()
    attempt = 1 if row is None else row["attempt"] + 1
    return SliceDetail(
        start=start_label,
        end=end_label,
        summary=summary,
        stale_reason=slices.stale_reasons.get(number),
        committed=row,
        watermarks={} if row is None else dict(_list_watermarks(row)),
        late=tuple(_group_late_rows(slices, number)) if row else (),
        results=_to_dicts(read_slice_results(tables, grid, number)) if row else (),
        rejections=_to_dicts(read_results(tables.rejection_results, is_start)),
        failures=tuple(json.loads(row["quality_results"] or "[]")) if row else (),
        quarantined=tuple(list_quarantined_of_slice(pipeline, tables, grid, number)) if row else (),
        used_waivers=tuple(json.loads(row["applied_waivers"] or "[]")) if row else (),
        pending_waivers=tuple(
            waiver.to_dict()
            for waivers in read_waivers(tables, grid, {number: attempt}).values()
            for waiver in waivers.values()
        ),
        agreement=_read_agreement(slices, number, is_start),
        commands=tuple(list_commands(pipeline, summary, start_label, end_label, failed)),
        links=dict(_list_links(slices, lake)),
        previous=grid.label(number - 1) if number else None,
        next=end_label if number + 1 < end else None,
    )


def _read_ledger_row(slices: PipelineSlices, start: datetime) -> dict[str, Any] | None:
    if slices.last is None:
        return None
    is_start = ds.field("slice") == pa.scalar(start, pa.timestamp("us", "UTC"))
    return read_newest_rows(slices.tables, is_start).get(start)


def _list_watermarks(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for side in SIDES:
        watermark = row[f"{side}_watermark_ms"]
        yield side, "none yet" if watermark is None else format_watermark(watermark) or "none yet"


def _group_late_rows(slices: PipelineSlices, number: int) -> Iterator[LateRows]:
    groups = read_late_rows(slices.tables, slices.grid, range(number, number + 1))
    for (side, reason), rows in sorted(groups.items()):
        largest = rows["lateness_ms"].max()
        would_match = int(rows["would_match"].eq(True).sum()) if "would_match" in rows else 0
        yield LateRows(side, reason, len(rows), would_match, None if pd.isna(largest) else int(largest))


def _to_dicts(rows: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    """Return rows as dictionaries, with None for missing values."""
    records = rows.astype(object).where(rows.notna(), None).to_dict("records")
    return tuple({str(name): value for name, value in record.items()} for record in records)


def _read_agreement(slices: PipelineSlices, number: int, is_start: ds.Expression) -> dict[str, Any] | None:
    if slices.compared_with is None:
        return None
    rows = dict(read_agreement(slices.tables, slices.grid, slices.compared_with, is_start))
    row = rows.get(number)
    return None if row is None else {**row, "causes": dict(row["causes"] or ())}


def _list_links(slices: PipelineSlices, lake: str) -> Iterator[tuple[str, str]]:
    """Yield the title and address of pages that exist and that a web server shows."""
    if base := read_option("lake_url").rstrip("/"):
        for title, find_page in (("Data Docs", find_data_docs), ("Report of the comparison", find_report)):
            if page := find_page(slices.pipeline, lake):
                yield title, f"{base}/{quote(page)}"
    if history := read_option("spark_history_url"):
        yield "Spark history", history
