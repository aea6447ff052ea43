"""The plugin of pytest collects test files of pipelines, and runs all of their cases together."""

import subprocess
import sys

import pytest

from tests.conftest import PROJECT, write_pipeline

FAKES = """
from tidemark.pipeline_tests import runner
from tidemark.pipeline_tests.runner import CaseResult, CaseRun
from tidemark.spark import session

def run(spark, files):
    print("together:", [case.name for file in files for case in file.cases])
    status = {"bad": "refused"}
    return [
        CaseRun(case, CaseResult(file.pipeline, case.name, "f:1", status.get(case.name, "passed"), 0, (), "no"), None)
        for file in files
        for case in file.cases
    ]

runner.run_case_files, session.get_spark_session = run, lambda *_, **__: None
"""
CASES = "cases:\n  good: {given: [], expect: {}}\n  bad: {given: [], expect: {}}\n"


@pytest.fixture
def run_pytest(tmp_path):
    """Return a function that runs pytest with the plugin on a folder of two pipelines with test files."""
    (tmp_path / "tests").mkdir()
    for name in ("orders", "sales"):
        write_pipeline(tmp_path / f"{name}.yaml", name=name)
        (tmp_path / "tests" / f"{name}.yaml").write_text(CASES)
    (tmp_path / "tests" / "unrelated.yaml").write_text("no: test file")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", "-p", "tidemark.pytest_plugin", "-p", "no:tidemark", *arguments]
        environment = {"PYTHONPATH": f"{PROJECT / 'include'}:{tmp_path}", "PATH": "/usr/bin:/bin"}
        process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return process.stdout

    return run


@pytest.mark.process
def test_pytest_runs_all_cases_together_and_reports_each(tmp_path, run_pytest):
    (tmp_path / "fakes.py").write_text(FAKES)

    output = run_pytest("-p", "fakes", "-s", "-rf")

    assert output.count("together: ['good', 'bad', 'good', 'bad']") == 1
    assert "2 failed, 2 passed" in output
    assert "FAILED tests/orders.yaml::bad" in output
    assert "Traceback" not in output


@pytest.mark.process
def test_pytest_collects_files_of_pipelines_only_without_spark(tmp_path, run_pytest):
    (tmp_path / "fakes.py").write_text(
        "import sys\ndef pytest_unconfigure(): print('spark:', 'pyspark' in sys.modules)"
    )
    (tmp_path / "tests" / "sales.yaml").write_text("cases: {first: {given: [], expects: {}}}")

    output = run_pytest("-p", "fakes", "--collect-only", "-q")

    assert "tests/orders.yaml::good" in output
    assert "unrelated" not in output
    assert "sales.yaml:1: cases.first.expects: unknown field. Did you mean expect?" in output
    assert "spark: False" in output
