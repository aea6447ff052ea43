"""What another setting would have given: a range of slices replayed under many values at once.

Each value is a lane of one job. It is the very replay that `run` does, so that each lane's answer is what a run under
that value would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.comparison.in_memory_replay import side_by_side, tuned_for, with_lane
from tidemark.config import Pipeline, changed
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration
from tidemark.errors import UserError
from tidemark.execution.replay import Replay
from tidemark.joins.output_schema import emissions
from tidemark.sources.stored_input import StoredInput, stored_inputs
from tidemark.timegrid.slices import Grid

SETTINGS = (
    "left.watermark_delay",
    "right.watermark_delay",
    "join.allowed_lateness",
    "join.interval.lower",
    "join.interval.upper",
)
"""What can be varied."""
NO_ROW_LATE = timedelta(days=36_500)
"""A watermark delay with which no row is late."""
_LATE = ("late", "late_for_window", "behind_watermark")


@dataclass(frozen=True)
class Outcome:
    """What a range of slices gives under one value of the setting, its input ending with the range."""

    value: str | None
    """The value of the setting; None for the answer in which no row is late."""
    matched: int
    """Pairs; of semi joins the left rows that have a partner, of coGroups the groups."""
    padded: int
    """Rows without a partner, of anti joins too."""
    late: dict[str, int]
    """Late rows by side; those that are late for some of their windows count too."""
    state_rows: float
    """Rows in the buffers at the end of a slice, on average over the slices."""
    state_peak: int
    """Rows in the buffers at the end of a slice, at most."""
    state_bytes: float
    """`state_rows` by the average size of a row in the inputs' files."""
    output_delay_ms: float | None
    """How long it is from the later event time of an emission to the end of the slice that emits it, on average."""


@dataclass(frozen=True)
class WhatIf:
    """Outcomes by the value of a setting, and the one that no lateness touches."""

    pipeline: str
    setting: str
    start: str
    end: str
    outcomes: tuple[Outcome, ...]
    complete: Outcome | None
    """Where the setting decides what is late."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return {**asdict(self), "recommendation": self.recommendation()}

    def kept(self, outcome: Outcome) -> float:
        """The share of the complete answer's pairs that an outcome has."""
        assert self.complete, "the setting decides what is late"
        return outcome.matched / self.complete.matched if self.complete.matched else 1.0

    def recommendation(self, enough: float = 0.99) -> str | None:
        """Which value is enough, and what more would cost, in words."""
        if self.complete is None:
            return None
        good = [one for one in self.outcomes if self.kept(one) >= enough]
        if not good:
            best = max(self.outcomes, key=self.kept)
            return f"no value up to {self.outcomes[-1].value} keeps {enough:.0%} of pairs; {self._told(best)}"
        chosen, most = good[0], max(good, key=self.kept)
        if most.matched == chosen.matched:
            return f"{self._told(chosen)}; more than that costs state and keeps no more"
        times = most.state_rows / max(chosen.state_rows, 1)
        more = f"the next {self.kept(most) - self.kept(chosen):.1%} (at {most.value}) cost {times:.1f}x the state"
        return f"{self._told(chosen)}; {more}"

    def _told(self, outcome: Outcome) -> str:
        return f"{outcome.value} keeps {self.kept(outcome):.1%} of pairs"


def what_if(
    spark: SparkSession, pipeline: Pipeline, lake: str, setting: str, values: Sequence[timedelta], slices: range
) -> WhatIf:
    """Replay slices from empty state under each value of a setting, as one job.

    Raises:
        UserError: the setting cannot be varied, or a value is not one for it.
        InputError: an input does not serve.
    """
    if setting not in SETTINGS:
        raise UserError(f"--vary {setting}: what can be varied is {', '.join(SETTINGS)}")
    if pipeline.trace:
        raise UserError("--vary: the watermarks of a trace are recorded; name arrival columns to ask what others give")
    decides_lateness = not setting.startswith("join.interval")
    if decides_lateness and (recorded := pipeline.recorded):
        raise UserError(
            f"--vary {setting}: the watermark of {recorded[0]} is recorded; put {recorded[0]}.watermark_delay in place "
            f"of {recorded[0]}.watermark to ask what others give"
        )
    if decides_lateness and pipeline.join.time == "processing":
        raise UserError(f"--vary {setting}: no row is late on processing time; vary the bounds of an interval")
    grid, inputs = Grid.of(pipeline.slices), stored_inputs(spark, pipeline, lake)
    pipelines = [_changed(pipeline, {setting: value}) for value in values]
    if decides_lateness:
        delays = [f"{side}.watermark_delay" for side in SIDES if getattr(pipeline, side).watermark_delay is not None]
        pipelines.append(_changed(pipeline, dict.fromkeys(delays, NO_ROW_LATE)))
    with tuned_for(spark, inputs, len(pipelines)):
        answer = side_by_side(pipelines, inputs, slices, drain=True)
        outcomes = _outcomes(answer, pipelines, inputs, grid, slices)
    named = [replace(one, value=format_duration(value)) for one, value in zip(outcomes, values, strict=False)]
    complete = outcomes[-1] if decides_lateness else None
    return WhatIf(pipeline.name, setting, grid.name(slices[0]), grid.name(slices[-1] + 1), tuple(named), complete)


