"""The Makefile's help, and what it says on a machine that lacks something."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = {
    "setup",
    "demo",
    "test",
    "test-slow",
    "lint",
    "types",
    "bench",
    "bench-quick",
    "conformance",
    "properties",
    "mutants",
    "simulation",
    "crashes",
    "races",
    "faults",
    "flink-parity",
    "flink-vectors",
    "flink-reference",
    "airflow",
    "cluster",
    "connect",
    "e2e",
    "screens",
    "s3",
    "sbom",
    "audit",
    "fuzz",
    "clean",
    "help",
}


def make(*arguments, **environment):
    return subprocess.run(
        ["make", "--silent", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_help_lists_every_target():
    lines = make().stdout.splitlines()
    assert {line.split()[0] + " " + line.split()[1] for line in lines} == {f"make {target}" for target in TARGETS}
    assert all(len(line.split()) > 3 and len(line) <= 100 for line in lines)


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ({"PYTHON": ""}, r"Python 3\.11 is missing: install python3\.11 .*"),
        ({"JAVA_HOME": "/nowhere"}, r"Java 17 is missing: install openjdk-17-jre-headless.*"),
    ],
)
def test_make_without_required_tool_ends_with_error_line(lacking, message):
    run = make("machine", **lacking)
    assert run.returncode != 0
    said = [line for line in run.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1
    assert re.fullmatch(message, said[0])


@pytest.mark.parametrize("fails", [False, True])
def test_make_browser_installs_browser_or_continues_without(tmp_path, fails):
    for program in ("make", "mkdir"):
        (tmp_path / program).symlink_to(shutil.which(program))
    for name, script in {"id": "echo 0", "apt-get": f'echo "$*" >> {tmp_path}/asked; exit {100 * fails}'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    run = make("browser", PATH=str(tmp_path))
    assert run.returncode == 0
    assert ("the tests that need it are skipped" in run.stderr) is fails
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["update"] if fails else {"chromium", "chromium-driver"} <= set(asked[1].split())


def test_programs_in_bin_are_executable():
    programs = list((ROOT / "bin").iterdir())
    assert programs
    assert all(os.access(program, os.X_OK) for program in programs)
