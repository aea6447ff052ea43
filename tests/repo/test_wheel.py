"""Tests of the wheel, installed into clean environments without and with extras."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dags.conftest import PIPELINE

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
LOAD_PIPELINE = """
from tidemark.config import load_pipeline, build_json_schema
build_json_schema()
print(load_pipeline("orders.yaml").name)
"""
DAG = """
from pathlib import Path
from tidemark.airflow import Project, TidemarkDag, TidemarkTaskGroup
from airflow.sdk import DAG
import sys
file = Path("orders.yaml")
dag = TidemarkDag(file, tags=["team"], on_deadline="orders.alerts.page")
assert [task.task_id for task in dag.topological_sort()] == ["wait", "run", "report", "done"]
assert dag.tags == {"team"}
with DAG("custom", schedule=None) as custom_dag:
    TidemarkTaskGroup(file, group_id="orders")
assert sorted(custom_dag.task_ids) == [f"orders.{name}" for name in ("done", "report", "run", "wait")]
assert Path(dag.get_task("run").application).is_file()
assert not {"pyspark", "deltalake", "pandas"} & set(sys.modules)
"""

pytestmark = pytest.mark.slow


def find_interpreter(version):
    """Find a Python of a version that can create environments, None without one."""
    on_path = shutil.which(f"python{version}", path=os.environ["PATH"])
    pyenv_versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for python in filter(None, [on_path, *map(str, sorted(pyenv_versions.glob(f"{version}.*/bin/python")))]):
        process = subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False)
        if process.returncode == 0:
            return python
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy, so that no build files remain in the project."""
    copy, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "include", copy / "include", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", output, copy], check=True)
    (file,) = output.glob("*.whl")
    return file


@pytest.fixture
def install(wheel, tmp_path):
    """Return a function that installs the wheel with extras into a clean environment.

    It returns a function that runs a command of this environment in a folder with a pipeline file.
    """

    def install_wheel(version, extras=""):
        python = find_interpreter(version)
        if python is None:
            pytest.skip(f"there is no Python {version} here")
        subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
        requirement = f"tidemark{extras} @ {wheel.as_uri()}"
        subprocess.run([tmp_path / "venv/bin/pip", "install", "--quiet", requirement], check=True)
        (tmp_path / "orders.yaml").write_text(
            PIPELINE.format(name="orders", every="1 hour", start="2013-01-01T00:00:00Z")
        )
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AIRFLOW", "TIDEMARK_"))}

        def run(*command):
            environment = inherited | {
                "AIRFLOW_HOME": str(tmp_path / "airflow"),
                "TIDEMARK_JARS": str(ROOT / ".jars"),
            }
            full_command = [tmp_path / "venv/bin" / command[0], *command[1:]]
            return subprocess.run(
                full_command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )

        return run

    return install_wheel


@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_without_extras_validates_file_and_names_missing_extra(install, version):
    run = install(version)

    load = run("python", "-c", LOAD_PIPELINE)
    assert (load.returncode, load.stdout) == (0, "orders\n"), load.stderr

    plan = run("tidemark", "plan", "orders.yaml")
    assert plan.returncode == 2
    assert plan.stderr.endswith(" is not installed. Install Tidemark with the extra [spark].\n")
    assert plan.stderr.count("\n") == 1

    packages = run("pip", "list", "--format=freeze").stdout.lower()
    assert not [name for name in ("pyspark", "airflow", "deltalake", "altair") if name in packages]


@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_with_airflow_extra_creates_dags_and_runs_command(install, version):
    run = install(version, "[airflow,report]")

    script = run("python", "-c", DAG)
    assert script.returncode == 0, script.stderr
    assert run("pip", "check").returncode == 0

    plan = run("tidemark", "plan", "orders.yaml")
    assert plan.returncode == 2
    assert "there is no Delta table clicks" in plan.stderr

    conformance = run("tidemark", "conformance", "vectors.jsonl")
    assert conformance.returncode == 2
    assert "they come with the repository, not with the wheel" in " ".join(conformance.stderr.split())
