"""A test that ends its worker's JVM does not affect tests of other files."""

import subprocess
import sys

import pytest

from tests.conftest import PROJECT

KILLS = """
def test_first_test_stops_the_jvm(spark):
    spark.sparkContext._gateway.proc.kill()
    spark.range(1).count()
"""
STOPS = """
def test_second_test_stops_the_context(spark):
    spark.sparkContext._jsc.sc().stop()
    spark.range(1).count()
"""
USES_SESSION = """
def test_third_test_has_a_session(spark):
    assert spark.range(1).count() == 1
"""


@pytest.mark.slow
def test_next_file_after_dead_jvm_has_own_session(tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.conftest import spark\n")
    for name, text in (("a", KILLS), ("b", USES_SESSION), ("c", STOPS), ("d", USES_SESSION)):
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-c", PROJECT / "pyproject.toml", "--rootdir", PROJECT, tmp_path]

    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    assert "2 failed, 2 passed" in process.stdout, process.stdout
    assert "FAILED" in process.stdout
    assert all(f"test_{name}.py" in process.stdout for name in "ac")
