"""Run, backfill and reprocess a pipeline concurrently: no row is lost or committed twice.

Each worker is a process, as under Airflow, and shares no memory with the others. The tests run one race per case,
`make races` a hundred.
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

from tests.ledger.reader_assertions import check_every_version, check_readers_agree
from tidemark.config import Pipeline
from tidemark.config.candidate_version import to_candidate
from tidemark.config.output_stream import parse_input, to_input
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import IncompleteInputError, SliceOrderError, UserError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.maintenance.vacuum import vacuum
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
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
MAX_ATTEMPTS = 20
QUARANTINE = [{"expect_column_values_to_be_between": {"column": "left_v", "max_value": 20, "on_failure": "quarantine"}}]
WITH_RELEASE = {
    "hourly": WORKERS["hourly"],
    "reprocess": ["waive", *WORKERS["reprocess"]],
    "release": ["release", "release"],
}
"""Workers on a lake with quarantined rows in the second slice."""
WITH_COMPACTION = {
    "hourly": WORKERS["hourly"],
    "reprocess": WORKERS["reprocess"],
    "compact": ["compact"] * 3,
}
WITH_PROMOTION = {
    "hourly": WORKERS["hourly"],
    "reprocess": WORKERS["reprocess"],
    "moves": ["promote", "compact", "rollback", "vacuum", "promote"],
}
WITH_NEXT_JOIN = {
    "hourly": WORKERS["hourly"],
    "reprocess": WORKERS["reprocess"],
    "next join": ["follow"],
}


@pytest.fixture
def origin(pipeline, append_inputs, create_rows, run_hours, lake):
    """Write four hours of rows, commit two, and append a late-arriving row to the second."""
    settings = pipeline(on_late_arriving_rows="reprocess")
    append_inputs(*create_rows(minutes=7, count=34))
    run_hours(settings, COMMITTED)
    arrived = START + timedelta(minutes=90)
    append_inputs(("a", arrived, arrived, 777))
    return settings, lake


def start_spark(barrier):
    """Start Spark in this process and wait until all workers have started theirs."""
    get_spark_session("tidemark races").conf.set("spark.sql.shuffle.partitions", "2")
    barrier.wait(timeout=300)


def wait_for_merges(settings, lake):
    """Plan compaction until there is something to merge or all slices have run."""
    while True:
        plan = plan_compaction(settings, lake)
        entries = plan.ledger.entries
        if plan.merges or (len(entries) == ALL and entries[1].attempt > 1):
            return plan
        time.sleep(0.5)


def follow(session, settings, lake):
    """Run the slices that the previous join of a chain has committed, until all slices have run."""
    while len(Ledger.from_pipeline(settings, lake).entries) < ALL:
        with suppress(IncompleteInputError):  # the previous join has a stale slice
            list(execute(session, create_plan(session, settings, lake, Request()), lambda *_: None))


def run_request(session, settings, lake, request):
    """Do what a command of the CLI does."""
    slice_start = START + timedelta(hours=1)
    match request:
        case "release":
            with suppress(UserError):  # no row may be in quarantine at this time
                release(session, settings, lake, slice_start, None, "ada")
        case "compact":
            plan = wait_for_merges(settings, lake)
            for merge in plan.merges:
                merge_files(session, plan, merge)
        case "promote" | "rollback":
            time.sleep(1)
            with suppress(UserError):  # the candidate may lack slices, or no promotion may be live
                (promote if request == "promote" else rollback)(session, settings, lake, "again", "ada")
        case "vacuum":
            vacuum(settings, lake, timedelta(hours=1))
        case "follow":
            follow(session, settings, lake)
        case "waive":
            waive(settings, lake, slice_start, "left_v", "so", "ada")
        case _:
            list(execute(session, create_plan(session, settings, lake, request), lambda *_: None))


def run_worker(name, requests, settings, lake, delay):
    """Run commands and repeat each after a commit conflict; return the number of conflicts."""
    session, conflicts = SparkSession.active(), 0
    time.sleep(delay)
    for request in requests:
        for _ in range(MAX_ATTEMPTS):
            try:
                run_request(session, settings, str(lake), request)
            except SliceOrderError as error:
                if "another process committed" not in str(error):
                    raise
                conflicts += 1
            else:
                break
        else:
            raise AssertionError(f"{name} had a conflict in each attempt")
    return conflicts


def count_used_waivers(lake):
    """Count the attempts that used a waiver; assert that each used one of its own, once."""
    tables = (DeltaTable(f"{lake}/orders/{name}") for name in ("waivers", "ledger"))
    requested, ledger = (table.to_pyarrow_table().to_pylist() for table in tables)
    applied = [(row, waiver) for row in ledger for waiver in json.loads(row["applied_waivers"] or "[]")]
    attempts = [(row["slice"], row["attempt"], waiver["expectation"]) for row, waiver in applied]
    assert len(attempts) == len(set(attempts))
    assert set(attempts) <= {(waiver["slice"], waiver["attempt"], waiver["expectation"]) for waiver in requested}
    return len(attempts)


def run_races(workers, settings, lake, next_join=None):
    """Yield number, lake and number of commit conflicts of each race of some workers.

    Workers that follow run the pipeline `next_join`, the others `settings`.
    """
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(workers), processes, start_spark, [processes.Barrier(len(workers))]) as pool:
        for race in range(RACES):
            rng, copy = random.Random(race), shutil.copytree(lake, lake.parent / f"race_{race}")
            delays = [rng.uniform(0, 3) if race else 0 for _ in workers]  # in the first race all start at once
            running = [
                pool.submit(run_worker, name, requests, next_join if requests == ["follow"] else settings, copy, delay)
                for (name, requests), delay in zip(workers.items(), delays, strict=True)
            ]
            yield race, copy, sum(future.result() for future in running)
            shutil.rmtree(copy)


def check_consistency(spark, settings, lake):
    tables, grid = PipelineTables(f"{lake}/orders"), Grid.from_config(settings.slices)
    assert check_readers_agree(spark, tables, grid)
    assert check_every_version(tables, grid)


@pytest.mark.promise("Processes that run, backfill and reprocess at the same time commit each row once.")
def test_concurrent_run_backfill_and_reprocess_commit_each_row_once(spark, origin, read_contents):
    settings, lake = origin
    sequential = shutil.copytree(lake, lake.parent / "alone")
    for worker in WORKERS.items():
        run_worker(*worker, settings, sequential, 0)
    expected, _ = read_contents(sequential)
    conflicts = 0
    for race, copy, race_conflicts in run_races(WORKERS, settings, lake):
        conflicts += race_conflicts
        contents, uncommitted = read_contents(copy)
        assert uncommitted == 0, f"race {race}"
        for name in ("emissions", "late"):
            assert contents[name] == expected[name], f"race {race}"
        check_consistency(spark, settings, copy)

    assert conflicts, "there was no conflict"


@pytest.mark.slow
def test_concurrent_compaction_loses_no_row(spark, pipeline, origin, read_contents):
    """Compaction causes no conflict in runs, whatever it has merged before they commit."""
    _, lake = origin
    settings = pipeline(on_late_arriving_rows="reprocess", compact={"settled_after": "0 seconds", "period": "2 hours"})
    sequential = shutil.copytree(lake, lake.parent / "alone")
    for worker in WITH_COMPACTION.items():
        run_worker(*worker, settings, sequential, 0)
    expected, _ = read_contents(sequential)
    merged_runs = 0
    for race, copy, _ in run_races(WITH_COMPACTION, settings, lake):
        contents, uncommitted = read_contents(copy)
        assert uncommitted == 0, f"race {race}"
        for name in ("emissions", "late"):
            assert contents[name] == expected[name], f"race {race}"
        check_consistency(spark, settings, copy)
        merged_runs += len(list(copy.glob("orders/emissions/run=merged.*")))

    assert merged_runs, "nothing was merged"


@pytest.mark.slow
def test_concurrent_promotions_lose_no_row(spark, pipeline, origin, read_contents, plan_and_run):
    """Promote a candidate with the same settings, so that the output is the same whichever version is live."""
    _, lake = origin
    settings = pipeline(on_late_arriving_rows="reprocess", compact={"settled_after": "0 seconds", "period": "2 hours"})
    plan_and_run(to_candidate(settings, "again"), end=START + timedelta(hours=ALL))
    sequential = shutil.copytree(lake, lake.parent / "alone")
    for name in ("hourly", "reprocess"):
        run_worker(name, WITH_PROMOTION[name], settings, sequential, 0)
    expected, _ = read_contents(sequential)
    promotions = 0
    for race, copy, _ in run_races(WITH_PROMOTION, settings, lake):
        run_worker("afterwards", WITH_PROMOTION["hourly"], settings, copy, 0)
        contents, uncommitted = read_contents(copy)
        assert uncommitted == 0, f"race {race}"
        for name in ("emissions", "late"):
            assert contents[name] == expected[name], f"race {race}"
        check_consistency(spark, settings, copy)
        ledger = DeltaTable(f"{copy}/orders/ledger").to_pyarrow_table(columns=["promotion"])
        promotions += sum(promotion is not None for promotion in ledger["promotion"].to_pylist())

    assert promotions, "nothing was promoted"


def count_emitted(spark, lake):
    """Count all rows that the join emitted, published or quarantined."""
    rows = spark.read.format("delta").load(f"{lake}/orders/emissions")
    quarantined = (
        spark.read.format("delta").load(f"{lake}/orders/quarantined").drop(RUN_COLUMN, FAILED_EXPECTATIONS_COLUMN)
    )
    return Counter(map(str, rows.unionByName(quarantined.select(*rows.columns)).collect()))


@pytest.mark.slow
def test_concurrent_release_and_waiver_lose_no_row(spark, pipeline, origin, read_contents):
    _, lake = origin
    settings = pipeline(on_late_arriving_rows="reprocess", quality=QUARANTINE)
    request = Request(reprocess=True, start=START, end=START + timedelta(hours=COMMITTED))
    run_worker("origin", [request], settings, lake, 0)
    assert read_contents(lake)[0]["quarantined"]

    sequential = shutil.copytree(lake, lake.parent / "alone")
    run_worker("alone", [*WORKERS["backfill"], *WORKERS["reprocess"]], settings, sequential, 0)
    expected, conflicts, used_waivers = count_emitted(spark, sequential), 0, 0
    for race, copy, race_conflicts in run_races(WITH_RELEASE, settings, lake):
        conflicts += race_conflicts
        assert read_contents(copy)[1] == 0, f"race {race}"
        assert count_emitted(spark, copy) == expected, f"race {race}"
        used_waivers += count_used_waivers(copy)
        check_consistency(spark, settings, copy)
    assert conflicts, "there was no conflict"
    assert used_waivers, "no waiver was used"


def create_next_join(first):
    """Create a pipeline that joins the output of the first one with its left input."""
    content = {
        "name": "next_join",
        "dialect": first.dialect,
        "left": to_input(parse_input({"pipeline": first.name}), first),
        "right": {"table": "left", "event_time": "happened", "arrival": "arrived", "watermark_delay": "10 minutes"},
        "join": {
            "keys": [{"left": "left_k", "right": "k"}],
            "interval": {"lower": "-30 minutes", "upper": "5 minutes"},
        },
        "slices": {"every": "1 hour", "start": "2024-01-01T00:00:00Z"},
    }
    return Pipeline.model_validate(content)


@pytest.mark.slow
def test_concurrent_reprocess_of_previous_join_loses_no_row(
    spark, pipeline, origin, append_inputs, plan_and_run, read_contents
):
    """The next join reads while slices before and after the ones it reads are replaced."""
    _, lake = origin
    settings = pipeline(on_late_arriving_rows="reprocess", output_stream=True)
    plan_and_run(settings, reprocess=True, end=START + timedelta(hours=COMMITTED))
    next_join = create_next_join(settings)
    plan_and_run(next_join)
    arrived = START + timedelta(minutes=95)
    append_inputs(("a", arrived, arrived, 888))  # the reprocess reads it
    sequential = shutil.copytree(lake, lake.parent / "alone")
    for name in ("hourly", "reprocess"):
        run_worker(name, WITH_NEXT_JOIN[name], settings, sequential, 0)
    run_worker("next join", ["follow"], next_join, sequential, 0)
    expected, reruns = read_contents(sequential, next_join.output)[0], 0
    assert expected["emissions"]
    assert expected["late"]
    for race, copy, _ in run_races(WITH_NEXT_JOIN, settings, lake, next_join):
        run_worker("afterwards", [Request()], next_join, copy, 0)
        for output in (settings.output, next_join.output):
            assert read_contents(copy, output)[1] == 0, f"race {race}"
        contents, _ = read_contents(copy, next_join.output)
        for name in ("emissions", "late"):
            assert contents[name] == expected[name], f"race {race}"
        check_consistency(spark, settings, copy)
        reruns += sum(entry.attempt > 1 for entry in Ledger.from_pipeline(next_join, str(copy)).entries.values())

    assert reruns, "no slice of the next join ran again"
