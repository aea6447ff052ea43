"""A lake on a real S3 server gives the tables of a local lake, also when two drivers race."""

import multiprocessing
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow.fs as pafs
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.conftest import PROJECT
from tests.e2e.orders import HOUR, SIDES, START, InputWriter, create_pipeline_yaml
from tests.object_store.s3_servers import BUCKET, create_variables, find_versitygw, run_small_store, run_versitygw
from tests.spark.sample_lake import read_rows
from tidemark.config import load_pipeline
from tidemark.delta.filesystem import list_file_sizes, open_filesystem
from tidemark.delta.log_files import RemovedFiles
from tidemark.errors import SliceOrderError
from tidemark.execution.run import execute
from tidemark.maintenance.vacuum import vacuum
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.session import get_spark_session

RACES = int(os.environ.get("TIDEMARK_S3_RACES", "4"))
JARS = PROJECT / ".cache/s3/jars"
LAKE = f"s3a://{BUCKET}/lake"
TABLES = ("emissions", "late")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_versitygw() is None or not JARS.is_dir(), reason="make s3 has not installed versitygw and jars"
    ),
]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Run a store and set the variables by which it is accessed."""
    with run_versitygw(tmp_path / "store") as address:
        variables = create_variables(address) | {"TIDEMARK_JARS": str(JARS), "TIDEMARK_MASTER": "local[1]"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield


def write_inputs(lake, hours):
    """Write all rows of both inputs."""
    inputs = InputWriter(lake, hours)
    for hour in range(hours):
        for side in SIDES:
            inputs.write_hour(side, hour)


def run_command(*arguments, cwd, code=0):
    """Run a command to its end; return its output, or its errors for an exit code other than 0."""
    script = "import sys; from tidemark.cli import main; sys.exit(main(sys.argv[1:]))"
    env = os.environ | {"PYTHONPATH": str(PROJECT / "include")}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert process.returncode == code, process.stderr
    return process.stderr if code else process.stdout


def test_commands_on_object_store_give_tables_and_pages_of_local_lake(store, tmp_path):
    file, local_lake = tmp_path / "orders.yaml", tmp_path / "lake"
    file.write_text(create_pipeline_yaml("orders", 3))

    for lake in (LAKE, local_lake):
        write_inputs(lake, 3)
        run_command("run", file, "--lake", lake, "--slices-per-job", 2, cwd=tmp_path)
        run_command("reprocess", file, "--lake", lake, "--from", START + HOUR, "--to", START + 2 * HOUR, cwd=tmp_path)

    for table in TABLES:
        assert read_rows(f"{LAKE}/orders/{table}") == read_rows(local_lake / "orders" / table)
        assert read_rows(f"{LAKE}/orders/{table}").total() > 10

    report = f"{LAKE}/reports/quality.html"
    run_command("quality", "show", file, "--lake", LAKE, "--report", report, cwd=tmp_path)
    files = open_filesystem(LAKE)
    assert b"<html" in bytes(files.open_input_file("reports/quality.html").read())
    docs = files.get_file_info(pafs.FileSelector("orders/gx/uncommitted/data_docs/local_site", recursive=True))
    pages = {info.path for info in docs if info.path.endswith(".html")}
    assert {path.rpartition("/")[2] for path in pages} >= {"index.html", "slices-invariants.html"}
    index = bytes(files.open_input_file("orders/gx/uncommitted/data_docs/local_site/index.html").read())
    assert b"slices-invariants.html" in index
    assert "s3a:" not in {path.name for path in tmp_path.iterdir()}

    with files.open_output_stream("orders/emissions/run=uncommitted/part-0.parquet") as uncommitted:
        uncommitted.write(b"text")
    time.sleep(1.1)  # a store's times are whole seconds
    result = vacuum(load_pipeline(file), LAKE, timedelta(0))  # the command keeps files for an hour at least
    assert result.uncommitted_files == RemovedFiles(("emissions/run=uncommitted/part-0.parquet",), 4)
    assert result.recovery_horizon.readable_from["emissions"] == 0
    assert read_rows(f"{LAKE}/orders/emissions").total() > 10


def test_compaction_promotion_and_vacuum_on_object_store_equal_local_lake(store, tmp_path):
    """Compact, promote, roll back and delete a candidate version, and vacuum with short retention."""
    narrow, wide, local_lake, hours = tmp_path / "orders.yaml", tmp_path / "wide.yaml", tmp_path / "lake", 4
    settings = yaml.safe_load(create_pipeline_yaml("orders", hours)) | {
        "compact": {"settled_after": "0 seconds", "period": "2 hours"}
    }
    narrow.write_text(yaml.safe_dump(settings))
    settings["join"]["interval"]["upper"] = "20 minutes"
    wide.write_text(yaml.safe_dump(settings))
    steps = [
        ("run", narrow, "--slices-per-job", 1),
        ("tables", "compact", narrow),
        ("run", wide, "--candidate", "wide"),
        ("version", "promote", wide, "wide"),
        ("version", "rollback", narrow, "wide"),
        ("version", "promote", wide, "wide"),
        ("version", "drop", wide, "wide", "--yes"),
        ("tables", "verify", wide, "--deep"),
    ]
    for lake in (LAKE, local_lake):
        write_inputs(lake, hours)

    counts = []
    for step in steps:
        for lake in (LAKE, local_lake):
            run_command(*step, "--lake", lake, cwd=tmp_path)
        remote, local = (
            {table: read_rows(f"{lake}/orders/{table}") for table in TABLES} for lake in (LAKE, local_lake)
        )
        assert remote == local, step
        counts.append(remote["emissions"].total())
    assert counts[0] == counts[1] == counts[2] == counts[4] < counts[3] == counts[5] == counts[7]
    assert not any(list_file_sizes(open_filesystem(LAKE), "orders/candidates").values())

    settings, no_time = load_pipeline(wide), timedelta(0)
    retention = settings.retention.model_copy(
        update=dict.fromkeys(("replaced_files", "uncommitted_files", "log_files"), no_time)
    )
    time.sleep(1.1)  # a store's times are whole seconds
    result = vacuum(settings.model_copy(update={"retention": retention}), LAKE)
    assert result.log_files.files
    assert result.replaced_files.files
    assert read_rows(f"{LAKE}/orders/emissions").total() == counts[-1]
    assert "consistent" in run_command("tables", "verify", wide, "--lake", LAKE, "--deep", cwd=tmp_path)


def test_run_store_without_conditional_puts_is_rejected_before_writing(store, tmp_path, monkeypatch):
    file = tmp_path / "orders.yaml"
    file.write_text(create_pipeline_yaml("orders", 1))

    with run_small_store(conditional=False) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        write_inputs(LAKE, 1)
        error = run_command("run", file, "--lake", LAKE, cwd=tmp_path, code=2)
        objects = open_filesystem(LAKE).get_file_info(pafs.FileSelector("", recursive=True))

    assert "its store ignores conditional puts (If-None-Match)" in error
    # Hadoop creates an object that represents the output folder.
    files = {info.path for info in objects if info.is_file} - {"orders"}
    assert {path.partition("/")[0] for path in files} == set(SIDES)


def start_session(barrier):
    """Start a session in this process and wait for that of the other process."""
    get_spark_session("races").conf.set("spark.sql.shuffle.partitions", "2")
    barrier.wait(timeout=300)


def execute_with_retries(file, requests, delay):
    """Execute requests after a delay in seconds, and each again after a lost race.

    Returns:
        The number of races that the other driver won.
    """
    session, settings, lost = SparkSession.active(), load_pipeline(file), 0
    time.sleep(delay)
    for request in requests:
        for _ in range(20):
            try:
                list(execute(session, create_plan(session, settings, LAKE, request), lambda *_: None))
            except SliceOrderError as error:
                if "another process committed" not in str(error):
                    raise
                lost += 1
            else:
                break
        else:
            raise AssertionError("the other driver won 20 races in a row")
    return lost


def test_racing_drivers_on_object_store_lose_no_commit(store, tmp_path):
    """Both drivers run the next slice; in every other race, one of them first reprocesses the last slice."""
    file, local_lake, hours = tmp_path / "orders.yaml", tmp_path / "lake", RACES + 1
    file.write_text(create_pipeline_yaml("orders", hours))
    for lake in (LAKE, local_lake):
        write_inputs(lake, hours)
    run_command("run", file, "--lake", LAKE, "--to", START + HOUR, cwd=tmp_path)
    run_command("run", file, "--lake", local_lake, "--slices-per-job", hours, cwd=tmp_path)

    lost, processes = 0, multiprocessing.get_context("spawn")
    started = datetime.now(UTC)
    with ProcessPoolExecutor(2, processes, start_session, [processes.Barrier(2)]) as pool:
        for race in range(1, hours):
            next_slice, chance = Request(end=START + (race + 1) * HOUR), random.Random(race)
            reprocess = Request(reprocess=True, start=START + (race - 1) * HOUR, end=START + race * HOUR)
            requests_by_driver = [[next_slice], [reprocess, next_slice] if race % 2 else [next_slice]]
            futures = [
                pool.submit(execute_with_retries, file, requests, chance.uniform(0, 0.3))
                for requests in requests_by_driver
            ]
            lost += sum(future.result() for future in futures)
    seconds = (datetime.now(UTC) - started) / timedelta(seconds=1)
    sys.stdout.write(f"{RACES} races in {seconds:.0f} s: {lost} commit conflicts\n")

    assert lost
    for table in TABLES:
        assert read_rows(f"{LAKE}/orders/{table}") == read_rows(local_lake / "orders" / table)
    rows = DeltaTable(f"{LAKE}/orders/ledger").to_pyarrow_table(columns=["slice", "attempt", "commit"]).to_pylist()
    assert len({(row["slice"], row["attempt"]) for row in rows}) == len(rows)
    assert {row["slice"] for row in rows} == {START + hour * HOUR for hour in range(hours)}
    assert sorted({row["commit"] for row in rows}) == list(range(1, 1 + len({row["commit"] for row in rows})))


def run_with_catalog_tables(file, request):
    """Create catalog tables of the store's folders in this process's session, and execute a request on them."""
    session = get_spark_session("catalog")
    for side in SIDES:
        session.sql(f"CREATE TABLE sold_{side} USING delta LOCATION '{LAKE}/{side}'")
    list(execute(session, create_plan(session, load_pipeline(file), LAKE, request), lambda *_: None))


def test_run_catalog_tables_on_object_store_equals_paths(store, tmp_path):
    """Run without `complete`, which reads a folder's log without Spark."""
    orders = yaml.safe_load(create_pipeline_yaml("orders", 2))
    for side in SIDES:
        del orders[side]["complete"]
    sold = orders | {"name": "sold"} | {side: orders[side] | {"table": f"sold_{side}"} for side in SIDES}
    files = [tmp_path / f"{settings['name']}.yaml" for settings in (orders, sold)]
    for file, settings in zip(files, (orders, sold), strict=True):
        file.write_text(yaml.safe_dump(settings))
    write_inputs(LAKE, 2)

    run_command("run", files[0], "--lake", LAKE, cwd=tmp_path)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(run_with_catalog_tables, files[1], Request(end=START + 2 * HOUR)).result()

    for table in TABLES:
        assert read_rows(f"{LAKE}/sold/{table}") == read_rows(f"{LAKE}/orders/{table}")
        assert read_rows(f"{LAKE}/sold/{table}").total() > 10
