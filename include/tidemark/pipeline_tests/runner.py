"""Run the test cases of pipelines as lanes of few Spark jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tidemark.config import KeyPair, Pipeline, TimeColumn, load_pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_instant, from_micros, to_micros
from tidemark.errors import FaultError, PipelineFileError, TidemarkError, UserError, prefix_errors
from tidemark.execution.lane_replay import LANE, replay_jobs
from tidemark.execution.replay import ReplayResult
from tidemark.formatting import ToDict, to_single_line
from tidemark.joins.factory import create_join, create_lane
from tidemark.joins.keys import key_name
from tidemark.joins.output_schema import check_expressions
from tidemark.pipeline_tests.arrivals import CaseRows, assign_arrivals
from tidemark.pipeline_tests.case_file import Case, CaseFile, Section
from tidemark.pipeline_tests.columns import Schemas, create_schemas
from tidemark.pipeline_tests.cuts import (
    OWN_SLICES,
    SYNTHETIC_GRID,
    TWO_JOBS,
    LaneCut,
    cut_lanes,
    depends_on_clock,
    list_cuts,
)
from tidemark.pipeline_tests.differences import SectionDifference, compare_cuts, compare_rows, parse_expected
from tidemark.pipeline_tests.outputs import JobOutputs, Types, Values, collect_outputs, parse_clock, to_slice_number
from tidemark.sources.resolution import create_sides
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN
from tidemark.spark.classic_engine import ClassicEngine
from tidemark.spark.engine import get_engine
from tidemark.spark.error_redaction import format_safe_message
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.lanes import Lane
from tidemark.watermarks.values import Watermarks

_MAX_LANES = 300
_MAX_SLICES = 2000
"""Most slices of a job whose cases need the times of their rows."""
_BUCKET_WIDTH = 3
"""Rows of a bucket at most, more than one so that rows are ordered inside buckets too."""
_PADDED = ("padded_left", "padded_right")
_CONCURRENT_PIPELINES = 2


@dataclass(frozen=True)
class CaseResult(ToDict):
    """Result of a test case."""

    pipeline: str
    case: str
    place: str
    """File and line of the case."""
    status: Literal["passed", "failed", "refused"]
    """`refused`: the case or its rows were refused, which it did not expect."""
    seconds: float
    """Time of its Spark jobs, divided by the number of their cases."""
    differences: tuple[SectionDifference, ...] = ()
    message: str | None = None
    """Reason of a refusal."""
    own_job: str | None = None
    """Reason why the case ran in Spark jobs of its own."""


@dataclass(frozen=True)
class CaseOutput:
    """Output of a case by section, in plain values."""

    rows: dict[Section, list[Values]]
    carried_by_slice: Callable[[int], list[Values]]
    """Function from a slice of the pipeline to the rows in the buffers at its end."""
    types: dict[str, Types]


@dataclass(frozen=True)
class CaseRun:
    """Result of a test case and, unless it was refused, its output."""

    case: Case
    result: CaseResult
    output: CaseOutput | None


def run_case_files(
    spark: SparkSession, files: Sequence[CaseFile], progress: Callable[[int], None] = lambda _: None
) -> list[CaseRun]:
    """Run the cases of test files, some pipelines at a time.

    Args:
        spark: A session.
        files: The files, with the cases to run.
        progress: Called with the number of cases that have run.

    Returns:
        The runs, in the order of files and cases.

    Raises:
        UserError: A pipeline file is invalid, or an expected row names an unknown column.
        FaultError: Spark failed.
    """
    pipelines = [load_pipeline(file.pipeline_file) for file in files]
    for pipeline in pipelines:
        _require_table_inputs(pipeline)
    is_classic = isinstance(get_engine(spark), ClassicEngine)
    with ThreadPoolExecutor(_CONCURRENT_PIPELINES if is_classic else 1) as pool:

        def run(pipeline: Pipeline, file: CaseFile) -> list[CaseRun]:
            # Each pipeline changes settings until its cases have run, which other threads must not see.
            session = spark.newSession() if is_classic else spark
            with tuned_for_tiny_queries(session):
                runs = _PipelineTest(session, pipeline, file).run()
            progress(len(runs))
            return runs

        return [run for runs in pool.map(run, pipelines, files) for run in runs]


def _require_table_inputs(pipeline: Pipeline) -> None:
    """Require that no input of a pipeline is the output of another one.

    Raises:
        PipelineFileError: An input is another pipeline.
    """
    for side, upstream in pipeline.upstreams.items():
        raise PipelineFileError(
            f"{pipeline.name}: test cases cannot give the rows of {side}, which is the output of "
            f"{upstream.pipeline}. Remove the test file, or test a copy of the pipeline with a table as input."
        )


@dataclass(frozen=True)
class _Group:
    """Cases that share jobs: their inputs have the same schemas."""

    schemas: Schemas
    cases: list[tuple[Case, CaseRows]]


@dataclass(frozen=True)
class _InMemoryTable:
    """Columns of an input without a table (`sources.resolution.InputTable`)."""

    spark: SparkSession
    name: str
    schema: T.StructType
    void_paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class _PipelineTest:
    """The cases of one pipeline."""

    spark: SparkSession
    pipeline: Pipeline
    file: CaseFile

    @cached_property
    def grid(self) -> Grid:
        return Grid.from_config(self.pipeline.slices)

    def run(self) -> list[CaseRun]:
        """Run the cases, as few jobs as possible; results are in the order of the file."""
        runs: dict[str, CaseRun] = {}
        groups: dict[str, _Group] = {}
        own_jobs: list[tuple[Case, str]] = []
        for case in self.file.cases:
            if case.settings.error is not None:
                own_jobs.append((case, "it expects a refusal, which would end the job of other cases"))
                continue
            try:
                schemas = create_schemas(self.spark, self.pipeline, self.file, case)
                rows = assign_arrivals(self.pipeline, self.grid, case, schemas)
            except UserError as error:
                runs[case.name] = self._refuse(case, error, 0)
                continue
            groups.setdefault(repr(schemas), _Group(schemas, [])).cases.append((case, rows))
        for group in groups.values():
            for part in self._split(group):
                try:
                    runs |= {run.case.name: run for run in self._run_group(part)}
                except (PySparkException, UserError) as error:
                    reason = f"the job that it shared failed: {to_single_line(format_safe_message(error))}"
                    own_jobs += [(case, reason) for case, _ in part.cases]
        runs |= {case.name: self._run_alone(case, reason) for case, reason in own_jobs}
        return [runs[case.name] for case in self.file.cases]

    def _split(self, group: _Group) -> Iterator[_Group]:
        """Split a group into parts that fit a job."""
        if not depends_on_clock(self.pipeline):
            size = _MAX_LANES // len(list_cuts(self.pipeline))
            for start in range(0, len(group.cases), size):
                yield _Group(group.schemas, group.cases[start : start + size])
            return
        extents = [(self._find_extent(rows), (case, rows)) for case, rows in group.cases]
        part: list[tuple[Case, CaseRows]] = []
        first = 0
        for (start, end), case in sorted(extents, key=lambda extent: extent[0]):
            if part and (end - first > _MAX_SLICES or len(part) == _MAX_LANES):
                yield _Group(group.schemas, part)
                part = []
            first = start if not part else first
            part.append(case)
        if part:
            yield _Group(group.schemas, part)

    def _find_extent(self, rows: CaseRows) -> tuple[int, int]:
        """Return the first and the last slice of a case by the values of its clock."""
        clocks = [rows.last_start, *(row.clock for row in rows.rows)]
        numbers = [self.grid.number_at(clock) for clock in clocks if clock is not None]
        return (min(numbers), max(numbers)) if numbers else (0, 0)

    def _run_alone(self, case: Case, reason: str) -> CaseRun:
        started = time.monotonic()
        try:
            schemas = create_schemas(self.spark, self.pipeline, self.file, case)
            rows = assign_arrivals(self.pipeline, self.grid, case, schemas)
            [run] = self._run_group(_Group(schemas, [(case, rows)]), own_job=reason)
        except (PySparkException, UserError) as error:
            return self._refuse(case, error, time.monotonic() - started, reason)
        if case.settings.error is None:
            return run
        message = "The case was not refused. Remove error, or change its rows."
        return CaseRun(case, self._create_result(case, "failed", run.result.seconds, message, reason), run.output)

    def _refuse(self, case: Case, error: Exception, seconds: float, own_job: str | None = None) -> CaseRun:
        """Return the run of a case that was refused."""
        if not isinstance(error, TidemarkError | PySparkException) or isinstance(error, FaultError):
            raise error
        text = to_single_line(str(error) if isinstance(error, TidemarkError) else format_safe_message(error))
        expected = case.settings.error
        if expected is None:
            return CaseRun(case, self._create_result(case, "refused", seconds, text, own_job), None)
        if expected in text:
            return CaseRun(case, self._create_result(case, "passed", seconds, None, own_job), None)
        message = f"The refusal has another message: {text}"
        return CaseRun(case, self._create_result(case, "failed", seconds, message, own_job), None)

    def _create_result(
        self,
        case: Case,
        status: Literal["passed", "failed", "refused"],
        seconds: float,
        message: str | None = None,
        own_job: str | None = None,
        differences: tuple[SectionDifference, ...] = (),
    ) -> CaseResult:
        return CaseResult(
            self.file.pipeline, case.name, case.place, status, round(seconds, 3), differences, message, own_job
        )

    def _run_group(self, group: _Group, own_job: str | None = None) -> list[CaseRun]:
        """Run cases as lanes, and compare their output with the expected rows."""
        started = time.monotonic()
        replay = _GroupReplay(self.spark, self.pipeline, self.grid, group)
        with prefix_errors(self.pipeline.command_argument):
            replay.check_expressions()
        outputs = [replay.find_output(number) for number in range(len(group.cases))]
        seconds = (time.monotonic() - started) / len(group.cases)
        runs = []
        for number, (case, _) in enumerate(group.cases):
            output = outputs[number]
            try:
                differences = [*self._compare(case, output), *replay.compare_cuts(number, case)]
            except UserError as error:
                runs.append(self._refuse(case, error, seconds, own_job))
                continue
            status: Literal["passed", "failed"] = "failed" if differences else "passed"
            result = self._create_result(case, status, seconds, None, own_job, tuple(differences))
            runs.append(CaseRun(case, result, output))
        return runs

    def _compare(self, case: Case, output: CaseOutput) -> Iterator[SectionDifference]:
        """Yield the sections that differ from the expected rows."""
        for section, rows in case.expected.items():
            expected = parse_expected(rows, section, output.types[section])
            places = [row.place for row in rows]
            if section != "carried" or (slices := case.list_slices(section)) is None:
                if difference := compare_rows(section, expected, select_section(case, output, section), places):
                    yield difference
                continue
            for start in slices:
                chosen = [number for number, row in enumerate(rows) if row.slice_start == start]
                actual = output.carried_by_slice(self.grid.number_at(to_micros(start)))
                difference = compare_rows(
                    f"carried after {format_instant(start)}",
                    [expected[number] for number in chosen],
                    actual,
                    [places[number] for number in chosen],
                )
                if difference:
                    yield difference


def select_section(case: Case, output: CaseOutput, section: Section) -> list[Values]:
    """Return the output rows that a section of a case is compared with."""
    if section == "padded":
        return [row for row in output.rows["emissions"] if row["_emission"] in _PADDED]
    if section == "emissions" and "padded" in case.expected:
        return [row for row in output.rows["emissions"] if row["_emission"] not in _PADDED]
    return output.rows[section]


@dataclass(frozen=True)
class _GroupReplay:
    """The replay of a group of cases under all cuts; the lane is a further join key."""

    spark: SparkSession
    pipeline: Pipeline
    grid: Grid
    group: _Group

    def check_expressions(self) -> None:
        """Check columns, types and expressions of the pipeline against the inputs.

        Raises:
            UserError: The pipeline does not fit the inputs.
        """
        schemas = self.group.schemas
        create_sides(self.pipeline, *(self._describe_table(side, schemas[side]) for side in SIDES))
        check_expressions(self.spark, self.pipeline, self.grid, schemas["left"], schemas["right"])

    def _describe_table(self, side: SideName, schema: T.StructType) -> _InMemoryTable:
        return _InMemoryTable(self.spark, getattr(self.pipeline, side).table, schema)

    @cached_property
    def cuts(self) -> tuple[str, ...]:
        return list_cuts(self.pipeline)

    @cached_property
    def keyed_pipeline(self) -> Pipeline:
        """The pipeline with the lane as its last key."""
        join = self.pipeline.join
        keys = [*join.keys, KeyPair(left=LANE, right=LANE)]
        return self.pipeline.model_copy(update={"join": join.model_copy(update={"keys": keys})})

    @cached_property
    def keyed_schemas(self) -> Schemas:
        lane = T.StructField(LANE, T.LongType())
        return {side: T.StructType([*schema.fields, lane]) for side, schema in self.group.schemas.items()}

    @cached_property
    def normalized(self) -> pa.Table:
        """Rows of all lanes as the pipeline reads them, with their own slices and clocks."""
        left, right = create_sides(
            self.keyed_pipeline, *(self._describe_table(side, self.keyed_schemas[side]) for side in SIDES)
        )
        rows = (side.normalize(self._create_table(side.name), self.grid, self.grid.start) for side in (left, right))
        lefts, rights = rows
        key = key_name(len(self.pipeline.join.keys))
        return lefts.unionByName(rights, allowMissingColumns=True).withColumn("lane", F.col(key)).toArrow()

    def _create_table(self, side: SideName) -> Any:
        """Create an input table with the rows of all lanes."""
        schema = self.keyed_schemas[side]
        if not isinstance(getattr(self.pipeline, side).arrival, TimeColumn | None):
            schema = T.StructType([*schema.fields, T.StructField(ARRIVAL_COLUMN, T.TimestampType())])
        rows = [
            {**row.values, LANE: number * len(self.cuts) + cut}
            for number, (_, case_rows) in enumerate(self.group.cases)
            for cut in range(len(self.cuts))
            for row in case_rows.rows
            if row.side == side
        ]
        table = pa.Table.from_pylist(rows, to_arrow_schema(schema))
        return self.spark.createDataFrame(table, schema)

    @cached_property
    def own_cuts(self) -> list[LaneCut]:
        """Arrivals and own slices of each case."""
        columns = self.normalized.select(["lane", "slice", "clock"]).to_pandas()
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
        return depends_on_clock(self.pipeline)

    @property
    def replay_grid(self) -> Grid:
        return self.grid if self.is_on_own_clock else SYNTHETIC_GRID

    @cached_property
    def outputs(self) -> JobOutputs:
        """Outputs of all lanes."""
        if not self.is_on_own_clock:
            return collect_outputs(self._replay(self._plan[1]), len(self.lane_cuts), self.pipeline, SYNTHETIC_GRID)
        extents = [self._last_of(number) for number in range(len(self.group.cases))]
        first = min((cut.slices[0] for cut in self.own_cuts if cut.slices), default=0)
        slices = range(first, max([first, *extents]) + 1)
        single = collect_outputs(self._replay([slices]), len(self.lane_cuts), self.pipeline, self.grid)
        if len(slices) == 1:
            return single
        middle = len(slices) // 2
        twice = collect_outputs(
            self._replay([slices[:middle], slices[middle:]]), len(self.lane_cuts), self.pipeline, self.grid
        )
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

    def _replay(self, jobs: Sequence[range]) -> Iterator[tuple[range, ReplayResult]]:
        rows = self._cut_rows()
        join = create_join(
            self.keyed_pipeline, self.spark, dict(zip(SIDES, map(self.keyed_schemas.__getitem__, SIDES), strict=True))
        )
        lanes = [self._create_lane(lane, jobs) for lane in range(len(self.lane_cuts))]
        buckets = [self._create_buckets(slices, join.buckets_per_slice) for slices in jobs]
        yield from zip(jobs, replay_jobs(rows, lanes, join, buckets), strict=True)

    def _create_lane(self, lane: int, jobs: Sequence[range]) -> Lane:
        case, last = self.group.cases[lane // len(self.cuts)][0], self._last_of_lane(lane)
        created = create_lane(self.pipeline, Watermarks(), last if case.settings.drain else None)
        if not self.is_on_own_clock:
            return created
        # The clock of a case stands still after its last slice, while others go on.
        end = (self.grid.start_of(last + 1) - 1) // 1000
        return replace(created, end_clocks={number: end for job in jobs for number in job if number > last})

    def _create_buckets(self, slices: range, per_slice: int | None) -> Buckets:
        if self.is_on_own_clock:
            return Buckets.create(self.grid, slices, per_slice)
        is_micro_batch = self.pipeline.dialect == "spark"
        return Buckets(SYNTHETIC_GRID, slices, SYNTHETIC_GRID.every if is_micro_batch else _BUCKET_WIDTH)

    def _cut_rows(self) -> Any:
        """Return the rows of all lanes with the slices and clocks of their cuts."""
        table = self.normalized
        if not self.is_on_own_clock:
            lanes, clocks = (table[name].to_numpy() for name in ("lane", "clock"))
            positions = [{clock: n for n, clock in enumerate(cut.clocks)} for cut in self.lane_cuts]
            places = [positions[lane][clock] for lane, clock in zip(lanes, clocks, strict=True)]
            cuts = [self.lane_cuts[lane] for lane in lanes]
            slices = np.array([cut.slices[place] for cut, place in zip(cuts, places, strict=True)], dtype=np.int64)
            new_clocks = np.array(
                [cut.to_clock(place) for cut, place in zip(cuts, places, strict=True)], dtype=np.int64
            )
            for name, values in {"slice": slices, "owning_slice": slices, "clock": new_clocks}.items():
                table = table.set_column(table.column_names.index(name), name, pa.array(values))
        return self.spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))

    def find_output(self, number: int) -> CaseOutput:
        """Return the output of a case under the pipeline's own slices."""
        lane = number * len(self.cuts) + self.cuts.index(OWN_SLICES)
        cut, last = self.lane_cuts[lane], self._last_of_lane(lane)
        output = self.outputs.lanes[lane]
        rows: dict[Section, list[Values]] = {
            "emissions": self._restore(output.emissions, lane),
            "late": self._restore(output.late, lane),
            "carried": self._restore(output.list_carried(last), lane),
        }

        def list_carried(own_slice: int) -> list[Values]:
            number_in_replay = own_slice if self.is_on_own_clock else cut.find_slice(own_slice)
            return self._restore(output.list_carried(min(number_in_replay, last)), lane)

        return CaseOutput(rows, list_carried, self.outputs.types)

    def _restore(self, rows: Sequence[Values], lane: int) -> list[Values]:
        """Replace slices and arrivals of the replay by the pipeline's own, and drop rows of later slices."""
        cut, last, grid = self.lane_cuts[lane], self._last_of_lane(lane), self.replay_grid
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
                position = parse_clock(row["arrived_at"]) % SYNTHETIC_GRID.every
                changes["arrived_at"] = format_instant(from_micros(cut.clocks[position]))
            restored.append({**row, **changes})
        return restored

    def compare_cuts(self, number: int, case: Case) -> Iterator[SectionDifference]:
        """Yield the sections of a case that differ between cuts."""
        first = number * len(self.cuts)
        own = self.find_output(number)
        for lane, name in enumerate(self.cuts[1:], first + 1):
            output, last = self.outputs.lanes[lane], self._last_of_lane(lane)
            rows: dict[Section, list[Values]] = {
                "emissions": output.emissions,
                "late": output.late,
                "carried": output.list_carried(last),
            }
            for section, values in rows.items():
                columns = dict.fromkeys(column for row in case.expected.get(section, ()) for column in row.values)
                difference = compare_cuts(section, own.rows[section], self._restore(values, lane), tuple(columns), name)
                if difference:
                    yield difference
