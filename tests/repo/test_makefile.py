"""Tests of the Makefile's help and of its messages when a tool is missing."""

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
    "test-unit",
    "test-pipelines",
    "test-all",
    "test-slow",
    "coverage",
    "lint",
    "types",
    "docs",
    "docs-site",
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
    ("environment", "expected_message"),
    [
        ({"PYTHON": ""}, r"Python 3\.11 is missing: install python3\.11 .*"),
        ({"JAVA_HOME": "/nowhere"}, r"Java 17 is missing: install openjdk-17-jre-headless.*"),
    ],
)
def test_make_without_required_tool_ends_with_error_line(environment, expected_message):
    process = make("machine", **environment)

    assert process.returncode != 0
    [line] = [line for line in process.stderr.splitlines() if not line.startswith("make")]
    assert re.fullmatch(expected_message, line)


@pytest.mark.parametrize("install_fails", [False, True])
def test_make_browser_installs_browser_or_continues_without(tmp_path, install_fails):
    log = tmp_path / "apt-get.log"
    for program in ("make", "mkdir"):
        (tmp_path / program).symlink_to(shutil.which(program))
    for name, script in {"id": "echo 0", "apt-get": f'echo "$*" >> {log}; exit {100 * install_fails}'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    process = make("browser", PATH=str(tmp_path))

    assert process.returncode == 0
    assert ("the tests that need it are skipped" in process.stderr) is install_fails
    calls = log.read_text().splitlines()
    assert calls == ["update"] if install_fails else {"chromium", "chromium-driver"} <= set(calls[1].split())


def test_programs_in_bin_are_executable():
    programs = list((ROOT / "bin").iterdir())
    assert programs
    assert all(os.access(program, os.X_OK) for program in programs)
