"""Spark's OpenLineage listener, configured as in docs/airflow.md, names a job's input and output tables."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT, write_pipeline
from tests.spark.sample_lake import SETTINGS, write_two_hours
from tidemark.spark.delta_jars import find_delta_jars

SETTINGS_IN_DOCS = re.compile(r"^spark\.extraListeners .*?(?=^```)", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow  # a job of its own, and Ivy fetches the listener


def test_openlineage_listener_names_inputs_and_tables(tmp_path):
    settings = SETTINGS_IN_DOCS.search((PROJECT / "docs/airflow.md").read_text())[0]
    event_file = tmp_path / "events.jsonl"
    defaults = "\n".join(line for line in settings.splitlines() if "transport" not in line)
    defaults += f"\nspark.openlineage.transport.type file\nspark.openlineage.transport.location {event_file}\n"
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    lake = write_two_hours(tmp_path, 60)
    file = tmp_path / "orders.yaml"
    write_pipeline(file, name="orders", **SETTINGS)
    command = [Path(sys.executable).with_name("spark-submit"), "--master", "local[2]"]
    command += ["--jars", ",".join(map(str, find_delta_jars())), PROJECT / "jobs/run_slices.py", file, "--lake", lake]
    env = os.environ | {"PYTHONPATH": str(PROJECT / "include"), "SPARK_CONF_DIR": str(tmp_path)}

    process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stderr
    events = [json.loads(line) for line in event_file.read_text().splitlines()]
    assert events[-1]["eventType"] == "COMPLETE"
    read, written = ({dataset["name"] for event in events for dataset in event[side]} for side in ("inputs", "outputs"))
    assert written == {f"{lake}/orders/{table}" for table in ("emissions", "late", "checkpoint")}
    assert read >= {f"{lake}/left", f"{lake}/right"}
