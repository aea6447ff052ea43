"""Replay slices under many values of one setting, to choose it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.comparison.in_memory_replay import replay_variants, tune_for_replays
from tidemark.config import Pipeline, with_overrides
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration
from tidemark.errors import UserError
from tidemark.execution.lane_replay import add_lane
from tidemark.execution.replay import ReplayResult
from tidemark.joins.output_schema import select_emissions
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import StoredInput
from tidemark.timegrid.slices import Grid

VARIABLE_SETTINGS = (
    "left.watermark_delay",
    "right.watermark_delay",
    "join.allowed_lateness",
    "join.interval.lower",
    "join.interval.upper",
)
UNLIMITED_DELAY = timedelta(days=36_500)
"""A watermark delay with which no row is late."""
_LATE = ("late", "late_for_window", "late_but_processed")


@dataclass(frozen=True)
class Outcome:
    """Output and cost of a range of slices under one value; the inputs end after the range."""

    value: str | None
    """Value of the setting; None for the outcome without late rows."""
    matched: int
    """Number of pairs; of semi joins left rows with a partner, of coGroups groups."""
    padded: int
    """Number of rows without a partner, of anti joins too."""
    late: dict[str, int]
    """Number of late rows by side, including rows late for some of their windows only."""
    state_rows: float
    """Mean number of buffered rows at the end of a slice."""
    state_peak: int
    """Largest number of buffered rows at the end of a slice."""
    state_bytes: float
    """Mean size of the buffers, by the average row size in the inputs' files."""
    output_delay_ms: float | None
    """Mean time from an emission's later event time to the end of its slice."""


@dataclass(frozen=True)
class WhatIf:
    """Outcomes by the value of a setting."""

    pipeline: str
    setting: str
    start: str
    end: str
    outcomes: tuple[Outcome, ...]
    without_lateness: Outcome | None
    """The outcome in which no row is late; None if the setting does not decide lateness."""
    current: str | None = None
    """Value of the setting in the pipeline file; None if it is not set."""
    notes: tuple[str, ...] = ()
    """Differences between the counted rows and the emissions of a run."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the recommendation as a JSON-ready dictionary."""
        return {**asdict(self), "recommendation": self.recommend()}

    def matched_share(self, outcome: Outcome) -> float:
        """Return the pairs of an outcome as a share of those without late rows."""
        assert self.without_lateness, "the setting decides lateness"
        return outcome.matched / self.without_lateness.matched if self.without_lateness.matched else 1.0

    def recommend(self, target: float = 0.99) -> str | None:
        """Recommend the first value that keeps a share of pairs, with the cost of more; None without late rows."""
        if self.without_lateness is None:
            return None
        sufficient = [outcome for outcome in self.outcomes if self.matched_share(outcome) >= target]
        if not sufficient:
            best = max(self.outcomes, key=self.matched_share)
            return f"no value up to {self.outcomes[-1].value} keeps {target:.0%} of pairs; {self._format(best)}"
        chosen = sufficient[0]
        best = max(sufficient, key=self.matched_share)
        if chosen is self.outcomes[-1] and chosen.matched < self.without_lateness.matched:
            return f"{self._format(chosen)}; no higher value was tried"
        if best.matched == chosen.matched:
            return f"{self._format(chosen)}; higher values cost state and keep no more"
        factor = best.state_rows / max(chosen.state_rows, 1)
        gain = self.matched_share(best) - self.matched_share(chosen)
        return f"{self._format(chosen)}; the next {gain:.1%} (at {best.value}) cost {factor:.1f}x the state"

    def _format(self, outcome: Outcome) -> str:
        return f"{outcome.value} keeps {self.matched_share(outcome):.1%} of pairs"


def vary_setting(
    spark: SparkSession, pipeline: Pipeline, lake: str, setting: str, values: Sequence[timedelta], slices: range
) -> WhatIf:
    """Replay slices from empty state under each value of a setting.

    Each value is a lane of one job, which uses the replay of `run`; so its outcome is that of a run under the value.

    Raises:
        UserError: The setting cannot be varied, or a value is invalid.
        InputError: An input is missing or unusable.
    """
    if setting not in VARIABLE_SETTINGS:
        raise UserError(
            f"--vary {setting}: this setting cannot be varied. Choose one of {', '.join(VARIABLE_SETTINGS)}."
        )
    if pipeline.checkpoint_arrival:
        raise UserError(
            "--vary: the watermarks are recorded in a streaming checkpoint. Name arrival columns to compute others."
        )
    decides_lateness = not setting.startswith("join.interval")
    if decides_lateness and (recorded := pipeline.recorded_watermark_sides):
        raise UserError(
            f"--vary {setting}: the watermark of {recorded[0]} is recorded. Replace {recorded[0]}.recorded_watermark "
            f"by {recorded[0]}.watermark_delay to compute others."
        )
    if decides_lateness and pipeline.join.time == "processing":
        raise UserError(f"--vary {setting}: no row is late on processing time. Vary the bounds of an interval.")
    grid, inputs = Grid.from_config(pipeline.slices), open_inputs(spark, pipeline, lake)
    pipelines = [_with_durations(pipeline, {setting: value}) for value in values]
    if decides_lateness:
        delays = [f"{side}.watermark_delay" for side in SIDES if getattr(pipeline, side).watermark_delay is not None]
        pipelines.append(_with_durations(pipeline, dict.fromkeys(delays, UNLIMITED_DELAY)))
    with tune_for_replays(spark, inputs, len(pipelines)):
        result = replay_variants(pipelines, inputs, slices, drain=True)
        outcomes = _compute_outcomes(result, pipelines, inputs, grid, slices)
    named = [replace(outcome, value=format_duration(value)) for outcome, value in zip(outcomes, values, strict=False)]
    without_lateness = outcomes[-1] if decides_lateness else None
    start, end = grid.label(slices[0]), grid.label(slices[-1] + 1)
    current, notes = get_current_value(pipeline, setting), tuple(_list_notes(pipeline))
    return WhatIf(
        pipeline.name,
        setting,
        start,
        end,
        tuple(named),
        without_lateness,
        None if current is None else format_duration(current),
        notes,
    )