def span(spark: SparkSession, pipeline: Pipeline, lake: str, start: datetime | None, end: datetime | None) -> range:
    """The slices from a start (inclusive) to an end (exclusive); by default all that hold rows.

    Raises:
        UserError: off the grid, or there are none.
        InputError: an input does not serve.
    """
    grid = Grid.of(pipeline.slices)
    first = grid.boundary(start, "--from") if start else 0
    if end:
        last = grid.boundary(end, "--to") - 1
    else:
        extents = (source.extent(grid, count_before=False) for source in stored_inputs(spark, pipeline, lake))
        last = max((one.newest for one in extents if one.newest is not None), default=-1)
    if last < first:
        raise UserError(f"there is no slice from {grid.name(first)} to {grid.name(last + 1)}, which is exclusive")
    return range(first, last + 1)


def _changed(pipeline: Pipeline, changes: dict[str, timedelta]) -> Pipeline:
    whole = pipeline.model_copy(update={"select": None, "flatten": None})
    return changed(whole, {name: format_duration(value) for name, value in changes.items()})


def _outcomes(
    answer: Replay,
    pipelines: Sequence[Pipeline],
    inputs: tuple[StoredInput, StoredInput],
    grid: Grid,
    slices: range,
) -> list[Outcome]:
    emitted = _emitted(answer, pipelines[0], inputs, grid)
    lates = with_lane(answer.late).where(F.col("reason").isin(*_LATE)).groupBy("lane", "side").count().toPandas()
    late = lates.set_index(["lane", "side"])["count"].to_dict()
    carried = answer.carried.groupBy("lane", "side", "carried_from", "evicted_in").count().toPandas()
    sizes = pd.Series([source.table.bytes_per_row for source in inputs], index=[source.side.name for source in inputs])
    found = []
    for lane in range(len(pipelines)):
        mine = emitted[emitted["lane"] == lane]
        matched = mine["emission"].isin(["matched", "semi", "grouped"])
        total, waited = mine["rows"].sum(), mine["waited"].sum()
        kept = carried[carried["lane"] == lane]
        held = pd.DataFrame({side: _held(kept[kept["side"] == side], slices) for side in SIDES})
        found.append(
            Outcome(
                value=None,
                matched=int(mine.loc[matched, "rows"].sum()),
                padded=int(mine.loc[~matched, "rows"].sum()),
                late={side: int(late.get((lane, side), 0)) for side in SIDES},
                state_rows=float(held.sum(axis="columns").mean()),
                state_peak=int(held.sum(axis="columns").max()),
                state_bytes=float((held * sizes).sum(axis="columns").mean()),
                output_delay_ms=float(waited / total / 1000) if total and not pd.isna(waited) else None,
            )
        )
    return found


def _emitted(answer: Replay, pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput], grid: Grid) -> pd.DataFrame:
    """Emissions counted by lane and kind, and how long their event times waited for them, in all, in microseconds."""
    output = emissions(with_lane(answer.joined), pipeline, grid)
    names = [(source.side, f"{source.side.name}_{source.side.event.name}") for source in inputs]
    times = [replace(side.event, name=name).micros for side, name in names if name in output.columns]
    end = grid.end_column(F.unix_micros("_slice"))
    latest = F.greatest(*times) if len(times) > 1 else (times or [F.lit(None).cast("long")])[0]
    counted = output.groupBy(F.col("_lane").alias("lane"), F.col("_emission").alias("emission"))
    return counted.agg(F.count("*").alias("rows"), F.sum(end - latest).alias("waited")).toPandas()


def _held(carried: pd.DataFrame, slices: range) -> pd.Series[float]:
    """Rows in the buffers at the end of each slice but the last, where the input ends."""
    index = pd.RangeIndex(slices[0], slices[-1] + 1)
    came = carried.groupby("carried_from")["count"].sum().reindex(index, fill_value=0)
    gone = carried.groupby("evicted_in")["count"].sum().reindex(index, fill_value=0)
    held = (came - gone).cumsum().astype(float)
    return held.iloc[:-1] if len(held) > 1 else held
