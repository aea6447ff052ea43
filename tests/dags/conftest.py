"""Fixtures that run Airflow in other processes, with a new home folder and new pipelines."""

import configparser
import json
import os
import subprocess
import sys
import tomllib
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
    """Return a function that writes a pipeline file to a folder of the test and returns the folder."""
    folder = tmp_path / "pipelines"
    folder.mkdir()

    def write(file, *, name, every="1 hour", start="2013-01-01T00:00:00Z", settings=""):
        (folder / file).write_text(PIPELINE.format(name=name, every=every, start=start) + settings)
        return folder

    return write


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Return variables of an Airflow with this project's DAG files, isolated from this machine's own Airflow."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK_"))}
    return inherited | {
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # A job of a few rows ends before the optimising compiler has paid off.
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }


@pytest.fixture
def provider_env(environment, tmp_path):
    """Return variables of an Airflow that finds this checkout as an installed package."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    info = tmp_path / "site" / f"tidemark-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tidemark\nVersion: {project['version']}\n")
    entry_points = configparser.ConfigParser()
    entry_points.read_dict(project["entry-points"])
    with (info / "entry_points.txt").open("w") as file:
        entry_points.write(file)
    path = os.pathsep.join([str(info.parent), str(PROJECT / "include"), os.environ.get("PYTHONPATH", "")])
    return environment | {
        "PYTHONPATH": path,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }


@pytest.fixture(scope="session")
def describe(environment):
    """Return a function that runs `describe_dags.py` outside the project and returns its result."""

    def run_script(*arguments, **variables):
        process = subprocess.run(
            [sys.executable, PROJECT / "tests/dags/describe_dags.py", *arguments],
            cwd="/",
            env=environment | {k: str(v) for k, v in variables.items()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout.splitlines()[-1])

    return run_script


RANGE = {"from": "2024-01-01T02:00Z", "to": "2024-01-01T04:00Z", "slices": 2, "reason": "late arrival"}
PLAN = {
    "pipeline": "orders",
    "slices": 2,
    "estimated_rows": 1_200,
    "slice_ranges": [RANGE | {"explanation": "rows arrived | late"}],
    "jobs": [{}],
    "estimate": {"seconds": 61.2, "error": 4.4},
    "may_follow": [{"from": "2024-01-01T04:00Z", "to": "2024-01-01T08:00Z", "slices": 4}],
    "inputs": {"left": {"table": "orders", "version": 7}, "right": {"table": "payments", "version": 3}},
    "notes": ["a note"],
}
"""Plan of a repair, as JSON."""


class TaskStateStore(dict):
    """Airflow's state store of a task, which the runs of the task share."""

    def set(self, key, value, **_):
        self[key] = value


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
def pipeline_env(environment, pipeline_file, write, lake):
    """Write input rows and a pipeline file; return variables of an Airflow with this pipeline."""
    for table, rows in ROWS.items():
        pairs = (row.split() for row in rows)
        write(
            table,
            [(user, datetime.fromisoformat(f"2013-01-01T{at}+00:00")) for user, at in pairs],
            "user string, at timestamp",
        )
    folder = pipeline_file(
        "clicked_views.yaml", name="clicked_views", settings="compare: {table: streamed, budget: {differing: 0}}\n"
    )
    return environment | {"TIDEMARK_PIPELINES": str(folder), "TIDEMARK_LAKE": str(lake)}
