"""Tests of row histories and their lookup."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from tidemark import cli
from tidemark.comparison import ComparisonRequest, compare
from tidemark.comparison.chain_history import explain_rows
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.row_lookup import format_row, parse_row
from tidemark.config import TimeColumn
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.report.lateness import summarize_lateness
from tidemark.report.narrative import describe_lateness

START = datetime(2024, 1, 1, tzinfo=UTC)
LATE = (
    "late: 27 minutes 59 seconds 999 ms behind the watermark 2024-01-01T00:47:59.999Z, which the left input held; "
    "a partner had arrived"
)
ROW = "id int, k string, happened timestamp, arrived timestamp"


def row(number, happened, arrived, key="a"):
    return number, key, *(START + timedelta(minutes=minutes) for minutes in (happened, arrived))


@pytest.fixture
def settings(spark, lake, write, pipeline):
    """Run a pipeline (watermark delay 10 minutes, bounds -30 to 0 minutes, hourly slices); return its settings."""
    rows = [
        *(row(1, 5, 6), row(2, 58, 59), row(3, 20, 90), row(4, 100, 101), row(5, 70, 200)),
        *((6, None, START, START), (7, "a", START, None)),
    ]
    write("left", spark.createDataFrame(rows, ROW).withColumn("tags", F.array("id")))
    write("right", [row(11, 0, 5), row(12, 50, 55), row(13, 100, 102), row(14, 150, 155)], ROW)
    pipeline_settings = pipeline()
    plan = create_plan(spark, pipeline_settings, str(lake), Request(end=START + timedelta(hours=3)))
    list(execute(spark, plan, lambda *_: None))
    return pipeline_settings


def test_explain_rows_describes_each_outcome(spark, lake, write, settings, tmp_path, capsys):
    def steps(side, number, **values):
        (history,) = explain_rows(spark, settings, str(lake), side, {"id": str(number), **values})
        return list(history.steps)

    assert steps("left", 1, happened="2024-01-01T00:05Z") == [
        "happened 2024-01-01T00:05Z, arrived 2024-01-01T00:06Z: slice 2024-01-01T00:00Z",
        "on time: there was no watermark yet",
        "matched in slice 2024-01-01T00:00Z, rows emitted: 1",
        "left the buffers before the end of that slice",
    ]
    assert steps("left", 2)[1:] == [
        "on time by 1 hour 3 minutes 1 ms: the watermark was 2023-12-31T23:54:59.999Z",
        "matched in slice 2024-01-01T00:00Z, rows emitted: 1",
        "left the buffers in slice 2024-01-01T01:00Z",
    ]
    assert steps("left", 3)[1:] == [
        LATE,
        "no emission contains it",
    ]
    recorded = settings.model_copy(
        update={"left": settings.left.model_copy(update={"recorded_watermark": TimeColumn(column="arrived")})}
    )
    (history,) = explain_rows(spark, recorded, str(lake), "left", {"id": "3"})
    assert "which the left input held, as recorded in its column arrived; a partner" in history.steps[1]
    assert steps("left", 5)[1] == "has not been read yet: the last committed slice is 2024-01-01T02:00Z"
    assert steps("left", 6)[1:] == steps("left", 6, k=None)[1:] == ["rejected: null_key"]
    assert steps("left", 7) == [
        "happened 2024-01-01T00:00Z, arrived at no usable time",
        "rejected in slice 2024-01-01T00:00Z: null_arrival",
    ]
    assert steps("right", 14)[-2:] == [
        "no emission contains it",
        "waits in the buffers at the end of slice 2024-01-01T02:00Z",
    ]
    path = str(tmp_path / "pipeline.yaml")
    assert cli.main(["explain", path, "--lake", str(lake), "--left", "id=1", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["side"], result["row"]["id"], len(result["steps"])) == ("left", 1, 4)
    assert result["row"]["happened"] == "2024-01-01T00:05Z"
    assert cli.main(["explain", path, "--lake", str(lake), "--left", "k=NULL"]) == 0
    assert ", k null, " in capsys.readouterr().out

    with pytest.raises(UserError, match="--left: input left has no column happend. Did you mean happened"):
        explain_rows(spark, settings, str(lake), "left", {"happend": "1"})
    with pytest.raises(UserError, match="--left: column tags is array<int>, by which no row can be found"):
        explain_rows(spark, settings, str(lake), "left", {"tags": "1"})
    with pytest.raises(UserError, match="--left id=99: input left has no such row"):
        explain_rows(spark, settings, str(lake), "left", {"id": "99"})
    write("left", [row(20, 300, 300), row(21, 100, 101)], ROW)
    assert steps("left", 21)[1:] == ["has not been read: it was added to the input after that slice had read it"]
    on_time = steps("left", 4)[1]
    assert on_time.startswith("on time by")
    # A row that advances the watermark of a slice, but was added after the slice had run.
    write("left", [row(22, 59, 60.5)], ROW)
    assert steps("left", 4)[1] == on_time
    with pytest.raises(UserError, match="--left k=a: more than 5 rows match"):
        explain_rows(spark, settings, str(lake), "left", {"k": "a"})


@pytest.fixture
def run_windows(spark, lake, write, pipeline):
    """Run a window join of two rows per input up to the end of the input, and return its settings."""

    def run(**join):
        write("left", [row(1, 5, 6), row(2, 7, 8)], ROW)
        write("right", [row(11, 6, 7), row(12, 8, 9)], ROW)
        settings = pipeline(join={"keys": ["k"], **join})
        (done,) = execute(spark, create_plan(spark, settings, str(lake), Request(drain=True)), lambda *_: None)
        assert done.validation_result.outcome == "passed"
        return settings

    return run


def test_explain_rows_evicted_row_describes_the_window(spark, lake, run_windows):
    settings = run_windows(window={"tumbling": "1 hour"}, trigger={"count": 2}, evictor={"count": 2})

    (history,) = explain_rows(spark, settings, str(lake), "left", {"id": "1"})
    assert list(history.steps)[-3:] == [
        "matched in slice 2024-01-01T00:00Z, rows emitted: 1",
        "left the window from 2024-01-01T00:00Z by the evictor before pane 1",
        "left the buffers before the end of that slice",
    ]


def test_row_lost_at_the_end_of_input_is_neither_late_nor_rejected(spark, lake, write, run_windows):
    settings = run_windows(window={"tumbling": "2 hours"}, time="processing")

    (history,) = explain_rows(spark, settings, str(lake), "left", {"id": "1"})
    assert list(history.steps)[-4:] == [
        "on time, as all rows are on processing time",
        "no emission contains it",
        "lost: the input ended before the clock reached the timer of the window from 2024-01-01T00:00Z",
        "left the buffers before the end of that slice",
    ]

    view = CommittedView.read(spark, settings, str(lake))
    for source in summarize_lateness(view, range(1)).inputs:
        assert (source.late_rows, source.rejected_rows) == (0, {})
        assert describe_lateness(source) == "None of 2 rows was behind the watermark."

    # The stream has read on, and has a row of another window too.
    columns = view.read_emissions().drop("_slice", "_pane", "_result_time")
    window = [START, START + timedelta(hours=2)]
    pair = [*row(1, 5, 6), *row(11, 6, 7)]
    names = [f"{side}_{name}" for side in ("left", "right") for name in ("id", "k", "happened", "arrived")]
    streamed = [
        dict(zip([*names, "_emission", "_window_start", "_window_end"], [*pair, "matched", *bounds], strict=True))
        for bounds in (window, [bound + timedelta(hours=2) for bound in window])
    ]
    write("streamed", spark.createDataFrame(streamed, columns.schema))
    result = compare(spark, settings, str(lake), ComparisonRequest("streamed", try_settings=False), None)
    assert [(cause.cause, cause.rows) for cause in result.causes] == [
        ("lost at the end of input", 1),
        ("unexplained", 1),
    ]


def test_explain_row_behind_the_watermark_whose_window_is_open(spark, lake, write, pipeline):
    write("left", [row(1, 58, 59), row(2, 20, 61)], ROW)
    write("right", [row(11, 58, 59)], ROW)
    settings = pipeline(join={"keys": ["k"], "window": {"tumbling": "1 hour"}})
    list(execute(spark, create_plan(spark, settings, str(lake), Request(drain=True)), lambda *_: None))

    (history,) = explain_rows(spark, settings, str(lake), "left", {"id": "2"})

    assert history.steps[1] == (
        "behind the watermark by 27 minutes 59 seconds 999 ms, but not late, because a window was still open: "
        "the watermark was 2024-01-01T00:47:59.999Z"
    )
    assert history.steps[2].startswith("matched in slice 2024-01-01T01:00Z, rows emitted: 1")


def test_explain_rows_of_spark_that_are_never_late_says_why(spark, lake, write, pipeline):
    write("left", [row(1, 20, 150), (2, "a", None, START + timedelta(minutes=151))], ROW)
    write("right", [row(11, 50, 55), row(12, 110, 115), row(13, 152, 155)], ROW)
    join = {"type": "left", "keys": ["k"], "interval": {"lower": "-30 minutes", "upper": "30 minutes"}}
    delays = {"left__watermark_delay": None, "right__watermark_delay": "10 minutes"}
    settings = pipeline(dialect="spark", join=join, **delays)
    list(execute(spark, create_plan(spark, settings, str(lake), Request(drain=True)), lambda *_: None))

    (overtaken,), (timeless,) = (explain_rows(spark, settings, str(lake), "left", {"id": number}) for number in "12")

    assert overtaken.steps[1] == "on time: the left input has no watermark, so its rows are never late"
    assert timeless.steps[1] == "on time: it has no event time, so it is never late"


def test_parse_row_reads_columns_and_values():
    assert parse_row("carrier=UA, flight=1545") == {"carrier": "UA", "flight": "1545"}
    for text in ("UA", "", "carrier=UA,"):
        with pytest.raises(ValueError, match="is not a row"):
            parse_row(text)
    with pytest.raises(ValueError, match="is not a valid string. Write a backslash as two"):
        parse_row("carrier='\\x'")


@given(st.dictionaries(st.sampled_from(["k", "a b", "v"]), st.text() | st.none() | st.just("NULL"), min_size=1))
def test_parse_row_reads_what_format_row_writes(values):
    assert parse_row(format_row(values)) == values
