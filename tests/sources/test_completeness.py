"""Slices wait until their inputs are complete by the pipeline file's rules, without Spark."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark import SparkContext

from tidemark.config.types import format_instant
from tidemark.errors import IncompleteInputError, InputError, PipelineFileError, SliceOrderError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.sources.completeness import measure_completeness
from tidemark.spark.lazy_session import create_lazy_session

START = datetime(2024, 1, 1, tzinfo=UTC)
TIMES = ("happened", "arrived")
MARKER = {"by": "marker", "table": "marks", "column": "until", "where": {"feed": "left"}}


def at(hours):
    return START + timedelta(hours=hours)


def fail_on_spark(**_):
    pytest.fail("Spark was used")


@pytest.fixture
def append_rows(lake):
    """Append rows at hours to an input, optionally without statistics of the clock."""

    def write_rows(table, *hours, stats=True):
        times = pa.array([at(hour) for hour in hours], pa.timestamp("us", "UTC"))
        rows = pa.table({"k": ["a"] * len(hours), "happened": times, "arrived": times})
        configuration = None if stats else {"delta.dataSkippingStatsColumns": "k"}
        write_deltalake(lake / table, rows, mode="append", configuration=configuration)

    return write_rows


@pytest.fixture
def inputs(append_rows):
    append_rows("left", 0.5, 3.5)
    append_rows("right", 0.25, 2.25)


def measure_left(settings, lake):
    """Return up to when the left input is complete, and the reason."""
    (completeness,) = measure_completeness(settings, str(lake))
    return completeness.until and format_instant(completeness.until), completeness.reason


def plan_without_spark(settings, lake, **request):
    with pytest.MonkeyPatch.context() as patch:
        # A session of another file would be used.
        patch.setattr(SparkContext, "_active_spark_context", None)
        return create_plan(create_lazy_session(fail_on_spark), settings, str(lake), Request(**request))


@pytest.mark.parametrize(
    ("partitions", "clock", "stats"),
    [
        (["arrived"], "arrived", True),
        (["arrived"], "arrived", False),
        (["day"], "day", False),
        (["place"], "arrived", True),
        (["place"], "arrived", False),
    ],
)
def test_completeness_by_row_of_partitioned_table_is_its_greatest_clock(lake, pipeline, partitions, clock, stats):
    times = pa.array([at(1), at(26), None], pa.timestamp("us", "UTC"))
    days = pa.array([at(0).date(), at(24).date(), None])
    rows = pa.table({"k": ["a"] * 3, "happened": times, "arrived": times, "day": days, "place": ["a b", "c%d/e", "f"]})
    configuration = None if stats else {"delta.dataSkippingStatsColumns": "k"}
    write_deltalake(lake / "left", rows, partition_by=partitions, configuration=configuration)
    write_deltalake(lake / "right", rows)
    times = {"event_time": clock, "arrival": clock}
    settings = pipeline(**{f"left__{name}": value for name, value in times.items()}, left__complete={"by": "row"})

    assert measure_left(settings, lake)[0] == ("2024-01-02T00:00Z" if clock == "day" else "2024-01-02T02:00Z")


def test_completeness_by_row_needs_clock_at_end_of_slice(lake, pipeline, inputs, append_rows):
    rule = {"by": "row", "grace_period": "10 minutes"}
    settings = pipeline(left__complete=rule)

    assert measure_left(settings, lake) == (
        "2024-01-01T03:20Z",
        "its last clock is 2024-01-01T03:30Z, minus grace_period 10 minutes",
    )

    (completeness,) = measure_completeness(settings, str(lake))
    append_rows("left", 4 + 1 / 6)
    (later,) = measure_completeness(settings, str(lake))

    assert [item.covers(at(4)) for item in (completeness, later)] == [False, True], (
        "a clock exactly at the end is sufficient"
    )


def test_completeness_by_row_ignores_out_of_range_clocks(lake, pipeline, append_rows):
    append_rows("left", 1, 2.5, 24 * 365 * 200, stats=False)
    assert measure_left(pipeline(left__complete="row"), lake) == (
        "2024-01-01T02:30Z",
        "its last clock is 2024-01-01T02:30Z",
    )
    append_rows("right", 1, 24 * 365 * 200)
    settings = pipeline(left__complete=None, right__complete="row")
    assert measure_left(settings, lake)[0] == "2024-01-01T01:00Z", "rows are read if statistics are out of range"


def test_completeness_by_row_accepts_numeric_clocks(lake, pipeline):
    for column in ([1704070800.5, float("nan")], [1704070800, None]):
        write_deltalake(lake / "left", pa.table({"at": column}), mode="overwrite", schema_mode="overwrite")
        clock = {"column": "at", "unit": "s"}
        assert measure_left(pipeline(left__arrival=clock, left__complete="row"), lake)[0].startswith("2024-01-01T01:00")


@pytest.mark.parametrize("dtype", [pa.float32(), pa.float64()])
@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_completeness_by_row_accepts_fractional_clocks_of_each_unit(lake, pipeline, unit, per_second, dtype):
    seconds = 3 * 2**29  # exact in 32 bits
    write_deltalake(lake / "left", pa.table({"at": pa.array([float(seconds * per_second), float("nan")], dtype)}))
    for bounds in ({}, {"time_bounds": False}):
        settings = pipeline(left__arrival={"column": "at", "unit": unit}, left__complete="row", **bounds)
        assert measure_left(settings, lake)[0] == "2021-01-14T08:25:36Z"


def merge_left(lake, key):
    """Merge a row into the left input: it is updated if it has the key, and inserted otherwise."""
    rows = pa.table({"k": [key], **{name: pa.array([at(1)], pa.timestamp("us", "UTC")) for name in TIMES}})
    merge = DeltaTable(lake / "left").merge(rows, "new.k = old.k", source_alias="new", target_alias="old")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


@pytest.mark.parametrize("stats", [True, False])
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_completeness_by_row_without_time_bounds_accepts_absurd_clocks(lake, pipeline, unit, stats):
    clocks = pa.table(
        {"k": ["a", "b"], "at": pa.array([1_704_070_800, 2**63 - 2 if unit != "s" else 10**12], pa.int64())}
    )
    configuration = None if stats else {"delta.dataSkippingStatsColumns": "k"}
    write_deltalake(lake / "left", clocks, configuration=configuration)
    settings = pipeline(left__arrival={"column": "at", "unit": unit}, left__complete="row", time_bounds=False)

    until, reason = measure_left(settings, lake)

    latest = {"s": "9999-12-31T23:59:59.999999Z", "us": "9999-12-31T23:59:59.999999Z", "ns": "2262-04-11T23:47:16.854Z"}
    assert until[:19] == latest[unit][:19]
    assert "µs" in reason or unit == "ns"


def test_completeness_by_commit_needs_new_rows(lake, pipeline, append_rows):
    settings = pipeline(left__complete={"by": "commit", "grace_period": "1 hour"})
    before = datetime.now(UTC) - timedelta(seconds=1)
    append_rows("left", 0.5)
    append_rows("left", 0.75)
    merge_left(lake, "b")
    written = DeltaTable(lake / "left").history(1)[0]["timestamp"]
    DeltaTable(lake / "left").optimize.compact(commit_properties=CommitProperties())
    merge_left(lake, "b")
    DeltaTable(lake / "left").update({"happened": "arrived"}, predicate="k = 'b'")
    DeltaTable(lake / "left").delete("k = 'b'")
    DeltaTable(lake / "left").restore(2)
    (completeness,) = measure_completeness(settings, str(lake))

    assert completeness.until == datetime.fromtimestamp(written / 1000, UTC) - timedelta(hours=1)
    assert completeness.covers(before - timedelta(hours=1))
    assert not completeness.covers(datetime.now(UTC))


def test_completeness_by_marker_is_greatest_instant(lake, pipeline, append_rows):
    append_rows("left", 0.5)
    marks = {"feed": ["left", "left", "right"], "until": pa.array([at(1), at(3), at(9)], pa.timestamp("us", "UTC"))}
    write_deltalake(lake / "marks", pa.table(marks))

    assert measure_left(pipeline(left__complete=MARKER), lake) == ("2024-01-01T03:00Z", "by marker table marks")

    (completeness,) = measure_completeness(pipeline(left__complete=MARKER), str(lake))
    assert (completeness.covers(at(3)), completeness.covers(at(4))) == (True, False)
    with pytest.raises(InputError, match="marker table marks has no column upto. Available: feed, until"):
        measure_left(pipeline(left__complete=MARKER | {"column": "upto"}), lake)


def test_plan_incomplete_end_is_rejected_and_default_end_is_complete(lake, pipeline, inputs):
    settings = pipeline(left__complete="row", right__complete="row")
    with pytest.raises(IncompleteInputError) as refused:
        plan_without_spark(settings, lake, end=at(4))
    assert str(refused.value) == (
        "slices up to 2024-01-01T04:00Z are not complete yet: left is complete up to 2024-01-01T03:30Z (its last clock "
        "is 2024-01-01T03:30Z); right is complete up to 2024-01-01T02:15Z (its last clock is 2024-01-01T02:15Z). Run "
        "up to 2024-01-01T02:00Z, or pass --ignore-completeness."
    )
    assert refused.value.exit_code == 2
    assert plan_without_spark(settings, lake, end=at(2)).slice_count == 2

    plan = plan_without_spark(settings, lake)
    assert plan.slice_count == 2
    assert [note for note in plan.notes if note.startswith("slices from 2024-01-01T02:00Z on wait: left is complete")]
    assert plan.to_dict()["input_completeness"]["right"]["until"] == "2024-01-01T02:15Z"
    assert plan_without_spark(settings, lake, end=at(4), ignore_completeness=True).slice_count == 4
    assert plan_without_spark(settings, lake, drain=True).slice_count == 4, "an input that ends is complete"
    assert plan_without_spark(pipeline(), lake, end=at(4)).slice_count == 4, "without a rule no slice waits"


def test_completeness_by_asset_needs_airflow(lake, pipeline, inputs):
    settings = pipeline(left__complete={"by": "asset", "asset": "orders"})
    with pytest.raises(
        IncompleteInputError, match="left is complete up to no slice \\(only Airflow has the events of asset orders\\)"
    ):
        plan_without_spark(settings, lake, end=at(1))
    assert plan_without_spark(settings, lake, end=at(1), skip_asset_check=True).slice_count == 1


def test_ignored_incompleteness_is_recorded_in_ledger(spark, lake, pipeline, inputs):
    settings = pipeline(left__complete="row", right__complete="row")
    plan = create_plan(spark, settings, str(lake), Request(end=at(4), ignore_completeness=True))
    list(execute(spark, plan, lambda *_: None))
    incomplete = Ledger.from_pipeline(settings, str(lake)).rows["incomplete_inputs"]
    message = [[part["input"] for part in json.loads(item)] if isinstance(item, str) else None for item in incomplete]

    assert message == [None, None, ["right"], ["left", "right"]]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("rows", "should be 'row', 'commit', 'asset' or 'marker'"),
        ({"by": "asset"}, "by: asset needs asset"),
        ({"by": "marker", "table": "m"}, "by: marker needs table and column|by: marker needs column"),
        ({"by": "row", "column": "c"}, "column: has no effect with by: row. Remove it."),
        ({"by": "row", "partition": "%H"}, "partition: has no effect with by: row. Remove it."),
        (
            {"by": "asset", "asset": "a", "partition": "%H", "grace_period": "1 hour"},
            "grace_period: has no effect with partition. Remove it.",
        ),
        ({"by": "row", "grace_period": "-1 hour"}, "grace_period must not be negative"),
    ],
)
def test_invalid_completeness_rule_is_rejected(pipeline, rule, message):
    with pytest.raises(PipelineFileError, match=message):
        pipeline(left__complete=rule)


def test_completeness_rule_does_not_affect_output(pipeline):
    with_rules = pipeline(left__complete={"by": "row", "grace_period": "1 hour"}, right__complete="commit")
    assert (
        with_rules.output_affecting_settings()
        == pipeline(left__complete=None, right__complete=None).output_affecting_settings()
    )


def test_plan_stops_at_slices_end(lake, pipeline, inputs):
    settings = pipeline(left__complete=None, right__complete=None, slices__end="2024-01-01T02:00Z")
    plan = plan_without_spark(settings, lake)
    assert (plan.slice_count, plan.notes) == (2, ("rows lie after slices.end, 2024-01-01T02:00Z, and take no part",))
    with pytest.raises(SliceOrderError, match="--to 2024-01-01T03:00Z is after the pipeline's last slice"):
        plan_without_spark(settings, lake, end=at(3))
