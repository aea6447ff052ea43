"""Tests of the exit codes of submitted jobs."""

import subprocess
import sys

import pytest

from tests.dags.conftest import PROJECT

SUBMITTED = PROJECT / "include/tidemark/airflow/spark_application.py"


@pytest.mark.parametrize("command", [["run"], ["compare", "run", "--save"], ["reprocess"]], ids=" ".join)
def test_submitted_application_with_user_error_prints_no_traceback(command, tmp_path):
    process = subprocess.run(
        [sys.executable, SUBMITTED, *command, "no_such", "--lake", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "there is no pipeline no_such" in process.stderr
    assert process.returncode == 64
