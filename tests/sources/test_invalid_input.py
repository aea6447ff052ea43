"""Reject mistakes of users with one clear message, and store invalid rows with a reason."""

import shutil
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.cli.status_summary import summarize_status
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import InputError, PipelineFileError, SliceOrderError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.sources.normalization import create_side
from tidemark.timegrid.slices import Grid

ROW = "k string, happened timestamp, arrived timestamp, v int"


def at(hour, minute=0, *, day=1, year=2024):
    return datetime(year, 1, day, hour, minute, tzinfo=UTC)


def row(key="a", happened=at(1), arrived=at(1), v=0):
    return (key, happened, arrived, v)


@pytest.fixture
def run_pipeline(spark, lake):
    def execute_plan(pipeline, **request):
        plan = create_plan(spark, pipeline, str(lake), Request(**request))
        list(execute(spark, plan, lambda *_: None))
        return plan

    return execute_plan


@pytest.fixture
def read_table(spark, lake):
    def execute_plan(table, output="orders"):
        return spark.read.format("delta").load(f"{lake}/{output}/{table}")

    return execute_plan


def test_invalid_rows_are_stored_with_reason_and_do_not_raise_watermark(
    spark, lake, pipeline, write, run_pipeline, read_table
):
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
    run_pipeline(pipeline())
    rejected = {r["v"]: r["reason"] for r in read_table("late").select("reason", F.col("left.v").alias("v")).collect()}

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

    pairs = [(r["left_v"], r["right_v"]) for r in read_table("emissions").collect()]
    assert sorted(pairs) == [(1, 10), (1, 10), (1, 11), (1, 11)], "duplicate rows count as a multiset"

    status = summarize_status(pipeline(), str(lake))
    assert status.left.rejected == 8
    assert status.left.reasons["event_time_ahead_of_arrival"] == 2
    assert status.left.watermark == "2024-01-01T00:49:59.999Z"


def test_time_bounds_off_out_of_range_times_raise_watermark(spark, lake, pipeline, write, run_pipeline):
    write("left", [row(happened=at(0, year=2150)), row(arrived=at(2))], ROW)
    write("right", [row(happened=at(0, year=2150)), row(arrived=at(2))], ROW)
    exact = pipeline(time_bounds=False)
    run_pipeline(exact)
    status = summarize_status(exact, str(lake))

    assert (status.left.rejected, status.left.late, status.right.late) == (0, 1, 1)


def test_empty_side_emits_nothing_and_evicts_nothing(spark, lake, pipeline, write, run_pipeline, read_table):
    write("left", [row(), row(happened=at(4), arrived=at(4))], ROW)
    write("right", [], ROW)
    run_pipeline(pipeline(), slices_per_job=2)

    assert read_table("emissions").count() == 0

    ledger = read_table("ledger").orderBy("slice").collect()
    assert [r["left"]["read"] for r in ledger] == [0, 1, 0, 0, 1]
    assert [r["left"]["carried_out"] for r in ledger] == [0, 1, 1, 1, 2], "no right row, no watermark, no eviction"


def test_rows_before_first_slice_are_counted_and_ignored(spark, lake, pipeline, write):
    write("left", [row(arrived=at(1, day=1, year=2023)), row()], ROW)
    write("right", [row()], ROW)
    plan = create_plan(spark, pipeline(), str(lake), Request())
    assert plan.notes == ("1 row of left before the first slice, without part in the join",)