def get_current_value(pipeline: Pipeline, setting: str) -> timedelta | None:
    """Return the value of a setting in the pipeline file; None if it is not set or no duration.

    Args:
        pipeline: The pipeline.
        setting: Dotted name, such as `left.watermark_delay`.
    """
    value: Any = pipeline
    for name in setting.split("."):
        value = getattr(value, name, None)
    return value if isinstance(value, timedelta) else None


def _list_notes(pipeline: Pipeline) -> Iterator[str]:
    if any(expectation.on_failure == "quarantine" for expectation in pipeline.quality):
        yield "rows are counted before quarantine, because expectations are not evaluated"
    if pipeline.explode is not None:
        yield "rows are counted before explode"


def select_slices(
    spark: SparkSession, pipeline: Pipeline, lake: str, start: datetime | None, end: datetime | None
) -> range:
    """Return the slices from a start (inclusive) to an end (exclusive); by default all that contain rows.

    Raises:
        UserError: Off the grid, or empty.
        InputError: An input is missing or unusable.
    """
    grid = Grid.from_config(pipeline.slices)
    first = grid.parse_boundary(start, "--from") if start else 0
    if end:
        last = grid.parse_boundary(end, "--to") - 1
    else:
        extents = (source.measure_extent(grid, count_before=False) for source in open_inputs(spark, pipeline, lake))
        last = max((extent.newest_slice for extent in extents if extent.newest_slice is not None), default=-1)
    if last < first:
        raise UserError(
            f"no slice from {grid.label(first)} to {grid.label(last + 1)} (exclusive). "
            "Choose an earlier --from or a later --to."
        )
    return range(first, last + 1)


def _with_durations(pipeline: Pipeline, changes: dict[str, timedelta]) -> Pipeline:
    """Return the pipeline with all output columns and other durations."""
    unshaped = pipeline.model_copy(update={"select": None, "explode": None})
    return with_overrides(unshaped, {name: format_duration(value) for name, value in changes.items()})


def _compute_outcomes(
    result: ReplayResult,
    pipelines: Sequence[Pipeline],
    inputs: tuple[StoredInput, StoredInput],
    grid: Grid,
    slices: range,
) -> list[Outcome]:
    emitted = _count_emissions(result, pipelines[0], inputs, grid)
    late_rows = add_lane(result.late).where(F.col("reason").isin(*_LATE)).groupBy("lane", "side").count().toPandas()
    late = late_rows.set_index(["lane", "side"])["count"].to_dict()
    carried = result.carried.groupBy("lane", "side", "carried_from", "evicted_in").count().toPandas()
    sizes = pd.Series([source.table.bytes_per_row for source in inputs], index=[source.side.name for source in inputs])
    outcomes = []
    for lane in range(len(pipelines)):
        in_lane = emitted[emitted["lane"] == lane]
        is_matched = in_lane["emission"].isin(["matched", "semi", "grouped"])
        total, delay = in_lane["rows"].sum(), in_lane["delay"].sum()
        in_state = carried[carried["lane"] == lane]
        buffered = pd.DataFrame({side: _count_buffered(in_state[in_state["side"] == side], slices) for side in SIDES})
        outcomes.append(
            Outcome(
                value=None,
                matched=int(in_lane.loc[is_matched, "rows"].sum()),
                padded=int(in_lane.loc[~is_matched, "rows"].sum()),
                late={side: int(late.get((lane, side), 0)) for side in SIDES},
                state_rows=float(buffered.sum(axis="columns").mean()),
                state_peak=int(buffered.sum(axis="columns").max()),
                state_bytes=float((buffered * sizes).sum(axis="columns").mean()),
                output_delay_ms=float(delay / total / 1000) if total and not pd.isna(delay) else None,
            )
        )
    return outcomes


def _count_emissions(
    result: ReplayResult, pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput], grid: Grid
) -> pd.DataFrame:
    """Count emissions (`rows`) by lane and kind, and sum the `delay` from their event times, in microseconds."""
    output = select_emissions(add_lane(result.joined), pipeline, grid)
    names = [(source.side, f"{source.side.name}_{source.side.event_time.name}") for source in inputs]
    times = [replace(side.event_time, name=name).micros for side, name in names if name in output.columns]
    end = grid.end_column(F.unix_micros("_slice"))
    latest = F.greatest(*times) if len(times) > 1 else (times or [F.lit(None).cast("long")])[0]
    grouped = output.groupBy(F.col("_lane").alias("lane"), F.col("_emission").alias("emission"))
    return grouped.agg(F.count("*").alias("rows"), F.sum(end - latest).alias("delay")).toPandas()


def _count_buffered(carried: pd.DataFrame, slices: range) -> pd.Series[float]:
    """Count the buffered rows at the end of each slice but the last, at which the input ends."""
    index = pd.RangeIndex(slices[0], slices[-1] + 1)
    added = carried.groupby("carried_from")["count"].sum().reindex(index, fill_value=0)
    evicted = carried.groupby("evicted_in")["count"].sum().reindex(index, fill_value=0)
    buffered = (added - evicted).cumsum().astype(float)
    return buffered.iloc[:-1] if len(buffered) > 1 else buffered
