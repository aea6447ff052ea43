"""Tests of the programs that write the folder of jars, without a JVM and a network."""

import hashlib
import os
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from tests.conftest import PROJECT

SPARK_JAR, STORAGE_JAR = "delta-spark_4.1_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"


def load_script(name):
    """Import a Python program of `bin/` as a module."""
    loader = SourceFileLoader(name.replace("-", "_"), str(PROJECT / "bin" / name))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def fetch_jars(monkeypatch, tmp_path):
    """Return the program with fake pinned jars, as the resolver's cache has them, and an empty folder of jars."""
    module = load_script("fetch-jars")
    jars = [tmp_path / "cache" / f"io.delta_{name}" for name in (SPARK_JAR, STORAGE_JAR)]
    (tmp_path / "cache").mkdir()
    for jar in jars:
        jar.write_text(jar.name)
    checksums = {jar.name.removeprefix("io.delta_"): hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}
    monkeypatch.setattr(module, "CHECKSUMS", checksums)
    monkeypatch.setattr(module, "JARS", tmp_path / "jars")
    module.resolve = lambda: jars
    return module


def test_fetch_jars_replaces_other_versions_and_keeps_other_jars(fetch_jars):
    fetch_jars.JARS.mkdir()
    users = {"hadoop-aws-3.4.2.jar", "delta-storage-s3-dynamodb-4.4.0.jar", "notes.txt"}
    for name in (*users, "delta-spark_2.13-3.3.0.jar", "delta-storage-3.3.0.jar", STORAGE_JAR):
        (fetch_jars.JARS / name).write_text("old")
    assert not fetch_jars.is_installed()

    fetch_jars.install(fetch_jars.resolve())

    assert {file.name for file in fetch_jars.JARS.iterdir()} == users | {SPARK_JAR, STORAGE_JAR}
    assert fetch_jars.is_installed()


def test_fetch_jars_creates_missing_folder(fetch_jars):
    assert not fetch_jars.is_installed()
    fetch_jars.install(fetch_jars.resolve())
    assert fetch_jars.is_installed()


def test_fetch_jars_other_checksum_changes_nothing(fetch_jars):
    fetch_jars.JARS.mkdir()
    (fetch_jars.JARS / SPARK_JAR).write_text("old")
    fetch_jars.CHECKSUMS[STORAGE_JAR] = "0"

    with pytest.raises(ValueError, match=f"{STORAGE_JAR} has SHA-256"):
        fetch_jars.install(fetch_jars.resolve())

    assert [file.read_text() for file in fetch_jars.JARS.iterdir()] == ["old"]


@pytest.mark.parametrize("fails", [False, True])
def test_archive_classes_replaces_archive_only_on_success(monkeypatch, tmp_path, fails):
    module = load_script("archive-classes")
    archive = tmp_path / "classes.jsa"
    archive.write_text("old")
    monkeypatch.setattr(module, "find_delta_jars", lambda: [tmp_path / SPARK_JAR])
    monkeypatch.setenv("TIDEMARK_MASTER", "spark://127.0.0.1:7077")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "")

    def run_few_rows(_):
        assert "TIDEMARK_MASTER" not in os.environ
        assert not archive.exists()
        archive.write_text("new")
        if fails:
            raise TimeoutError

    module.run_few_rows = run_few_rows
    if fails:
        with pytest.raises(SystemExit, match="could not be archived"):
            module.main()
    else:
        module.main()

    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"classes.jsa": "old" if fails else "new"}
