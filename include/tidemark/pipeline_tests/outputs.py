"""The output rows of test cases, as plain values by column."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR
from typing import Any, cast

from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_micros, parse_instant, to_micros
from tidemark.execution.lane_replay import LANE, add_lane
from tidemark.execution.replay import ReplayResult
from tidemark.joins.late_table import LATE_COLUMNS, select_late_table
from tidemark.joins.output_schema import list_hidden_columns, select_emissions
from tidemark.pipeline_tests.case_settings import SECTIONS, Section
from tidemark.pipeline_tests.chain import split_name
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import to_plain_row

Values = dict[str, Any]
Types = Mapping[str, T.DataType]
_NOT_TESTED = ("would_match", *SIDES)
"""Columns of the table `late` that no expected row can have: the first needs the inputs, the others are flattened."""
LATE_TYPES: Types = {
    "_slice": T.TimestampType(),
    "side": T.StringType(),
    "reason": T.StringType(),
    "arrived_at": T.TimestampType(),
    "event_time": T.TimestampType(),
    "watermark": T.TimestampType(),
    "lateness_ms": T.LongType(),
    "limiting_side": T.StringType(),
    "outcome": T.StringType(),
}
CARRIED_TYPES: Types = {"side": T.StringType(), "arrived_at": T.TimestampType(), "event_time": T.TimestampType()}


@dataclass(frozen=True)
class CarriedRow:
    """A row that outlives its slice."""

    values: Values
    job: range
    """Slices of the job that computed the row; a later job has it again."""
    first: int
    """First slice at whose end the row is in the buffers."""
    end: int | None
    """First slice at whose end it is not any more; None if it stays."""


@dataclass
class LaneOutput:
    """Output rows of a lane. Slices and times are those of the replay's grid."""

    emissions: list[Values] = field(default_factory=list)
    late: list[Values] = field(default_factory=list)
    carried: list[CarriedRow] = field(default_factory=list)

    def list_carried(self, slice_number: int) -> list[Values]:
        """Return the rows in the buffers at the end of a slice."""
        return [
            row.values
            for row in self.carried
            if slice_number in row.job and row.first <= slice_number and (row.end is None or row.end > slice_number)
        ]


@dataclass
class JobOutputs:
    """Output rows of all lanes of consecutive jobs, and the types of their columns by section."""

    lanes: list[LaneOutput]
    types: dict[str, Types]


PADDED = ("padded_left", "padded_right")


@dataclass(frozen=True)
class CaseOutput:
    """Output of a case by section, in plain values."""

    rows: Mapping[Section, list[Values]]
    carried_by_slice: Callable[[int], list[Values]]
    """Function from a slice of the pipeline to the rows in the buffers at its end."""
    types: Mapping[str, Types]
    upstreams: Mapping[str, CaseOutput] = field(default_factory=dict)
    """Outputs of the earlier joins of a chain, by pipeline."""

    def find_join(self, name: str) -> tuple[CaseOutput, Section]:
        """Return the output of a join, and the section of it, by the name of the section in a test file."""
        join, section = split_name(name)
        return self.upstreams[join] if join else self, cast("Section", section)

    def select_rows(self, name: str, names: Collection[str]) -> list[Values]:
        """Return the output rows that a section of a test file is compared with.

        Args:
            name: Name of the section.
            names: Names of all sections of the case.
        """
        output, section = self.find_join(name)
        if section == "padded":
            return [row for row in output.rows["emissions"] if row["_emission"] in PADDED]
        if section == "emissions" and f"{name.removesuffix(section)}padded" in names:
            return [row for row in output.rows["emissions"] if row["_emission"] not in PADDED]
        return output.rows[section]


