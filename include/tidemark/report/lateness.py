"""Summarize how late rows were, and choose watermark delays to try."""

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
from tidemark.config.types import to_millis
from tidemark.execution.replay import LATE_BUT_BUFFERED_REASONS, LOSS_REASONS
from tidemark.ledger.committed_snapshot import read_committed_rows

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
BIN_EDGES = (
    0,
    *(n * _SECOND for n in (1, 2, 4, 8, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 4, 8, 15, 30)),
    *(n * _HOUR for n in (1, 2, 4, 8, 16)),
    *(n * _DAY for n in (1, 2, 4, 8, 16, 32)),
)
"""Lower edges of a histogram's bins, in ms (inclusive). Each bin is about twice as wide as the one before; the last has
no upper edge."""
QUANTILES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True)
class InputLateness:
    """Late and rejected rows of one input. A row counts once for each window for which it was late."""

    side: SideName
    table: str
    rows_read: int
    delay_ms: int | None
    """Watermark delay of the input; None for an input without a watermark."""
    late_rows: int
    lateness_ms: dict[str, int]
    """Quantiles (`QUANTILES`) of the lateness; empty without late rows."""
    histogram: tuple[int, ...]
    """Number of late rows by bin (`BIN_EDGES`)."""
    rows_by_watermark_input: dict[str, int]
    """Number of late rows by the input whose watermark determined the combined watermark."""
    rejected_rows: dict[str, int]
    """Number of rejected rows by reason."""


@dataclass(frozen=True)
class LatenessSummary:
    """Late rows of a pipeline's slices, by input."""

    pipeline: str
    inputs: tuple[InputLateness, ...]
    missing_delay_ms: dict[SideName, dict[str, int]]
    """Quantiles of the lateness by the input that determined the watermark: how much longer its delay would have to
    be."""


def summarize_lateness(view: CommittedView, slices: range) -> LatenessSummary:
    """Summarize the late rows of slices."""
    counts, quantiles = _aggregate_late_rows(view, slices)
    pipeline, ledger = view.pipeline, view.ledger.rows
    ledger_rows = ledger[ledger["number"].isin(slices)]
    inputs = []
    for side in SIDES:
        side_counts = counts[counts["side"] == side]
        late = side_counts[side_counts["bin"].notna()]
        rejected = side_counts[side_counts["bin"].isna()]
        bins = late.groupby("bin")["rows"].sum()
        by_watermark_input = quantiles[(quantiles["side"] == side) & quantiles["limiting_side"].notna()]
        delay = getattr(pipeline, side).watermark_delay
        inputs.append(
            InputLateness(
                side,
                getattr(pipeline, side).table,
                sum(row["read"] for row in ledger_rows[side]),
                None if delay is None else to_millis(delay),
                int(late["rows"].sum()),
                _select_quantiles(quantiles, side, None),
                tuple(int(bins.get(number, 0)) for number in range(len(BIN_EDGES))),
                {row["limiting_side"]: int(row["rows"]) for row in by_watermark_input.to_dict("records")},
                {row["reason"]: int(row["rows"]) for row in rejected.to_dict("records")},
            )
        )
    missing_delay = {side: _select_quantiles(quantiles, None, side) for side in SIDES}
    return LatenessSummary(
        pipeline.name, tuple(inputs), {side: values for side, values in missing_delay.items() if values}
    )


def _aggregate_late_rows(view: CommittedView, slices: range) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Aggregate the late and rejected rows of the table `late`.

    Returns:
        Rows by side, reason and bin, which is null for rejected rows; and quantiles of the lateness by side, by input
        that determined the watermark, and by both.
    """
    is_in_slices = _is_in_slices(F.unix_micros("_slice"), view, slices)
    is_lost = F.col("reason").isin(*LOSS_REASONS)
    rows = read_committed_rows(view.spark, view.ledger, "late").where(is_in_slices & ~is_lost)
    lateness = F.greatest("lateness_ms", F.lit(0))
    bin_number = reduce(Column.__add__, ((lateness >= edge).cast("int") for edge in BIN_EDGES[1:]))
    is_late = F.col("reason").isin("late", *LATE_BUT_BUFFERED_REASONS)
    binned = rows.select(
        "side", "reason", "limiting_side", lateness.alias("lateness"), F.when(is_late, bin_number).alias("bin")
    )
    counts = binned.groupBy("side", "reason", "bin").agg(F.count("*").alias("rows"))
    grouped = binned.where("bin IS NOT NULL").cube("side", "limiting_side")
    quantiles = grouped.agg(
        F.count("*").alias("rows"), F.percentile_approx("lateness", list(QUANTILES.values())).alias("lateness")
    )
    return counts.toPandas(), quantiles.toPandas()


def _is_in_slices(start: Column, view: CommittedView, slices: range) -> Column:
    first, end = (view.grid.start_of(number) for number in (slices.start, slices.stop))
    return (start >= first) & (start < end)


def _select_quantiles(quantiles: pd.DataFrame, side: str | None, watermark_input: str | None) -> dict[str, int]:
    for row in quantiles.to_dict("records"):
        keys = [None if pd.isna(row[name]) else row[name] for name in ("side", "limiting_side")]
        if keys == [side, watermark_input]:
            return dict(zip(QUANTILES, map(int, row["lateness"]), strict=True))
    return {}


def choose_varied_input(lateness: LatenessSummary) -> SideName | None:
    """Choose the input whose delay to vary: it determined the watermark of most late rows.

    Without late rows, or between equals, the input with the longer delay is chosen; None without watermark delays.
    """
    delays = {source.side: source.delay_ms for source in lateness.inputs if source.delay_ms is not None}
    if not delays:
        return None
    rows = {side: sum(source.rows_by_watermark_input.get(side, 0) for source in lateness.inputs) for side in delays}
    return max(delays, key=lambda side: (rows[side], delays[side]))


def choose_trial_delays(delay_ms: int, missing_delay_ms: Sequence[int]) -> list[timedelta]:
    """Choose delays to try, ascending: fractions of the current delay from 0, and the current plus each missing delay.

    Args:
        delay_ms: Current watermark delay.
        missing_delay_ms: Quantiles of the lateness; empty without late rows.
    """
    fractions = {delay_ms * n // 4 for n in ((0, 2, 4) if missing_delay_ms else range(5))}
    longer = {_round_up(delay_ms + lateness_ms + 1) for lateness_ms in missing_delay_ms}
    return [timedelta(milliseconds=value) for value in sorted(fractions | longer)]


def _round_up(ms: int) -> int:
    """Round a time span up to seconds, from two minutes on to minutes."""
    unit = _SECOND if ms < 2 * _MINUTE else _MINUTE
    return -(-ms // unit) * unit
