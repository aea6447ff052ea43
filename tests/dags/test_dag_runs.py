"""Real runs of the DAGs: Airflow's own task runner, spark-submit, Spark and Delta."""

import json
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tidemark.lake import PipelineTables
from tidemark.ledger import committed

PROJECT = Path(__file__).parents[2]
ROWS = {
    "clicks": ["a 00:20", "b 00:59", "a 01:05", "b 02:30", "c 02:40"],
    "views": ["a 00:15", "a 00:58", "b 00:58", "b 02:21", "a 02:45"],
}
SLICE_0 = {("00:00", "a 00:20", "a 00:15"), ("00:00", "b 00:59", "b 00:58")}
LATER = {("01:00", "a 01:05", "a 00:58"), ("02:00", "b 02:30", "b 02:21")}

pytestmark = pytest.mark.airflow


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


@pytest.fixture
def there(environment, pipeline_file, write, lake):
    """Variables of an Airflow with one pipeline, whose inputs hold the rows."""
    for table, rows in ROWS.items():
        pairs = (row.split() for row in rows)
        write(
            table,
            [(user, datetime.fromisoformat(f"2013-01-01T{at}+00:00")) for user, at in pairs],
            "user string, at timestamp",
        )
    folder = pipeline_file("clicked_views.yaml", name="clicked_views")
    return environment | {"TIDEMARK_PIPELINES": str(folder), "TIDEMARK_LAKE": str(lake)}


def emitted(spark, lake):
    """Emissions of committed slices: the slice, then both rows."""
    tables = PipelineTables(str(lake / "clicked_views"))
    rows = committed(spark, tables, tables.emissions).selectExpr(
        "date_format(_slice, 'HH:mm')",
        *(f"{side}_user || ' ' || date_format({side}_at, 'HH:mm')" for side in ("left", "right")),
    )
    return Counter(map(tuple, rows.collect()))


def test_a_slice_run_then_a_range_run_emit_each_slice_once(spark, airflow, there, lake):
    # By hand, Airflow gives the interval that ends at the logical date.
    run, log = airflow(there, "clicked_views__slice", "2013-01-01T01:00:00+00:00")
    assert run == {"state": "success", "interval": ["2013-01-01T00:00:00+00:00", "2013-01-01T01:00:00+00:00"]}, log
    assert emitted(spark, lake) == Counter(SLICE_0)

    run, log = airflow(there, "clicked_views__range", to="2013-01-01T03:00:00Z", slices_per_job=2)
    assert run["state"] == "success", log
    assert emitted(spark, lake) == Counter(SLICE_0 | LATER)


def test_a_slice_out_of_order_is_refused_once_and_for_all(airflow, there):
    run, log = airflow(there, "clicked_views__slice", "2013-01-01T03:00:00+00:00")
    assert run["state"] == "failed"
    assert "checkpoint before slice 2013-01-01T02:00Z is missing" in log
    assert "AirflowFailException" in log


def test_a_missing_connection_is_refused_in_one_line(airflow, environment):
    alone = {k: v for k, v in environment.items() if k != "AIRFLOW_CONN_SPARK_DEFAULT"}
    run, log = airflow(alone, "flights_weather__range", to="2013-01-02T00:00:00Z")
    assert run["state"] == "failed"
    assert "connection spark_default is missing; add it in Airflow, or set AIRFLOW_CONN_SPARK_DEFAULT=" in log
    assert "spark-submit" not in log