def collect_outputs(
    results: Iterable[tuple[range, ReplayResult]],
    count: int,
    pipeline: Pipeline,
    grid: Grid,
    sections: Collection[str] = SECTIONS,
) -> JobOutputs:
    """Collect the outputs of jobs by lane.

    Args:
        results: The slices of each job and its result.
        count: Number of lanes.
        pipeline: The pipeline.
        grid: Grid of the replay.
        sections: Kinds of rows to collect. The state of a job is needed for the next one in any case.
    """
    outputs, hidden = JobOutputs([LaneOutput() for _ in range(count)], {}), list_hidden_columns(pipeline)
    for slices, result in results:
        emitted = select_emissions(add_lane(result.joined), pipeline, grid)
        for row in emitted.collect() if "emissions" in sections else ():
            values = to_plain_row(row, emitted.schema)
            if pipeline.join.api == "cogroup":
                values |= {side: _sort_rows(values[side]) for side in SIDES if isinstance(values.get(side), list)}
            outputs.lanes[values.pop(LANE)].emissions.append(values)
        fields = {field.name: field.dataType for field in emitted.schema if field.name != LANE}
        late = select_late_table(result.late.withColumn("would_match", F.lit(None).cast("boolean")), pipeline, grid)
        if result.may_have_late_rows and "late" in sections:
            is_in_python = F.year("event_time").between(MINYEAR, MAXYEAR)  # rejected rows can have any event time
            for row in late.withColumn("event_time", F.when(is_in_python, F.col("event_time"))).collect():
                names = [name for name in LATE_COLUMNS if name not in _NOT_TESTED]
                lane, values = _flatten(row, late.schema, names, hidden)
                outputs.lanes[lane].late.append(values)
        for row in result.carried.collect() if "carried" in sections else ():
            times = {"arrived_at": row["clock"], "event_time": row["event_time"]}
            times["event_time"] = None if row["event_time"] is None else row["event_time"] * pipeline.tick_micros
            lane, sides = _flatten(row, result.carried.schema, ["side"], hidden)
            values = {**sides, **{name: _format_time(time) for name, time in times.items()}}
            outputs.lanes[lane].carried.append(
                CarriedRow(values, slices, max(row["carried_from"], slices[0]), row["evicted_in"])
            )
        sides_types = _flatten_types(late.schema, hidden)
        window_types = {name: late.schema[name].dataType for name in ("window_start", "window_end")}
        outputs.types = {
            "emissions": fields,
            "padded": fields,
            "late": {**LATE_TYPES, **window_types, **sides_types},
            "carried": {**CARRIED_TYPES, **sides_types},
        }
    return outputs


def _sort_rows(rows: list[Any]) -> list[Any]:
    """Sort the rows of a coGroup, which are collected in any order."""
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def _format_time(micros: int | None) -> str | None:
    return None if micros is None else format_micros(micros)


def _flatten(row: SparkRow, schema: T.StructType, names: Sequence[str], hidden: Collection[str]) -> tuple[int, Values]:
    """Return the lane of a row with the structs `left` and `right`, and its columns with the structs' fields.

    Hidden fields are left out.
    """
    plain = to_plain_row(row, T.StructType([schema[name] for name in (*names, *SIDES)]))
    values = {name: plain[name] for name in names}
    lane = None
    for side in SIDES:
        dtype = schema[side].dataType
        assert isinstance(dtype, T.StructType), "an input's row"
        fields = plain[side]
        lane = fields[LANE] if fields is not None else lane
        values |= {f"{side}_{name}": fields and fields[name] for name in dtype.names if name != LANE}
    assert lane is not None, "a row is of one side"
    return lane, {name: value for name, value in values.items() if name not in hidden}


def _flatten_types(schema: T.StructType, hidden: Collection[str]) -> Types:
    types: dict[str, T.DataType] = {}
    for side in SIDES:
        dtype = schema[side].dataType
        assert isinstance(dtype, T.StructType), "an input's row"
        types |= {f"{side}_{field.name}": field.dataType for field in dtype if field.name != LANE}
    return {name: dtype for name, dtype in types.items() if name not in hidden}


def to_slice_number(label: str, grid: Grid) -> int:
    """Return the number of the slice with a start from `to_plain_row`."""
    return grid.number_at(parse_clock(label))


def parse_clock(label: str) -> int:
    """Return the microseconds of a time from `to_plain_row`."""
    return to_micros(parse_instant(label))
