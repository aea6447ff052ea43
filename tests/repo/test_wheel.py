"""The wheel, built and installed into clean environments: what its base can do, and what the extras bring."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dags.conftest import PIPELINE

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13")
CHECKED = """
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
dag = TidemarkDag(file, tags=["mine"], on_deadline="orders.alerts.page")
assert [task.task_id for task in dag.topological_sort()] == ["wait", "run", "report"]
assert dag.tags == {"mine"}
with DAG("mine", schedule=None) as mine:
    TidemarkTaskGroup(file, group_id="orders")
assert sorted(mine.task_ids) == ["orders.report", "orders.run", "orders.wait"]
assert Path(dag.get_task("run").application).is_file()
assert not {"pyspark", "deltalake", "pandas"} & set(sys.modules)
"""

pytestmark = pytest.mark.slow


def interpreter(version):
    """A Python of that version on this machine, None without one."""
    found = shutil.which(f"python{version}", path=os.environ["PATH"])
    shims = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"{version}.*/bin/python")
    )
    for one in filter(None, [found, *map(str, shims)]):
        told = subprocess.run([one, "-c", "import venv, ensurepip"], capture_output=True, check=False)
        if told.returncode == 0:
            return one
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing is left in the project."""
    copy, into = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "include", copy / "include", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", into, copy], check=True)
    (built,) = into.glob("*.whl")
    return built


@pytest.fixture
def installed(wheel, tmp_path):
    """Runs a command of a clean environment with the wheel and some extras, in a folder with a pipeline file."""

    def install(version, extras=""):
        python = interpreter(version)
        if python is None:
            pytest.skip(f"there is no Python {version} here")
        subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
        wanted = f"tidemark{extras} @ {wheel.as_uri()}"
        subprocess.run([tmp_path / "venv/bin/pip", "install", "--quiet", wanted], check=True)
        (tmp_path / "orders.yaml").write_text(
            PIPELINE.format(name="orders", every="1 hour", start="2013-01-01T00:00:00Z")
        )
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AIRFLOW", "TIDEMARK_"))}

        def run(*command):
            environment = kept | {
                "AIRFLOW_HOME": str(tmp_path / "airflow"),
                "TIDEMARK_JARS": str(ROOT / ".jars"),
            }
            words = [tmp_path / "venv/bin" / command[0], *command[1:]]
            return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

        return run

    return install


@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_without_extras_validates_file_and_names_missing_extra(installed, version):
    run = installed(version)
    told = run("python", "-c", CHECKED)
    assert (told.returncode, told.stdout) == (0, "orders\n"), told.stderr
    ended = run("tidemark", "plan", "orders.yaml")
    assert ended.returncode == 2
    assert ended.stderr.endswith(" is not installed. Run pip install 'tidemark[spark]'.\n")
    assert ended.stderr.count("\n") == 1
    listed = run("pip", "list", "--format=freeze").stdout.lower()
    assert not [name for name in ("pyspark", "airflow", "deltalake", "altair") if name in listed]


@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_with_airflow_extra_creates_dags_and_runs_command(installed, version):
    run = installed(version, "[airflow,report]")
    told = run("python", "-c", DAG)
    assert told.returncode == 0, told.stderr
    assert run("pip", "check").returncode == 0
    ended = run("tidemark", "plan", "orders.yaml")
    assert ended.returncode == 2
    assert "there is no Delta table clicks" in ended.stderr
    ended = run("tidemark", "conformance", "vectors.jsonl")
    assert ended.returncode == 2
    assert "they come with the repository, not with the wheel" in " ".join(ended.stderr.split())
