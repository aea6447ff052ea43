"""What a pipeline has committed, summed up from its ledger and its late table."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.commits.ledger import Ledger, committed
from tidemark.execution.replay import STILL_IN
from tidemark.settings import Pipeline
from tidemark.settings.sides import SIDES
from tidemark.settings.values import format_instant, from_micros


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
    floored: int
    left: SideStatus
    right: SideStatus
    quality: dict[str, int]
    """Committed slices by the gate's outcome."""
    findings: list[str]
    """Warnings recorded, the newest first."""
    seconds: float
    """Time that the committed jobs took."""

    def describe(self) -> dict[str, Any]:
        """The status for scripts: JSON-ready."""
        return asdict(self)


def status_of(spark: SparkSession, pipeline: Pipeline, lake: str, *, since: int = 0) -> Status:
    """The status of all committed slices from number `since` on."""
    ledger = Ledger.of(spark, pipeline, lake)
    rows, tables, grid = ledger.rows, ledger.tables, ledger.grid
    rows = rows[rows["number"] >= since]
    if rows.empty:
        empty = {side: SideStatus(getattr(pipeline, side).table, 0, 0, 0, 0, 0, {}, {}, None) for side in SIDES}
        return Status(
            pipeline.name, pipeline.clock, 0, 0, None, None, 0, 0, **empty, quality={}, findings=[], seconds=0
        )
    late = committed(spark, tables, tables.late).where(F.unix_micros("_slice") >= grid.start_of(since))
    behind = F.percentile_approx("behind_ms", [0.5, 0.99, 1.0]).alias("behind")
    aside = late.groupBy("side", "reason").agg(F.count("*").alias("rows"), behind).collect()
    last = rows.iloc[-1]
    jobs = rows.drop_duplicates("run")
    sides = {}
    for side in SIDES:
        counts = list(rows[side])
        mine = [row for row in aside if row["side"] == side]
        sides[side] = SideStatus(
            table=getattr(pipeline, side).table,
            **{name: sum(row[name] for row in counts) for name in ("read", "late", "rejected", "evicted")},
            carried=last[side]["carried_out"],
            behind=next((dict(zip(_QUANTILES, r["behind"], strict=True)) for r in mine if r["reason"] in _BEHIND), {}),
            reasons={row["reason"]: row["rows"] for row in mine if row["reason"] not in {"late", *STILL_IN}},
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
        floored=int(rows["floored"].sum()),
        **sides,
        quality=dict(Counter(rows["quality"])),
        findings=_findings(jobs["findings"]),
        seconds=float(jobs["job_seconds"].sum()),
    )


_BEHIND = ("late", "behind_watermark")
_QUANTILES = ("p50", "p99", "max")


def _findings(stored: Any) -> list[str]:
    findings = [f"{f['expectation']} {f['detail']}" for text in reversed(list(stored)) for f in json.loads(text)]
    return list(dict.fromkeys(findings))


def _instant(watermark: float | None, *, drained: bool) -> str | None:
    if drained:
        return "end of input"
    return None if pd.isna(watermark) else format_instant(from_micros(int(watermark) * 1000))
