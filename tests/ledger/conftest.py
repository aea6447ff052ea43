from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.ledger.reader_assertions import there
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle, create_internal_table
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Request, create_plan
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.tables.run_files import merged_at, run_of

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
OF_THE_RUN = (
    *("run", "committed_at", "job_seconds", "files", "tables_before", "released", "brought"),
    *("forgotten", "dropped"),
)
"""What two runs of the same slices say differently in the ledger."""


def at(hour, minute=0):
    return START + timedelta(hours=hour, minutes=minute)


@pytest.fixture
def land(write):
    """Append rows to both inputs: a right row at the instants of the left ones, with 100 more in `v`."""

    def go(*rows, both=True):
        write("left", list(rows), ROW)
        if both:
            write("right", [(key, happened, arrived, v + 100) for key, happened, arrived, v in rows], ROW)

    return go


@pytest.fixture
def go(spark, lake):
    """Plan and run, giving the plan and the slices of each job, by number."""

    def run(pipeline, **request):
        plan = create_plan(spark, pipeline, str(lake), Request(**request))
        return plan, list(execute(spark, plan, lambda *_: None))

    return run


@pytest.fixture
def hours(spark, lake):
    """The first `count` hours."""

    def run(pipeline, count, **request):
        plan = create_plan(spark, pipeline, str(lake), Request(end=at(count), **request))
        return list(execute(spark, plan, lambda *_: None))

    return run


@pytest.fixture
def ledger(spark, lake):
    def read(pipeline):
        return Ledger.from_pipeline(pipeline, str(lake))

    return read


@pytest.fixture
def answer(spark, lake):
    """What readers see: pairs by slice, and late rows by slice."""

    def read(output="orders"):
        tables = PipelineTables(f"{lake}/{output}")
        pairs = spark.read.format("delta").load(tables.emissions).select("_slice", "left_v", "right_v").collect()
        late = spark.read.format("delta").load(tables.late)
        late = late.select("_slice", "reason", F.coalesce("left.v", "right.v")).collect()
        return Counter(map(tuple, pairs)), Counter(map(tuple, late))

    return read


@pytest.fixture
def fresh(go, answer, pipeline):
    """The answer of a new pipeline over the inputs as they are now."""

    def run(end, **changes):
        go(pipeline(output="fresh", **changes), end=end)
        return answer("fresh")

    return run


@pytest.fixture
def rows_every():
    """Rows of one key, of which each fourth comes three quarters of an hour late."""

    def made(minutes, count):
        late = [timedelta(minutes=45 if n % 4 == 0 else 2) for n in range(count)]
        return [("a", at(0, minutes * n), at(0, minutes * n) + late[n], n) for n in range(count)]

    return made


@pytest.fixture
def contents(spark):
    """What the tables of a lake say to readers and, by checkpoint and ledger, to the next run; rows of no commit."""

    def read(lake):
        tables = PipelineTables(f"{lake}/orders")
        with tuned_for_tiny_queries(spark):
            told = {name: spark.read.format("delta").load(getattr(tables, name)) for name in there(tables)}
            ledger = spark.read.format("delta").load(tables.ledger)
            told["ledger"] = ledger.drop(*OF_THE_RUN)
            counted = {name: Counter(map(str, rows.drop("_run", "run").collect())) for name, rows in told.items()}
        runs = {one["run"] for one in ledger.select("run").distinct().collect()}
        logs = (DeltaTableHandle.open(getattr(tables, name)) for name in there(tables))
        of_files = [run_of(path) for log in logs if log for path in log.files["path"]]
        orphans = sum(run not in runs and merged_at(run) is None for run in of_files)
        return counted, orphans

    return read


@pytest.fixture
def table_of():
    """A function that makes a table of some files of a row each, a commit for each."""

    def make(path, files=0):
        log = create_internal_table(str(path), pa.schema({"v": pa.int64()}))
        for number in range(files):
            log = log.append(pa.table({"v": [number]}), number + 1)
        return log

    return make
