"""Metrics that need a query: age of carried rows, and equal rows of the last comparison."""

from datetime import UTC, datetime, timedelta

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.execution.state_metrics import compute_carried_age, read_equal_share
from tidemark.timegrid.slices import Grid

HOUR = 3_600_000_000
COMPARED = datetime(2024, 1, 1, tzinfo=UTC)


def test_compute_carried_age_is_from_the_oldest_row_at_each_slices_end():
    carried = pd.DataFrame(
        {
            "since": [10 * HOUR, 10 * HOUR, 11 * HOUR, 12 * HOUR],
            "until": [12 * HOUR, 11 * HOUR, 12 * HOUR, 12 * HOUR],
            # The last group is evicted in the slice of its arrival.
            "clock": [9 * HOUR, 10 * HOUR, 11.5 * HOUR, 12 * HOUR],
        }
    )

    ages = compute_carried_age(carried, range(10, 13), Grid(0, HOUR))

    assert ages.fillna(-1).to_dict() == {10: 2, 11: 3, 12: -1}


@pytest.fixture
def save_comparison(tmp_path):
    """Append the rows of a comparison, as (same, only_batch, only_stream, pending)."""

    def save(hours, *counts, table="stream"):
        names = ("same", "only_batch", "only_stream", "pending")
        compared = {"compared_with": table, "compared_at": COMPARED + timedelta(hours=hours)}
        rows = [{**compared, **dict(zip(names, row, strict=True))} for row in counts]
        write_deltalake(PipelineTables(str(tmp_path)).agreement, pa.Table.from_pylist(rows), mode="append")
        return PipelineTables(str(tmp_path))

    return save


def test_read_equal_share_is_that_of_the_last_comparison(save_comparison, pipeline):
    save_comparison(1, (10, 90, 0, 0))
    tables = save_comparison(2, (97, 1, 1, 500), (0, 0, 1, 0))

    assert read_equal_share(tables, pipeline()) == 0.97


def test_read_equal_share_of_another_table_counts_only_without_compare(save_comparison, pipeline):
    save_comparison(1, (3, 1, 0, 0))
    tables = save_comparison(2, (1, 1, 0, 0), table="elsewhere")

    assert read_equal_share(tables, pipeline(compare={"table": "stream"})) == 0.75
    assert read_equal_share(tables, pipeline()) == 0.5


@pytest.mark.parametrize("counts", [None, (0, 0, 0, 7)])
def test_read_equal_share_without_compared_rows_is_nan(save_comparison, tmp_path, pipeline, counts):
    tables = save_comparison(1, counts) if counts else PipelineTables(str(tmp_path))
    assert pd.isna(read_equal_share(tables, pipeline()))
