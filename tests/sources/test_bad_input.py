"""What a user's mistakes and bad rows lead to: one clear line, or a named place in the side output."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.cli.status import status_of
from tidemark.delta.table import DeltaLog
from tidemark.errors import InputError, PipelineFileError, SliceOrderError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.sources.stored_input import side_of

ROW = "k string, happened timestamp, arrived timestamp, v int"


def at(hour, minute=0, *, day=1, year=2024):
    return datetime(year, 1, day, hour, minute, tzinfo=UTC)


def row(key="a", happened=at(1), arrived=at(1), v=0):
    return (key, happened, arrived, v)


@pytest.fixture
def run(spark, lake):
    def go(pipeline, **request):
        plan = make_plan(spark, pipeline, str(lake), Request(**request))
        list(execute(spark, plan, lambda *_: None))
        return plan

    return go


@pytest.fixture
def read(spark, lake):
    def go(table, output="orders"):
        return spark.read.format("delta").load(f"{lake}/{output}/{table}")

    return go


def test_bad_rows_have_a_named_place_and_do_not_drag_the_watermark(spark, lake, pipeline, write, run, read):
    write(
        "left",
        [
            row(v=1),
            row(v=1),
            row(key=None, v=2),
            row(happened=None, v=3),
            row(arrived=None, v=4),
            row(happened=at(0, year=2099), v=5),
            row(happened=at(0, year=1969), v=6),
            row(arrived=at(0, year=1969), v=7),
            row(arrived=at(0, year=2100), v=8),
            row(happened=at(1, 5, day=3), v=9),
        ],
        ROW,
    )
    write("right", [row(happened=at(0, 45), v=10), row(happened=at(1), arrived=at(3), v=11)], ROW)
    run(pipeline())
    rejected = {r["v"]: r["reason"] for r in read("late").select("reason", F.col("left.v").alias("v")).collect()}
    assert rejected == {
        2: "null_key",
        3: "null_event_time",
        4: "null_arrival",
        5: "event_time_ahead_of_arrival",
        6: "event_time_out_of_range",
        7: "arrival_out_of_range",
        8: "arrival_out_of_range",
        9: "event_time_ahead_of_arrival",
    }
    pairs = [(r["left_v"], r["right_v"]) for r in read("emissions").collect()]
    assert sorted(pairs) == [(1, 10), (1, 10), (1, 11), (1, 11)], "duplicate rows are kept as a multiset"
    status = status_of(pipeline(), str(lake))
    assert status.left.rejected == 8
    assert status.left.reasons["event_time_ahead_of_arrival"] == 2
    assert status.left.watermark == "2024-01-01T00:49:59.999Z"


def test_guard_off_lets_absurd_times_drag_the_watermark(spark, lake, pipeline, write, run):
    write("left", [row(happened=at(0, year=2150)), row(arrived=at(2))], ROW)
    write("right", [row(happened=at(0, year=2150)), row(arrived=at(2))], ROW)
    exact = pipeline(guard=False)
    run(exact)
    status = status_of(exact, str(lake))
    assert (status.left.rejected, status.left.late, status.right.late) == (0, 1, 1)


def test_empty_side_and_empty_slices(spark, lake, pipeline, write, run, read):
    write("left", [row(), row(happened=at(4), arrived=at(4))], ROW)
    write("right", [], ROW)
    run(pipeline(), slices_per_job=2)
    assert read("emissions").count() == 0
    ledger = read("ledger").orderBy("slice").collect()
    assert [r["left"]["read"] for r in ledger] == [0, 1, 0, 0, 1]
    assert [r["left"]["carried_out"] for r in ledger] == [0, 1, 1, 1, 2], "no right row, no watermark, no eviction"


def test_before_the_first_slice_rows_are_counted_and_left_out(spark, lake, pipeline, write):
    write("left", [row(arrived=at(1, day=1, year=2023)), row()], ROW)
    write("right", [row()], ROW)
    plan = make_plan(spark, pipeline(), str(lake), Request())
    assert plan.notes == ("1 rows of left lie before the first slice and take no part",)


@pytest.fixture(scope="module")
def a_pair(spark, tmp_path_factory):
    """A lake with a row of each side, for what only plans."""
    folder = tmp_path_factory.mktemp("a_pair")
    spark.range(1).createOrReplaceTempView("a_view")
    for side in ("left", "right"):
        spark.createDataFrame([row()], ROW).coalesce(1).write.format("delta").save(str(folder / side))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"left__table": "lefft"}, "there is no Delta table lefft"),
        ({"left__table": "a_view"}, "a_view is a view of the catalog, which has no versions to tell rows that landed"),
        ({"left__event_time": "hapened"}, "no column hapened (named as event_time); did you mean happened?"),
        ({"join__keys": ["key"]}, "no column key"),
        ({"join__keys": ["k.id"]}, "input left has no column k.id (named as key k.id)"),
        ({"left__event_time": "k"}, "column k is string; a time is timestamp"),
        ({"left__event_time": "v"}, "column v is a number (int); say what one stands for"),
        ({"left__event_time": {"column": "happened", "unit": "ms"}}, "column happened is timestamp; remove its unit"),
        ({"left__partition": "kk"}, "no column kk (named as partition); did you mean k?"),
        ({"left__tiebreak": "k"}, "tiebreak k is string; it must be an integer column"),
        (
            {"join__keys": [{"left": "k", "right": "v"}]},
            "keys left.k (string) and right.v (int) are of different types",
        ),
    ],
)
def test_wrong_table_column_or_type(spark, a_pair, pipeline, changes, told):
    with pytest.raises(InputError) as raised:
        make_plan(spark, pipeline(**changes), a_pair, Request())
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_watermark_on_a_window(pipeline):
    window = T.StructType([T.StructField(name, T.TimestampType()) for name in ("start", "end")])
    schema = T.StructType([T.StructField("k", T.StringType()), T.StructField("span", window)])
    settings = pipeline(dialect="spark", left__event_time="span")
    with pytest.raises(
        InputError, match="event_time span is a window .* let join.window or join.window_inequality make"
    ):
        side_of(settings, "left", schema, [T.StringType()])


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({"start": at(0, 30)}, "--from 2024-01-01T00:30Z is not on a slice boundary; slices are 1 hour long: "),
        ({"start": at(0, year=2023)}, "--from 2023-01-01T00:00Z is before the pipeline's first slice"),
        ({"start": at(2), "end": at(3)}, "checkpoint before slice 2024-01-01T02:00Z is missing: no slice is committed"),
        ({"start": at(2), "end": at(1)}, "--to 2024-01-01T01:00Z is not after --from 2024-01-01T02:00Z"),
    ],
)
def test_slices_that_may_not_run(spark, a_pair, pipeline, request_, told):
    with pytest.raises(SliceOrderError) as raised:
        make_plan(spark, pipeline(), a_pair, Request(**request_))
    assert told in str(raised.value)


def test_order_gaps_reruns_and_other_settings(spark, lake, pipeline, write, run, read):
    write("left", [row(), row(arrived=at(3), happened=at(3))], ROW)
    write("right", [row(), row(arrived=at(3), happened=at(3))], ROW)
    run(pipeline(), end=at(2))
    before = read("ledger").inputFiles()
    again = run(pipeline(), start=at(0), end=at(2))
    assert (again.slices, again.skipped) == (0, 2)
    assert read("ledger").inputFiles() == before, "rerunning a slice changes nothing"
    with pytest.raises(SliceOrderError, match="missing: the last committed slice is 2024-01-01T01:00Z; run from 2024"):
        run(pipeline(), start=at(3), end=at(4))
    wider = pipeline(join__interval__lower="-1 hour")
    with pytest.raises(SliceOrderError, match=r"other settings \(join.interval.lower was -30 minutes, now -1 hour\)"):
        run(wider)
    run(pipeline(), start=at(3), end=at(4), from_empty_state=True)
    assert [r["slice"].hour for r in read("ledger").orderBy("slice").collect()] == [0, 1, 3]


def test_a_drained_input_cannot_go_on(pipeline, write, run, read):
    write("left", [row()], ROW)
    write("right", [row()], ROW)
    run(pipeline(), end=at(2), drain=True)
    assert [r["left"]["carried_out"] for r in read("ledger").orderBy("slice").collect()] == [0, 0]
    with pytest.raises(SliceOrderError, match="the input was drained at slice 2024-01-01T01:00Z"):
        run(pipeline(), end=at(3))


def test_rows_that_land_late_arrive_at_the_next_slice_and_only_once(spark, lake, pipeline, write, run, read):
    write("left", [row(v=1), row(v=2, arrived=at(2), happened=at(2))], ROW)
    write("right", [row(v=3)], ROW)
    run(pipeline(), end=at(2))
    write("right", [row(v=4), row(v=5, arrived=at(2), happened=at(2)), row(key=None, v=6, arrived=None)], ROW)
    spark.sql(f"OPTIMIZE delta.`{lake}/right`")
    run(pipeline(), end=at(3))
    run(pipeline(), end=at(4))
    pairs = [(r["_slice"].hour, r["left_v"], r["right_v"]) for r in read("emissions").collect()]
    assert sorted(pairs) == [(1, 1, 3), (2, 1, 4), (2, 2, 5)]
    assert [r["right"]["v"] for r in read("late").collect()] == [6]
    assert [r["right"]["read"] for r in read("ledger").orderBy("slice").collect()] == [0, 1, 3, 0]


@pytest.mark.parametrize("change", ["DELETE FROM delta.`{}` WHERE v = 3", "UPDATE delta.`{}` SET v = 4 WHERE v = 3"])
def test_a_table_that_is_not_append_only(spark, lake, pipeline, write, run, change):
    write("left", [row()], ROW)
    write("right", [row(v=3), row(v=5)], ROW)
    run(pipeline(), end=at(2))
    spark.sql(change.format(lake / "right"))
    with pytest.raises(InputError, match="input right is not append-only: version 1 deleted or changed rows"):
        run(pipeline(), end=at(3))


def test_an_expectation_with_an_argument_that_does_not_serve(pipeline, write, run):
    write("left", [row()], ROW)
    write("right", [row()], ROW)
    wrong = pipeline(quality=[{"type": "expect_column_values_to_not_be_null", "column": "left_v", "mostly": 7}])
    with pytest.raises(PipelineFileError, match="^quality: expect_column_values_to_not_be_null: .*mostly"):
        run(wrong)


def test_a_critical_finding_publishes_nothing_and_keeps_the_rows(spark, lake, pipeline, write, run, read):
    from tidemark.errors import CheckFailedError

    write("left", [row(v=1), row(v=2, arrived=at(2), happened=at(2))], ROW)
    write("right", [row(v=3), row(v=99, arrived=at(2), happened=at(2))], ROW)
    bound = {"type": "expect_column_values_to_be_between", "column": "right_v", "max_value": 50}
    run(pipeline(quality=[bound]), end=at(2))
    with pytest.raises(CheckFailedError, match="quality gate: expect_column_values_to_be_between.*1 of 1 values"):
        run(pipeline(quality=[bound]), end=at(3))
    assert [r["right_v"] for r in read("emissions").collect()] == [3]
    assert read("ledger").count() == 2
    assert [r["right_v"] for r in read("rejected_output").collect()] == [99]
    assert len(DeltaLog.open(f"{lake}/orders/checkpoint").files) == 1
    run(pipeline(quality=[{**bound, "severity": "warning"}]), end=at(3))
    assert [r["quality"] for r in read("ledger").orderBy("slice").collect()] == ["passed", "passed", "warned"]
    assert status_of(pipeline(), str(lake)).findings[0].endswith("1 of 1 values")


def test_a_condition_filters_pairs_and_select_names_the_output(pipeline, write, run, read):
    write("left", [row(v=1), row(v=5)], ROW)
    write("right", [row(happened=at(0, 45), arrived=at(1), v=3)], ROW)
    chosen = {"both": "left_v + right_v", "k": "left_k"}
    run(pipeline(join__condition="left_v < right_v", select=chosen))
    [emitted] = read("emissions").collect()
    assert (emitted["both"], emitted["k"], emitted["_pane"]) == (4, "a", 0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"join__condition": "left_w > 1"}, "^join.condition: .*left_w.*Did you mean"),
        ({"join__condition": "left_happened > 'now'"}, "^join.condition: a text such as 'now'"),
        ({"join__condition": "left_v"}, "join.condition: .*INT"),
        ({"select": ["left_k", "right_x"]}, "^select: .*right_x.*Did you mean"),
        ({"select": {"total": "left_v + right_x"}}, "select: .*right_x"),
        ({"select": {"a": "1", "A": "2"}}, "^select: A and a are one name to Spark; call one of them otherwise"),
        ({"select": {"_Slice": "1"}}, "^select: _Slice and _slice are one name to Spark"),
        ({"select": ["left_k", "left_k"]}, "^select: left_k and left_k are one name"),
        (
            {"dialect": "spark", "join__condition": "left_HAPPENED < right_Happened"},
            "^join.condition: left_happened is the event time, from which Spark derives when rows are evicted",
        ),
    ],
)
def test_a_condition_or_a_column_that_cannot_be_is_one_line(change, told, spark, a_pair, pipeline, capfd):
    with pytest.raises(PipelineFileError, match=told) as raised:
        list(execute(spark, make_plan(spark, pipeline(**change), a_pair, Request()), lambda *_: None))
    assert "\n" not in str(raised.value)
    assert "stacktrace" not in capfd.readouterr().err
