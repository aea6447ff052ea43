"""Real runs of the DAGs: Airflow's own task runner, spark-submit, Spark and Delta."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tests.quality.fake_receivers import webhooks
from tests.spark.serving import serving
from tidemark.cli import main
from tidemark.config import load_pipeline
from tidemark.config.cluster import CONNECT_TOKEN_VARIABLE
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, create_plan
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

PROJECT = Path(__file__).parents[2]
SLICE_0 = {("00:00", "a 00:20", "a 00:15"), ("00:00", "b 00:59", "b 00:58")}
LATER = {("01:00", "a 01:05", "a 00:58"), ("02:00", "b 02:30", "b 02:21")}


@pytest.fixture(scope="module")
def airflow(environment):
    """Runs a DAG in a process of its own, on a database of its own."""
    subprocess.run([Path(sys.executable).with_name("airflow"), "db", "migrate"], env=environment, check=True)

    def run(environment, dag_id, date="-", **conf):
        script = PROJECT / "tests/dags/run_dag.py"
        command = [sys.executable, script, dag_id, date, json.dumps(conf)]
        done = subprocess.run(command, cwd="/", env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1]), done.stdout

    return run


def emitted(spark, lake):
    """Emissions of committed slices: the slice, then both rows."""
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


def with_a_bad_pair(there, write, at, settings):
    """A pair of the unknown user z lands, and the pipeline file, which is given, gets more settings."""
    for table in ("clicks", "views"):
        write(table, [("z", datetime.fromisoformat(f"2013-01-01T{at}+00:00"))], "user string, at timestamp")
    file = Path(there["TIDEMARK_PIPELINES"], "clicked_views.yaml")
    file.write_text(file.read_text() + settings)
    return file


def test_range_run_after_slice_run_emits_each_slice_once(spark, airflow, there, lake):
    # By hand, Airflow gives the interval that ends at the logical date.
    run, log = airflow(there, "clicked_views__slice", "2013-01-01T01:00:00+00:00")
    assert run == {"state": "success", "interval": ["2013-01-01T00:00:00+00:00", "2013-01-01T01:00:00+00:00"]}, log
    assert emitted(spark, lake) == Counter(SLICE_0)
    assert "clicked_views: 1 slices from 2013-01-01T00:00Z to 2013-01-01T01:00Z, 2 emissions" in log

    run, log = airflow(there, "clicked_views__slice", "2013-01-01T01:00:00+00:00")
    assert run["state"] == "success"
    assert "are committed" in log
    assert "spark-submit" not in log

    run, log = airflow(there, "clicked_views__range", to="2013-01-01T03:00:00Z", slices_per_job=2)
    assert run["state"] == "success", log
    assert emitted(spark, lake) == Counter(SLICE_0 | LATER)


@pytest.mark.slow
def test_slice_run_on_connect_server_starts_no_jvm_in_worker(spark, airflow, there, lake, tmp_path):
    with serving(tmp_path) as given:
        warm = there | {"AIRFLOW_CONN_SPARK_DEFAULT": given["AIRFLOW_CONN_SPARK_DEFAULT"]}
        run, log = airflow(warm, "clicked_views__slice", "2013-01-01T01:00:00+00:00")
        assert run["state"] == "success", log
        assert "spark-submit" not in log
        assert given[CONNECT_TOKEN_VARIABLE] not in log
        assert "clicked_views: 1 slices from 2013-01-01T00:00Z to 2013-01-01T01:00Z, 2 emissions" in log
        assert emitted(spark, lake) == Counter(SLICE_0)

        run, log = airflow(warm, "clicked_views__slice", "2013-01-01T03:00:00+00:00")
        assert run["state"] == "failed"
        assert "checkpoint before slice 2013-01-01T02:00Z is missing" in log
        assert "AirflowFailException" in log


@pytest.mark.slow
def test_slice_run_out_of_order_fails_without_retry(airflow, there):
    run, log = airflow(there, "clicked_views__slice", "2013-01-01T03:00:00+00:00")
    assert run["state"] == "failed"
    assert "checkpoint before slice 2013-01-01T02:00Z is missing" in log
    assert "AirflowFailException" in log


@pytest.mark.slow
def test_compare_run_fails_without_retry_when_stream_differs(spark, airflow, there, lake):
    pipeline = load_pipeline(Path(there["TIDEMARK_PIPELINES"], "clicked_views.yaml"))
    tables = PipelineTables(str(lake / "clicked_views"))

    def run_to(end):
        with tuned_for_tiny_queries(spark):
            plan = create_plan(spark, pipeline, str(lake), Request(end=datetime.fromisoformat(end)))
            list(execute(spark, plan, lambda *_: None))

    def stream(times, since):
        rows = spark.read.format("delta").load(tables.emissions).where(f"date_format(_slice, 'HH:mm') >= '{since}'")
        rows = rows.select("left_user", "left_at", "right_user", "right_at")
        for _ in range(times):
            rows.write.format("delta").mode("append").save(str(lake / "streamed"))

    def agreement():
        rows = spark.read.format("delta").load(tables.agreement)
        return {tuple(row) for row in rows.selectExpr("date_format(slice, 'HH:mm')", "same", "only_stream").collect()}

    run_to("2013-01-01T02:00Z")
    stream(times=1, since="00:00")
    run, log = airflow(there, "clicked_views__compare")
    assert run["state"] == "success", log
    assert agreement() == {("00:00", 2, 0), ("01:00", 1, 0)}

    run_to("2013-01-01T03:00Z")
    stream(times=2, since="02:00")
    run, log = airflow(there, "clicked_views__compare")
    assert run["state"] == "failed"
    assert "error: over budget: 1 of 2 rows differing, 1 more than the budget of 0" in log
    assert "AirflowFailException" in log
    assert agreement() == {("00:00", 2, 0), ("01:00", 1, 0), ("02:00", 1, 1)}


def test_failed_range_run_reports_committed_slices_and_notifies(airflow, there, write):
    known = "{type: expect_column_values_to_be_in_set, column: left_user, value_set: [a, b]}"
    notify = "notify: [{webhook: {connection: tidemark_pager}}, {slack: {connection: tidemark_none}}]"
    with_a_bad_pair(there, write, "02:35", f"quality: [{known}]\n{notify}\n")
    with webhooks() as (url, told):
        pager = {"AIRFLOW_CONN_TIDEMARK_PAGER": json.dumps({"conn_type": "http", "host": url, "password": "s3cret"})}
        run, log = airflow(there | pager, "clicked_views__range", to="2013-01-01T03:00:00Z", slices_per_job=1)
    [(_, headers, content)] = told
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
def test_slice_run_with_quarantined_rows_succeeds_and_release_publishes_them(
    spark, airflow, there, write, lake, monkeypatch
):
    known = "{type: expect_column_values_to_be_in_set, column: left_user, value_set: [a, b], on_failure: quarantine}"
    usual = "{type: expect_column_values_to_be_in_set, column: left_user, value_set: [a, z], on_failure: warn}"
    file = with_a_bad_pair(there, write, "01:35", f"quality: [{known}, {usual}]\n")
    run, log = airflow(there, "clicked_views__range", to="2013-01-01T03:00:00Z", slices_per_job=1)
    assert run["state"] == "success", log
    assert emitted(spark, lake) == Counter(SLICE_0 | LATER), "with what warns: rows of b"
    [quality] = re.findall(r"rows late; quality (\{.*?\})", log)
    assert ast.literal_eval(quality) == {"quarantined": 1, "warned": 2}

    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))
    assert main(["release", str(file), "--slice", "2013-01-01T01:00Z"]) == 0
    assert emitted(spark, lake) == Counter([*SLICE_0, *LATER, ("01:00", "z 01:35", "z 01:35")])


@pytest.mark.slow
def test_maintenance_run_compacts_files_and_fails_on_damaged_tables(spark, airflow, there, lake):
    file = Path(there["TIDEMARK_PIPELINES"], "clicked_views.yaml")
    file.write_text(file.read_text() + "compact: {settled_after: 0 seconds, period: 3 hours}\n")
    run, log = airflow(there, "clicked_views__range", to="2013-01-01T03:00:00Z", slices_per_job=1)
    assert run["state"] == "success", log

    def files():
        return DeltaTableHandle.open(str(lake / "clicked_views" / "emissions")).files["path"].to_list()

    assert len(files()) == 3
    run, log = airflow(there, "clicked_views__maintenance")
    assert run["state"] == "success", log
    assert "clicked_views: removed 0 files of what was never committed, 0 files of what was superseded" in log
    [merged] = files()
    assert emitted(spark, lake) == Counter(SLICE_0 | LATER)

    (lake / "clicked_views" / "emissions" / merged).unlink()
    run, log = airflow(there, "clicked_views__maintenance")
    assert run["state"] == "failed"
    assert "clicked_views is not as it was committed" in log
    assert "file gone" in log


def test_run_without_connection_fails_with_error_line(airflow, environment):
    alone = {k: v for k, v in environment.items() if k != "AIRFLOW_CONN_SPARK_DEFAULT"}
    run, log = airflow(alone, "flights_weather__range", to="2013-01-02T00:00:00Z")
    assert run["state"] == "failed"
    assert "connection spark_default is missing. Add it in Airflow, or set AIRFLOW_CONN_SPARK_DEFAULT=" in log
    assert "spark-submit" not in log
