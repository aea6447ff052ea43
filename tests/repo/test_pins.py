"""The locks against what pyproject.toml asks for, and the pins that only work together."""

import json
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
INSTALLERS = ("Makefile", "Dockerfile")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name):
    return (ROOT / name).read_text()


def lock(name):
    requirements = [Requirement(line) for line in re.findall(r"^(\S+) ", read(name), re.MULTILINE)]
    return {canonicalize_name(requirement.name): str(requirement.specifier) for requirement in requirements}


RUNTIME = lock("requirements.txt")
DEV = lock("requirements-dev.txt")


EXTRAS = PROJECT["optional-dependencies"]
ASKED = [*PROJECT["dependencies"], *(one for extra in EXTRAS if extra != "dev" for one in EXTRAS[extra])]


@pytest.mark.parametrize("requirement", [one for one in ASKED if not one.startswith("tidemark[")])
def test_runtime_lock_satisfies_requirement(requirement):
    check(requirement, RUNTIME)


@pytest.mark.parametrize("requirement", EXTRAS["dev"])
def test_development_lock_satisfies_requirement(requirement):
    check(requirement, DEV)


def test_packages_of_one_version_are_pinned():
    """Another pyspark than the client's, another line of Delta than Spark's, another parser of expressions."""
    ranges = {Requirement(one).name: str(Requirement(one).specifier) for one in ASKED}
    assert ranges["pyspark"] == ranges["pyspark-client"]
    assert Requirement(f"x{ranges['sqlglot']}").specifier.contains("30.30.7")
    assert not Requirement(f"x{ranges['sqlglot']}").specifier.contains("30.31")


def check(text, locked):
    requirement = Requirement(text)
    pin = locked[canonicalize_name(requirement.name)]
    assert pin.removeprefix("==") in requirement.specifier


def test_locks_pin_every_package_and_agree():
    assert all(re.fullmatch(r"==[\w.]+", pin) for pin in DEV.values())
    assert RUNTIME.items() <= DEV.items()
    assert lock("requirements-worker.txt").items() <= RUNTIME.items()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt", "requirements-worker.txt"])
def test_lock_has_hashes_and_no_index_url(name):
    package = r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"({package})+", read(name))


def test_installers_of_lock_require_hashes():
    installs = re.findall(r"^.*pip install.*requirements.*$", "\n".join(map(read, INSTALLERS)), re.MULTILINE)
    assert len(installs) == 4
    assert all("--require-hashes" in line for line in installs)


def test_jar_checksums_match_pinned_versions():
    known = re.findall(r"^[0-9a-f]{64}  (.*)$", read("jars.sha256"), re.MULTILINE)
    spark, delta = RUNTIME["pyspark"].removeprefix("==").rpartition(".")[0], RUNTIME["delta-spark"].removeprefix("==")
    assert known == [f"delta-spark_{spark}_2.13-{delta}.jar", f"delta-storage-{delta}.jar"]


def test_sbom_lists_every_package_and_jar():
    told = json.loads(subprocess.run([ROOT / "bin" / "sbom"], capture_output=True, check=True).stdout)
    assert len(told["components"]) == len(RUNTIME) + 2
    known = {component["purl"] for component in told["components"]}
    assert {"pkg:pypi/sqlglot@30.30.0", "pkg:maven/io.delta/delta-storage@4.4.0"} <= known


def test_pyspark_and_client_have_same_version():
    # Their files overlap: another version of the client, which Airflow's provider pulls in, would overwrite PySpark's.
    assert RUNTIME["pyspark"] == RUNTIME["pyspark-client"]
    assert version("pyspark") == version("pyspark-client")
