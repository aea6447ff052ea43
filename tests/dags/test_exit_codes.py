"""Tests of the exit codes of submitted jobs."""

import subprocess
import sys

import pytest

from tests.dags.conftest import PROJECT
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import to_submit_exit_code
from tidemark.ledger.ledger import Ledger
from tidemark.timegrid.slices import Grid

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


def test_lost_commit_race_is_temporary_failure_of_submitted_job():
    error = Ledger.empty(PipelineTables("orders"), Grid(0, 3_600_000_000)).create_conflict_error(0)

    assert str(error).endswith("Run the same command again.")
    assert to_submit_exit_code(error.exit_code) == 75
