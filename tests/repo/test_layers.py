"""Import contracts between the layers of the package hold, and a forbidden import breaks its contract."""

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
FORBIDDEN = [
    ("config/types.py", "import tidemark.timegrid.time_columns", "A layer imports from the layers below it only"),
    ("joins/window.py", "import tidemark.delta.pipeline_tables", "Joins and replay read and write no table"),
    ("execution/job.py", "import tidemark.spark.session", "Only the command line and the API start a Spark session"),
    ("config/loader.py", "import pyspark", "DAG files import no Spark"),
    ("airflow/dags.py", "import deltalake", "Airflow opens tables only inside a running task"),
    ("api.py", "import tidemark_conformance", "The package does not need its conformance tests"),
]


@pytest.fixture
def package_copy(tmp_path):
    """Copy the package; return its folder and a function that returns lint-imports' exit code and broken contracts."""
    package = tmp_path / "tidemark"
    for name in ("tidemark", "tidemark_conformance"):
        source = ROOT / "include" / name
        shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))

    def check():
        command = [Path(sys.executable).with_name("lint-imports"), "--config", ROOT / "pyproject.toml", "--no-cache"]
        process = subprocess.run(
            command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
        )
        names = [contract["name"] for contract in CONTRACTS]
        return process.returncode, {name for name in names if f"{name} BROKEN" in process.stdout}

    return package, check


def test_import_contracts_hold_and_forbidden_import_breaks_its_contract(package_copy):
    package, check = package_copy
    assert check() == (0, set())

    for file, line, _ in FORBIDDEN:
        module = package / file
        module.write_text(f"{module.read_text()}\n{line}\n")

    assert check() == (1, {contract for *_, contract in FORBIDDEN})


def test_every_contract_has_a_forbidden_import():
    assert {contract for *_, contract in FORBIDDEN} == {contract["name"] for contract in CONTRACTS}


def test_dag_files_import_only_the_airflow_package():
    """Airflow imports DAG files every few seconds, so imports must be cheap."""
    imported = set()
    for path in (ROOT / "dags").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    ours = {".".join(name.split(".")[:2]) for name in imported if name.split(".")[0] == "tidemark"}
    assert ours == {"tidemark.airflow"}


def test_optional_columns_are_added_by_with_columns_helper():
    """Spark's `withColumns` does not accept an empty mapping; `spark.dataframe_utils.with_columns` does."""

    def can_be_empty(argument):
        match argument:
            case ast.Dict():
                return all(key is None for key in argument.keys)
            case ast.DictComp(generators=[ast.comprehension(iter=ast.Name(name))]):
                return not name.isupper()
        return True

    calls = [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for file in (ROOT / "include/tidemark").rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "withColumns"
        if can_be_empty(call.args[0]) and file.name != "dataframe_utils.py"
    ]
    assert calls == []
