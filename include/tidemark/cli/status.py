"""What a pipeline has committed, summed up from its ledger and its late table."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime
from math import ceil
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_instant, from_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaLog
from tidemark.execution.replay import STILL_IN
from tidemark.ledger.erasure_records import forgets
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance.preview import Gain
from tidemark.quality.waivers import pending
from tidemark.tables.table_changes import logs_of


@dataclass(frozen=True)
class SideStatus:
    """One input over all committed slices."""

    table: str
    read: int
    late: int
    rejected: int
    evicted: int
    carried: int
    """How many rows are in the buffers now."""
    filtered: int | None
    """How many `where` has left out, which are not among those read; None without one, or at the source, where nobody
    sees them."""
    behind: dict[str, int]
    """How far late rows were behind the watermark, ms: p50, p99, max; empty without late rows."""
    reasons: dict[str, int]
    """Rejected rows by reason."""
    watermark: str | None
    """Where this input's watermark stands, UTC."""


@dataclass(frozen=True)
class Status:
    """A pipeline's committed slices in figures."""

    pipeline: str
    clock: str
    slices: int
    jobs: int
    first: str | None
    end: str | None
    emissions: int
    pairs: int | None
    """Of how many pairs `flatten` made them; None without it, where each is one."""
    floored: int
    left: SideStatus
    right: SideStatus
    quality: dict[str, int]
    """Committed slices by the gate's outcome."""
    findings: list[str]
    """What was found and did not keep its slice from being published, the newest first."""
    quarantined: int
    """Rows that are not among the emissions, for they break an expectation."""
    waivers: list[dict[str, Any]]
    """Those that wait for the next run of their slice, the newest first."""
    seconds: float
    """Time that the committed jobs took."""
    tables: dict[str, dict[str, int]]
    """Of the ledger and each table that follows it the `version`, and how many `files` and `bytes` that has."""
    oldest: dict[str, int] = field(default_factory=dict)
    """The oldest version of each that one can travel to, where it was asked for."""
    forgotten: list[dict[str, Any]] = field(default_factory=list)
    """What was forgotten, the oldest first."""
    upkeep: Gain | None = None
    """What maintenance would gain, where it was asked for."""

    def describe(self) -> dict[str, Any]:
        """The status for scripts: JSON-ready."""
        return asdict(self)


def status_of(pipeline: Pipeline, lake: str, *, since: int = 0) -> Status:
    """The status of all committed slices from number `since` on."""
    ledger = Ledger.of(pipeline, lake)
    rows, tables, grid = ledger.rows, ledger.tables, ledger.grid
    rows = rows[rows["number"] >= since]
    if rows.empty:
        empty = {side: SideStatus(getattr(pipeline, side).table, 0, 0, 0, 0, 0, None, {}, {}, None) for side in SIDES}
        return Status(
            pipeline.name,
            pipeline.clock,
            0,
            0,
            None,
            None,
            0,
            None,
            0,
            left=empty["left"],
            right=empty["right"],
            quality={},
            findings=[],
            quarantined=0,
            waivers=pending(ledger),
            seconds=0,
            tables=_sizes(tables),
        )
    aside = _aside(tables.late, grid.datetime_of(since))
    last = rows.iloc[-1]
    jobs = rows.drop_duplicates("run")
    sides = {}
    for side in SIDES:
        counts = list(rows[side])
        mine = {reason: behind for (of, reason), behind in aside.items() if of == side}
        sides[side] = SideStatus(
            table=getattr(pipeline, side).table,
            **{name: sum(row[name] for row in counts) for name in ("read", "late", "rejected", "evicted")},
            carried=last[side]["carried_out"],
            filtered=_filtered(pipeline, side, rows[f"{side}_filtered"]),
            behind=next((_quantiles(behind) for reason, behind in mine.items() if reason in _BEHIND), {}),
            reasons={reason: len(rows) for reason, rows in mine.items() if reason not in {"late", *STILL_IN}},
            watermark=_instant(last[f"{side}_watermark_ms"], drained=last["drained"]),
        )
    return Status(
        pipeline=pipeline.name,
        clock=pipeline.clock,
        slices=len(rows),
        jobs=len(jobs),
        first=grid.name(int(rows["number"].iloc[0])),
        end=grid.name(int(last["number"]) + 1),
        emissions=int(rows["emissions"].sum()),
        pairs=None if pipeline.flatten is None else int(pd.to_numeric(rows["pairs"]).sum()),
        floored=int(rows["floored"].sum()),
        left=sides["left"],
        right=sides["right"],
        quality=dict(Counter(rows["quality"])),
        findings=_findings(rows["findings"]),
        quarantined=int(pd.to_numeric(rows["quarantined"]).sum()),
        waivers=pending(ledger),
        seconds=float(jobs["job_seconds"].sum()),
        tables=_sizes(tables),
        forgotten=[one.describe() for one in forgets(tables)],
    )


def _filtered(pipeline: Pipeline, side: SideName, counts: pd.Series[Any]) -> int | None:
    source = getattr(pipeline, side)
    if source.where is None or pipeline.filters_at_source(source):
        return None
    return int(pd.to_numeric(counts).sum())


_BEHIND = ("late", "behind_watermark")
_QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def _sizes(tables: PipelineTables) -> dict[str, dict[str, int]]:
    return {
        name: {"version": log.version, "files": len(log.files), "bytes": int(log.files["size"].sum())}
        for name, log in logs_of(tables).items()
    }


def _aside(late: str, since: datetime) -> dict[tuple[str, str], pd.Series[int]]:
    """How far rows of the side output were behind, ms, by side and reason."""
    log = DeltaLog.open(late)
    if log is None:
        return {}
    rows = log.read(["_slice", "side", "reason", "behind_ms"], ds.field("_slice") >= pa.scalar(since)).to_pandas()
    return {(str(side), str(reason)): rows["behind_ms"] for (side, reason), rows in rows.groupby(["side", "reason"])}


def _quantiles(behind: pd.Series[int]) -> dict[str, int]:
    """The least values that so many of the rows do not exceed."""
    ordered = behind.sort_values().to_numpy()
    return {name: int(ordered[max(0, ceil(part * len(ordered)) - 1)]) for name, part in _QUANTILES.items()}


def _findings(stored: Any) -> list[str]:
    findings = [f"{f['expectation']} {f['detail']}" for text in reversed(list(stored)) for f in json.loads(text)]
    return list(dict.fromkeys(findings))


def _instant(watermark: float | None, *, drained: bool) -> str | None:
    if drained:
        return "end of input"
    return None if pd.isna(watermark) else format_instant(from_micros(int(watermark) * 1000))
