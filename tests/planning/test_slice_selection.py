"""Tests of the committed slices that a run or a reprocess selects, without Spark."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tests.conftest import write_pipeline
from tests.ledger.test_rules import create_entry, create_ledger
from tidemark.errors import InputError, SliceOrderError
from tidemark.ledger.config_fingerprint import serialize_settings
from tidemark.ledger.ledger import Ledger
from tidemark.planning import deleted_inputs
from tidemark.planning.context import PlanningContext
from tidemark.planning.request import Request
from tidemark.planning.slice_selection import select_slices
from tidemark.sources.late_arrivals import ChangedRows
from tidemark.spark.lazy_session import create_refusing_session, resolve_session


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


def test_reprocess_without_range_selects_stale_slices_only_under_their_settings(create_context):
    context = create_context(reprocess=True)
    entries = dict(context.ledger.entries)
    entries[1] = replace(entries[1], commit=2, attempt=2, fingerprint="another state")
    stale = replace(context, ledger=replace(context.ledger, entries=entries))

    assert [(part.reason, part.slices) for part in select_slices(stale).slice_ranges] == [("stale", range(2, 3))]

    other = create_context(policies={"left__watermark_delay": "7 minutes"}, reprocess=True)
    with pytest.raises(SliceOrderError, match="were written under other settings .left.watermark_delay"):
        select_slices(replace(other, ledger=stale.ledger))


def test_reprocess_of_range_refuses_other_settings_of_any_slice_that_leads_to_it(create_context):
    context = create_context(reprocess=True, start=datetime(1970, 1, 1, 3, tzinfo=UTC))
    other = create_context(policies={"left__watermark_delay": "7 minutes"})
    entries = {**context.ledger.entries, 1: replace(context.ledger.entries[1], settings=other.ledger.last.settings)}

    assert select_slices(context).slice_ranges[0].slices == range(3, 4)
    with pytest.raises(SliceOrderError, match=r"slice 1970-01-01T01:00Z was .* Reprocess from 1970-01-01T01:00Z\."):
        select_slices(replace(context, ledger=replace(context.ledger, entries=entries)))


def test_run_goes_on_with_stale_slices_of_which_input_rows_were_deleted(create_context):
    context = create_context(deleted=(2, 3), policies={"on_input_delete": "reprocess"})
    rerun = replace(context.ledger.entries[1], commit=2, fingerprint="another state")

    selection = select_slices(replace(context, ledger=context.ledger.with_entries([rerun])))

    assert [(part.reason, part.slices) for part in selection.slice_ranges] == [
        ("stale", range(2, 3)),
        ("changed input", range(3, 4)),
    ]


@pytest.mark.parametrize("policy", ["refuse", "ignore"])
def test_run_without_new_slice_refuses_deleted_rows_by_policy(create_context, policy):
    context = create_context(deleted=(2,), policies={"on_input_delete": policy})

    if policy == "ignore":
        assert select_slices(context).slice_ranges == ()
    else:
        with pytest.raises(InputError, match="input left: version 7 deleted or changed rows .* Run tidemark reprocess"):
            select_slices(context)


@pytest.mark.parametrize(
    ("deleted", "policy", "description"),
    [
        ((2,), "refuse", "the next run stops: input left: version 7 deleted or changed rows that slices from"),
        (None, "refuse", "files of an input were rewritten since slices read it. tidemark plan "),
        ((), "refuse", None),
        ((2,), "ignore", None),
    ],
)
def test_status_describes_deleted_inputs_by_policy(create_context, deleted, policy, description, monkeypatch):
    """Without slices (None), only Spark can find them."""
    context = create_context(deleted=deleted or (), policies={"on_input_delete": policy})
    if deleted is None:
        find_with_spark = SimpleNamespace(find_changed_rows=lambda *_: resolve_session(create_refusing_session()))
        monkeypatch.setattr(context.inputs[0], "changes", find_with_spark)
    monkeypatch.setattr(deleted_inputs, "open_inputs", lambda *_: context.inputs)
    monkeypatch.setattr(Ledger, "from_pipeline", lambda *_: context.ledger)

    found = deleted_inputs.find_deleted_inputs(context.pipeline, context.lake)

    if description is None:
        assert found is None
    else:
        assert found.description.startswith(description)
        assert found.stops_next_run == (deleted is not None)


@pytest.mark.parametrize("policy", ["refuse", "reprocess", "ignore"])
def test_status_shows_an_input_that_was_created_again(create_context, policy, monkeypatch):
    context = create_context(policies={"on_input_delete": policy})
    ledger = context.ledger.with_entries([replace(context.last, table_ids=("old left", "right"), versions=(1, 1))])
    for source, table_id in zip(context.inputs, ("new left", "right"), strict=True):
        monkeypatch.setattr(source.table, "table_id", table_id, raising=False)
        monkeypatch.setattr(source.table, "find_table_id_at", lambda _: "new left", raising=False)
    monkeypatch.setattr(deleted_inputs, "open_inputs", lambda *_: context.inputs)
    monkeypatch.setattr(Ledger, "from_pipeline", lambda *_: ledger)

    found = deleted_inputs.find_deleted_inputs(context.pipeline, context.lake)

    assert found.description.startswith("the next run stops: input left was deleted and created again")
    assert found.stops_next_run


@pytest.mark.parametrize("step", ["open", "check"])
def test_status_needs_no_access_to_the_inputs(create_context, step, monkeypatch):
    def refuse_access(*_):
        raise OSError("Generic S3 error: 403 Forbidden")

    context = create_context()
    monkeypatch.setattr(context.inputs[0], "changes", SimpleNamespace(find_changed_rows=refuse_access))
    monkeypatch.setattr(deleted_inputs, "open_inputs", refuse_access if step == "open" else lambda *_: context.inputs)
    monkeypatch.setattr(Ledger, "from_pipeline", lambda *_: context.ledger)

    assert deleted_inputs.find_deleted_inputs(context.pipeline, context.lake) is None


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (5, None, "--from 1970-01-01T05:00Z is after the last committed slice, 1970-01-01T03:00Z. Name an earlier"),
        (2, 2, "--to 1970-01-01T02:00Z is not after --from 1970-01-01T02:00Z. Use a later --to, which is exclusive."),
        (2, 9, "the last committed slice is 1970-01-01T03:00Z. Reprocess up to 1970-01-01T04:00Z at most"),
    ],
)
def test_reprocess_of_a_range_without_committed_slices_is_refused(create_context, start, end, message):
    start, end = (None if hour is None else datetime(1970, 1, 1, hour, tzinfo=UTC) for hour in (start, end))

    with pytest.raises(SliceOrderError, match=message):
        select_slices(create_context(reprocess=True, start=start, end=end))
