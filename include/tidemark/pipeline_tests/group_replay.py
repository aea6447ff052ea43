"""Replay a group of cases under all cuts, as lanes of the same jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.sides import SideName
from tidemark.config.types import format_micros
from tidemark.execution.lane_replay import LANE, replay_jobs
from tidemark.execution.replay import ReplayResult
from tidemark.joins.factory import create_lane
from tidemark.pipeline_tests.arrivals import CaseRows
from tidemark.pipeline_tests.case_file import Case
from tidemark.pipeline_tests.case_settings import SECTIONS, Section
from tidemark.pipeline_tests.chain import TESTED, Chain, format_name
from tidemark.pipeline_tests.columns import Schemas
from tidemark.pipeline_tests.cuts import (
    OWN_SLICES,
    TWO_JOBS,
    LaneCut,
    cut_lanes,
    depends_on_clock,
)
from tidemark.pipeline_tests.differences import SectionDifference, compare_cuts
from tidemark.pipeline_tests.lane_inputs import LaneInputs, read_arrow, unite
from tidemark.pipeline_tests.lane_streams import collect_stream, cut_rows
from tidemark.pipeline_tests.outputs import (
    CaseOutput,
    JobOutputs,
    LaneOutput,
    Values,
    collect_outputs,
    parse_clock,
    to_slice_number,
)
from tidemark.timegrid.slices import SYNTHETIC_GRID, Grid
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.lanes import Lane
from tidemark.watermarks.values import Watermarks

_BUCKET_WIDTH = 3
"""Rows of a bucket at most, more than one so that rows are ordered inside buckets too."""


@dataclass(frozen=True)
class CaseGroup:
    """Cases that share jobs: their inputs have the same schemas."""

    schemas: Schemas
    cases: list[tuple[Case, CaseRows]]


@dataclass(frozen=True)
class GroupReplay:
    """The replay of a group of cases under all cuts. The joins of a chain run one after the other."""

    spark: SparkSession
    chain: Chain
    grid: Grid
    group: CaseGroup
    cuts: tuple[str, ...]
    """Names of the cuts, the own slices among them."""
    collects_emissions_only: bool = False
    """True to collect the emissions of the tested pipeline, and no other output."""

    @property
    def pipeline(self) -> Pipeline:
        """The tested pipeline. The joins of a chain have the same slices, and the same cuts."""
        return self.chain.pipeline

    @cached_property
    def inputs(self) -> dict[str, LaneInputs]:
        """The inputs of each join.

        Raises:
            UserError: A pipeline does not fit its inputs.
        """
        inputs: dict[str, LaneInputs] = {}
        for name, pipeline in self.chain.joins.items():
            schemas: dict[SideName, T.StructType] = {
                source.side: self.group.schemas[source.name] for source in self.chain.inputs if source.join == name
            }
            schemas |= {side: inputs[other.pipeline].output_stream for side, other in pipeline.upstreams.items()}
            inputs[name] = LaneInputs.create(self.spark, pipeline, self.grid, schemas)
        return inputs

    @cached_property
    def given(self) -> dict[str, pa.Table]:
        """Given rows of all lanes, by join, as its pipeline reads them, with their own slices and clocks."""
        given = {}
        for name, inputs in self.inputs.items():
            sources = [source for source in self.chain.inputs if source.join == name]
            if sources:
                tables = {source.side: self._create_table(inputs, source.side, source.name) for source in sources}
                given[name] = inputs.normalize(tables)
        return given

    def _create_table(self, inputs: LaneInputs, side: SideName, input_name: str) -> DataFrame:
        """Create an input table with the rows of all lanes."""
        rows = [
            {**row.values, LANE: number * len(self.cuts) + cut}
            for number, (_, case_rows) in enumerate(self.group.cases)
            for cut in range(len(self.cuts))
            for row in case_rows.rows
            if row.input_name == input_name
        ]
        return inputs.create_table(side, rows)

    @cached_property
    def own_cuts(self) -> list[LaneCut]:
        """Arrivals and own slices of each case, of the rows of all joins."""
        tables = [table.select(["lane", "slice", "clock"]) for table in self.given.values()]
        columns = pa.concat_tables(tables).to_pandas()
        by_lane = dict(iter(columns.groupby("lane")))
        cuts = []
        for number in range(len(self.group.cases)):
            rows = by_lane.get(number * len(self.cuts), columns.iloc[:0])
            distinct = rows[["clock", "slice"]].drop_duplicates().sort_values("clock")
            clocks, slices = (tuple(map(int, distinct[name])) for name in ("clock", "slice"))
            cuts.append(LaneCut(clocks, slices, slices))
        return cuts

    @cached_property
    def lane_cuts(self) -> list[LaneCut]:
        """Cut of each lane, in the slices of the replay."""
        return self._plan[0]

    @cached_property
    def _plan(self) -> tuple[list[LaneCut], list[range]]:
        own = self.own_cuts
        if self.is_on_own_clock:
            return [cut for cut in own for _ in self.cuts], []
        names = [case.name for case, _ in self.group.cases]
        return cut_lanes([(cut.clocks, cut.slices) for cut in own], names, self.cuts, self.pipeline.name)

    @property
    def is_on_own_clock(self) -> bool:
        """True if the rows keep their own slices and clocks. A chain has no such join."""
        return depends_on_clock(self.pipeline)

    @property
    def replay_grid(self) -> Grid:
        """Grid of the replay."""
        return self.grid if self.is_on_own_clock else SYNTHETIC_GRID

    @cached_property
    def outputs(self) -> dict[str, JobOutputs]:
        """Outputs of all lanes, by join."""
        if self.is_on_own_clock:
            return {TESTED: self._replay_on_own_clock()}
        outputs = {}
        streams = dict[str, pa.Table]()
        for name in self.chain.joins:
            jobs = self._plan[1]
            tables = list[pa.Table]()
            results = self._replay(name, jobs, streams)
            if name != TESTED:
                results = self._collect_stream(name, results, tables)
            pipeline = self.chain.joins[name]
            sections = self._list_sections(name)
            outputs[name] = collect_outputs(results, len(self.lane_cuts), pipeline, SYNTHETIC_GRID, sections)
            if tables:
                streams[name] = pa.concat_tables(tables)
        return outputs

    def _list_sections(self, name: str) -> tuple[str, ...]:
        if not self.collects_emissions_only:
            return SECTIONS
        return ("emissions",) if name == TESTED else ()

    def _replay_on_own_clock(self) -> JobOutputs:
        extents = [self._last_of(number) for number in range(len(self.group.cases))]
        first = min((cut.slices[0] for cut in self.own_cuts if cut.slices), default=0)
        slices = range(first, max([first, *extents]) + 1)

        def run(jobs: Sequence[range]) -> JobOutputs:
            return collect_outputs(self._replay(TESTED, jobs, {}), len(self.lane_cuts), self.pipeline, self.grid)

        single = run([slices])
        if len(slices) == 1:
            return single
        middle = len(slices) // 2
        twice = run([slices[:middle], slices[middle:]])
        is_twice = [cut == TWO_JOBS for _ in self.group.cases for cut in self.cuts]
        lanes = [
            second if twofold else one_job
            for one_job, second, twofold in zip(single.lanes, twice.lanes, is_twice, strict=True)
        ]
        return JobOutputs(lanes, single.types)

    def _last_of(self, number: int) -> int:
        """Return the last slice of a case in the slices of its own."""
        _, rows = self.group.cases[number]
        slices = self.own_cuts[number].slices
        named = [] if rows.last_start is None else [self.grid.number_at(rows.last_start)]
        return max([*slices[-1:], *named], default=0)

    def _last_of_lane(self, lane: int) -> int:
        return self._last_of(lane // len(self.cuts)) if self.is_on_own_clock else self.lane_cuts[lane].last

    def _replay(
        self, name: str, jobs: Sequence[range], streams: dict[str, pa.Table]
    ) -> Iterator[tuple[range, ReplayResult]]:
        """Replay a join; yields the slices and the result of each job."""
        inputs = self.inputs[name]
        join, rows = inputs.create_join(), self._read_rows(name, streams)
        buckets = [self._create_buckets(slices, join.buckets_per_slice) for slices in jobs]
        yield from zip(jobs, replay_jobs(rows, self._create_lanes(name, jobs), join, buckets), strict=True)

    def _read_rows(self, name: str, streams: dict[str, pa.Table]) -> DataFrame:
        """Return the rows that a join reads, of all lanes, with the slices and clocks of their cuts."""
        inputs = self.inputs[name]
        parts = [self.given[name]] if name in self.given else []
        tables = {
            side: read_arrow(self.spark, streams[upstream.pipeline])
            for side, upstream in inputs.pipeline.upstreams.items()
        }
        if tables:
            parts.append(inputs.normalize(tables))
        if not self.is_on_own_clock:
            parts = [cut_rows(part, self.lane_cuts) for part in parts]
        return unite([read_arrow(self.spark, part) for part in parts])

    def _collect_stream(
        self, name: str, results: Iterator[tuple[range, ReplayResult]], tables: list[pa.Table]
    ) -> Iterator[tuple[range, ReplayResult]]:
        """Append the output stream of each job to tables, with own slices and clocks, and pass on the results."""
        lanes = self._create_lanes(name, self._plan[1])
        for slices, result in results:
            tables.append(collect_stream(result, self.inputs[name], lanes, self.lane_cuts))
            yield slices, result

    def _create_lanes(self, name: str, jobs: Sequence[range]) -> list[Lane]:
        return [self._create_lane(self.chain.joins[name], lane, jobs) for lane in range(len(self.lane_cuts))]

    def _create_lane(self, pipeline: Pipeline, lane: int, jobs: Sequence[range]) -> Lane:
        case = self.group.cases[lane // len(self.cuts)][0]
        last = self._last_of_lane(lane)
        created = create_lane(pipeline, Watermarks(), last if case.settings.drain else None)
        if not self.is_on_own_clock:
            return created
        # The clock of a case stands still after its last slice, while others go on.
        end = (self.grid.start_of(last + 1) - 1) // 1000
        return replace(
            created, end_processing_times_ms={number: end for job in jobs for number in job if number > last}
        )

    def _create_buckets(self, slices: range, per_slice: int | None) -> Buckets:
        if self.is_on_own_clock:
            return Buckets.create(self.grid, slices, per_slice)
        is_micro_batch = self.pipeline.dialect == "spark"
        return Buckets(SYNTHETIC_GRID, slices, SYNTHETIC_GRID.every if is_micro_batch else _BUCKET_WIDTH)

    def find_output(self, number: int) -> CaseOutput:
        """Return the output of a case under the pipeline's own slices."""
        upstreams = {name: self._find_join_output(name, number) for name in self.chain.upstream_names}
        return replace(self._find_join_output(TESTED, number), upstreams=upstreams)

    def _find_join_output(self, name: str, number: int) -> CaseOutput:
        lane = number * len(self.cuts) + self.cuts.index(OWN_SLICES)
        cut = self.lane_cuts[lane]
        last = self._last_of_lane(lane)
        output = self.outputs[name].lanes[lane]

        def list_carried(own_slice: int) -> list[Values]:
            number_in_replay = own_slice if self.is_on_own_clock else cut.find_slice(own_slice)
            return self._restore(output.list_carried(min(number_in_replay, last)), lane)

        return CaseOutput(self._list_rows(output, lane), list_carried, self.outputs[name].types)

    def _list_rows(self, output: LaneOutput, lane: int) -> dict[Section, list[Values]]:
        """Return the output rows of a lane by section, with own slices and arrivals."""
        carried = output.list_carried(self._last_of_lane(lane))
        rows: dict[Section, list[Values]] = {"emissions": output.emissions, "late": output.late, "carried": carried}
        return {section: self._restore(values, lane) for section, values in rows.items()}

    def _restore(self, rows: Sequence[Values], lane: int) -> list[Values]:
        """Replace slices and arrivals of the replay by the pipeline's own, and drop rows of later slices."""
        cut = self.lane_cuts[lane]
        last = self._last_of_lane(lane)
        grid = self.replay_grid
        restored = []
        for row in rows:
            changes: Values = {}
            if "_slice" in row:
                number = to_slice_number(row["_slice"], grid)
                if number > last:
                    continue
                if not self.is_on_own_clock:
                    changes["_slice"] = self.grid.label(cut.own_slice_of(number))
            if not self.is_on_own_clock and row.get("arrived_at") is not None:
                clock = cut.to_own_clock(parse_clock(row["arrived_at"]), self.grid)
                changes["arrived_at"] = format_micros(clock)
            restored.append({**row, **changes})
        return restored

    def compare_cuts(self, number: int, case: Case) -> Iterator[SectionDifference]:
        """Yield the sections of a case that differ between cuts."""
        first = number * len(self.cuts)
        for join, outputs in self.outputs.items():
            own = self._find_join_output(join, number)
            for lane, cut in enumerate(self.cuts[1:], first + 1):
                for section, rows in self._list_rows(outputs.lanes[lane], lane).items():
                    name = format_name(join, section)
                    columns = dict.fromkeys(column for row in case.expected.get(name, ()) for column in row.values)
                    if difference := compare_cuts(name, own.rows[section], rows, tuple(columns), cut):
                        yield difference
