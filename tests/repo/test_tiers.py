"""Tests of the tiers: promises are documented, and a failing witness names its promise first."""

import ast
import re
import subprocess
import sys

from tests.conftest import PROJECT

WITNESS = """
import pytest

@pytest.mark.promise("Each row is kept.")
def test_rows_are_kept():
    rows = []
    assert rows == [1]
"""


def find_promises():
    """Return the promises of all marks in the tests, and of the constants that name one."""
    promises = set()
    for file in (PROJECT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="promise"), args=[ast.Constant(value=str(text))]):
                    promises.add(text)
                case ast.Assign(targets=[ast.Name(id="PROMISE")], value=ast.Constant(value=str(text))):
                    promises.add(text)
    return promises


def test_promises_with_a_witness_are_documented():
    page = (PROJECT / "docs/testing.md").read_text()
    table = page.partition("## Promises and their witnesses")[2].partition("##")[0]
    documented = set(re.findall(r"^\| ([A-Z].*?\.) \|", table, re.MULTILINE))
    assert documented == find_promises()


def test_failing_witness_begins_with_its_promise(tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    (tmp_path / "test_rows.py").write_text(WITNESS)
    command = [sys.executable, "-m", "pytest", "-c", PROJECT / "pyproject.toml", "--rootdir", PROJECT, tmp_path]

    process = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)

    assert process.returncode == 1
    report = process.stdout.partition("_ test_rows_are_kept _")[2]
    assert next(line for line in report.splitlines()[1:] if line) == "Broken promise: Each row is kept."
