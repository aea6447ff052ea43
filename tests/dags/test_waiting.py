"""Tests of waiting for complete inputs, in the triggerer and in the resumed task."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from deltalake import write_deltalake

from tests.dags.conftest import WAITING
from tests.dags.slice_lake import SliceLake
from tidemark.airflow import CheckpointBatches, InputsComplete, Project, TableVersions, WaitForInputs
from tidemark.airflow.assets import describe_missing_events, input_assets

HOUR = datetime(2013, 1, 1, 1, tzinfo=UTC)
INCOMPLETE = "clicks is complete up to 2013-01-01T00:59Z (by marker table marks)"


@pytest.fixture
def mark(lake):
    """Return a function that marks an input as complete up to an instant."""

    def write(until):
        rows = {"feed": ["w"], "until": pa.array([until], pa.timestamp("us", "UTC"))}
        write_deltalake(lake / "marks", pa.table(rows), mode="append")

    return write


@pytest.fixture
def trigger(lake, tmp_path):
    """Return a function that creates a trigger with a timeout in seconds."""
    file = tmp_path / "w.yaml"
    file.write_text(WAITING.format(name="w"))

    def create(timeout=60):
        timeout_at = (datetime.now(UTC) + timedelta(seconds=timeout)).isoformat()
        end = HOUR.isoformat()
        return InputsComplete(file=str(file), lake=str(lake), end=end, poll_interval=0.05, timeout_at=timeout_at)

    return create


async def wait_for_event(trigger):
    """Return the first event of a trigger."""
    return (await anext(trigger.run())).payload


def test_trigger_fires_when_inputs_are_complete(trigger, mark):
    mark(HOUR - timedelta(minutes=1))

    async def complete_input_while_waiting():
        waiting = asyncio.create_task(wait_for_event(trigger()))
        done, _ = await asyncio.wait([waiting], timeout=1)
        mark(HOUR)
        return done, await asyncio.wait_for(waiting, 30)

    done, event = asyncio.run(complete_input_while_waiting())

    assert not done
    assert event.keys() == {"timeout_at"}


def test_trigger_at_timeout_names_incomplete_inputs(trigger, mark):
    mark(HOUR - timedelta(minutes=1))
    assert asyncio.run(wait_for_event(trigger(timeout=0)))["incomplete"] == INCOMPLETE


def test_trigger_reports_user_error_at_once(trigger):
    assert "there is no Delta table marks" in asyncio.run(wait_for_event(trigger()))["error"]


def test_trigger_is_restored_from_serialized_form(trigger):
    path, arguments = trigger().serialize()
    assert path == "tidemark.airflow.triggers.InputsComplete"
    assert InputsComplete(**arguments).serialize() == (path, arguments)


def watch_commit(trigger, commit):
    """Return the event of a watcher of a log after a commit, and require that it has none before."""

    async def wait():
        events = trigger.run()
        waiting = asyncio.create_task(anext(events))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done
        commit()
        return (await asyncio.wait_for(waiting, 30)).payload

    return asyncio.run(wait())


def test_watcher_of_marker_table_fires_on_its_first_row(lake, mark):
    trigger = TableVersions(table="marks", lake=str(lake), poll_interval=0.05, asset="w__landed")

    assert watch_commit(trigger, lambda: mark(HOUR)) == {"table": "marks", "version": 0}


@pytest.mark.parametrize("committed", [0, 11])
def test_watcher_of_checkpoint_fires_when_the_query_has_committed_a_batch(lake, committed):
    for log, batches in (("commits", committed), ("offsets", committed + 1)):
        (lake / "query" / log).mkdir(parents=True)
        for batch in range(batches):
            (lake / "query" / log / str(batch)).touch()
            (lake / "query" / log / f".{batch}.crc").touch()
    trigger = CheckpointBatches(checkpoint="query", lake=str(lake), poll_interval=0.05, asset="w__landed")

    event = watch_commit(trigger, (lake / "query" / "commits" / str(committed)).touch)

    assert event == {"checkpoint": "query", "version": committed}
    path, arguments = trigger.serialize()
    assert path == "tidemark.airflow.table_watcher.CheckpointBatches"
    assert CheckpointBatches(**arguments).serialize() == (path, arguments)


def test_wait_task_fails_without_retry_on_trigger_error(tmp_path):
    task = WaitForInputs(task_id="wait", file=tmp_path / "w.yaml", project=Project(tmp_path), start="", end="T")
    with pytest.raises(
        AirflowFailException, match=r"inputs were not complete up to T when the wait ended at G: clicks"
    ):
        task.resume({}, {"timeout_at": "G", "incomplete": INCOMPLETE})
    with pytest.raises(AirflowFailException, match="^there is no table"):
        task.resume({}, {"timeout_at": None, "error": "there is no table"})


def test_wait_task_needs_no_event_of_committed_slices(tmp_path, monkeypatch):
    slices = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake")
    slices.add(range(3))
    slices.write()
    rule = 'complete: {by: asset, asset: clicks, partition: "%H"}'
    slices.file.write_text(slices.file.read_text().replace("table: clicks", f"table: clicks, {rule}"))
    monkeypatch.setenv("TIDEMARK_LAKE", str(slices.lake))
    task = WaitForInputs(
        task_id="wait", file=slices.file, project=Project(slices.file.parent),
        start="2025-01-01T01:00Z", end="2025-01-01T05:00Z",
    )  # fmt: skip

    def wait(*keys):
        inlet_events = MagicMock()
        inlet_events[...].after.return_value = [SimpleNamespace(partition_key=key) for key in keys]
        task.execute({"inlet_events": inlet_events})

    wait("03", "04")

    with pytest.raises(TaskDeferred):
        wait("03")


@pytest.mark.parametrize(("start", "end"), [("00:30", "01:00"), ("01:00", "02:15")])
def test_wait_task_refuses_interval_of_an_earlier_grid(tmp_path, monkeypatch, start, end):
    slices = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake")
    monkeypatch.setenv("TIDEMARK_LAKE", str(slices.lake))
    bounds = {"start": f"2025-01-01T{start}Z", "end": f"2025-01-01T{end}Z"}
    task = WaitForInputs(task_id="wait", file=slices.file, project=Project(slices.file.parent), **bounds)

    hint = "If the setting slices has changed, see docs/change-a-pipeline.md"
    with pytest.raises(AirflowFailException, match=f"not on a slice boundary.*{hint}"):
        task.execute({"dag_run": SimpleNamespace(run_type="scheduled")})
    with pytest.raises(AirflowFailException, match="not on a slice boundary") as by_hand:
        task.execute({"dag_run": SimpleNamespace(run_type="manual")})
    assert hint not in str(by_hand.value)


def test_asset_rule_finds_asset_with_uri_of_its_own(tmp_path):
    slices = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake")
    slices.file.write_text(
        slices.file.read_text().replace("table: clicks", "table: clicks, complete: {by: asset, asset: c}")
    )
    events = MagicMock()
    events.after.return_value.limit.return_value = []

    missing = describe_missing_events(
        {"inlet_events": {Asset.ref(name="c"): events}}, slices.pipeline, "2025-01-01T00:00Z", "2025-01-01T01:00Z"
    )

    assert input_assets(slices.pipeline)[0] == Asset.ref(name="c")
    assert missing == ["asset c has no event since 2025-01-01T01:00:00+00:00"]
