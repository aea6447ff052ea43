"""An hourly run, a backfill and a reprocess of one pipeline at the same time: no row is lost, none is doubled.

Each is a process, as under Airflow: what one has read, or keeps in memory, does not reach the others by itself.
Here is one race, `make races` runs a hundred.
"""

import multiprocessing
import os
import random
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from tests.history.watching import every_version_is_whole, readers_agree
from tidemark.clock.slices import Grid
from tidemark.delta.lake import PipelineTables
from tidemark.errors import SliceOrderError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.session import spark_session

RACES = int(os.environ.get("TIDEMARK_RACES", "1"))
START = datetime(2024, 1, 1, tzinfo=UTC)
COMMITTED, ALL = 2, 4
WORKERS = {
    "hourly": [Request(end=START + timedelta(hours=n)) for n in (COMMITTED + 1, ALL)],
    "backfill": [Request(end=START + timedelta(hours=ALL))],
    "reprocess": [Request(reprocess=True, start=START + timedelta(hours=1), end=START + timedelta(hours=2))],
}
TRIES = 20


@pytest.fixture
def origin(pipeline, land, rows_every, hours, lake):
    """Four hours of rows, of which two are committed, and then a row that landed late in the second."""
    settings = pipeline(late_landing="reprocess")
    land(*rows_every(minutes=7, count=34))
    hours(settings, COMMITTED)
    landed = START + timedelta(minutes=90)
    land(("a", landed, landed, 777))
    return settings, lake


def ready(begin):
    """Start a process's own Spark, and wait until the others have theirs."""
    spark_session("tidemark races").conf.set("spark.sql.shuffle.partitions", "2")
    begin.wait(timeout=300)


def work(name, settings, lake, wait):
    """Run a worker's commands, each again as long as another process is first; how often that was."""
    session, lost = SparkSession.active(), 0
    time.sleep(wait)
    for request in WORKERS[name]:
        for _ in range(TRIES):
            try:
                list(execute(session, make_plan(session, settings, str(lake), request), lambda *_: None))
            except SliceOrderError as error:
                if "another process has committed" not in str(error):
                    raise
                lost += 1
            else:
                break
        else:
            raise AssertionError(f"{name} never had its turn")
    return lost


def test_three_processes_at_once(spark, origin, contents):
    settings, lake = origin
    alone = shutil.copytree(lake, lake.parent / "alone")
    for name in WORKERS:
        work(name, settings, alone, 0)
    expected, _ = contents(alone)
    overtaken, processes = 0, multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(WORKERS), processes, ready, [processes.Barrier(len(WORKERS))]) as pool:
        for race in range(RACES):
            chance, copy = random.Random(race), shutil.copytree(lake, lake.parent / f"race_{race}")
            waits = [chance.uniform(0, 3) if race else 0 for _ in WORKERS]  # in the first race all begin at once
            running = [pool.submit(work, name, settings, copy, wait) for name, wait in zip(WORKERS, waits, strict=True)]
            overtaken += sum(one.result() for one in running)
            answer, orphans = contents(copy)
            assert orphans == 0, f"race {race}"
            for name in ("emissions", "late"):
                assert answer[name] == expected[name], f"race {race}"
            tables, grid = PipelineTables(f"{copy}/orders"), Grid.of(settings.slices)
            assert readers_agree(spark, tables, grid)
            assert every_version_is_whole(tables, grid)
            shutil.rmtree(copy)
    assert overtaken, "no one was in another's way"
