"""Kill commands at any of their steps and repeat them: the tables equal those of an undisturbed command.

The tests kill at some of the steps, `make crashes` at all of them.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.ledger.reader_assertions import check_every_version, check_readers_agree
from tidemark.cli.app import main
from tidemark.config.candidate_version import to_candidate
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.erasure.workflow import erase
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.quarantine import release
from tidemark.quality.waivers import list_pending_waivers, waive
from tidemark.timegrid.slices import Grid
from tidemark.versions.promotion import promote, rollback

PROJECT = Path(__file__).resolve().parents[2]
PROMISE = "A run that is killed at any step loses and repeats no row: the next run finishes it."
POINTS = os.environ.get("TIDEMARK_CRASHES", "1")
"""Number of points per case at which the command is killed; `all` for every point."""
START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def committed_lake(pipeline, append_inputs, create_rows, run_hours, lake):
    """Write five hours of rows, some of them late, and commit two hours."""
    append_inputs(*create_rows(minutes=11, count=27))
    settings = pipeline()
    run_hours(settings, 2)
    return settings, lake


def build_command(lake, point, *options, name="run"):
    """Build the command line that runs a command of Tidemark in its own process and kills it at a point."""
    arguments = [str(lake.parent / "pipeline.yaml"), "--lake", str(lake), *options]
    return [sys.executable, "-m", "tests.ledger.crashing", str(point), f"{lake}.steps", *name.split(), *arguments]


@pytest.fixture
def check_kills(spark, read_contents):
    """Kill a command at several points and repeat it on the same lake; return contents before and after."""

    def check(settings, lake, arguments, repeat, changed):
        def start_command(name, point):
            copy = lake.parent / name
            shutil.copytree(lake, copy)
            log = copy.with_suffix(".log").open("w")
            process = subprocess.run(
                arguments(copy, point), cwd=PROJECT, start_new_session=True, stdout=log, stderr=log, check=False
            )
            return copy, process.returncode

        before, _ = read_contents(lake)
        undisturbed, code = start_command("undisturbed", 0)
        assert code == 0, undisturbed.with_suffix(".log").read_text()
        steps = Path(f"{undisturbed}.steps").read_text().split()
        after, uncommitted = read_contents(undisturbed)
        assert not uncommitted
        assert all(after[name] != before.get(name) for name in changed)

        all_points = range(1, 2 * len(steps) + 1)
        count = len(all_points) if POINTS == "all" else int(POINTS)
        points = [all_points[int((n + 0.5) * len(all_points) / count)] for n in range(count)]
        with ThreadPoolExecutor(2) as pool:
            killed = pool.map(lambda point: start_command(f"killed_{point}", point), points)
            for point, (copy, code) in zip(points, killed, strict=True):
                label = f"killed at point {point} of {len(all_points)}, {steps[(point - 1) // 2]}"
                assert code == -signal.SIGKILL, f"{label}: {copy.with_suffix('.log').read_text()}"
                stored, _ = read_contents(copy)
                for name in changed:
                    assert stored.get(name, Counter()) in (before.get(name, Counter()), after[name]), (
                        f"{label}: partly visible"
                    )
                check_every_version(PipelineTables(f"{copy}/orders"), Grid.from_config(settings.slices))
                repeat(copy)
                assert read_contents(copy) == (after, 0), label
                rows = check_readers_agree(spark, PipelineTables(f"{copy}/orders"), Grid.from_config(settings.slices))
                assert rows == after["emissions"].total()
                shutil.rmtree(copy)
        return before, after

    return check


QUARANTINE = [{"expect_column_values_to_be_between": {"column": "left_v", "max_value": 12, "on_failure": "quarantine"}}]

FAIL = [{"expect_column_values_to_be_between": {"column": "left_v", "max_value": 12}}]


@pytest.mark.grid
@pytest.mark.parametrize(
    ("hours", "slices_per_job", "changes"),
    [
        pytest.param(1, 1, {}, id="a slice", marks=pytest.mark.slow),
        pytest.param(3, 3, {"output_stream": True}, id="a group of slices", marks=pytest.mark.promise(PROMISE)),
        pytest.param(3, 3, {"quality": QUARANTINE}, id="rows in quarantine", marks=pytest.mark.slow),
    ],
)
def test_run_killed_at_any_step_is_resumable(
    append_inputs, create_rows, lake, pipeline, run_hours, check_kills, spark, hours, slices_per_job, changes
):
    append_inputs(*create_rows(minutes=11, count=27))
    settings = pipeline(**changes)
    run_hours(settings, 2)
    options = ["--to", f"{START + timedelta(hours=2 + hours):%Y-%m-%dT%H:%MZ}", "--slices-per-job", str(slices_per_job)]

    def resume(copy):
        request = Request(end=START + timedelta(hours=2 + hours), slices_per_job=slices_per_job)
        list(execute(spark, create_plan(spark, settings, str(copy), request), lambda *_: None))

    optional = {"quality": "quarantined", "output_stream": "output_stream"}
    changed = ["emissions", "late", *(optional[name] for name in changes)]
    before, after = check_kills(
        settings, lake, lambda copy, point: build_command(copy, point, *options), resume, changed
    )

    assert after["emissions"] > before["emissions"]
    assert after["late"] > before["late"]


@pytest.mark.grid
def test_release_killed_at_any_step_is_repeatable(committed_lake, pipeline, run_hours, check_kills, spark):
    _, lake = committed_lake
    settings, slice_start = pipeline(quality=QUARANTINE), START + timedelta(hours=3)
    run_hours(settings, 5)
    options = ["--slice", f"{slice_start:%Y-%m-%dT%H:%MZ}", "--user", "ada"]

    def repeat(copy):
        with suppress(UserError):  # the killed command has committed
            release(spark, settings, str(copy), slice_start, None, "ada")

    def arguments(copy, point):
        return build_command(copy, point, *options, name="quarantine release")

    before, after = check_kills(settings, lake, arguments, repeat, ["emissions", "quarantined"])

    assert after["quarantined"] < before["quarantined"]
    assert (
        (after["emissions"] - before["emissions"]).total() == (before["quarantined"] - after["quarantined"]).total() > 0
    )


@pytest.mark.slow
def test_compact_killed_at_any_step_is_resumable(committed_lake, pipeline, run_hours, check_kills, spark):
    _, lake = committed_lake
    settings = pipeline(compact={"settled_after": "0 seconds", "period": "2 hours"})
    run_hours(settings, 4, slices_per_job=1)

    def resume(copy):
        plan = plan_compaction(settings, str(copy))
        assert all(merge_files(spark, plan, merge) for merge in plan.merges)
        assert not plan_compaction(settings, str(copy)).merges

    before, after = check_kills(
        settings, lake, lambda copy, point: build_command(copy, point, name="tables compact"), resume, []
    )
    assert after == before


@pytest.mark.slow
@pytest.mark.parametrize("move", [promote, rollback])
def test_promote_or_rollback_killed_at_any_step_is_repeatable(
    committed_lake, pipeline, plan_and_run, check_kills, spark, move
):
    settings, lake = committed_lake
    wider = pipeline(join__interval={"lower": "-50 minutes", "upper": "0 seconds"})
    plan_and_run(to_candidate(wider, "wide"), end=START + timedelta(hours=2))
    if move is rollback:
        promote(spark, wider, str(lake), "wide", "ada")

    def repeat(copy):
        with suppress(UserError):  # the killed command has committed
            move(spark, wider, str(copy), "wide", "ada")

    def arguments(copy, point):
        return build_command(copy, point, "wide", "--user", "ada", name=f"version {move.__name__}")

    before, after = check_kills(settings, lake, arguments, repeat, ["emissions"])

    assert (after["emissions"] > before["emissions"]) == (move is promote)


@pytest.mark.slow
def test_adopt_killed_at_any_step_is_repeatable(append_inputs, create_rows, pipeline, run_hours, lake, check_kills):
    append_inputs(*create_rows(minutes=11, count=20))
    run_hours(pipeline(output="run"), 4)
    settings = pipeline()
    options = ["run/emissions", "--until", f"{START + timedelta(hours=3):%Y-%m-%dT%H:%MZ}"]

    def repeat(copy):
        # 2: the killed command has committed.
        assert main(["adopt", str(lake.parent / "pipeline.yaml"), *options, "--lake", str(copy)]) in (0, 2)
        ledger = Ledger.from_pipeline(settings, str(copy))
        assert [entry.number for entry in ledger.entries.values() if entry.adopted_from] == [0, 1, 2]

    def arguments(copy, point):
        return build_command(copy, point, *options, name="adopt")

    before, after = check_kills(settings, lake, arguments, repeat, ["emissions", "late", "checkpoint"])

    assert not before
    assert not after["emissions"]
    assert after["checkpoint"]


@pytest.mark.slow
def test_erase_killed_at_any_step_is_resumable(committed_lake, pipeline, run_hours, check_kills, spark):
    _, lake = committed_lake
    settings, predicates = pipeline(quality=QUARANTINE), {"left": "v IN (5, 8)"}
    run_hours(settings, 4)

    def resume(copy):
        erase(spark, settings, str(copy), predicates, "ada", keep_files=True)

    def arguments(copy, point):
        return build_command(
            copy, point, "--left", predicates["left"], "--user", "ada", "--keep-files", "--yes", name="tables erase"
        )

    changed = ["emissions", "late", "checkpoint"]
    before, after = check_kills(settings, lake, arguments, resume, changed)

    assert all(after[name] < before[name] for name in changed)


@pytest.mark.slow
def test_run_of_waived_slice_killed_at_any_step_is_resumable(committed_lake, pipeline, check_kills, spark):
    _, lake = committed_lake
    settings, slice_start = pipeline(quality=FAIL), START + timedelta(hours=2)
    waive(settings, str(lake), slice_start, "left_v", "so", "ada")
    until = slice_start + timedelta(hours=1)

    def resume(copy):
        list(execute(spark, create_plan(spark, settings, str(copy), Request(end=until)), lambda *_: None))
        rows = DeltaTable(f"{copy}/orders/ledger").to_pyarrow_table().to_pylist()
        assert [row["quality"] for row in rows if row["slice"] == slice_start] == ["waived"]
        assert list_pending_waivers(Ledger.from_pipeline(settings, str(copy))) == []

    def arguments(copy, point):
        return build_command(copy, point, "--to", f"{until:%Y-%m-%dT%H:%MZ}")

    before, after = check_kills(settings, lake, arguments, resume, ["emissions", "late"])

    assert after["emissions"] > before["emissions"]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "committed"), [(1, 0), (2, 1)])
def test_waive_killed_before_or_after_commit_is_atomic(committed_lake, pipeline, point, committed):
    _, lake = committed_lake
    settings, slice_start = pipeline(quality=FAIL), START + timedelta(hours=2)
    waive(settings, str(lake), START, "left_v", "so", "ada")  # of another slice, so that the table exists
    options = [
        "--slice",
        f"{slice_start:%Y-%m-%dT%H:%MZ}",
        "--expectation",
        "left_v",
        "--reason",
        "so",
        "--user",
        "ada",
    ]
    killed = subprocess.run(
        build_command(lake, point, *options, name="quality waive"), cwd=PROJECT, start_new_session=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL

    ledger = Ledger.from_pipeline(settings, str(lake))
    assert len(list_pending_waivers(ledger)) == 1 + committed

    waive(settings, str(lake), slice_start, "left_v", "so", "ada")
    assert len(list_pending_waivers(ledger)) == 2


def test_run_on_sigterm_commits_current_job_and_is_resumable(committed_lake, read_contents):
    _, lake = committed_lake
    arguments = build_command(lake, 0, "--slices-per-job", "1")
    running = subprocess.Popen(
        arguments, cwd=PROJECT, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not list(lake.glob("orders/emissions/run=*.20240101T030000Z.*")) and running.poll() is None:
        time.sleep(0.02)  # until the second job writes files
    running.send_signal(signal.SIGTERM)
    output, errors = running.communicate(timeout=120)
    assert running.returncode == 143, errors
    assert "stopped before slice 2024-01-01T04:00Z; all slices before it are committed" in errors
    assert "committed 2024-01-01T03:00Z to 2024-01-01T04:00Z" in output.splitlines()[-1]
    assert not read_contents(lake)[1]

    resumed = subprocess.run(arguments, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "committed 2024-01-01T05:00Z to 2024-01-01T06:00Z" in resumed.stdout
