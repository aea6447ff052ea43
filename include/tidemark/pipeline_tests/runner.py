"""Run the test cases of pipelines as lanes of few Spark jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.types import format_instant, to_micros
from tidemark.errors import FaultError, TidemarkError, UserError
from tidemark.formatting import ToDict, to_single_line
from tidemark.pipeline_tests.arrivals import CaseRows, assign_arrivals
from tidemark.pipeline_tests.case_file import Case, CaseFile
from tidemark.pipeline_tests.columns import create_schemas
from tidemark.pipeline_tests.cuts import depends_on_clock, list_cuts
from tidemark.pipeline_tests.differences import SectionDifference, compare_rows, parse_expected
from tidemark.pipeline_tests.group_replay import CaseGroup, GroupReplay
from tidemark.pipeline_tests.outputs import CaseOutput
from tidemark.spark.classic_engine import ClassicEngine
from tidemark.spark.engine import get_engine
from tidemark.spark.error_redaction import format_safe_message
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.timegrid.slices import Grid

_MAX_LANES = 300
_MAX_SLICES = 2000
"""Most slices of a job whose cases need the times of their rows."""
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
        files: The files, with the selection of cases to run.
        progress: Called with the number of cases that have run.

    Returns:
        The runs, in the order of files and cases.

    Raises:
        UserError: A pipeline file is invalid, or an expected row names an unknown column.
        FaultError: Spark failed.
    """
    engine = get_engine(spark)
    with ThreadPoolExecutor(_CONCURRENT_PIPELINES if isinstance(engine, ClassicEngine) else 1) as pool:

        def run(file: CaseFile) -> list[CaseRun]:
            # Each pipeline changes settings until its cases have run, which other threads must not see.
            with engine.override_settings({}) as session, tuned_for_tiny_queries(session):
                runs = _PipelineTest(session, file).run()
            progress(len(runs))
            return runs

        return [run for runs in pool.map(run, files) for run in runs]


@dataclass(frozen=True)
class _PipelineTest:
    """The cases of one pipeline."""

    spark: SparkSession
    file: CaseFile

    @property
    def pipeline(self) -> Pipeline:
        return self.file.chain.pipeline

    @cached_property
    def grid(self) -> Grid:
        return Grid.from_config(self.pipeline.slices)

    def run(self) -> list[CaseRun]:
        """Run the cases, as few jobs as possible; results are in the order of the file."""
        runs: dict[str, CaseRun] = {}
        groups: dict[str, CaseGroup] = {}
        own_jobs: list[tuple[Case, str]] = []
        for case in self.file.selected_cases:
            if case.settings.error is not None:
                own_jobs.append((case, "it expects a refusal, which would end the job of other cases"))
                continue
            try:
                schemas = create_schemas(self.spark, self.file, case)
                rows = assign_arrivals(self.file.chain, self.grid, case, schemas)
            except UserError as error:
                runs[case.name] = self._refuse(case, error, 0)
                continue
            groups.setdefault(repr(schemas), CaseGroup(schemas, [])).cases.append((case, rows))
        for group in groups.values():
            for part in self._split(group):
                try:
                    runs |= {run.case.name: run for run in self._run_group(part)}
                except (PySparkException, UserError) as error:
                    reason = f"the job that it shared failed: {to_single_line(format_safe_message(error))}"
                    own_jobs += [(case, reason) for case, _ in part.cases]
        runs |= {case.name: self._run_alone(case, reason) for case, reason in own_jobs}
        return [runs[case.name] for case in self.file.selected_cases]

    def _split(self, group: CaseGroup) -> Iterator[CaseGroup]:
        """Split a group into parts that fit a job."""
        if not depends_on_clock(self.pipeline):
            size = _MAX_LANES // len(list_cuts(self.pipeline))
            for start in range(0, len(group.cases), size):
                yield CaseGroup(group.schemas, group.cases[start : start + size])
            return
        extents = [(self._find_extent(rows), (case, rows)) for case, rows in group.cases]
        part: list[tuple[Case, CaseRows]] = []
        first = 0
        for (start, end), case in sorted(extents, key=lambda extent: extent[0]):
            if part and (end - first > _MAX_SLICES or len(part) == _MAX_LANES):
                yield CaseGroup(group.schemas, part)
                part = []
            first = start if not part else first
            part.append(case)
        if part:
            yield CaseGroup(group.schemas, part)

    def _find_extent(self, rows: CaseRows) -> tuple[int, int]:
        """Return the first and the last slice of a case by the values of its clock."""
        clocks = [rows.last_start, *(row.clock for row in rows.rows)]
        numbers = [self.grid.number_at(clock) for clock in clocks if clock is not None]
        return (min(numbers), max(numbers)) if numbers else (0, 0)

    def _run_alone(self, case: Case, reason: str) -> CaseRun:
        started = time.monotonic()
        try:
            schemas = create_schemas(self.spark, self.file, case)
            rows = assign_arrivals(self.file.chain, self.grid, case, schemas)
            [run] = self._run_group(CaseGroup(schemas, [(case, rows)]), own_job=reason)
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

    def _run_group(self, group: CaseGroup, own_job: str | None = None) -> list[CaseRun]:
        """Run cases as lanes, and compare their output with the expected rows."""
        started = time.monotonic()
        replay = GroupReplay(self.spark, self.file.chain, self.grid, group, list_cuts(self.pipeline))
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
        for name, rows in case.expected.items():
            join_output, section = output.find_join(name)
            expected = parse_expected(rows, name, join_output.types[section])
            places = [row.place for row in rows]
            if section != "carried" or (slices := case.list_slices(name)) is None:
                if difference := compare_rows(name, expected, output.select_rows(name, case.expected), places):
                    yield difference
                continue
            for start in slices:
                chosen = [number for number, row in enumerate(rows) if row.slice_start == start]
                actual = join_output.carried_by_slice(self.grid.number_at(to_micros(start)))
                difference = compare_rows(
                    f"{name} after {format_instant(start)}",
                    [expected[number] for number in chosen],
                    actual,
                    [places[number] for number in chosen],
                )
                if difference:
                    yield difference
