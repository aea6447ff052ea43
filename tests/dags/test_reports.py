"""What the task `report` counts: slices that have run, and slices of which rows were released or erased."""

from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from tests.dags.conftest import TaskStateStore
from tests.dags.slice_lake import SliceLake
from tidemark.airflow import Project, ReportSlices, metrics, slices_asset, status_queries
from tidemark.airflow.lineage import commit_lineage
from tidemark.airflow.status_queries import summarize_commits_since

LAST_COMMIT = {"number": 4, "run": "run 3"}
RELEASED = {"emissions": 905, "quality": "released", "quarantined": 0}


@pytest.fixture
def slices(tmp_path):
    """Return a lake with four slices, the third with rows in quarantine."""
    lake = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake")
    lake.add(range(4), late=2)
    lake.add(range(2, 3), late=2, quality="quarantined", quarantined=5)
    lake.write()
    return lake


def summarize(slices, since=LAST_COMMIT):
    return summarize_commits_since(slices.pipeline, str(slices.lake), since)


@pytest.mark.parametrize("since", [LAST_COMMIT, datetime(2025, 1, 2, tzinfo=UTC)])
@pytest.mark.parametrize(("columns", "released"), [(RELEASED, 5), ({"emissions": 880}, 0)])
def test_slice_with_changed_rows_is_not_counted_again(slices, since, columns, released):
    assert summarize(slices, since) is None
    slices.amend(2, **columns)

    commits = summarize(slices, since)

    assert (commits["from"], commits["to"]) == ("2025-01-01T02:00Z", "2025-01-01T03:00Z")
    assert (commits["amended"], commits["released"]) == (1, released)
    counts = ("slices", "rerun", "emissions", "seconds", "incomplete_slices", "quality")
    assert [commits[name] for name in counts] == [0, 0, 0, 0, 0, {}]
    assert commits["left"] == {"read": 0, "late": 0, "rejected": 0}


def test_slice_that_runs_and_is_released_before_its_report_is_counted_once(slices):
    slices.amend(2, **RELEASED)

    commits = summarize(slices, {"number": 2, "run": "run 1"})

    assert {name: commits[name] for name in ("slices", "amended", "emissions", "released")} == {
        "slices": 2, "amended": 0, "emissions": 900 + 905, "released": 0,
    }  # fmt: skip


def test_metrics_and_lineage_have_the_rows_that_tables_gained(slices, monkeypatch):
    slices.amend(2, **RELEASED)
    commits = summarize(slices)
    sent = {}
    for name in ("incr", "timing"):
        monkeypatch.setattr(metrics, name, lambda metric, value, **_: sent.update({metric: value}))

    metrics.send_commit_metrics(commits)
    lineage = commit_lineage(slices.file, str(slices.lake), commits)

    assert {name: value for name, value in sent.items() if value and not name.endswith(".orders")} == {
        "tidemark.emissions": 5
    }
    rows = {
        dataset.name.rpartition("/")[2]: dataset.outputFacets["outputStatistics"].rowCount
        for dataset in lineage.outputs
        if dataset.outputFacets
    }
    assert rows == {"emissions": 5, "late": 0, "ledger": 1}


@pytest.fixture
def report(slices, monkeypatch):
    """Return a function that runs the task `report` in a DAG run that starts at an hour of the first day."""
    monkeypatch.setenv("TIDEMARK_LAKE", str(slices.lake))
    asset = slices_asset("orders")
    stores = {asset: TaskStateStore()}

    def execute(hour):
        task = ReportSlices(task_id="report", file=slices.file, project=Project(slices.file.parent), outlets=[asset])
        run = SimpleNamespace(start_date=datetime(2025, 1, 1, hour, tzinfo=UTC))
        return task.execute({"dag_run": run, "asset_state_store": stores, "outlet_events": MagicMock()})

    return execute


def test_first_report_that_fails_and_is_cleared_reports_the_same_commits(slices, report, monkeypatch):
    """Slices 1 to 3 are committed at 02:00 to 04:00, after the first start of the run."""
    with monkeypatch.context() as broken:
        failure = MagicMock(side_effect=OSError("the store does not answer"))
        broken.setattr(status_queries, "summarize_commits_since", failure)
        with pytest.raises(OSError, match="the store does not answer"):
            report(hour=2)

    cleared = report(hour=9)

    assert (cleared["from"], cleared["to"]) == ("2025-01-01T01:00Z", "2025-01-01T04:00Z")
    with pytest.raises(AirflowSkipException):
        report(hour=2)
    slices.amend(2, **RELEASED)
    assert report(hour=23)["amended"] == 1


def test_first_report_of_a_run_that_started_before_another_report_has_its_commits(report):
    with pytest.raises(AirflowSkipException):
        report(hour=9)

    assert report(hour=3)["from"] == "2025-01-01T02:00Z"
