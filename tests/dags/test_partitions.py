"""Partition keys of slices and days, in Airflow's database and scheduler, and the DAGs that they start."""

import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.dags.conftest import PROJECT
from tests.dags.slice_lake import SliceLake
from tidemark.airflow.partition_keys import DayCalendar
from tidemark.airflow.status_queries import select_rows_since
from tidemark.config import load_pipeline
from tidemark.config.types import to_micros
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.timegrid.slices import Grid

AIRFLOW = Path(sys.executable).with_name("airflow")
HOURS = [f"2013-01-01T{hour:02}:00:00" for hour in range(24)]
PARTITIONS = "airflow: {partitions: [slice, day], day_time_zone: UTC}\n"
ROLLUP = """
from airflow.sdk import DAG, Asset, DayWindow, PartitionedAssetTimetable, RollupMapper, StartOfDayMapper, WaitForAll
from airflow.providers.standard.operators.empty import EmptyOperator

days = RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow(), wait_policy=WaitForAll())
partitions = Asset.ref(name="clicked_views__partitions")
schedule = PartitionedAssetTimetable(assets=partitions, default_partition_mapper=days)
with DAG("rollup", schedule=schedule, catchup=False) as dag:
    EmptyOperator(task_id="nothing")
"""
CONSUMER, ROLLED_UP = "clicked_views__daily_example", "rollup"
NEXT = """
name: next
dialect: flink-datastream
left:
  table: clicks
  event_time: at
  watermark_delay: 10 minutes
  complete: {by: asset, asset: clicked_views__partitions, partition: "%Y-%m-%dT%H:%M:%S"}
right: {table: views, event_time: at, watermark_delay: 0 seconds}
join:
  keys: [user]
  interval: {lower: -10 minutes, upper: 0 seconds}
slices: {every: 1 hour, start: "2013-01-01T23:00:00Z"}
airflow: {wait_timeout: 1 ms, poll_interval: 1 second}
"""


@pytest.fixture
def partitioned_env(pipeline_env, tmp_path):
    """Return variables of an Airflow with partitions of clicked_views, and a second consumer that rolls them up."""
    file = Path(pipeline_env["TIDEMARK_PIPELINES"], "clicked_views.yaml")
    file.write_text(file.read_text() + PARTITIONS)
    file.with_name("next.yaml").write_text(NEXT)
    folder = tmp_path / "dags"
    folder.mkdir()
    for dag_file in (PROJECT / "dags").glob("*.py"):
        (folder / dag_file.name).symlink_to(dag_file)
    (folder / "rollup.py").write_text(ROLLUP)
    return pipeline_env | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }


