from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.ledger.reader_assertions import list_existing_tables
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle, create_internal_table
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.tables.run_files import parse_merge_commit, parse_run

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
RUN_COLUMNS = (
    *("run", "committed_at", "job_seconds", "added_files", "table_versions_before", "releases", "promotion"),
    *("erasures", "removed_files"),
)
"""Columns of the ledger that differ between two runs of the same slices."""


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


@pytest.fixture
def append_inputs(write):
    """Append rows to the left input and, with 100 more in `v`, to the right one."""

    def append(*rows, both=True):
        write("left", list(rows), ROW)
        if both:
            write("right", [(key, happened, arrived, v + 100) for key, happened, arrived, v in rows], ROW)

    return append


@pytest.fixture
def plan_and_run(spark, lake):
    """Plan and run a pipeline; return the plan and the result of each job."""

    def run(pipeline, **request):
        plan = create_plan(spark, pipeline, str(lake), Request(**request))
        return plan, list(execute(spark, plan, lambda *_: None))

    return run


@pytest.fixture
def run_hours(spark, lake):
    """Run the first `count` hours of a pipeline; return the result of each job."""

    def run(pipeline, count, **request):
        plan = create_plan(spark, pipeline, str(lake), Request(end=at(count), **request))
        return list(execute(spark, plan, lambda *_: None))

    return run


@pytest.fixture
def read_ledger(spark, lake):
    def read(pipeline):
        return Ledger.from_pipeline(pipeline, str(lake))

    return read


@pytest.fixture
def read_output(spark, lake):
    """Read the emitted pairs and the late rows of a pipeline with their slices, as two counters."""

    def read(output="orders"):
        tables = PipelineTables(f"{lake}/{output}")
        pairs = spark.read.format("delta").load(tables.emissions).select("_slice", "left_v", "right_v").collect()
        late = spark.read.format("delta").load(tables.late)
        late = late.select("_slice", "reason", F.coalesce("left.v", "right.v")).collect()
        return Counter(map(tuple, pairs)), Counter(map(tuple, late))

    return read


@pytest.fixture
def expected_from_scratch(plan_and_run, read_output, pipeline):
    """Run a new pipeline over the current inputs, in the output `fresh`; return its output."""

    def run(end, **changes):
        plan_and_run(pipeline(output="fresh", **changes), end=end)
        return read_output("fresh")

    return run


@pytest.fixture
def create_rows():
    """Create rows of a single key at a distance of some minutes; every fourth arrives 45 minutes late."""

    def create(minutes, count):
        delays = [timedelta(minutes=45 if n % 4 == 0 else 2) for n in range(count)]
        return [("a", at(0, minutes * n), at(0, minutes * n) + delays[n], n) for n in range(count)]

    return create


@pytest.fixture
def read_contents(spark):
    """Count the rows of each table without names of runs; also return the number of uncommitted files."""

    def read(lake, output="orders"):
        tables = PipelineTables(f"{lake}/{output}")
        with tuned_for_tiny_queries(spark):
            names = list_existing_tables(tables)
            frames = {name: spark.read.format("delta").load(getattr(tables, name)) for name in names}
            if DeltaTableHandle.open(tables.ledger) is None:
                return {}, 0
            ledger = spark.read.format("delta").load(tables.ledger)
            frames["ledger"] = ledger.drop(*RUN_COLUMNS)
            counts = {name: Counter(map(str, rows.drop("_run", "run").collect())) for name, rows in frames.items()}
        runs = {row["run"] for row in ledger.select("run").distinct().collect()}
        logs = (DeltaTableHandle.open(getattr(tables, name)) for name in names)
        file_runs = [parse_run(path) for log in logs if log for path in log.files["path"]]
        uncommitted = sum(run not in runs and parse_merge_commit(run) is None for run in file_runs)
        return counts, uncommitted

    return read


@pytest.fixture
def create_table():
    """Create a table with some commits, each of one file of one row."""

    def create(path, files=0):
        log = create_internal_table(str(path), pa.schema({"v": pa.int64()}))
        for number in range(files):
            log = log.append(pa.table({"v": [number]}), number + 1)
        return log

    return create
