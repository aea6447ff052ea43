"""Slices on Postgres, Airflow's services and a Spark cluster: a driver is killed, and no row is lost."""

import pytest

from tests.conftest import PROJECT
from tests.e2e.scenario import create_step_printer, run_short
from tests.e2e.services import find_postgres_programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_postgres_programs() is None, reason="Postgres (Debian: postgresql) is not installed"),
    pytest.mark.skipif(
        not (PROJECT / ".venv-worker" / ".installed").exists(), reason="make cluster has not installed .venv-worker"
    ),
]


def test_two_slices_with_killed_driver_equal_single_job(tmp_path):
    run_short(tmp_path, create_step_printer())
