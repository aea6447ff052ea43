"""An hourly run, a backfill and a reprocess of one pipeline at the same time: no row is lost, none is doubled.

Each is a process, as under Airflow: what one has read, or keeps in memory, does not reach the others by itself.
Here is one race, `make races` runs a hundred.
"""

import json
import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.ledger.reader_assertions import every_version_is_whole, readers_agree
from tidemark.config.candidate_version import to_candidate
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import SliceOrderError, UserError
from tidemark.execution.run import execute
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.maintenance.vacuum import vacuum
from tidemark.planning.plan import Request, create_plan
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN, RUN_COLUMN, release
from tidemark.quality.waivers import waive
from tidemark.spark.session import get_spark_session
from tidemark.timegrid.slices import Grid
from tidemark.versions.promotion import promote, rollback

RACES = int(os.environ.get("TIDEMARK_RACES", "1"))
START = datetime(2024, 1, 1, tzinfo=UTC)
COMMITTED, ALL = 2, 4
WORKERS = {
    "hourly": [Request(end=START + timedelta(hours=n)) for n in (COMMITTED + 1, ALL)],
    "backfill": [Request(end=START + timedelta(hours=ALL))],
    "reprocess": [Request(reprocess=True, start=START + timedelta(hours=1), end=START + timedelta(hours=2))],
}
TRIES = 20
APART = [{"expect_column_values_to_be_between": {"column": "left_v", "max_value": 20, "on_failure": "quarantine"}}]
AMONG_THEM = {
    "hourly": WORKERS["hourly"],
    "reprocess": ["waive", *WORKERS["reprocess"]],
    "release": ["release", "release"],
}
"""With rows of the second slice in quarantine."""
WITH_COMPACTION = {
    "hourly": WORKERS["hourly"],
    "reprocess": WORKERS["reprocess"],
    "compact": ["compact"] * 3,
}
WITH_SHADOWS = {
    "hourly": WORKERS["hourly"],
    "reprocess": WORKERS["reprocess"],
    "moves": ["promote", "compact", "rollback", "vacuum", "promote"],
}


@pytest.fixture
def origin(pipeline, land, rows_every, hours, lake):
    """Four hours of rows, of which two are committed, and then a row that landed late in the second."""
    settings = pipeline(on_late_arriving_rows="reprocess")
    land(*rows_every(minutes=7, count=34))
    hours(settings, COMMITTED)
    landed = START + timedelta(minutes=90)
    land(("a", landed, landed, 777))
    return settings, lake


def ready(begin):
    """Start a process's own Spark, and wait until the others have theirs."""
    get_spark_session("tidemark races").conf.set("spark.sql.shuffle.partitions", "2")
    begin.wait(timeout=300)


def mergeable(settings, lake):
    """What there is to merge, once there is something, or all that is to run has run."""
    while True:
        planned = plan_compaction(settings, lake)
        entries = planned.ledger.entries
        if planned.merges or (len(entries) == ALL and entries[1].attempt > 1):
            return planned
        time.sleep(0.5)


def act(session, settings, lake, request):
    """What a command does."""
    slice_ = START + timedelta(hours=1)
    match request:
        case "release":
            with suppress(UserError):  # nothing is in quarantine at the time
                release(session, settings, lake, slice_, None, "ada")
        case "compact":
            planned = mergeable(settings, lake)
            for one in planned.merges:
                merge_files(session, planned, one)
        case "promote" | "rollback":
            time.sleep(1)
            with suppress(UserError):  # what is served has got ahead of the shadow, or nothing stands
                (promote if request == "promote" else rollback)(session, settings, lake, "again", "ada")
        case "vacuum":
            vacuum(settings, lake, timedelta(hours=1))
        case "waive":
            waive(settings, lake, slice_, "left_v", "so", "ada")
        case _:
            list(execute(session, create_plan(session, settings, lake, request), lambda *_: None))


def work(name, requests, settings, lake, wait):
    """Run commands, each again as long as another process is first; how often that was."""
    session, lost = SparkSession.active(), 0
    time.sleep(wait)
    for request in requests:
        for _ in range(TRIES):
            try:
                act(session, settings, str(lake), request)
            except SliceOrderError as error:
                if "another process has committed" not in str(error):
                    raise
                lost += 1
            else:
                break
        else:
            raise AssertionError(f"{name} never had its turn")
    return lost


def waivers_used(lake):
    """How many attempts of slices a waiver has let through, each of them one that it was asked for."""
    tables = (DeltaTable(f"{lake}/orders/{name}") for name in ("waivers", "ledger"))
    asked, ledger = (table.to_pyarrow_table().to_pylist() for table in tables)
    waived = [(row, one) for row in ledger for one in json.loads(row["waived"] or "[]")]
    used = [(row["slice"], row["attempt"], one["expectation"]) for row, one in waived]
    assert len(used) == len(set(used))
    assert set(used) <= {(one["slice"], one["attempt"], one["expectation"]) for one in asked}
    return len(used)


