"""Tests of the slices that a run selects, and of the notes on slices that wait, without Spark."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from tidemark.config.types import to_micros
from tidemark.errors import IncompleteInputError, SliceOrderError
from tidemark.planning import new_slices
from tidemark.planning.context import PlanningContext
from tidemark.planning.new_slices import select_new_slices
from tidemark.planning.request import Request
from tidemark.sources.upstream import UpstreamState
from tidemark.timegrid.slices import Grid

HOUR = timedelta(hours=1)
NOW = datetime(2024, 3, 1, 12, 20, tzinfo=UTC)
THIS_HOUR = datetime(2024, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch):
    monkeypatch.setattr(new_slices, "datetime", SimpleNamespace(now=lambda _: NOW))


def create_context(
    newest_rows,
    *,
    start=THIS_HOUR - 3 * HOUR,
    committed=0,
    slices_end=None,
    upstreams=(),
    requested_from=None,
    **request,
):
    """Create a context of hourly slices whose inputs have their newest rows at these instants (None: no rows)."""
    grid = Grid(to_micros(start), to_micros(HOUR))

    def create_input(name, newest):
        number = None if newest is None else grid.number_at(to_micros(newest))
        extent = SimpleNamespace(
            newest_slice=None if number is None or number < 0 else number,
            rows_before_start=int(number is not None and number < 0),
            is_from_statistics=True,
        )
        return SimpleNamespace(table=SimpleNamespace(name=name), measure_extent=lambda *_, **__: extent)

    last = SimpleNamespace(number=committed - 1, drained=False, is_end_of_input=False) if committed else None
    context = PlanningContext(
        pipeline=SimpleNamespace(slices=SimpleNamespace(end=slices_end)),
        request=Request(start=requested_from, **request),
        ledger=SimpleNamespace(grid=grid, last=last, entry={committed - 1: last}.get),
        inputs=tuple(create_input(*item) for item in zip(("orders", "payments"), newest_rows, strict=True)),
        available_checkpoints=frozenset(),
        lake="",
        upstreams=upstreams,
    )
    vars(context)["input_completeness"] = ()  # the inputs are complete
    return context


def format_hour(hours_from_now):
    return f"{THIS_HOUR + hours_from_now * HOUR:%Y-%m-%dT%H:%MZ}"


@pytest.mark.parametrize("drain", [False, True])
def test_select_new_slices_unfinished_slice_says_when_it_is_over(drain):
    context = create_context((THIS_HOUR, THIS_HOUR), start=THIS_HOUR, drain=drain)

    selection = select_new_slices(context)

    [note] = selection.notes
    assert selection.slice_ranges == ()
    assert note == (
        "slice 2024-03-01T12:00Z is not over until 2024-03-01T13:00Z, so rows of orders and payments in it do not run "
        "yet. Run again after 2024-03-01T13:00Z, or pass --to 2024-03-01T13:00Z to run it now"
    )


def test_select_new_slices_drain_before_waiting_rows_is_refused():
    context = create_context((NOW, THIS_HOUR - HOUR), drain=True)

    with pytest.raises(SliceOrderError) as refusal:
        select_new_slices(context)

    assert str(refusal.value) == (
        f"--drain: orders has rows in slice {format_hour(0)}, which is not over. Pass --to {format_hour(1)} to read "
        "them before the inputs end."
    )


def test_select_new_slices_future_row_does_not_extend_the_advice():
    context = create_context((THIS_HOUR - 2 * HOUR, THIS_HOUR + 9_000 * HOUR))

    selection = select_new_slices(context)

    assert [part.slices for part in selection.slice_ranges] == [range(3)]
    [note] = selection.notes
    assert "rows of payments in it or in later slices up to" in note
    assert note.endswith(f"pass --to {format_hour(1)} to run it now")


@pytest.mark.parametrize(
    ("context", "note"),
    [
        (create_context((None, None)), f"the inputs have no rows from {format_hour(-3)} on"),
        (
            create_context((THIS_HOUR - 9 * HOUR, None)),
            "1 row of orders before the first slice, without part in the join",
        ),
        (
            create_context((NOW, NOW), end=THIS_HOUR - 3 * HOUR),
            f"no slice from {format_hour(-3)} on ends by --to {format_hour(-3)}",
        ),
        (
            create_context((THIS_HOUR - 3 * HOUR, None), start=THIS_HOUR - 4 * HOUR, committed=2),
            f"all slices up to {format_hour(-2)} are committed",
        ),
        # The unfinished slice was committed with --to.
        (create_context((NOW, NOW), committed=4), f"all slices up to {format_hour(1)} are committed"),
        (
            create_context((NOW, NOW), committed=4, drain=True),
            f"all slices up to {format_hour(1)} are committed without --drain. To end the inputs after one more "
            "slice, pass --to " + format_hour(2),
        ),
        (
            create_context((NOW, NOW), committed=4, slices_end=THIS_HOUR + HOUR, drain=True),
            (
                f"all slices up to {format_hour(1)} are committed without --drain. To end the inputs after one more "
                f"slice, raise slices.end to {format_hour(2)} and pass --to {format_hour(2)}"
            ),
        ),
    ],
)
def test_select_new_slices_without_slices_names_the_only_reason(context, note):
    selection = select_new_slices(context)

    assert (selection.slice_ranges, selection.notes) == ((), (note,))


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ((None, None, None), "waits for its input: orders_payments has no committed slice. Run "),
        ((1, 1, None), f"waits for its input: slice {format_hour(-2)} of orders_payments is stale. Run "),
        ((1, None, None), f"waits for its input: orders_payments is committed up to {format_hour(-2)}. Run "),
        ((1, None, None), f"slices up to {format_hour(0)} need their input: orders_payments is committed up to"),
        ((3, None, None), f"the inputs of orders_payments have not ended after slice {format_hour(-1)}. Run "),
    ],
)
def test_select_new_slices_names_command_by_which_file_of_other_pipeline_is_found(state, problem):
    upstream = UpstreamState("left", "orders_payments", "chains/first.yaml", *state, SimpleNamespace(last=None))
    request = {"end": THIS_HOUR} if not problem.startswith("waits") else {}
    context = create_context((NOW, NOW), upstreams=[upstream], drain="have not ended" in problem, **request)

    try:
        text = "; ".join(select_new_slices(context).notes)
    except (IncompleteInputError, SliceOrderError) as error:
        text = str(error)

    assert problem in text
    assert "Run tidemark run chains/first.yaml " in text


def test_select_new_slices_after_gap_of_other_pipeline_names_command_that_fills_it():
    gap = create_context((NOW, NOW)).grid.number_at(to_micros(THIS_HOUR)) - 1
    ledger = SimpleNamespace(last=SimpleNamespace(number=gap + 1))
    upstream = UpstreamState("left", "orders_payments", "chains/first.yaml", gap, None, None, ledger)

    notes = select_new_slices(create_context((NOW, NOW), upstreams=[upstream])).notes

    slice_start = "2024-03-01T11:00Z"
    assert f"slice {slice_start} of orders_payments was never committed" in "; ".join(notes)
    assert f"Run tidemark reprocess chains/first.yaml --from {slice_start} first." in "; ".join(notes)


def test_select_new_slices_stops_before_the_end_of_an_upstream_unless_drained():
    upstream = UpstreamState("left", "orders_payments", "chains/first.yaml", 3, None, 2, SimpleNamespace(last=None))
    contexts = {
        name: create_context((NOW, NOW), upstreams=[upstream], **request)
        for name, request in {"open": {}, "to": {"end": THIS_HOUR}, "drain": {"end": THIS_HOUR, "drain": True}}.items()
    }

    selection = select_new_slices(contexts["open"])
    with pytest.raises(SliceOrderError, match="orders_payments have ended after slice .* Pass --drain and --to"):
        select_new_slices(contexts["to"])

    assert [part.slices for part in selection.slice_ranges] == [range(2)]
    assert "Pass --drain" in "; ".join(selection.notes)
    assert select_new_slices(contexts["drain"]).slice_ranges[0].slices == range(3)


@pytest.mark.parametrize(("requested_from", "slices"), [(-2, range(3, 5)), (-5, range(2, 5))])
def test_select_new_slices_from_empty_state_skips_slices_or_continues_the_run(requested_from, slices):
    context = create_context(
        (NOW, NOW),
        start=THIS_HOUR - 5 * HOUR,
        committed=2,
        requested_from=THIS_HOUR + requested_from * HOUR,
        from_empty_state=True,
    )

    assert [part.slices for part in select_new_slices(context).slice_ranges] == [slices]
    assert context.starts_from_empty_state == (requested_from == -2)


@pytest.mark.parametrize("requested_from", [None, THIS_HOUR - HOUR])
def test_select_new_slices_from_empty_state_after_a_committed_slice_is_refused(requested_from):
    context = create_context((NOW, NOW), committed=2, requested_from=requested_from, from_empty_state=True)

    with pytest.raises(SliceOrderError, match=rf"slice {format_hour(-1)} continues .* Remove --from-empty-state"):
        select_new_slices(context)