@pytest.fixture(scope="module")
def small_lake(spark, tmp_path_factory):
    """Create a lake with one row per input, for tests that only plan."""
    folder = tmp_path_factory.mktemp("a_pair")
    spark.range(1).createOrReplaceTempView("a_view")
    for side in ("left", "right"):
        spark.createDataFrame([row()], ROW).coalesce(1).write.format("delta").save(str(folder / side))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left__table": "lefft"}, "there is no Delta table lefft"),
        (
            {"left__table": "a_view"},
            "a_view is a view of the catalog, which has no versions to identify late-arriving rows by",
        ),
        ({"left__event_time": "hapened"}, "no column hapened (named as event_time). Did you mean happened?"),
        ({"join__keys": ["key"]}, "no column key"),
        ({"join__keys": ["k.id"]}, "input left has no column k.id (named as key)"),
        ({"left__event_time": "k"}, "column k is string. Use a timestamp"),
        ({"left__event_time": "v"}, "column v is a number (int). Give its unit"),
        ({"left__event_time": {"column": "happened", "unit": "ms"}}, "column happened is timestamp. Remove its unit"),
        ({"join__keys": ["coalesce(NULL, NULL)"]}, "key coalesce(NULL, NULL) is void, a null without a type. Cast it"),
        ({"left__partition": "kk"}, "no column kk (named as partition). Did you mean k?"),
        ({"left__tiebreak": "k"}, "tiebreak k is string. Name an integer column"),
        (
            {"join__keys": [{"left": "k", "right": "v"}]},
            "keys left.k (string) and right.v (int) have different types",
        ),
    ],
)
def test_plan_wrong_table_column_or_type_is_rejected(spark, small_lake, pipeline, changes, message):
    with pytest.raises(InputError) as raised:
        create_plan(spark, pipeline(**changes), small_lake, Request())
    assert str(raised.value).startswith(pipeline().command_argument)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


NOT_NULL = "expect_column_values_to_not_be_null"
PAIR_EQUAL = "expect_column_pair_values_to_be_equal"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"quality": [{NOT_NULL: {"column": "left_hapened"}}]},
            f"quality.0: {NOT_NULL}: emissions has no column left_hapened. Did you mean left_happened?",
        ),
        (
            {"select": {"key": "left_k"}, "quality": [{NOT_NULL: {"column": "left_k", "on": "pairs"}}]},
            f"quality.0: {NOT_NULL}: pairs has no column left_k. Available: key, _slice, _emission, _pane, ",
        ),
        (
            {"explode": "array(named_struct('key', left_k))", "quality": [{NOT_NULL: {"column": "kee"}}]},
            f"quality.0: {NOT_NULL}: emissions has no column kee. Did you mean key?",
        ),
        (
            {"quality": [{PAIR_EQUAL: {"column_A": "k", "column_B": "K", "on": "right"}}]},
            f"quality.0: {PAIR_EQUAL}: input right has no column K. Available: _slice, k, happened, arrived, v.",
        ),
        (
            {"quality": [{"expect_compound_columns_to_be_unique": {"column_list": ["side", "key"], "on": "late"}}]},
            "quality.0: expect_compound_columns_to_be_unique: late has no column key. Available: _slice, side, reason",
        ),
        (
            {"quality": [{"rows": {"that": "left_v < 3 OR right_w > 1"}}]},
            "quality.0: rows: that: emissions has no column right_w. Did you mean right_v?",
        ),
        (
            {"quality": [{NOT_NULL: {"column": "side", "on": "late", "row_condition": "lateness > 1"}}]},
            f"quality.0: {NOT_NULL}: row_condition: late has no column lateness. Did you mean lateness_ms?",
        ),
        (
            {"quality": [{"rows": {"that": "LEFT_V + 1"}}]},
            "quality.0: rows: that: (LEFT_V + 1) has type INT, but a condition must be BOOLEAN",
        ),
        (
            {"quality": [{"rows": {"that": "v > 1", "on": "left", "row_condition": "v"}}]},
            "quality.0: rows: row_condition: v has type INT, but a condition must be BOOLEAN",
        ),
        (
            {"explode": "array(named_struct('key', left_k))", "quality": [{"rows": {"that": "kee IS NOT NULL"}}]},
            "quality.0: rows: that: emissions has no column kee. Did you mean key?",
        ),
        (
            {"compare": {"table": "stream", "key_columns": ["left_key"]}},
            "compare.key_columns.0: emissions has no column left_key. Did you mean left_k?",
        ),
        (
            {"compare": {"table": "stream", "ignore_columns": ["_window_end"]}},
            "compare.ignore_columns.0: emissions has no column _window_end. Available: left_k, left_happened, ",
        ),
    ],
)
def test_plan_unknown_column_of_expectation_or_comparison_is_rejected(spark, small_lake, pipeline, changes, message):
    with pytest.raises(PipelineFileError) as raised:
        create_plan(spark, pipeline(**changes), small_lake, Request())
    assert str(raised.value).startswith(f"{pipeline().command_argument}: {message}")
    assert "\n" not in str(raised.value)