def races(workers, settings, lake):
    """The lake after each race of some workers, and how often one of them was overtaken in it."""
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(workers), processes, ready, [processes.Barrier(len(workers))]) as pool:
        for race in range(RACES):
            chance, copy = random.Random(race), shutil.copytree(lake, lake.parent / f"race_{race}")
            waits = [chance.uniform(0, 3) if race else 0 for _ in workers]  # in the first race all begin at once
            running = [
                pool.submit(work, *worker, settings, copy, wait)
                for worker, wait in zip(workers.items(), waits, strict=True)
            ]
            yield race, copy, sum(one.result() for one in running)
            shutil.rmtree(copy)


def is_whole(spark, settings, lake):
    tables, grid = PipelineTables(f"{lake}/orders"), Grid.from_config(settings.slices)
    assert readers_agree(spark, tables, grid)
    assert every_version_is_whole(tables, grid)


def test_three_processes_at_once(spark, origin, contents):
    settings, lake = origin
    alone = shutil.copytree(lake, lake.parent / "alone")
    for worker in WORKERS.items():
        work(*worker, settings, alone, 0)
    expected, _ = contents(alone)
    overtaken = 0
    for race, copy, lost in races(WORKERS, settings, lake):
        overtaken += lost
        answer, orphans = contents(copy)
        assert orphans == 0, f"race {race}"
        for name in ("emissions", "late"):
            assert answer[name] == expected[name], f"race {race}"
        is_whole(spark, settings, copy)
    assert overtaken, "no one was in another's way"


@pytest.mark.slow
def test_compaction_among_them(spark, pipeline, origin, contents):
    """Nobody is overtaken by it, whatever it has merged when a slice comes."""
    _, lake = origin
    settings = pipeline(on_late_arriving_rows="reprocess", compact={"settled_after": "0 seconds", "period": "2 hours"})
    alone = shutil.copytree(lake, lake.parent / "alone")
    for worker in WITH_COMPACTION.items():
        work(*worker, settings, alone, 0)
    expected, _ = contents(alone)
    merged = 0
    for race, copy, _ in races(WITH_COMPACTION, settings, lake):
        answer, orphans = contents(copy)
        assert orphans == 0, f"race {race}"
        for name in ("emissions", "late"):
            assert answer[name] == expected[name], f"race {race}"
        is_whole(spark, settings, copy)
        merged += len(list(copy.glob("orders/emissions/run=merged.*")))
    assert merged, "nothing was merged"


@pytest.mark.slow
def test_promotions_among_them(spark, pipeline, origin, contents, go):
    """Of a shadow of the same settings, so that the answer is one whichever is served."""
    _, lake = origin
    settings = pipeline(on_late_arriving_rows="reprocess", compact={"settled_after": "0 seconds", "period": "2 hours"})
    go(to_candidate(settings, "again"), end=START + timedelta(hours=ALL))
    alone = shutil.copytree(lake, lake.parent / "alone")
    for name in ("hourly", "reprocess"):
        work(name, WITH_SHADOWS[name], settings, alone, 0)
    expected, _ = contents(alone)
    moved = 0
    for race, copy, _ in races(WITH_SHADOWS, settings, lake):
        work("afterwards", WITH_SHADOWS["hourly"], settings, copy, 0)
        answer, orphans = contents(copy)
        assert orphans == 0, f"race {race}"
        for name in ("emissions", "late"):
            assert answer[name] == expected[name], f"race {race}"
        is_whole(spark, settings, copy)
        ledger = DeltaTable(f"{copy}/orders/ledger").to_pyarrow_table(columns=["brought"])
        moved += sum(one is not None for one in ledger["brought"].to_pylist())
    assert moved, "nothing was promoted"


def emitted(spark, lake):
    """All that the join has emitted, published or in quarantine."""
    rows = spark.read.format("delta").load(f"{lake}/orders/emissions")
    apart = spark.read.format("delta").load(f"{lake}/orders/quarantined").drop(RUN_COLUMN, FAILED_EXPECTATIONS_COLUMN)
    return Counter(map(str, rows.unionByName(apart.select(*rows.columns)).collect()))


@pytest.mark.slow
def test_a_release_and_a_waiver_among_them(spark, pipeline, origin, contents):
    _, lake = origin
    settings = pipeline(on_late_arriving_rows="reprocess", quality=APART)
    again = Request(reprocess=True, start=START, end=START + timedelta(hours=COMMITTED))
    work("origin", [again], settings, lake, 0)
    assert contents(lake)[0]["quarantined"]
    alone = shutil.copytree(lake, lake.parent / "alone")
    work("alone", [*WORKERS["backfill"], *WORKERS["reprocess"]], settings, alone, 0)
    expected, overtaken, used = emitted(spark, alone), 0, 0
    for race, copy, lost in races(AMONG_THEM, settings, lake):
        overtaken += lost
        assert contents(copy)[1] == 0, f"race {race}"
        assert emitted(spark, copy) == expected, f"race {race}"
        used += waivers_used(copy)
        is_whole(spark, settings, copy)
    assert overtaken, "no one was in another's way"
    assert used, "no waiver was made use of"
