"""Rows of a test case get arrival times in their order."""

import pytest
import yaml

from tests.conftest import write_pipeline
from tidemark.config.types import format_instant, from_micros
from tidemark.errors import PipelineFileError
from tidemark.pipeline_tests.arrivals import assign_arrivals
from tidemark.pipeline_tests.case_file import read_case_file
from tidemark.pipeline_tests.columns import create_schemas
from tidemark.timegrid.slices import Grid

BY_COMMIT = {
    "left__arrival": "commit",
    "right__arrival": "commit",
    "left__event_time": {"column": "happened", "unit": "ms"},
}
MICROSECONDS = 1_704_067_800_000_000
"""A time in 2024 in microseconds, which is in the year 55970 in milliseconds."""


@pytest.fixture
def assign(tmp_path):
    """Return a function that returns the arrivals of left rows."""
    (tmp_path / "tests").mkdir()

    def assign(*rows, **changes):
        pipeline = write_pipeline(tmp_path / "orders.yaml", **BY_COMMIT | changes)
        content = {"cases": {"first": {"given": [{"left": row} for row in rows], "expect": {}}}}
        (tmp_path / "tests" / "orders.yaml").write_text(yaml.safe_dump(content))
        file = read_case_file(tmp_path / "orders.yaml")
        [case] = file.cases
        assigned = assign_arrivals(
            file.chain, Grid.from_config(pipeline.slices), case, create_schemas(None, file, case)
        )
        return [row.clock and format_instant(from_micros(row.clock)) for row in assigned.rows]

    return assign


def test_assign_arrivals_event_time_out_of_bounds_does_not_move_the_arrival(assign):
    rows = [{"k": "a", "happened": time} for time in ("2024-01-01T00:10:00Z", MICROSECONDS, -1)]

    assert assign(*rows) == ["2024-01-01T00:10Z", "2024-01-01T00:10:00.001Z", "2024-01-01T00:10:00.002Z"]


def test_assign_arrivals_arrival_out_of_bounds_does_not_move_later_arrivals(assign):
    changes = {"left__arrival": {"column": "arrived", "unit": "ms"}, "right__arrival": "arrived"}
    rows = [
        {"k": "a", "happened": "2024-01-01T00:10:00Z", "arrived": MICROSECONDS},
        {"happened": "2024-01-01T00:20:00Z"},
    ]

    assert assign(*rows, **changes) == [None, "2024-01-01T00:20Z"]


def test_assign_arrivals_absurd_time_without_bounds_names_the_row(assign):
    with pytest.raises(PipelineFileError) as refusal:
        assign({"k": "a", "happened": MICROSECONDS}, time_bounds=False)

    assert "orders.yaml:" in str(refusal.value)
    assert f"left column happened: {MICROSECONDS} is outside the years 1 to 9999. Check the unit" in str(refusal.value)
