"""Summarize each slice of a pipeline for the grid: its state, its late rows, its match with the stream.

Tables are read without changes and without a JVM. Summaries are cached until a table changes, because a ledger
of 8,760 slices takes seconds to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, get_args

from tidemark.comparison.agreement import read_agreement
from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import parse_instant, to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import iterate_rows
from tidemark.ledger.staleness import StaleReason, find_stale_slices
from tidemark.quality.pending_rejections import PendingRejection, list_pending_rejections
from tidemark.timegrid.slices import Grid

State = Literal[
    "rejected", "stale", "quarantined", "waived", "warned", "released", "adopted", "committed", "due", "skipped"
]
"""State of a slice, the most urgent first. The newest run of a `rejected` slice was not published; an earlier one may
be. `due` slices have ended and are not committed. `skipped` ones are not either, and cannot run: a later slice began
without them."""
STATES: tuple[State, ...] = get_args(State)
Match = Literal["unexplained", "pending", "explained", "equal", "recomputed"]
"""Match of a slice with the stream, the most urgent first. `recomputed`: the slice ran again after its comparison."""
MATCHES: tuple[Match, ...] = get_args(Match)
_STATE_OF_QUALITY: Mapping[str, State] = {
    "quarantined": "quarantined",
    "waived": "waived",
    "warned": "warned",
    "released": "released",
}
"""State by the ledger's column `quality`; other outcomes, such as `passed`, are `committed`."""
_COLUMNS = ("number", *SIDES, "quality", "quarantined", "adopted_from")
"""Columns of the ledger that a summary has."""
_VERSIONED = ("ledger", "rejection_results", "agreement")
"""Tables that a summary depends on."""


@dataclass(frozen=True, slots=True)
class SliceSummary:
    """A slice as the grid shows it."""

    state: State
    late_share: float | None = None
    """Late rows as a share (0 to 1) of the rows read; None if no row was read."""
    match: Match | None = None
    """Match with the stream; None if the slice was not compared."""
    is_committed: bool = False
    has_quarantined_rows: bool = False


@dataclass(frozen=True)
class PipelineSlices:
    """Slices of a pipeline that were committed or rejected."""

    pipeline: Pipeline
    tables: PipelineTables
    grid: Grid
    summaries: Mapping[int, SliceSummary]
    """Summary by number of the slice, in order."""
    stale_reasons: Mapping[int, StaleReason]
    rejections: Mapping[int, PendingRejection]
    """Rejections by number of slices that were rejected and not committed since."""
    last: int | None
    """Number of the last committed slice; None before the first."""
    compared_with: str | None
    """Table of the stream that slices were compared with; None if there is none."""

    @property
    def end(self) -> int:
        """Number of the slice after the last committed one."""
        return 0 if self.last is None else self.last + 1

    def summarize(self, number: int) -> SliceSummary:
        """Return the summary of a slice that has ended, committed or not."""
        return self.summaries.get(number) or SliceSummary("skipped" if number < self.end else "due")


class SliceStates:
    """Cache of the newest summary of each pipeline. It is valid until a table or the pipeline file changes."""

    def __init__(self) -> None:
        """Create it without summaries."""
        self._cache: dict[tuple[str, str], tuple[tuple[Any, ...], PipelineSlices]] = {}
        self._locks: dict[tuple[str, str], Lock] = {}
        self._lock = Lock()

    def read(self, pipeline: Pipeline, lake: str) -> PipelineSlices:
        """Return the summary of a pipeline as of its tables' latest versions.

        Raises:
            UserError: A table is not valid, or belongs to another pipeline.
        """
        key = lake, pipeline.name
        with self._lock:
            lock = self._locks.setdefault(key, Lock())
        with lock:  # concurrent requests wait for one of them to read the tables
            state = pipeline.model_dump_json(), *_read_versions(PipelineTables.from_config(pipeline, lake))
            if key not in self._cache or self._cache[key][0] != state:
                self._cache[key] = state, summarize_slices(pipeline, lake)
            return self._cache[key][1]


def summarize_slices(pipeline: Pipeline, lake: str) -> PipelineSlices:
    """Summarize all slices of a pipeline from its tables.

    Raises:
        UserError: A table is not valid, or belongs to another pipeline.
    """
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    grid, tables = ledger.grid, ledger.tables
    reasons = find_stale_slices(ledger)
    rejections = {
        grid.number_at(to_micros(parse_instant(rejection.slice))): rejection
        for rejection in list_pending_rejections(ledger)
    }
    compared_with = pipeline.compare.table if pipeline.compare else None
    matches = {} if compared_with is None else _match_slices(ledger, compared_with)
    last = ledger.last.number if ledger.last else None
    summaries = {number: SliceSummary("rejected") for number in rejections if last is None or number > last}
    for row in iterate_rows(ledger.rows, _COLUMNS) if ledger.entries else ():
        number = int(row["number"])
        state: State = (
            "rejected" if number in rejections else "stale" if number in reasons else _get_committed_state(row)
        )
        summaries[number] = SliceSummary(
            state,
            _compute_late_share(row),
            matches.get(number),
            is_committed=True,
            has_quarantined_rows=(row["quarantined"] or 0) > 0,
        )
    return PipelineSlices(
        pipeline, tables, grid, dict(sorted(summaries.items())), reasons, rejections, last, compared_with
    )


def classify_match(row: Mapping[str, Any], output_version: str) -> Match:
    """Classify a row of the table `agreement`.

    Args:
        row: The row.
        output_version: Identifier of the slice's current emissions (`Entry.output_version`).
    """
    if row["run"] != output_version:
        return "recomputed"
    if row["unexplained"]:
        return "unexplained"
    if row["pending"]:
        return "pending"
    return "explained" if row["only_batch"] or row["only_stream"] else "equal"


def _read_versions(tables: PipelineTables) -> tuple[int | None, ...]:
    logs = (DeltaTableHandle.open(getattr(tables, name)) for name in _VERSIONED)
    return tuple(None if log is None else log.version for log in logs)


def _match_slices(ledger: Ledger, table: str) -> dict[int, Match]:
    return {
        number: classify_match(row, entry.output_version)
        for number, row in read_agreement(ledger.tables, ledger.grid, table)
        if (entry := ledger.entry(number))
    }


def _get_committed_state(row: Mapping[Any, Any]) -> State:
    if isinstance(row["adopted_from"], str):
        return "adopted"
    return _STATE_OF_QUALITY.get(row["quality"], "committed")


def _compute_late_share(row: Mapping[Any, Any]) -> float | None:
    read, late = (sum(int(row[side][name]) for side in SIDES) for name in ("read", "late"))
    return late / read if read else None
