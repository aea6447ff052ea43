"""Move rows between the clock of the pipelines and the synthetic clock of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.config.output_stream import EMITTED_AT
from tidemark.execution.lane_replay import LANE, add_lane
from tidemark.execution.output_stream import create_output_streams
from tidemark.execution.replay import ReplayResult
from tidemark.formatting import quote_identifier
from tidemark.pipeline_tests.cuts import LaneCut
from tidemark.pipeline_tests.lane_inputs import LaneInputs, with_lane
from tidemark.timegrid.slices import SYNTHETIC_GRID
from tidemark.watermarks.lanes import Lane


def cut_rows(rows: pa.Table, cuts: Sequence[LaneCut]) -> pa.Table:
    """Replace the slices and clocks of rows by those of their lane's cut.

    Args:
        rows: Rows of `LaneInputs.normalize`.
        cuts: Cut of each lane.
    """
    lanes, clocks = (rows[name].to_numpy() for name in ("lane", "clock"))
    new_clocks = _to_array([cuts[lane].from_own_clock(int(clock)) for lane, clock in zip(lanes, clocks, strict=True)])
    slices = new_clocks // SYNTHETIC_GRID.every
    for name, values in {"slice": slices, "owning_slice": slices, "clock": new_clocks}.items():
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values))
    return rows


def collect_stream(
    result: ReplayResult, inputs: LaneInputs, lanes: Sequence[Lane], cuts: Sequence[LaneCut]
) -> pa.Table:
    """Collect the output stream of a job, with the slices and clocks of the pipeline.

    So the next join reads it, and emits its columns, as if the pipelines had run. The orders of rows that one event
    emits keep synthetic clocks, which order rows in the same way.

    Args:
        result: Result of the job.
        inputs: Inputs of the join.
        lanes: The lanes.
        cuts: Cut of each lane.
    """
    rows = create_output_streams(result, add_lane(result.joined), inputs.pipeline, inputs.sides, lanes, SYNTHETIC_GRID)
    stream = rows.select(*(quote_identifier(name) for name in with_lane(inputs.output_stream).names)).toArrow()
    numbers = stream[LANE].to_numpy()
    clocks = stream[EMITTED_AT].cast(pa.int64()).to_numpy()
    pairs = [(cuts[lane], int(clock)) for lane, clock in zip(numbers, clocks, strict=True)]
    columns: dict[str, Sequence[Any]] = {
        EMITTED_AT: [cut.to_own_clock(clock, inputs.grid) for cut, clock in pairs],
        "_slice": [inputs.grid.start_of(cut.to_own_slice(clock)) for cut, clock in pairs],
    }
    for name, values in columns.items():
        number = stream.column_names.index(name)
        dtype = stream.schema.field(name).type
        stream = stream.set_column(number, name, pa.array(values).cast(dtype))
    # A column without nulls is null in the rows of the other input.
    return stream.cast(pa.schema([field.with_nullable(True) for field in stream.schema]))


def _to_array(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
