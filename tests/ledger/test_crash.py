"""A run that is killed at any of its steps, and run again: as if it had not been killed.

Here are some of the steps, `make crashes` takes them all.
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

from tests.ledger.reader_assertions import every_version_is_whole, readers_agree
from tidemark.config.candidate_version import to_candidate
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.erasure.workflow import erase
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.maintenance.compaction import merge_files, plan_compaction
from tidemark.planning.plan import Request, create_plan
from tidemark.quality.quarantine import release
from tidemark.quality.waivers import list_pending_waivers, waive
from tidemark.timegrid.slices import Grid
from tidemark.versions.promotion import promote, rollback

PROJECT = Path(__file__).resolve().parents[2]
POINTS = os.environ.get("TIDEMARK_CRASHES", "1")
"""Of each case; `all` for every one."""
START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def before(pipeline, land, rows_every, hours, lake):
    """Five hours of rows, late ones too, of which two hours are committed."""
    land(*rows_every(minutes=11, count=27))
    settings = pipeline()
    hours(settings, 2)
    return settings, lake


def command(lake, point, *options, name="run"):
    """`tidemark run`, or another command, in processes of its own."""
    arguments = [str(lake.parent / "pipeline.yaml"), "--lake", str(lake), *options]
    return [sys.executable, "-m", "tests.ledger.crashing", str(point), f"{lake}.steps", name, *arguments]


@pytest.fixture
def killed_and_again(spark, contents):
    """Kill a command at points of its way, and do the same again, by a function of a lake; what it has changed."""

    def check(settings, lake, arguments, again, changed):
        def started(name, point):
            copy = lake.parent / name
            shutil.copytree(lake, copy)
            log = copy.with_suffix(".log").open("w")
            done = subprocess.run(
                arguments(copy, point), cwd=PROJECT, start_new_session=True, stdout=log, stderr=log, check=False
            )
            return copy, done.returncode

        old, _ = contents(lake)
        undisturbed, code = started("undisturbed", 0)
        assert code == 0, undisturbed.with_suffix(".log").read_text()
        steps = Path(f"{undisturbed}.steps").read_text().split()
        new, orphans = contents(undisturbed)
        assert not orphans
        assert all(new[name] != old.get(name) for name in changed)

        every = range(1, 2 * len(steps) + 1)
        count = len(every) if POINTS == "all" else int(POINTS)
        points = [every[int((n + 0.5) * len(every) / count)] for n in range(count)]
        with ThreadPoolExecutor(2) as pool:
            killed = pool.map(lambda point: started(f"killed_{point}", point), points)
            for point, (copy, code) in zip(points, killed, strict=True):
                where = f"killed at point {point} of {len(every)}, {steps[(point - 1) // 2]}"
                assert code == -signal.SIGKILL, f"{where}: {copy.with_suffix('.log').read_text()}"
                seen, _ = contents(copy)
                for name in changed:
                    assert seen.get(name, Counter()) in (old.get(name, Counter()), new[name]), f"{where}: half is seen"
                every_version_is_whole(PipelineTables(f"{copy}/orders"), Grid.from_config(settings.slices))
                again(copy)
                assert contents(copy) == (new, 0), where
                assert readers_agree(spark, PipelineTables(f"{copy}/orders"), Grid.from_config(settings.slices))
                shutil.rmtree(copy)
        return old, new

    return check


APART = [{"expect_column_values_to_be_between": {"column": "left_v", "max_value": 12, "on_failure": "quarantine"}}]

STOPS = [{"expect_column_values_to_be_between": {"column": "left_v", "max_value": 12}}]


@pytest.mark.grid
@pytest.mark.parametrize(
    ("hours_more", "per_job", "quality"),
    [
        pytest.param(1, 1, [], id="a slice", marks=pytest.mark.slow),
        pytest.param(3, 3, [], id="a group of slices"),
        pytest.param(3, 3, APART, id="rows in quarantine", marks=pytest.mark.slow),
    ],
)
def test_killed_at_a_step_and_run_again(before, pipeline, killed_and_again, spark, hours_more, per_job, quality):
    _, lake = before
    settings = pipeline(quality=quality)
    options = ["--to", f"{START + timedelta(hours=2 + hours_more):%Y-%m-%dT%H:%MZ}", "--slices-per-job", str(per_job)]

    def run_again(copy):
        request = Request(end=START + timedelta(hours=2 + hours_more), slices_per_job=per_job)
        list(execute(spark, create_plan(spark, settings, str(copy), request), lambda *_: None))

    changed = ["emissions", "late", *(["quarantined"] if quality else [])]
    old, new = killed_and_again(settings, lake, lambda copy, at: command(copy, at, *options), run_again, changed)
    assert new["emissions"] > old["emissions"]
    assert new["late"] > old["late"]


@pytest.mark.grid
def test_a_release_is_killed_and_asked_for_again(before, pipeline, hours, killed_and_again, spark):
    _, lake = before
    settings, at = pipeline(quality=APART), START + timedelta(hours=3)
    hours(settings, 5)
    options = ["--slice", f"{at:%Y-%m-%dT%H:%MZ}", "--user", "ada"]

    def release_again(copy):
        with suppress(UserError):  # it has happened
            release(spark, settings, str(copy), at, None, "ada")

    def arguments(copy, point):
        return command(copy, point, *options, name="release")

    old, new = killed_and_again(settings, lake, arguments, release_again, ["emissions", "quarantined"])
    assert new["quarantined"] < old["quarantined"]
    assert (new["emissions"] - old["emissions"]).total() == (old["quarantined"] - new["quarantined"]).total() > 0


@pytest.mark.slow
def test_a_compaction_is_killed_and_goes_on(before, pipeline, hours, killed_and_again, spark):
    _, lake = before
    settings = pipeline(compact={"settled_after": "0 seconds", "period": "2 hours"})
    hours(settings, 4, slices_per_job=1)

    def compact_again(copy):
        planned = plan_compaction(settings, str(copy))
        assert all(merge_files(spark, planned, one) for one in planned.merges)
        assert not plan_compaction(settings, str(copy)).merges

    old, new = killed_and_again(settings, lake, lambda copy, at: command(copy, at, name="compact"), compact_again, [])
    assert new == old


@pytest.mark.slow
@pytest.mark.parametrize("move", [promote, rollback])
def test_a_promotion_or_rollback_is_killed_and_asked_for_again(before, pipeline, go, killed_and_again, spark, move):
    settings, lake = before
    wider = pipeline(join__interval={"lower": "-50 minutes", "upper": "0 seconds"})
    go(to_candidate(wider, "wide"), end=START + timedelta(hours=2))
    if move is rollback:
        promote(spark, wider, str(lake), "wide", "ada")

    def move_again(copy):
        with suppress(UserError):  # it has happened
            move(spark, wider, str(copy), "wide", "ada")

    def arguments(copy, point):
        return command(copy, point, "wide", "--user", "ada", name=move.__name__)

    old, new = killed_and_again(settings, lake, arguments, move_again, ["emissions"])
    assert (new["emissions"] > old["emissions"]) == (move is promote)


@pytest.mark.slow
def test_a_forgetting_is_killed_and_goes_on(before, pipeline, hours, killed_and_again, spark):
    _, lake = before
    settings, where = pipeline(quality=APART), {"left": "v IN (5, 8)"}
    hours(settings, 4)

    def forget_again(copy):
        erase(spark, settings, str(copy), where, "ada", keep_files=True)

    def arguments(copy, point):
        return command(copy, point, "--left", where["left"], "--user", "ada", "--keep-files", name="erase")

    changed = ["emissions", "late", "checkpoint"]
    old, new = killed_and_again(settings, lake, arguments, forget_again, changed)
    assert all(new[name] < old[name] for name in changed)


@pytest.mark.slow
def test_a_slice_that_is_waived_is_killed_and_run_again(before, pipeline, killed_and_again, spark):
    _, lake = before
    settings, at = pipeline(quality=STOPS), START + timedelta(hours=2)
    waive(settings, str(lake), at, "left_v", "so", "ada")
    until = at + timedelta(hours=1)

    def run_again(copy):
        list(execute(spark, create_plan(spark, settings, str(copy), Request(end=until)), lambda *_: None))
        rows = DeltaTable(f"{copy}/orders/ledger").to_pyarrow_table().to_pylist()
        assert [row["quality"] for row in rows if row["slice"] == at] == ["waived"]
        assert list_pending_waivers(Ledger.from_pipeline(settings, str(copy))) == []

    def arguments(copy, point):
        return command(copy, point, "--to", f"{until:%Y-%m-%dT%H:%MZ}")

    old, new = killed_and_again(settings, lake, arguments, run_again, ["emissions", "late"])
    assert new["emissions"] > old["emissions"]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "asked"), [(1, 0), (2, 1)])
def test_a_waive_that_is_killed_is_asked_for_as_a_whole_or_not_at_all(before, pipeline, point, asked):
    _, lake = before
    settings, at = pipeline(quality=STOPS), START + timedelta(hours=2)
    waive(settings, str(lake), START, "left_v", "so", "ada")  # for another, so that the table is there
    options = ["--slice", f"{at:%Y-%m-%dT%H:%MZ}", "--expectation", "left_v", "--reason", "so", "--user", "ada"]
    killed = subprocess.run(
        command(lake, point, *options, name="waive"), cwd=PROJECT, start_new_session=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    ledger = Ledger.from_pipeline(settings, str(lake))
    assert len(list_pending_waivers(ledger)) == 1 + asked
    waive(settings, str(lake), at, "left_v", "so", "ada")
    assert len(list_pending_waivers(ledger)) == 2


def test_asked_to_stop_a_process_commits_the_job_at_hand_and_the_same_command_goes_on(before, contents):
    _, lake = before
    arguments = command(lake, 0, "--slices-per-job", "1")
    running = subprocess.Popen(
        arguments, cwd=PROJECT, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    first = next(line for line in running.stdout if line.startswith("committed"))
    assert "committed 2024-01-01T02:00Z to 2024-01-01T03:00Z" in first
    while not list(lake.glob("orders/emissions/run=*.20240101T030000Z.*")) and running.poll() is None:
        time.sleep(0.02)  # until the next job is at hand
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 143, err
    assert "stopped before slice 2024-01-01T04:00Z; all slices before it are committed" in err
    assert out.count("committed 2024") == 1
    assert not contents(lake)[1]
    done = subprocess.run(arguments, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "committed 2024-01-01T04:00Z to 2024-01-01T05:00Z" in done.stdout
