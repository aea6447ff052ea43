"""Tests of the lock files against the requirements of pyproject.toml, and of pins that depend on each other."""

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


def read_lock(name):
    """Return the pinned version of each package of a lock file."""
    requirements = [Requirement(line) for line in re.findall(r"^(\S+) ", read(name), re.MULTILINE)]
    return {canonicalize_name(requirement.name): str(requirement.specifier) for requirement in requirements}


RUNTIME = read_lock("requirements.txt")
DEV = read_lock("requirements-dev.txt")


EXTRAS = PROJECT["optional-dependencies"]
OPTIONAL_REQUIREMENTS = [requirement for extra in EXTRAS if extra != "dev" for requirement in EXTRAS[extra]]
REQUIREMENTS = [*PROJECT["dependencies"], *OPTIONAL_REQUIREMENTS]
EXTERNAL_REQUIREMENTS = [requirement for requirement in REQUIREMENTS if not requirement.startswith("tidemark[")]


@pytest.mark.parametrize("requirement", EXTERNAL_REQUIREMENTS)
def test_runtime_lock_satisfies_requirement(requirement):
    check(requirement, RUNTIME)


@pytest.mark.parametrize("requirement", EXTRAS["dev"])
def test_development_lock_satisfies_requirement(requirement):
    check(requirement, DEV)


def test_requirements_allow_matching_pyspark_and_reviewed_sqlglot_only():
    """The client must have pyspark's version, and expressions were reviewed with this sqlglot series."""
    ranges = {requirement.name: str(requirement.specifier) for requirement in map(Requirement, REQUIREMENTS)}

    assert ranges["pyspark"] == ranges["pyspark-client"]
    assert Requirement(f"x{ranges['sqlglot']}").specifier.contains("30.30.7")
    assert not Requirement(f"x{ranges['sqlglot']}").specifier.contains("30.31")


def check(text, lock):
    """Check that the pin of a lock satisfies a requirement."""
    requirement = Requirement(text)
    pin = lock[canonicalize_name(requirement.name)]
    assert pin.removeprefix("==") in requirement.specifier


def test_locks_pin_every_package_and_agree():
    assert all(re.fullmatch(r"==[\w.]+", pin) for pin in DEV.values())
    assert RUNTIME.items() <= DEV.items()
    assert read_lock("requirements-worker.txt").items() <= RUNTIME.items()


@pytest.mark.parametrize("lock", ["", "-dev", "-docs", "-uv", "-worker"])
def test_lock_has_hashes_and_no_index_url(lock):
    package = r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"({package})+", read(f"requirements{lock}.txt"))


def test_installers_of_lock_require_hashes():
    installs = re.findall(r"^.*pip install.* (?:-r|--requirement) .*$", "\n".join(map(read, INSTALLERS)), re.MULTILINE)
    assert len(installs) == 4
    assert all("--require-hashes" in line for line in installs)


def test_jar_checksums_match_pinned_versions():
    jars = re.findall(r"^[0-9a-f]{64}  (.*)$", read("jars.sha256"), re.MULTILINE)
    spark, delta = RUNTIME["pyspark"].removeprefix("==").rpartition(".")[0], RUNTIME["delta-spark"].removeprefix("==")
    assert jars == [f"delta-spark_{spark}_2.13-{delta}.jar", f"delta-storage-{delta}.jar"]


def test_sbom_lists_every_package_and_jar():
    process = subprocess.run([ROOT / "bin" / "sbom"], capture_output=True, check=True)

    components = json.loads(process.stdout)["components"]
    assert len(components) == len(RUNTIME) + 2
    urls = {component["purl"] for component in components}
    assert {"pkg:pypi/sqlglot@30.30.0", "pkg:maven/io.delta/delta-storage@4.4.0"} <= urls


def test_pyspark_and_client_have_same_version():
    # Airflow's provider installs the client, whose files overlap with PySpark's: another version would overwrite them.
    assert RUNTIME["pyspark"] == RUNTIME["pyspark-client"]
    assert version("pyspark") == version("pyspark-client")
