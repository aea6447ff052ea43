"""Postgres, Airflow's four services, and a Spark cluster: slices wait, a driver is killed, nothing is lost."""

import pytest

from tests.conftest import PROJECT
from tests.e2e.scenario import short, teller
from tests.e2e.services import postgres_programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(postgres_programs() is None, reason="Postgres (Debian: postgresql) is not installed"),
    pytest.mark.skipif(
        not (PROJECT / ".venv-worker" / ".installed").exists(), reason="make cluster has not installed .venv-worker"
    ),
]


def test_two_slices_with_killed_driver_equal_single_job(tmp_path):
    short(tmp_path, teller())
