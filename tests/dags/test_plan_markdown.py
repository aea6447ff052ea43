"""The plan of a repair as a person reads it, and when a person is asked."""

import pytest

from tests.conftest import write_pipeline
from tests.dags.conftest import PLAN, RANGE
from tidemark.airflow.plan_markdown import MAX_RANGES, list_approval_reasons, render_plan


def test_plan_page_shows_slices_cost_ripple_and_why_a_person_is_asked():
    assert (
        render_plan(PLAN, ["2 slices are too many"])
        == """\
**orders: 2 outdated slices would run again**

| slices | number | reason |
| --- | --- | --- |
| 2024-01-01T02:00Z to 2024-01-01T04:00Z | 2 | late arrival: rows arrived \\| late |

|  |  |
| --- | --- |
| input rows to read | about 1,200 rows |
| estimated time | 61 s, give or take 4 s |
| Spark jobs | 1 |
| slices that may follow | at most 4 slices, up to 2024-01-01T08:00Z: until their state no longer changes |
| left | orders, version 7 |
| right | payments, version 3 |

Notes:

- a note

A person is asked because:

- 2 slices are too many"""
    )


def test_plan_page_of_many_ranges_is_cut_and_of_first_run_has_no_estimate():
    ranges = [RANGE | {"explanation": "x"}] * (MAX_RANGES + 3)

    page = render_plan(PLAN | {"slice_ranges": ranges, "estimate": None, "may_follow": [], "notes": []}, [])

    assert page.count("late arrival: x") == MAX_RANGES
    assert "| 3 ranges more | 6 |" in page
    assert "| estimated time | not enough jobs yet to estimate it |" in page
    assert "| slices that may follow | none |" in page
    assert "Notes" not in page
    assert "asked" not in page


@pytest.mark.parametrize(
    ("limits", "reasons"),
    [
        (None, ["the pipeline file has no `airflow.repair.approve_above`, so each repair is approved"]),
        ({"slices": 2, "rows": 1_200}, []),
        ({"rows": 1_200}, []),
        ({"slices": 1, "rows": 1_200}, ["2 slices are more than `airflow.repair.approve_above.slices` (1)"]),
        ({"rows": 1_199}, ["1,200 rows are more than `airflow.repair.approve_above.rows` (1,199)"]),
    ],
)
def test_person_is_asked_above_limits(tmp_path, limits, reasons):
    repair = {"repair": {"approve_above": limits}} if limits else {}
    pipeline = write_pipeline(tmp_path / "orders.yaml", airflow=repair)

    assert list_approval_reasons(pipeline, PLAN) == reasons


@pytest.mark.parametrize(("policy", "is_asked"), [("refuse", True), ("reprocess", False)])
def test_person_is_asked_about_changed_rows_that_the_file_refuses(tmp_path, policy, is_asked):
    airflow = {"repair": {"approve_above": {"slices": 100}}}
    pipeline = write_pipeline(tmp_path / "orders.yaml", airflow=airflow, on_input_delete=policy)

    reasons = list_approval_reasons(pipeline, PLAN | {"slice_ranges": [RANGE | {"reason": "changed input"}]})

    assert bool(reasons) == is_asked
