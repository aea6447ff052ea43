"""Waive a failed expectation for one attempt of one slice.

Requested waivers are rows of the table `waivers`. The ledger records those that were used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidemark.config import Pipeline
from tidemark.config.types import format_instant, to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.retry import append_with_retry
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import UserError
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx.expectations import get_expectation_name
from tidemark.quality.quarantine import match_expectation_name
from tidemark.quality.results import ExpectationResult
from tidemark.timegrid.slices import Grid

SCHEMA = pa.schema(
    {
        "slice": pa.timestamp("us", "UTC"),
        "attempt": pa.int32(),
        "expectation": pa.string(),
        "reason": pa.string(),
        "user": pa.string(),
        "waived_at": pa.timestamp("us", "UTC"),
    }
)


@dataclass(frozen=True)
class Waiver:
    """Permission to publish a slice although an expectation fails."""

    slice: datetime
    """Start of the slice."""
    attempt: int
    """Attempt of the slice that may use the waiver. Once it is committed, the waiver is void."""
    expectation: str
    """Name of the expectation as in results."""
    reason: str
    user: str
    waived_at: datetime

    def format_note(self) -> str:
        """Format the waiver as a note for people."""
        return f"waived by {self.user} at {format_instant(self.waived_at)}: {self.reason}"

    def to_dict(self) -> dict[str, str]:
        """Return the waiver as the ledger stores it with the slice: JSON-ready."""
        return {
            "expectation": self.expectation,
            "reason": self.reason,
            "user": self.user,
            "at": format_instant(self.waived_at),
        }


Waivers = Mapping[int, Mapping[str, Waiver]]
"""Waivers by start of the slice, in microseconds UTC, and by name of the expectation."""


def waive(pipeline: Pipeline, lake: str, start: datetime, expectation: str, reason: str, user: str) -> Waiver:
    """Let the next run of a slice be published although an expectation fails.

    The waiver is for the rows of one attempt. A later reprocess of the slice needs another.

    Args:
        pipeline: Its settings.
        lake: Root folder of the lake.
        start: Start of the slice.
        expectation: Name of the expectation, or a part that no other contains.
        reason: Text for the ledger.
        user: Who waives.

    Raises:
        UserError: The expectation does not exist, is not evaluated per slice, or never rejects a slice; or the reason
            is empty.
    """
    if not reason.strip():
        raise UserError("--reason is empty. Pass the reason, which is stored in the ledger.")
    ledger = Ledger.from_pipeline(pipeline, lake)
    number = ledger.grid.parse_boundary(start, "--slice")
    # If two have the same name, the later entry of the dictionary replaces the earlier: prefer those that reject.
    candidates = sorted(pipeline.quality, key=lambda candidate: candidate.on_failure != "warn")
    by_name = {get_expectation_name(candidate): candidate for candidate in candidates}
    if not by_name:
        raise UserError(f"Pipeline {pipeline.name} has no expectation. Invariants of the join cannot be waived.")
    name = match_expectation_name(expectation, by_name)
    settings = by_name[name]
    if settings.per != "slice":
        raise UserError(
            f"{name} is evaluated on more than a slice (per: {settings.per}), so it cannot be waived for one. Change "
            "it in the pipeline file."
        )
    if settings.on_failure == "warn":
        raise UserError(f"{name} only warns (on_failure: warn). Slices are published without a waiver.")
    waiver = Waiver(
        ledger.grid.datetime_of(number),
        get_next_attempt(ledger, number),
        name,
        " ".join(reason.split()),
        user,
        datetime.now(UTC),
    )
    record_waiver(ledger.tables, waiver)
    return waiver


def record_waiver(tables: PipelineTables, waiver: Waiver) -> None:
    """Append a waiver to the table `waivers`.

    Raises:
        FaultError: Commits of other processes conflicted with every attempt.
    """
    append_with_retry(tables.waivers, pa.Table.from_pylist([asdict(waiver)], SCHEMA))


def read_waivers(tables: PipelineTables, grid: Grid, attempts: Mapping[int, int]) -> Waivers:
    """Return waivers by slice start (µs UTC) and expectation; the newest of several.

    Args:
        tables: The pipeline's tables.
        grid: The grid of slices.
        attempts: Next attempt by slice number. Waivers of other attempts do not apply.
    """
    log = DeltaTableHandle.open(tables.waivers)
    if log is None:
        return {}
    dtype = SCHEMA.field("slice").type
    first, last = (pa.scalar(grid.datetime_of(number), dtype) for number in (min(attempts), max(attempts)))
    rows = log.read(SCHEMA.names, (ds.field("slice") >= first) & (ds.field("slice") <= last)).to_pylist()
    waivers: dict[int, dict[str, Waiver]] = {}
    for row in sorted(rows, key=lambda row: row["waived_at"]):
        start = to_micros(row["slice"])
        if attempts.get(grid.number_at(start)) == row["attempt"]:
            waivers.setdefault(start, {})[row["expectation"]] = Waiver(**row)
    return waivers


def apply_waivers(
    failures: Iterable[ExpectationResult], waivers: Mapping[str, Waiver]
) -> tuple[ExpectationResult, ...]:
    """Mark the failures of a slice that have a waiver as waived, with a note. Warnings need none."""
    return tuple(
        replace(failure, on_failure="waived", detail=f"{failure.detail}; {waiver.format_note()}")
        if failure.on_failure != "warn" and (waiver := waivers.get(failure.expectation))
        else failure
        for failure in failures
    )


def list_pending_waivers(ledger: Ledger) -> list[dict[str, Any]]:
    """List the waivers for the next run of their slice, newest first, as JSON-ready dictionaries."""
    log = DeltaTableHandle.open(ledger.tables.waivers)
    waivers = [] if log is None else [Waiver(**row) for row in log.read(SCHEMA.names).to_pylist()]
    pending = {}
    for waiver in sorted(waivers, key=lambda waiver: waiver.waived_at):
        number = ledger.grid.number_at(to_micros(waiver.slice))
        if waiver.attempt == get_next_attempt(ledger, number):
            pending[number, waiver.expectation] = {"slice": ledger.grid.label(number), **waiver.to_dict()}
    return list(reversed(pending.values()))


def get_next_attempt(ledger: Ledger, number: int) -> int:
    """Return the number of the next attempt of a slice."""
    entry = ledger.entry(number)
    return entry.attempt + 1 if entry else 1
