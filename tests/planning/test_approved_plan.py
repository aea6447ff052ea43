"""A reprocess runs at most what was approved: slices and rows by a stored plan, without Spark."""

import json
from dataclasses import fields
from types import SimpleNamespace

import pytest

from tests.conftest import write_pipeline
from tidemark.errors import SliceOrderError, UserError
from tidemark.planning.approved_plan import ApprovedPlan
from tidemark.planning.plan import Plan, SliceRange
from tidemark.timegrid.slices import Grid

APPROVED = {
    "pipeline": "orders",
    "slice_ranges": [
        {"from": "2024-01-01T02:00Z", "to": "2024-01-01T04:00Z", "reason": "late arrival"},
        {"from": "2024-01-01T06:00Z", "to": "2024-01-01T07:00Z", "reason": "changed input"},
    ],
    "estimated_rows": 300,
}


@pytest.fixture
def create_plan(tmp_path):
    """Return a function that creates a plan of slices by reason; each slice reads a number of rows."""
    pipeline = write_pipeline(tmp_path / "orders.yaml")

    def create(*slice_ranges, rows=100, name="orders"):
        parts = tuple(SliceRange(slices, reason, "") for slices, reason in slice_ranges)
        values = {
            "pipeline": SimpleNamespace(name=name),
            "grid": Grid.from_config(pipeline.slices),
            "slice_ranges": parts,
            "rows_by_job": {part.slices: float(rows * len(part.slices)) for part in parts},
        }
        return Plan(**{field.name: values.get(field.name) for field in fields(Plan)})

    return create


@pytest.fixture
def approved(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(APPROVED | {"notes": ["more fields are ignored"]}))
    return ApprovedPlan.read(file)


@pytest.mark.parametrize(
    "slice_ranges",
    [
        [(range(2, 4), "late arrival"), (range(6, 7), "late arrival")],
        [(range(3, 4), "late arrival"), (range(6, 7), "late arrival")],
        [(range(6, 7), "changed input")],
        [],
        # After a fault half-way, slices that follow an approved one are stale.
        [(range(4, 6), "stale"), (range(6, 7), "late arrival"), (range(9, 10), "stale")],
    ],
)
def test_plan_with_approved_slices_is_covered(create_plan, approved, slice_ranges):
    approved.require_covers(create_plan(*slice_ranges))


@pytest.mark.parametrize(
    ("slice_ranges", "rows", "message"),
    [
        ([(range(2, 5), "late arrival")], 100, "New in it: 2024-01-01T04:00Z to 2024-01-01T05:00Z (late arrival)."),
        ([(range(1, 2), "stale"), (range(2, 4), "late arrival")], 100, "New in it: 2024-01-01T01:00Z to 2024-01-01T02"),
        ([(range(8, 10), "changed input")], 100, "New in it: 2024-01-01T08:00Z to 2024-01-01T10:00Z (changed input)"),
        # A person who approved late rows has not approved deleted ones.
        ([(range(3, 4), "changed input")], 100, "New in it: 2024-01-01T03:00Z to 2024-01-01T04:00Z (changed input)"),
        ([(range(2, 4), "late arrival")], 151, "its slices read about 302 rows now, and 300 were approved"),
    ],
)
def test_plan_with_more_slices_or_rows_is_refused(create_plan, approved, slice_ranges, rows, message):
    with pytest.raises(SliceOrderError) as refusal:
        approved.require_covers(create_plan(*slice_ranges, rows=rows))

    assert message in str(refusal.value)
    assert str(refusal.value).endswith("Plan again, and approve the new plan.")


def test_plan_of_another_pipeline_is_refused(create_plan, approved):
    with pytest.raises(UserError, match="the approved plan is of orders, not of returns"):
        approved.require_covers(create_plan(name="returns"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "plan.json cannot be read: No such file or directory. Check the path."),
        ("{}", "plan.json is not a plan. Write one with"),
        ("no JSON", "plan.json is not a plan. Write one with"),
    ],
)
def test_file_that_is_no_plan_is_refused(tmp_path, content, message):
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_text(content)

    with pytest.raises(UserError, match=message):
        ApprovedPlan.read(file)