def test_plan_column_to_exist_is_left_to_run(spark, small_lake, pipeline):
    settings = pipeline(quality=[{"expect_column_to_exist": {"column": "left_w"}}])
    assert create_plan(spark, settings, small_lake, Request()).slice_count


def test_event_time_window_struct_is_rejected(pipeline):
    window = T.StructType([T.StructField(name, T.TimestampType()) for name in ("start", "end")])
    schema = T.StructType([T.StructField("k", T.StringType()), T.StructField("span", window)])
    settings = pipeline(dialect="spark", left__event_time="span")
    with pytest.raises(InputError, match="event_time span is a window .* use join.window or join.window_inequality"):
        create_side(settings, "left", schema, [T.StringType()])


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"start": at(0, 30)}, "--from 2024-01-01T00:30Z is not on a slice boundary; slices are 1 hour long: "),
        ({"start": at(0, year=2023)}, "--from 2023-01-01T00:00Z is before the pipeline's first slice"),
        ({"start": at(2), "end": at(3)}, "checkpoint before slice 2024-01-01T02:00Z is missing: no slice is committed"),
        ({"start": at(2), "end": at(1)}, "--to 2024-01-01T01:00Z is not after --from 2024-01-01T02:00Z"),
    ],
)
def test_plan_invalid_slice_range_is_rejected(spark, small_lake, pipeline, request_fields, message):
    with pytest.raises(SliceOrderError) as raised:
        create_plan(spark, pipeline(), small_lake, Request(**request_fields))
    assert message in str(raised.value)


def test_run_gap_or_changed_settings_is_rejected_and_rerun_is_no_op(
    spark, lake, pipeline, write, run_pipeline, read_table
):
    write("left", [row(), row(arrived=at(3), happened=at(3))], ROW)
    write("right", [row(), row(arrived=at(3), happened=at(3))], ROW)
    run_pipeline(pipeline(), end=at(2))
    before = read_table("ledger").inputFiles()
    rerun = run_pipeline(pipeline(), start=at(0), end=at(2))

    assert (rerun.slice_count, rerun.already_committed) == (0, 2)
    assert read_table("ledger").inputFiles() == before, "rerunning a slice changes nothing"
    with pytest.raises(SliceOrderError, match="missing: the last committed slice is 2024-01-01T01:00Z. Run from"):
        run_pipeline(pipeline(), start=at(3), end=at(4))

    wider = pipeline(join__interval__lower="-1 hour")
    with pytest.raises(SliceOrderError, match=r"other settings \(join.interval.lower was -30 minutes, now -1 hour\)"):
        run_pipeline(wider)

    run_pipeline(pipeline(), start=at(3), end=at(4), from_empty_state=True)
    assert [r["slice"].hour for r in read_table("ledger").orderBy("slice").collect()] == [0, 1, 3]


def test_run_after_drain_is_rejected(lake, pipeline, write, run_pipeline, read_table):
    write("left", [row()], ROW)
    write("right", [row()], ROW)
    run_pipeline(pipeline(), end=at(2), drain=True)
    assert [r["left"]["carried_out"] for r in read_table("ledger").orderBy("slice").collect()] == [0, 0]
    assert summarize_status(pipeline(), str(lake)).left.watermark == "end of input"
    with pytest.raises(SliceOrderError, match="the input was drained at slice 2024-01-01T01:00Z"):
        run_pipeline(pipeline(), end=at(3))


