"""Spark's OpenLineage listener beside a job, set up as docs/airflow.md says: its events name the pipeline's tables."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT, write_pipeline
from tests.spark.lakes import SETTINGS, land_two_hours
from tidemark.spark.session import find_delta_jars

SHOWN = re.compile(r"^spark\.extraListeners .*?(?=^```)", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow  # a job of its own, and Ivy fetches the listener


def test_it_tells_of_the_inputs_and_of_tables_by_their_names(tmp_path):
    told = SHOWN.search((PROJECT / "docs/airflow.md").read_text())[0]
    events = tmp_path / "events.jsonl"
    defaults = "\n".join(line for line in told.splitlines() if "transport" not in line)
    defaults += f"\nspark.openlineage.transport.type file\nspark.openlineage.transport.location {events}\n"
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    lake = land_two_hours(tmp_path, 60)
    file = tmp_path / "orders.yaml"
    write_pipeline(file, name="orders", **SETTINGS)
    command = [Path(sys.executable).with_name("spark-submit"), "--master", "local[2]"]
    command += ["--jars", ",".join(map(str, find_delta_jars())), PROJECT / "jobs/run_slices.py", file, "--lake", lake]
    env = os.environ | {"PYTHONPATH": str(PROJECT / "include"), "SPARK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    seen = [json.loads(line) for line in events.read_text().splitlines()]
    assert seen[-1]["eventType"] == "COMPLETE"
    read, written = ({one["name"] for event in seen for one in event[side]} for side in ("inputs", "outputs"))
    assert written == {f"{lake}/orders/{table}" for table in ("emissions", "late", "checkpoint")}
    assert read >= {f"{lake}/left", f"{lake}/right"}