def run_dags(environment, *dag_runs):
    """Run DAGs in another process, then the scheduler; return the output and what `schedule_partitions.py` prints."""
    command = [sys.executable, PROJECT / "tests/dags/schedule_partitions.py", json.dumps(dag_runs)]
    process = subprocess.run(command, cwd="/", env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return process.stdout, json.loads(process.stdout.splitlines()[-1])


def run_slices(spark, environment, **options):
    pipeline = load_pipeline(Path(environment["TIDEMARK_PIPELINES"], "clicked_views.yaml"))
    plan = create_plan(spark, pipeline, environment["TIDEMARK_LAKE"], Request(**options))
    list(execute(spark, plan, lambda *_: None))


def read_last_commit(environment):
    pipeline = load_pipeline(Path(environment["TIDEMARK_PIPELINES"], "clicked_views.yaml"))
    ledger = Ledger.from_pipeline(pipeline, environment["TIDEMARK_LAKE"], applies_commits=False)
    return json.dumps({"number": ledger.last_commit, "run": ledger.last.run})


def at(hour):
    return datetime(2013, 1, 1, tzinfo=UTC) + timedelta(hours=hour)


def test_consumers_start_when_day_is_committed_and_again_after_reprocess(spark, partitioned_env):
    subprocess.run([AIRFLOW, "db", "migrate"], env=partitioned_env, check=True)
    run_slices(spark, partitioned_env, end=at(24))

    # A run of `dag.test` starts at its logical date, and the first report sends what was committed since.
    output, result = run_dags(partitioned_env, ("clicked_views__slice", at(0).isoformat(), "wait|run"))

    assert result["states"] == ["success"], output
    emissions = f"file://{partitioned_env['TIDEMARK_LAKE']}/clicked_views/emissions"
    events = [
        ["clicked_views__days", f"{emissions}?partition=day", "tidemark", "2013-01-01"],
        *(["clicked_views__partitions", emissions, "tidemark", hour] for hour in HOURS),
        ["clicked_views__slices", "clicked_views__slices", "asset", None],
    ]
    assert sorted(result["events"], key=str) == events
    progress = (("last_slice", '"2013-01-01T23:00Z"'), ("watermark", '"2013-01-01T02:29:59.999Z"'))
    assets = ("clicked_views__days", "clicked_views__partitions", "clicked_views__slices")
    reported = [
        ["clicked_views__slices", "last_commit", read_last_commit(partitioned_env)],
        ["clicked_views__slices", "reports_since", f'"{at(0).isoformat()}"'],
    ]
    assert sorted(result["stored"]) == sorted([[asset, *row] for asset in assets for row in progress] + reported)
    day = ["2013-01-01", "2013-01-01T00:00:00+00:00"]
    assert result["runs"] == [[CONSUMER, *day], [ROLLED_UP, *day]]
    assert "2013-01-01 of clicked_views, committed to 2013-01-01T23:00Z" in output

    run_slices(spark, partitioned_env, start=at(5), end=at(6), reprocess=True)
    # The first run begins after the commit, as one that is cleared. The second one begins before all commits.
    dag_runs = (
        ("clicked_views__slice", datetime.now(UTC).isoformat(), "wait|run"),
        ("clicked_views__slice", at(1).isoformat(), "wait|run"),
        ("next__slice", at(24).isoformat(), "run|report"),
        ("next__slice", at(25).isoformat(), "run|report"),
    )
    output, result = run_dags(partitioned_env, *dag_runs)

    again = Counter(map(tuple, result["events"])) - Counter(map(tuple, events))
    assert {(name, key) for name, *_, key in again} == {*zip(assets, ("2013-01-01", HOURS[5], None), strict=True)}
    assert again.total() == len(assets), "each commit is reported once"
    assert result["runs"] == [[CONSUMER, *day], [CONSUMER, *day], [ROLLED_UP, *day]], "a rollup waits for 24 keys again"
    assert result["states"] == [*["success"] * 3, "failed"], "a slice waits for the key of its hour"
    assert "asset clicked_views__partitions has no event of partition 2013-01-02T00:00:00" in output

    dates = ("--partition-date-start", "2013-01-01", "--partition-date-end", "2013-01-01")
    subprocess.run([AIRFLOW, "dags", "clear", CONSUMER, *dates, "--yes"], env=partitioned_env, check=True)
    output, result = run_dags(partitioned_env)
    assert output.count("Returned value was: 2013-01-01 of clicked_views, committed to") == 2, "both runs of the day"
    assert result["runs"] == [[CONSUMER, *day], [CONSUMER, *day], [ROLLED_UP, *day]]


def test_rows_of_another_ledger_are_later_than_reported_commit(tmp_path):
    """As after the tables of a pipeline were deleted and written again."""
    slices = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake")
    slices.add(range(3))
    slices.write()
    ledger = Ledger.from_pipeline(slices.pipeline, str(slices.lake), applies_commits=False)

    reported = [{"number": 2, "run": run} for run in ("run 1", "run of an old ledger")]

    assert [select_rows_since(ledger, commit)["number"].to_list() for commit in reported] == [[2], [0, 1, 2]]


def list_days(every, zone, changed, valid, start="2024-03-30T23:00Z", stop=1000):
    """Return the complete days of slices by number."""
    grid = Grid(to_micros(datetime.fromisoformat(start)), to_micros(timedelta(minutes=every)))
    days = DayCalendar(grid, zone, range(stop)).find_complete_days(changed, valid)
    return [(date(1970, 1, 1) + timedelta(days=day)).isoformat() for day in days]


def test_day_is_complete_when_all_its_slices_are_valid():
    """Hourly slices from midnight of Berlin's day of 23 hours."""
    assert list_days(60, "Europe/Berlin", [22], range(23)) == ["2024-03-31"]
    assert list_days(60, "Europe/Berlin", [21], range(22)) == []
    assert list_days(60, "Europe/Berlin", [5], {*range(23)} - {7}) == []
    assert list_days(60, "Europe/Berlin", [5, 30], range(47)) == ["2024-03-31", "2024-04-01"]
    assert list_days(60, "UTC", [0], range(1)) == ["2024-03-30"], "the first day begins with the first slice"
    assert list_days(60, "UTC", [3], range(4), stop=4) == ["2024-03-31"], "the last day ends with the last slice"


def test_day_is_complete_when_slice_across_midnight_is_valid():
    """Slices of 7 hours from 23:00: the fourth covers 20:00 to 03:00."""
    assert list_days(420, "UTC", [0], [0]) == ["2024-03-30"]
    assert list_days(420, "UTC", [2], [0, 1, 2]) == []
    assert list_days(420, "UTC", [3], [0, 1, 2, 3]) == ["2024-03-31"]
    assert list_days(420, "UTC", [3], range(7)) == ["2024-03-31", "2024-04-01"], "the slice has rows of both days"
