"""Runs of the DAGs by Airflow's own task runner, with spark-submit, Spark and Delta."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tests.dags.slice_lake import SliceLake
from tests.quality.fake_receivers import webhooks
from tests.spark.connect_server import run_connect_server
from tidemark.cli import main
from tidemark.config import load_pipeline
from tidemark.config.cluster import CONNECT_TOKEN_VARIABLE
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

PROJECT = Path(__file__).parents[2]
GROUPS = """
from pathlib import Path
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from tidemark.airflow import TidemarkTaskGroup

def create(dag_id):
    with DAG(dag_id, schedule=None) as dag:
        file, start, end = Path(__file__).with_name("orders.yaml"), "2025-01-01T00:00Z", "2025-01-01T05:00Z"
        TidemarkTaskGroup(file, start=start, end=end) >> EmptyOperator(task_id="load")
    return dag

after_report, after_failed_report = create("after_report"), create("after_failed_report")
after_failed_report.get_task("orders.report").file = "no such file.yaml"
"""
SLICE_0 = {("00:00", "a 00:20", "a 00:15"), ("00:00", "b 00:59", "b 00:58")}
LATER = {("01:00", "a 01:05", "a 00:58"), ("02:00", "b 02:30", "b 02:21")}


@pytest.fixture(scope="module")
def run_dag(environment):
    """Return a function that runs a DAG in another process and returns its run and its log."""
    subprocess.run([Path(sys.executable).with_name("airflow"), "db", "migrate"], env=environment, check=True)

    def run(environment, dag_id, date="-", **conf):
        script = PROJECT / "tests/dags/run_dag.py"
        command = [sys.executable, script, dag_id, date, json.dumps(conf)]
        process = subprocess.run(command, cwd="/", env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(process.stdout.splitlines()[-1]), process.stdout

    return run


def count_emissions(spark, lake):
    """Count the emissions by slice, left row and right row."""
    tables = PipelineTables(str(lake / "clicked_views"))
    rows = (
        spark.read.format("delta")
        .load(tables.emissions)
        .selectExpr(
            "date_format(_slice, 'HH:mm')",
            *(f"{side}_user || ' ' || date_format({side}_at, 'HH:mm')" for side in ("left", "right")),
        )
    )
    return Counter(map(tuple, rows.collect()))


def add_invalid_pair(pipeline_env, write, at, settings):
    """Write a pair of the unknown user z, and add settings to the pipeline file; return the file."""
    for table in ("clicks", "views"):
        write(table, [("z", datetime.fromisoformat(f"2013-01-01T{at}+00:00"))], "user string, at timestamp")
    file = Path(pipeline_env["TIDEMARK_PIPELINES"], "clicked_views.yaml")
    file.write_text(file.read_text() + settings)
    return file


@pytest.mark.promise("A slice and a range that Airflow runs are committed once each.")
def test_range_run_after_slice_run_emits_each_slice_once(spark, run_dag, pipeline_env, lake):
    # A manual run gets the interval that ends at its logical date.
    run, log = run_dag(pipeline_env, "clicked_views__slice", "2013-01-01T01:00:00+00:00")
    assert run["state"] == "success", log
    assert run["interval"] == ["2013-01-01T00:00:00+00:00", "2013-01-01T01:00:00+00:00"]
    assert count_emissions(spark, lake) == Counter(SLICE_0)
    assert "clicked_views: 1 slices from 2013-01-01T00:00Z to 2013-01-01T01:00Z, 2 emissions" in log

    run, log = run_dag(pipeline_env, "clicked_views__slice", "2013-01-01T01:00:00+00:00")
    assert run["state"] == "success"
    assert "are committed" in log
    assert "spark-submit" not in log

    run, log = run_dag(pipeline_env, "clicked_views__range", to="2013-01-01T03:00:00Z", slices_per_job=2)
    assert run["state"] == "success", log
    assert count_emissions(spark, lake) == Counter(SLICE_0 | LATER)


@pytest.mark.parametrize(
    ("dag_id", "report", "after"),
    [("after_report", "skipped", "success"), ("after_failed_report", "failed", "upstream_failed")],
)
def test_tasks_after_group_of_committed_slices_run_unless_report_failed(
    run_dag, environment, tmp_path, dag_id, report, after
):
    slices = SliceLake.create(tmp_path / "dags", tmp_path / "lake")
    slices.add(range(5))
    slices.write()
    (tmp_path / "dags" / "groups.py").write_text(GROUPS)
    folder = {"AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"), "TIDEMARK_LAKE": str(slices.lake)}

    run, log = run_dag(environment | folder, dag_id)

    tasks = {"wait": "skipped", "run": "skipped", "report": report, "done": after}
    assert run["tasks"] == {f"orders.{name}": state for name, state in tasks.items()} | {"load": after}, log
    assert run["state"] == ("success" if after == "success" else "failed")


@pytest.mark.slow
def test_slice_run_on_connect_server_starts_no_jvm_in_worker(spark, run_dag, pipeline_env, lake, tmp_path):
    with run_connect_server(tmp_path) as client_env:
        connect_env = pipeline_env | {"AIRFLOW_CONN_SPARK_DEFAULT": client_env["AIRFLOW_CONN_SPARK_DEFAULT"]}
        run, log = run_dag(connect_env, "clicked_views__slice", "2013-01-01T01:00:00+00:00")
        assert run["state"] == "success", log
        assert "spark-submit" not in log
        assert client_env[CONNECT_TOKEN_VARIABLE] not in log
        assert "clicked_views: 1 slices from 2013-01-01T00:00Z to 2013-01-01T01:00Z, 2 emissions" in log
        assert count_emissions(spark, lake) == Counter(SLICE_0)

        run, log = run_dag(connect_env, "clicked_views__slice", "2013-01-01T03:00:00+00:00")
        assert run["state"] == "failed"
        assert "checkpoint before slice 2013-01-01T02:00Z is missing" in log
        assert "AirflowFailException" in log


@pytest.mark.slow
def test_slice_run_out_of_order_fails_without_retry(run_dag, pipeline_env):
    run, log = run_dag(pipeline_env, "clicked_views__slice", "2013-01-01T03:00:00+00:00")
    assert run["state"] == "failed"
    assert "checkpoint before slice 2013-01-01T02:00Z is missing" in log
    assert "AirflowFailException" in log


@pytest.mark.slow
def test_compare_run_fails_without_retry_when_stream_differs(spark, run_dag, pipeline_env, lake):
    pipeline = load_pipeline(Path(pipeline_env["TIDEMARK_PIPELINES"], "clicked_views.yaml"))
    tables = PipelineTables(str(lake / "clicked_views"))

    def run_to(end):
        with tuned_for_tiny_queries(spark):
            plan = create_plan(spark, pipeline, str(lake), Request(end=datetime.fromisoformat(end)))
            list(execute(spark, plan, lambda *_: None))

    def append_streamed_rows(times, since):
        rows = spark.read.format("delta").load(tables.emissions).where(f"date_format(_slice, 'HH:mm') >= '{since}'")
        rows = rows.select("left_user", "left_at", "right_user", "right_at")
        for _ in range(times):
            rows.write.format("delta").mode("append").save(str(lake / "streamed"))

    def read_agreement():
        rows = spark.read.format("delta").load(tables.agreement)
        return {tuple(row) for row in rows.selectExpr("date_format(slice, 'HH:mm')", "same", "only_stream").collect()}

    run_to("2013-01-01T02:00Z")
    append_streamed_rows(times=1, since="00:00")
    run, log = run_dag(pipeline_env, "clicked_views__compare")
    assert run["state"] == "success", log
    assert read_agreement() == {("00:00", 2, 0), ("01:00", 1, 0)}

    run_to("2013-01-01T03:00Z")
    append_streamed_rows(times=2, since="02:00")
    run, log = run_dag(pipeline_env, "clicked_views__compare")
    assert run["state"] == "failed"
    assert "error: over budget: 1 of 2 rows differing, 1 more than the budget of 0" in log
    assert "AirflowFailException" in log
    assert read_agreement() == {("00:00", 2, 0), ("01:00", 1, 0), ("02:00", 1, 1)}


def test_failed_range_run_reports_committed_slices_and_notifies(run_dag, pipeline_env, write):
    in_set = "{type: expect_column_values_to_be_in_set, column: left_user, value_set: [a, b]}"
    notify = "notify: [{webhook: {connection: tidemark_pager}}, {slack: {connection: tidemark_none}}]"
    add_invalid_pair(pipeline_env, write, "02:35", f"quality: [{in_set}]\n{notify}\n")

    with webhooks() as (url, requests):
        pager = {"AIRFLOW_CONN_TIDEMARK_PAGER": json.dumps({"conn_type": "http", "host": url, "password": "s3cret"})}
        run, log = run_dag(pipeline_env | pager, "clicked_views__range", to="2013-01-01T03:00:00Z", slices_per_job=1)

    [(_, headers, content)] = requests
    assert headers["Authorization"] == "Bearer s3cret"
    assert (content["outcome"], content["failures"][0]["slices"]) == ("failed", ["2013-01-01T02:00Z"])
    assert "AirflowFailException: quality gate: expect_column_values_to_be_in_set" in log.replace("\n", " ")
    assert "s3cret" not in log
    assert (
        "slack was not notified by connection tidemark_none that clicked_views: quality failed. The connection does"
        in log
    )
    assert run["state"] == "failed"
    assert "AirflowFailException" in log
    assert "clicked_views: 2 slices from 2013-01-01T00:00Z to 2013-01-01T02:00Z, 3 emissions, 0 left and 0 right" in log


@pytest.mark.slow
def test_slice_run_with_quarantined_rows_succeeds_until_release(spark, run_dag, pipeline_env, write, lake, monkeypatch):
    quarantine = (
        "{type: expect_column_values_to_be_in_set, column: left_user, value_set: [a, b], on_failure: quarantine}"
    )
    warning = "{type: expect_column_values_to_be_in_set, column: left_user, value_set: [a, z], on_failure: warn}"
    file = add_invalid_pair(pipeline_env, write, "01:35", f"quality: [{quarantine}, {warning}]\n")

    run, log = run_dag(pipeline_env, "clicked_views__range", to="2013-01-01T03:00:00Z", slices_per_job=1)
    assert run["state"] == "success", log
    assert count_emissions(spark, lake) == Counter(SLICE_0 | LATER), "rows of b, which only warn, are published"
    [quality] = re.findall(r"rows late; quality (\{.*?\})", log)
    assert ast.literal_eval(quality) == {"quarantined": 1, "warned": 2}

    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))
    assert main(["quarantine", "release", str(file), "--slice", "2013-01-01T01:00Z"]) == 0
    assert count_emissions(spark, lake) == Counter([*SLICE_0, *LATER, ("01:00", "z 01:35", "z 01:35")])


@pytest.mark.slow
def test_maintenance_run_compacts_files_and_fails_on_damaged_tables(spark, run_dag, pipeline_env, lake):
    file = Path(pipeline_env["TIDEMARK_PIPELINES"], "clicked_views.yaml")
    file.write_text(file.read_text() + "compact: {settled_after: 0 seconds, period: 3 hours}\n")
    run, log = run_dag(pipeline_env, "clicked_views__range", to="2013-01-01T03:00:00Z", slices_per_job=1)
    assert run["state"] == "success", log

    def list_files():
        return DeltaTableHandle.open(str(lake / "clicked_views" / "emissions")).files["path"].to_list()

    assert len(list_files()) == 3

    run, log = run_dag(pipeline_env, "clicked_views__maintenance")
    assert run["state"] == "success", log
    assert "clicked_views: removed 0 uncommitted files, 0 replaced files" in log
    [merged] = list_files()
    assert count_emissions(spark, lake) == Counter(SLICE_0 | LATER)

    (lake / "clicked_views" / "emissions" / merged).unlink()
    run, log = run_dag(pipeline_env, "clicked_views__maintenance")
    assert run["state"] == "failed"
    assert "clicked_views is not as it was committed" in log
    assert "missing file" in log


def test_run_without_connection_fails_with_error_line(run_dag, environment, lake):
    without_connection = {k: v for k, v in environment.items() if k != "AIRFLOW_CONN_SPARK_DEFAULT"}
    without_connection["TIDEMARK_LAKE"] = str(lake)  # the project's own may have the slices of the demo

    run, log = run_dag(without_connection, "flights_weather__range", to="2013-01-02T00:00:00Z")

    assert run["state"] == "failed"
    assert "connection spark_default is missing. Add it in Airflow, or set AIRFLOW_CONN_SPARK_DEFAULT=" in log
    assert "spark-submit" not in log
