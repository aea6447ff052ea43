"""How far late rows were behind the watermark, and which watermark delays they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce

import pandas as pd
from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.comparison.committed_view import CommittedView
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import millis
from tidemark.execution.replay import STILL_IN
from tidemark.ledger.committed_snapshot import committed

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
EDGES = (
    0,
    *(n * _SECOND for n in (1, 2, 4, 8, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 4, 8, 15, 30)),
    *(n * _HOUR for n in (1, 2, 4, 8, 16)),
    *(n * _DAY for n in (1, 2, 4, 8, 16, 32)),
)
"""Where the bins of a histogram begin, in ms: each about twice as wide as the one before; the last is open."""
QUANTILES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True)
class Lateness:
    """One input's rows that came behind the watermark. A row counts once for each window that it was late for."""

    side: SideName
    table: str
    read: int
    delay_ms: int | None
    """The input's watermark delay; None for an input without a watermark."""
    late: int
    behind_ms: dict[str, int]
    """Quantiles (`QUANTILES`) of how far behind the watermark they were; empty without late rows."""
    bins: tuple[int, ...]
    """Rows by `EDGES`: behind by that much (inclusive), and less than the next (exclusive)."""
    held_by: dict[str, int]
    """Late rows by the input that held the watermark."""
    rejected: dict[str, int]
    """Rows that could take no part, by reason."""


@dataclass(frozen=True)
class Late:
    """The late rows of a pipeline's slices, by input; and how much longer a delay would take them in."""

    pipeline: str
    inputs: tuple[Lateness, ...]
    asked_ms: dict[SideName, dict[str, int]]
    """Quantiles of how far behind rows were, by the input that held the watermark. So much longer that input's delay
    would have to be."""


def late_rows(view: CommittedView, slices: range) -> Late:
    """The late rows of slices, summed up."""
    counts, quantiles = _summed(view, slices)
    pipeline, ledger = view.pipeline, view.ledger.rows
    inside = ledger[ledger["number"].isin(slices)]
    inputs = []
    for side in SIDES:
        mine = counts[counts["side"] == side]
        behind = mine[mine["bin"].notna()]
        bins = behind.groupby("bin")["rows"].sum()
        holders = quantiles[(quantiles["side"] == side) & quantiles["held_by"].notna()]
        delay = getattr(pipeline, side).watermark_delay
        inputs.append(
            Lateness(
                side,
                getattr(pipeline, side).table,
                sum(row["read"] for row in inside[side]),
                None if delay is None else millis(delay),
                int(behind["rows"].sum()),
                _quantiles(quantiles, side, None),
                tuple(int(bins.get(number, 0)) for number in range(len(EDGES))),
                {row["held_by"]: int(row["rows"]) for row in holders.to_dict("records")},
                {row["reason"]: int(row["rows"]) for row in mine[mine["bin"].isna()].to_dict("records")},
            )
        )
    asked = {side: _quantiles(quantiles, None, side) for side in SIDES}
    return Late(pipeline.name, tuple(inputs), {side: one for side, one in asked.items() if one})


def _summed(view: CommittedView, slices: range) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows by side, reason and bin (null for rejected ones); and quantiles by side, by holder, and by both."""
    rows = committed(view.spark, view.ledger, "late").where(_inside(F.unix_micros("_slice"), view, slices))
    behind = F.greatest("behind_ms", F.lit(0))
    number = reduce(Column.__add__, ((behind >= edge).cast("int") for edge in EDGES[1:]))
    late = F.col("reason").isin("late", *STILL_IN)
    placed = rows.select("side", "reason", "held_by", behind.alias("behind"), F.when(late, number).alias("bin"))
    counts = placed.groupBy("side", "reason", "bin").agg(F.count("*").alias("rows"))
    found = placed.where("bin IS NOT NULL").cube("side", "held_by")
    quantiles = found.agg(
        F.count("*").alias("rows"), F.percentile_approx("behind", list(QUANTILES.values())).alias("behind")
    )
    return counts.toPandas(), quantiles.toPandas()


def _inside(start: Column, view: CommittedView, slices: range) -> Column:
    first, end = (view.grid.start_of(number) for number in (slices.start, slices.stop))
    return (start >= first) & (start < end)


def _quantiles(quantiles: pd.DataFrame, side: str | None, held_by: str | None) -> dict[str, int]:
    for row in quantiles.to_dict("records"):
        keys = [None if pd.isna(row[name]) else row[name] for name in ("side", "held_by")]
        if keys == [side, held_by]:
            return dict(zip(QUANTILES, map(int, row["behind"]), strict=True))
    return {}


def delay_to_vary(late: Late) -> SideName | None:
    """The input whose delay decides most: it held the watermark of most late rows; without them the longest delay."""
    delays = {one.side: one.delay_ms for one in late.inputs if one.delay_ms is not None}
    if not delays:
        return None
    held = {side: sum(one.held_by.get(side, 0) for one in late.inputs) for side in delays}
    return max(delays, key=lambda side: (held[side], delays[side]))


def delays_to_try(delay_ms: int, asked_ms: Sequence[int]) -> list[timedelta]:
    """Delays from none to what the latest row asks for: parts of the present one, and beyond it by so much."""
    parts = {delay_ms * n // 4 for n in ((0, 2, 4) if asked_ms else range(5))}
    beyond = {_rounded_up(delay_ms + behind + 1) for behind in asked_ms}
    return [timedelta(milliseconds=value) for value in sorted(parts | beyond)]


def _rounded_up(ms: int) -> int:
    """The span rounded up to whole seconds, from two minutes on to whole minutes."""
    unit = _SECOND if ms < 2 * _MINUTE else _MINUTE
    return -(-ms // unit) * unit
