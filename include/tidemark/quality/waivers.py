"""Waivers: expectations that somebody lets one slice through for, each for one attempt of the slice.

They are asked for in a small table beside the ledger; the ledger's row of the slice tells which were made use of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidemark.config.types import format_instant, micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaLog
from tidemark.ledger.ledger import Ledger
from tidemark.tables.append import append
from tidemark.timegrid.slices import Grid

_SCHEMA = pa.schema(
    {
        "slice": pa.timestamp("us", "UTC"),
        "attempt": pa.int32(),
        "expectation": pa.string(),
        "because": pa.string(),
        "by": pa.string(),
        "at": pa.timestamp("us", "UTC"),
    }
)


@dataclass(frozen=True)
class Waiver:
    """That a slice may be published although an expectation does not hold."""

    slice: datetime
    attempt: int
    """The one attempt of the slice that it is for: once that is committed it is spent."""
    expectation: str
    """As findings name it."""
    because: str
    by: str
    at: datetime

    def told(self) -> str:
        """It in words, for people."""
        return f"waived by {self.by} at {format_instant(self.at)}: {self.because}"

    def recorded(self) -> dict[str, str]:
        """It as the ledger has it: JSON-ready."""
        return {
            "expectation": self.expectation,
            "because": self.because,
            "by": self.by,
            "at": format_instant(self.at),
        }


Waivers = Mapping[int, Mapping[str, Waiver]]
"""By the slice's start, in microseconds, and by expectation."""


def record(tables: PipelineTables, waiver: Waiver) -> None:
    """Ask for a waiver.

    Raises:
        FaultError: other processes never let go of the table.
    """
    append(tables.waivers, pa.Table.from_pylist([asdict(waiver)], _SCHEMA))


def waivers_of(tables: PipelineTables, grid: Grid, attempts: Mapping[int, int]) -> Waivers:
    """The waivers that hold for these attempts of slices, by their numbers; of two the later counts."""
    log = DeltaLog.open(tables.waivers)
    if log is None:
        return {}
    first, last = (pa.scalar(grid.datetime_of(number), _SCHEMA.field("slice").type) for number in _ends(attempts))
    rows = log.read(_SCHEMA.names, (ds.field("slice") >= first) & (ds.field("slice") <= last)).to_pylist()
    found: dict[int, dict[str, Waiver]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        start = micros(row["slice"])
        if attempts.get(grid.number_at(start)) == row["attempt"]:
            found.setdefault(start, {})[row["expectation"]] = Waiver(**row)
    return found


def pending(ledger: Ledger) -> list[dict[str, Any]]:
    """Waivers that wait for the next run of their slice: JSON-ready, the newest first."""
    log = DeltaLog.open(ledger.tables.waivers)
    rows = [] if log is None else [Waiver(**row) for row in log.read(_SCHEMA.names).to_pylist()]
    waiting = {}
    for one in sorted(rows, key=lambda one: one.at):
        number = ledger.grid.number_at(micros(one.slice))
        if one.attempt == next_attempt(ledger, number):
            waiting[number, one.expectation] = {"slice": ledger.grid.name(number), **one.recorded()}
    return list(reversed(waiting.values()))


def next_attempt(ledger: Ledger, number: int) -> int:
    """The attempt that the next run of a slice would be."""
    entry = ledger.entry(number)
    return entry.attempt + 1 if entry else 1


def _ends(numbers: Mapping[int, int]) -> tuple[int, int]:
    return min(numbers), max(numbers)
