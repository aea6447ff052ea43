"""Tests of a plan's jobs and commands as people read them, without Spark."""

import json
from dataclasses import fields
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tests.conftest import write_pipeline
from tidemark.airflow.status_queries import plan_outdated_slices
from tidemark.cli import main
from tidemark.cli.render_plan import describe_jobs
from tidemark.errors import IncompleteInputError
from tidemark.planning import planner
from tidemark.planning.job_sizing import JobCapacity
from tidemark.planning.plan import Plan, SliceRange
from tidemark.planning.request import Request
from tidemark.planning.slice_selection import list_readable_ranges
from tidemark.sources.upstream import UpstreamState
from tidemark.spark.lazy_session import create_refusing_session


def create_plan(**values):
    """Create a plan with some of its fields; the others are None."""
    return Plan(**{field.name: values.get(field.name) for field in fields(Plan)})


@pytest.mark.parametrize(
    ("rows_by_job", "capacity", "text"),
    [
        ({range(754): 53_987.4}, 61_236_838, "1 job for 754 slices, about 54,000 rows"),
        ({range(1): 4}, 61_236_838, "1 job for 1 slice, about 4 rows"),
        (
            {range(2): 900, range(2, 5): 950, range(5, 6): 700},
            1_000,
            "3 jobs of 1 to 3 slices each, about 2,600 rows in all; memory holds about 1,000 rows of a job",
        ),
        # Jobs of different reasons, and jobs that the user sized.
        ({range(2): 9, range(4, 6): 9}, 1_000, "2 jobs of 2 slices each, about 18 rows in all"),
        ({range(2): 900, range(2, 4): 900}, None, "2 jobs of 2 slices each, about 1,800 rows in all"),
    ],
)
def test_describe_jobs_shows_the_capacity_only_if_it_cut_them(rows_by_job, capacity, text):
    plan = create_plan(rows_by_job=rows_by_job, capacity=capacity and JobCapacity(capacity, "so many bytes"))

    assert describe_jobs(plan) == text


@pytest.mark.parametrize(("rerun", "is_proposed"), [((2, 5), False), ((2,), True), ((), True)])
def test_proposed_command_of_a_reprocess_is_for_slices_that_it_does_not_run(tmp_path, rerun, is_proposed):
    pipeline = write_pipeline(tmp_path / "orders.yaml")
    slice_ranges = tuple(SliceRange(range(number, number + 1), "late arrival", "") for number in rerun)

    plan = create_plan(pipeline=pipeline, slice_ranges=slice_ranges, slices_to_reprocess=(2, 5))

    assert plan.proposed_command == (f"tidemark reprocess {tmp_path}/orders.yaml" if is_proposed else None)
    assert plan.slices_left_outdated == tuple(number for number in (2, 5) if number not in rerun)


@pytest.mark.parametrize(
    ("ends", "readable"),
    [([], [(1, 3), (5, 9)]), ([7, 20], [(1, 3), (5, 7)]), ([20, 5], [(1, 3)]), ([2], [(1, 2)]), ([0], [])],
)
def test_outdated_slices_after_stale_slice_of_previous_pipeline_wait(ends, readable):
    ledger = SimpleNamespace(last=None)
    upstreams = [UpstreamState("left", "orders", "orders", end, end, None, ledger) for end in ends]
    outdated = [SliceRange(slices, "changed input", "") for slices in (range(5, 9), range(1, 3))]

    ranges = list_readable_ranges(outdated, upstreams)

    assert [(part.slices.start, part.slices.stop) for part in ranges] == readable


@pytest.fixture
def waiting(tmp_path):
    """Return a pipeline that reads the output of another one, which has no slice."""
    write_pipeline(tmp_path / "orders.yaml", output_stream=True)
    keys = [{"left": "left_k", "right": "k"}]
    return write_pipeline(tmp_path / "shipments.yaml", name="shipments", left={"pipeline": "orders"}, join__keys=keys)


def test_plan_before_the_first_slice_of_previous_pipeline_is_empty(waiting, tmp_path, capsys):
    """As for `NAME__landed`, which runs what it can, and for `NAME__repair`."""
    note = f"waits for its input: orders has no committed slice. Run tidemark run {tmp_path}/orders.yaml first."

    outdated = plan_outdated_slices(waiting, str(tmp_path / "lake"))
    command = ["run", str(tmp_path / "shipments.yaml"), "--lake", str(tmp_path / "lake")]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main(command) == 0

    assert (outdated["slices"], outdated["notes"]) == (0, [note])
    assert (result["plan"]["slices"], result["plan"]["notes"], result["status"]["slices"]) == (0, [note], 0)
    assert "orders has no committed slice" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "request_",
    [Request(end=datetime(2024, 1, 1, 2, tzinfo=UTC)), Request(drain=True), Request(reprocess=True)],
    ids=["end", "drain", "reprocess"],
)
def test_request_of_slices_before_the_first_slice_of_previous_pipeline_is_refused(waiting, tmp_path, request_):
    with pytest.raises(IncompleteInputError, match=r"^orders has no committed slice\. Run tidemark run .*orders.yaml"):
        planner.create_plan(create_refusing_session(), waiting, str(tmp_path / "lake"), request_)