def test_late_arriving_rows_arrive_once_in_next_slice(spark, lake, pipeline, write, run_pipeline, read_table):
    write("left", [row(v=1), row(v=2, arrived=at(2), happened=at(2))], ROW)
    write("right", [row(v=3)], ROW)
    run_pipeline(pipeline(), end=at(2))
    write("right", [row(v=4), row(v=5, arrived=at(2), happened=at(2)), row(key=None, v=6, arrived=None)], ROW)
    spark.sql(f"OPTIMIZE delta.`{lake}/right`")
    run_pipeline(pipeline(), end=at(3))
    run_pipeline(pipeline(), end=at(4))
    pairs = [(r["_slice"].hour, r["left_v"], r["right_v"]) for r in read_table("emissions").collect()]

    assert sorted(pairs) == [(1, 1, 3), (2, 1, 4), (2, 2, 5)]
    assert [r["right"]["v"] for r in read_table("late").collect()] == [6]
    assert [r["right"]["read"] for r in read_table("ledger").orderBy("slice").collect()] == [0, 1, 3, 0]


@pytest.mark.parametrize("change", ["DELETE FROM delta.`{}` WHERE v = 3", "UPDATE delta.`{}` SET v = 4 WHERE v = 3"])
def test_run_deleted_or_updated_input_rows_are_rejected(spark, lake, pipeline, write, run_pipeline, change):
    write("left", [row()], ROW)
    write("right", [row(v=3), row(v=5)], ROW)
    run_pipeline(pipeline(), end=at(2))
    spark.sql(change.format(lake / "right"))
    with pytest.raises(InputError, match="input right: version 1 deleted or changed rows"):
        run_pipeline(pipeline(), end=at(3))
    spark.sql(f"DELETE FROM delta.`{lake}/left`")
    with pytest.raises(InputError, match="^input left: version 1 .*; input right: version 1 .* --from"):
        run_pipeline(pipeline(), end=at(3))


def test_run_rows_that_were_deleted_and_inserted_again_are_rejected(spark, lake, pipeline, write, run_pipeline):
    """Otherwise the next slice would read them again, as late-arriving rows."""
    for side in ("left", "right"):
        write(side, [row()], ROW)
    run_pipeline(pipeline(), end=at(2))
    spark.sql(f"DELETE FROM delta.`{lake}/right`")
    write("right", [row()], ROW)
    with pytest.raises(InputError, match="input right: version 1 deleted or changed rows"):
        run_pipeline(pipeline(), end=at(3))


def test_damaged_log_is_named(pipeline, lake, write, run_pipeline):
    for side in ("left", "right"):
        write(side, [row()], ROW)
    shutil.copytree(lake / "left", lake / "damaged")  # Spark knows the log of the table that it has written
    (lake / "damaged/_delta_log/00000000000000000000.json").write_text('{"add": {"path')
    with pytest.raises(InputError, match="the Delta log of damaged at .*/damaged cannot be read: .*Restore its files"):
        run_pipeline(pipeline(left__table="damaged"), end=at(3))


def test_expectation_invalid_argument_is_rejected(pipeline, write, run_pipeline):
    write("left", [row()], ROW)
    write("right", [row()], ROW)
    wrong = pipeline(quality=[{"type": "expect_table_row_count_to_be_between", "min_value": "a"}])
    with pytest.raises(PipelineFileError, match="^quality: expect_table_row_count_to_be_between: min_value: value is"):
        run_pipeline(wrong)


