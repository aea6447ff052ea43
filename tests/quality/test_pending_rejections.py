"""Tests of the list of rejected slices, without Spark."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.quality.pending_rejections import list_pending_rejections
from tidemark.quality.results_table import SCHEMA, append_rejection_results
from tidemark.timegrid.slices import Grid

HOUR = 3_600_000_000


def test_pending_rejections_are_the_newest_of_slices_without_a_later_commit(tmp_path):
    tables = PipelineTables(str(tmp_path / "orders"))
    started = datetime.now(UTC)
    attempts = ((0, ["null_keys"]), (1, ["null_keys"]), (1, ["rows", "mean"]), (2, ["rows"]))
    for run, (hour, names) in enumerate(attempts):
        start = datetime(1970, 1, 1, hour, tzinfo=UTC)
        results = [{"slice": start, "run": f"run {run}", "expectation": name, "outcome": "failed"} for name in names]
        append_rejection_results(tables, pa.Table.from_pylist(results, SCHEMA))
    committed = [started + timedelta(days=1), started - timedelta(days=1)]
    ledger = SimpleNamespace(
        tables=tables, grid=Grid(0, HOUR), rows=pd.DataFrame({"number": [0, 1], "committed_at": committed})
    )

    rejections = list_pending_rejections(ledger)

    assert [(rejection.slice, rejection.expectations, rejection.run) for rejection in rejections] == [
        ("1970-01-01T01:00Z", ("rows", "mean"), "run 2"),
        ("1970-01-01T02:00Z", ("rows",), "run 3"),
    ], "slice 0 was committed after its rejection, slice 1 before"
    assert started.strftime("%Y-%m-%dT%H") <= rejections[0].rejected_at


def test_pending_rejections_without_table_are_none(tmp_path):
    assert list_pending_rejections(SimpleNamespace(tables=PipelineTables(str(tmp_path)))) == []
