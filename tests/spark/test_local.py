"""What the JVM of a session of this machine is started with."""

import pytest

from tidemark.errors import FaultError
from tidemark.spark.local_session import CLASS_ARCHIVE, EVENT_LOGS_VARIABLE, create_java_options, get_event_log_location


@pytest.mark.parametrize("brief", [True, False])
def test_kept_classes_are_mapped_where_there_are_any(tmp_path, brief):
    without = create_java_options(tmp_path, brief=brief)
    (tmp_path / CLASS_ARCHIVE).touch()
    found = create_java_options(tmp_path, brief=brief)
    assert "SharedArchiveFile" not in without
    assert found.startswith(without)
    assert f'"-XX:SharedArchiveFile={tmp_path / CLASS_ARCHIVE}"' in found


def test_only_what_is_brief_goes_without_the_second_compiler(tmp_path):
    assert "TieredStopAtLevel" in create_java_options(tmp_path, brief=True)
    assert "TieredStopAtLevel" not in create_java_options(tmp_path, brief=False)


def test_a_collector_of_the_environment_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xss4m")
    assert "-XX:+UseParallelGC" in create_java_options(tmp_path, brief=False)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xss4m -XX:+UseZGC")
    assert "GC" not in create_java_options(tmp_path, brief=False)


def test_a_folder_for_the_history_server_that_is_not_there_is_named(tmp_path, monkeypatch):
    there, missing = tmp_path / "all logs", tmp_path / "none"
    there.mkdir()
    for place in (str(there), there.as_uri(), "hdfs://name:8020/none"):
        monkeypatch.setenv(EVENT_LOGS_VARIABLE, place)
        assert get_event_log_location() == place
    for place in (str(missing), missing.as_uri()):
        monkeypatch.setenv(EVENT_LOGS_VARIABLE, place)
        with pytest.raises(FaultError, match=f"^{EVENT_LOGS_VARIABLE} is {place}, which is no folder here; make it"):
            get_event_log_location()
    monkeypatch.delenv(EVENT_LOGS_VARIABLE)
    assert get_event_log_location() is None
