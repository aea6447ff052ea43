"""Estimate late-arriving rows by the statistics in an input's log, without Spark."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemark.delta.table_reader import DeltaInput
from tidemark.ledger.staleness import ConsumedVersions
from tidemark.sources.file_pruning import FileStatistics
from tidemark.sources.late_arrivals import ChangeDetector
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import ResolvedTimeColumn

START = datetime(2024, 1, 1, tzinfo=UTC)
GRID = Grid(int(START.timestamp() * 1e6), 3_600_000_000)
COMMITTED = 4
"""Number of committed slices."""


def append(path, *minutes):
    times = [START + timedelta(minutes=minute) for minute in minutes]
    table = pa.table({"arrived": pa.array(times, pa.timestamp("us", "UTC")), "v": list(minutes)})
    write_deltalake(path, table, mode="append")


def estimate(path, consumed):
    table = DeltaInput(None, "left", str(path))
    side = SimpleNamespace(clock=ResolvedTimeColumn("arrived", None), time_bounds=None, substitute_clock=None)
    changes = ChangeDetector(side, table, FileStatistics(side, table))
    return changes.estimate_late_arriving_rows(GRID, COMMITTED, consumed)


def delete_late_row(path):
    append(path, 70, 80)
    DeltaTable(path).delete("v = 80")


def compact(path):
    append(path, 70)
    append(path, 80)
    DeltaTable(path).optimize.compact()


CHANGES = {
    "late rows": (lambda path: append(path, 70, 80), 2),
    "new rows": (lambda path: append(path, 240, 250), 0),
    "rows of two committed and two new slices": (lambda path: append(path, 130, 190, 250, 310), 2),
    "a late row that was deleted again": (delete_late_row, 1),
    "a compaction": (compact, 2),
    "a deleted row": (lambda path: DeltaTable(path).delete("v = 20"), 0),
    "changed rows": (lambda path: DeltaTable(path).update({"v": "7"}, predicate="v = 20"), 0),
    "no change": (str, 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_estimate_late_arriving_rows_counts_rows_of_committed_slices(tmp_path, name):
    change, expected = CHANGES[name]
    append(tmp_path, 10, 20, 30)

    change(tmp_path)

    assert estimate(tmp_path, ConsumedVersions(((None, 0),), 0)) == expected


def test_estimate_late_arriving_rows_skips_changes_of_a_version_that_the_log_no_longer_has(tmp_path):
    append(tmp_path, 10, 20, 30)
    append(tmp_path, 40)
    DeltaTable(tmp_path).create_checkpoint()
    DeltaTable(tmp_path).update({"v": "7"}, predicate="v = 20")
    consumed = ConsumedVersions(((None, 0),), 0)
    assert estimate(tmp_path, consumed) == 1

    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()

    assert estimate(tmp_path, consumed) == 0


def test_estimate_late_arriving_rows_counts_since_the_version_that_each_slice_has_read(tmp_path):
    append(tmp_path, 10)
    append(tmp_path, 70, 130)

    consumed = ConsumedVersions(((None, 0), (2, 1)), 1)

    assert estimate(tmp_path, consumed) == 1