def test_run_failed_critical_expectation_stores_rejected_output(spark, lake, pipeline, write, run_pipeline, read_table):
    from tidemark.errors import CheckFailedError

    write("left", [row(v=1), row(v=2, arrived=at(2), happened=at(2))], ROW)
    write("right", [row(v=3), row(v=99, arrived=at(2), happened=at(2))], ROW)
    bound = {"type": "expect_column_values_to_be_between", "column": "right_v", "max_value": 50}
    run_pipeline(pipeline(quality=[bound]), end=at(2))
    with pytest.raises(CheckFailedError, match="quality gate: expect_column_values_to_be_between.*1 of 1 values"):
        run_pipeline(pipeline(quality=[bound]), end=at(3))
    assert [r["right_v"] for r in read_table("emissions").collect()] == [3]
    assert read_table("ledger").count() == 2
    assert [r["right_v"] for r in read_table("rejected_output").collect()] == [99]
    assert len(DeltaTableHandle.open(f"{lake}/orders/checkpoint").files) == 1
    run_pipeline(pipeline(quality=[{**bound, "severity": "warning"}]), end=at(3))
    assert [r["quality"] for r in read_table("ledger").orderBy("slice").collect()] == ["passed", "passed", "warned"]
    assert summarize_status(pipeline(), str(lake)).failed_expectations[0].endswith("1 of 1 values")


def test_condition_filters_pairs_and_select_names_output(pipeline, write, run_pipeline, read_table):
    write("left", [row(v=1), row(v=5)], ROW)
    write("right", [row(happened=at(0, 45), arrived=at(1), v=3)], ROW)
    chosen = {"both": "left_v + right_v", "k": "left_k"}
    run_pipeline(pipeline(join__condition="left_v < right_v", select=chosen))
    [emitted] = read_table("emissions").collect()

    assert (emitted["both"], emitted["k"], emitted["_pane"]) == (4, "a", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"join__condition": "left_w > 1"}, "^join.condition: .*left_w.*Did you mean"),
        ({"join__condition": "left_happened > 'now'"}, "^join.condition: a string such as 'now'"),
        ({"join__condition": "left_v"}, "join.condition: .*INT"),
        ({"select": ["left_k", "right_x"]}, "^select: .*right_x.*Did you mean"),
        ({"select": {"total": "left_v + right_x"}}, "select: .*right_x"),
        ({"select": {"a": "1", "A": "2"}}, "^select: A and a are the same name to Spark. Rename one of them"),
        ({"select": ["left_k", "left_k"]}, "^select: left_k and left_k are the same name"),
        (
            {"select": {"nothing": "NULL"}},
            r"^select: column nothing has type void: .* CAST\(NULL AS STRING\)",
        ),
        ({"select": {"s": "struct(left_v, NULL)"}}, "^select: column s has type struct<left_v:int,col2:void>: "),
        (
            {"select": {"none": "array()"}},
            "^select: column none has type array<void>: ",
        ),
        ({"select": {"none": "map('a', NULL)"}}, "^select: column none has type map<string,void>: "),
        ({"explode": "array(named_struct('a', NULL))"}, "^explode: column a has type void: "),
        ({"select": {"span": "make_interval(left_v)"}}, "^select: column span has type interval, which Delta cannot "),
        (
            {"select": {"spans": "array(left_happened - right_happened)"}},
            "^select: column spans has type array<interval day to second>, which Delta cannot store. Convert it",
        ),
        (
            {"dialect": "spark", "join__condition": "left_HAPPENED < right_Happened"},
            "^join.condition: left_happened is the event time, from which Spark derives when rows are evicted",
        ),
    ],
)
def test_invalid_condition_or_select_is_rejected(change, message, spark, small_lake, pipeline, capfd):
    with pytest.raises(PipelineFileError, match=message.replace("^", "pipeline.yaml: ", 1)) as raised:
        list(execute(spark, create_plan(spark, pipeline(**change), small_lake, Request()), lambda *_: None))
    assert "\n" not in str(raised.value)
    assert "stacktrace" not in capfd.readouterr().err


