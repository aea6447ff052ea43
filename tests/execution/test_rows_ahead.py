"""Describe rows ahead of their arrival. Other tests count them: `test_every_join`, and with commands `test_command`."""

from types import SimpleNamespace

import pandas as pd

from tidemark.execution.rows_ahead import describe_rows_ahead
from tidemark.watermarks.values import END_OF_INPUT, Watermarks

MINUTE = 60_000_000
REMEDY = "Correct the clock that set them, or reject such rows with time_bounds.max_ahead_of_arrival"


def describe(settings, slices, counts, watermarks):
    """Describe the rows ahead of slices that have so many of them, 90 minutes ahead, in each input."""
    columns = {f"{side}_rows_ahead": counts[side] for side in ("left", "right")}
    columns |= {f"{side}_ahead": [90.0 * MINUTE if count else None for count in counts[side]] for side in counts}
    row_counts = pd.DataFrame(columns, index=slices)
    timeline = SimpleNamespace(end_watermarks=dict(zip(slices, watermarks, strict=True)))
    spec = SimpleNamespace(plan=SimpleNamespace(pipeline=settings), slices=slices)
    return describe_rows_ahead(spec, None, SimpleNamespace(row_counts=row_counts, timelines=[timeline]))


def test_describe_rows_ahead_names_slice_input_and_watermark(pipeline):
    no_watermark, end = Watermarks(), Watermarks(END_OF_INPUT, END_OF_INPUT)
    watermarks = [Watermarks(1, 2), Watermarks(60_000, 120_000), no_watermark, end]

    described = describe(pipeline(), range(4, 8), {"left": [0, 2, 1, 1], "right": [0, 1, 0, 0]}, watermarks)

    ahead = "Event times are up to 1 h 30 min after arrival"
    late = "The {} watermark is 1970-01-01T00:0{}Z at the slice's end, and rows before it can be late"
    assert described == {
        (5, "left_rows_ahead"): f"{ahead}. {late.format('left', 1)}. {REMEDY}",
        (5, "right_rows_ahead"): f"{ahead}. {late.format('right', 2)}. {REMEDY}",
        (6, "left_rows_ahead"): f"{ahead}. {REMEDY}",
        (7, "left_rows_ahead"): f"{ahead}. {REMEDY}",
    }


def test_describe_rows_ahead_watermark_beyond_year_9999_is_a_number(pipeline):
    counts = {"left": [1], "right": [0]}

    [text] = describe(pipeline(), range(1), counts, [Watermarks(10**15, 0)]).values()

    assert "The left watermark is 1,000,000,000,000,000,000 µs at the slice's end" in text


def test_describe_rows_ahead_on_event_time_clock_is_empty(pipeline):
    settings = pipeline(left__arrival=None, right__arrival=None)
    spec = SimpleNamespace(plan=SimpleNamespace(pipeline=settings), slices=range(1))

    assert describe_rows_ahead(spec, None, SimpleNamespace(row_counts=pd.DataFrame())) == {}
