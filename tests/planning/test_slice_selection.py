"""Tests of the committed slices that a run or a reprocess selects, without Spark."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.conftest import write_pipeline
from tests.ledger.test_rules import create_entry, create_ledger
from tidemark.ledger.config_fingerprint import serialize_settings
from tidemark.planning.context import PlanningContext
from tidemark.planning.request import Request
from tidemark.planning.slice_selection import select_slices
from tidemark.sources.late_arrivals import ChangedRows


@pytest.fixture
def create_context(tmp_path):
    """Return a function that creates a context with four committed slices, and no later rows.

    Args of the function:
        arrived: Slices with rows of the left input that arrived since.
        deleted: Slices with rows of the left input that were deleted since.
        policies: Settings of the pipeline.
        request: Options of the request.
    """

    def create_input(name, arrived, deleted):
        extent = SimpleNamespace(newest_slice=3, rows_before_start=0, is_from_statistics=True)
        changes = SimpleNamespace(
            find_changed_slices=lambda *_, includes_deleted: {*arrived, *(deleted if includes_deleted else ())},
            find_slices_with_lost_rows=lambda *_: set(deleted),
            find_changed_rows=lambda _, first, __: next(
                (ChangedRows(name, (7,), number) for number in deleted if number < first), None
            ),
        )
        table = SimpleNamespace(name=name, spark=object(), version=1)
        return SimpleNamespace(table=table, changes=changes, measure_extent=lambda *_, **__: extent)

    def create(arrived=(), deleted=(), policies=None, **request):
        pipeline = write_pipeline(tmp_path / "orders.yaml", **(policies or {}))
        settings = serialize_settings(pipeline)
        entries = [replace(create_entry(number, late_arriving=0), settings=settings) for number in range(4)]
        ledger = create_ledger(*entries)
        inputs = create_input("left", arrived, deleted), create_input("right", (), ())
        return PlanningContext(pipeline, Request(**request), ledger, inputs, frozenset({"run 1"}), str(tmp_path))

    return create


@pytest.mark.parametrize("outdated", [False, True])
def test_reprocess_without_range_distinguishes_deleted_and_late_arriving_rows(create_context, outdated):
    policies = {"on_late_arriving_rows": "reprocess"}
    context = create_context((1, 3), (0, 1), policies, reprocess=True, outdated=outdated)

    selection = select_slices(context)

    assert [(part.reason, part.slices) for part in selection.slice_ranges] == [
        ("changed input", range(2)),
        ("late arrival", range(3, 4)),
    ]
