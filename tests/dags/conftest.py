"""Airflow in processes of its own, with its own home and its own pipelines."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PIPELINE = """
name: {name}
dialect: flink-datastream
left: {{table: clicks, event_time: at, watermark_delay: 10 minutes}}
right: {{table: views, event_time: at, watermark_delay: 0 seconds}}
join:
  keys: [user]
  interval: {{lower: -10 minutes, upper: 0 seconds}}
slices: {{every: {every}, start: "{start}"}}
"""
ROWS = {
    "clicks": ["a 00:20", "b 00:59", "a 01:05", "b 02:30", "c 02:40"],
    "views": ["a 00:15", "a 00:58", "b 00:58", "b 02:21", "a 02:45"],
}


@pytest.fixture
def pipeline_file(tmp_path):
    """Writes a pipeline file into the test's own folder of pipelines."""
    folder = tmp_path / "pipelines"
    folder.mkdir()

    def write(file, *, name, every="1 hour", start="2013-01-01T00:00:00Z", more=""):
        (folder / file).write_text(PIPELINE.format(name=name, every=every, start=start) + more)
        return folder

    return write


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Variables of an Airflow that knows this project's DAG files, and nothing of this machine's own Airflow."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK_"))}
    return inherited | {
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # A job of a few rows is over before the optimising compiler has paid for itself.
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }


@pytest.fixture(scope="session")
def describe(environment):
    """What `describe_dags.py` says, with some variables more; run elsewhere than in the project."""

    def ask(*arguments, **variables):
        run = subprocess.run(
            [sys.executable, PROJECT / "tests/dags/describe_dags.py", *arguments],
            cwd="/",
            env=environment | {k: str(v) for k, v in variables.items()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout.splitlines()[-1])

    return ask


WAITING = """
name: {name}
dialect: flink-datastream
left:
  table: clicks
  event_time: at
  watermark_delay: 10 minutes
  complete: {{by: marker, table: marks, column: until, where: {{feed: {name}}}}}
right: {{table: views, event_time: at, watermark_delay: 0 seconds}}
join:
  keys: [user]
  interval: {{lower: -10 minutes, upper: 0 seconds}}
slices: {{every: 1 hour, start: "2013-01-01T00:00:00Z", end: "2013-01-01T01:00:00Z"}}
airflow: {{poll_interval: 2 seconds, wait_timeout: 1 hour}}
"""


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
    folder = pipeline_file(
        "clicked_views.yaml", name="clicked_views", more="compare: {table: streamed, budget: {differing: 0}}\n"
    )
    return environment | {"TIDEMARK_PIPELINES": str(folder), "TIDEMARK_LAKE": str(lake)}
