"""Tests of the list of rejected slices, without Spark."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import create_internal_table
from tidemark.ledger.ledger_table import SCHEMA, read_attempts
from tidemark.quality import results_table
from tidemark.quality.pending_rejections import list_pending_rejections
from tidemark.quality.results_table import append_rejection_results
from tidemark.timegrid.slices import Grid

HOUR = 3_600_000_000
DAY = timedelta(days=1)


@pytest.fixture
def ledger(tmp_path):
    """Return a ledger with rejections of the hours 0 to 2, and without rows."""
    tables = PipelineTables(str(tmp_path / "orders"))
    attempts = ((0, ["null_keys"]), (1, ["null_keys"]), (1, ["rows", "mean"]), (2, ["rows"]))
    for run, (hour, names) in enumerate(attempts):
        results = [
            {"slice": start_of(hour), "run": f"run {run}", "expectation": name, "outcome": "failed"} for name in names
        ]
        append_rejection_results(tables, pa.Table.from_pylist(results, results_table.SCHEMA))
    return SimpleNamespace(tables=tables, grid=Grid(0, HOUR))


def start_of(hour):
    return datetime(1970, 1, 1, hour, tzinfo=UTC)


def commit(ledger, *rows):
    """Commit attempts: hour, attempt, and time of the commit."""
    table = create_internal_table(ledger.tables.ledger, SCHEMA)
    stored = [
        {"slice": start_of(hour), "attempt": attempt, "committed_at": committed_at, "commit": commit}
        for commit, (hour, attempt, committed_at) in enumerate(rows, 1)
    ]
    attempts = read_attempts(table.append(pa.Table.from_pylist(stored, SCHEMA), 1), ledger.grid)
    ledger.rows = attempts.drop_duplicates("number", keep="last")


def test_pending_rejections_are_the_newest_of_slices_without_a_later_commit(ledger):
    now = datetime.now(UTC)
    commit(ledger, (0, 1, now - DAY), (1, 1, now - DAY), (0, 2, now + DAY))

    rejections = list_pending_rejections(ledger)

    assert [(rejection.slice, rejection.expectations, rejection.run) for rejection in rejections] == [
        ("1970-01-01T01:00Z", ("rows", "mean"), "run 2"),
        ("1970-01-01T02:00Z", ("rows",), "run 3"),
    ], "slice 0 was committed after its rejection, slice 1 before"
    assert now - DAY < datetime.fromisoformat(rejections[0].rejected_at) < now + DAY


def test_release_or_erasure_after_a_rejection_leaves_it_pending(ledger):
    now = datetime.now(UTC)
    commit(ledger, (0, 1, now - DAY), (0, 1, now + DAY))

    assert [rejection.run for rejection in list_pending_rejections(ledger)] == ["run 0", "run 2", "run 3"]


def test_pending_rejections_without_table_are_none(tmp_path):
    assert list_pending_rejections(SimpleNamespace(tables=PipelineTables(str(tmp_path)))) == []