NO_ARRIVAL = [
    row(v=20, happened=at(0, 20), arrived=None),
    row(v=21, happened=at(1, 20), arrived=at(0, year=1969)),
    row(v=22, happened=at(2, 20), arrived=None),
    row(v=23, happened=None, arrived=None),
    row(v=24, happened=at(0, year=2023), arrived=None),
    row(v=25, happened=at(0, year=2150), arrived=None),
]
NO_ARRIVAL_SLICES = {20: 0, 21: 1, 22: 2, 23: 0, 24: 0, 25: 0}
LATE_ARRIVING = [
    row(v=30, happened=at(1, 30), arrived=None),
    row(v=31, happened=at(3, 30), arrived=None),
    row(v=32, happened=None, arrived=None),
]


def test_row_without_arrival_is_rejected_in_slice_of_its_event_time_however_jobs_are_cut(
    spark, lake, pipeline, write, run_pipeline, read_table
):
    """A row without either time belongs to the first slice whose input version contains it."""

    def list_rejected(output):
        rows = read_table("late", output).selectExpr("_slice", "left.v").collect()
        assert len({r["v"] for r in rows}) == len(rows)
        return {r["v"]: r["_slice"].hour for r in rows}

    write("left", [row(v=hour, arrived=at(hour)) for hour in range(4)], ROW)
    write("left", NO_ARRIVAL[:1], ROW)
    write("left", NO_ARRIVAL[1:], ROW)
    write("right", [row(v=hour, arrived=at(hour)) for hour in range(4)], ROW)
    daily, at_once, backfill = (pipeline(output=output) for output in ("daily", "at_once", "backfill"))
    run_pipeline(daily, end=at(2), slices_per_job=1)
    assert list_rejected("daily") == {v: hour for v, hour in NO_ARRIVAL_SLICES.items() if hour < 2}
    assert summarize_status(daily, str(lake)).left.reasons == {"null_arrival": 4, "arrival_out_of_range": 1}

    run_pipeline(at_once, end=at(2))
    assert list_rejected("at_once") == list_rejected("daily")

    write("left", LATE_ARRIVING, ROW)
    run_pipeline(daily, end=at(4), slices_per_job=1)
    assert list_rejected("daily") == {**NO_ARRIVAL_SLICES, 30: 2, 31: 3, 32: 2}

    run_pipeline(at_once, end=at(4))
    assert list_rejected("at_once") == list_rejected("daily")

    run_pipeline(daily, start=at(1), end=at(2), reprocess=True)
    assert list_rejected("daily") == {**NO_ARRIVAL_SLICES, 30: 1, 31: 3, 32: 1}

    run_pipeline(backfill, start=at(2), end=at(4), from_empty_state=True)
    assert list_rejected("backfill") == {22: 2, 31: 3, **dict.fromkeys((23, 24, 25, 32), 2)}

    run_pipeline(backfill, start=at(0), end=at(2), reprocess=True)
    assert list_rejected("backfill") == {**NO_ARRIVAL_SLICES, 30: 1, 31: 3, 32: 0}

    left, grid = create_plan(spark, backfill, str(lake), Request()).inputs[0], Grid.from_config(backfill.slices)
    hours = [(grid.start_of(number), grid.start_of(number + 1)) for number in range(4)]
    select_paths = left.statistics.select_paths_without_clock
    counts = [len(select_paths(*hour, includes_unplaced=False)) for hour in hours]
    assert (len(left.table.list_files()), counts) == (4, [2] * 4), "event times of rows without an arrival skip files"
    assert len(select_paths(*hours[3], includes_unplaced=True)) == 2

    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE v = 20")
    with pytest.raises(InputError, match="no longer has rows that slices from 2024-01-01T00:00Z on have read"):
        run_pipeline(pipeline(output="backfill", on_input_delete="ignore"), start=at(0), end=at(1), reprocess=True)
