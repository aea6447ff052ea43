"""Tests of the options with which a local session's JVM starts."""

import pytest

from tidemark.errors import FaultError
from tidemark.spark.session_settings import (
    CLASS_ARCHIVE,
    EVENT_LOGS_VARIABLE,
    create_java_options,
    get_event_log_location,
)


@pytest.mark.parametrize("brief", [True, False])
def test_create_java_options_map_class_archive_if_it_exists(tmp_path, brief):
    without_archive = create_java_options(tmp_path, brief=brief)
    (tmp_path / CLASS_ARCHIVE).touch()
    with_archive = create_java_options(tmp_path, brief=brief)

    assert "SharedArchiveFile" not in without_archive
    assert with_archive.startswith(without_archive)
    assert f'"-XX:SharedArchiveFile={tmp_path / CLASS_ARCHIVE}"' in with_archive


def test_create_java_options_brief_disables_second_compiler(tmp_path):
    assert "TieredStopAtLevel" in create_java_options(tmp_path, brief=True)
    assert "TieredStopAtLevel" not in create_java_options(tmp_path, brief=False)


def test_create_java_options_collector_of_environment_is_preserved(tmp_path, monkeypatch):
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xss4m")
    assert "-XX:+UseParallelGC" in create_java_options(tmp_path, brief=False)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xss4m -XX:+UseZGC")
    assert "GC" not in create_java_options(tmp_path, brief=False)


def test_get_event_log_location_missing_folder_raises(tmp_path, monkeypatch):
    existing, missing = tmp_path / "all logs", tmp_path / "none"
    existing.mkdir()
    for folder in (str(existing), existing.as_uri(), "hdfs://name:8020/none"):
        monkeypatch.setenv(EVENT_LOGS_VARIABLE, folder)
        assert get_event_log_location() == folder

    for folder in (str(missing), missing.as_uri()):
        monkeypatch.setenv(EVENT_LOGS_VARIABLE, folder)
        with pytest.raises(FaultError, match=f"^{EVENT_LOGS_VARIABLE} is {folder}, which is not a folder. Create it"):
            get_event_log_location()

    monkeypatch.delenv(EVENT_LOGS_VARIABLE)
    assert get_event_log_location() is None


@pytest.mark.parametrize("brief", [True, False])
def test_create_java_options_compiles_huge_methods(tmp_path, brief):
    assert "-XX:-DontCompileHugeMethods" in create_java_options(tmp_path, brief=brief)
