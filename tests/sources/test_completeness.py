"""Slices wait until their inputs are complete by the pipeline file's rules, which takes neither Spark nor a JVM."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark import SparkContext

from tidemark.config.types import format_instant
from tidemark.errors import IncompleteError, InputError, PipelineFileError, SliceOrderError
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Request, make_plan
from tidemark.sources.completeness import reaches
from tidemark.spark.lazy_session import deferred

START = datetime(2024, 1, 1, tzinfo=UTC)
MARKER = {"by": "marker", "table": "marks", "column": "until", "where": {"feed": "left"}}


def at(hours):
    return START + timedelta(hours=hours)


def no_spark(**_):
    pytest.fail("Spark was asked")


@pytest.fixture
def land(lake):
    """Appends rows at hours to an input, as a writer of any kind; without statistics of the clock if asked."""

    def append(table, *hours, stats=True):
        times = pa.array([at(hour) for hour in hours], pa.timestamp("us", "UTC"))
        rows = pa.table({"k": ["a"] * len(hours), "happened": times, "arrived": times})
        configuration = None if stats else {"delta.dataSkippingStatsColumns": "k"}
        write_deltalake(lake / table, rows, mode="append", configuration=configuration)

    return append


@pytest.fixture
def both(land):
    land("left", 0.5, 3.5)
    land("right", 0.25, 2.25)


def until(settings, lake):
    """Up to when the left input is complete, and why."""
    (reach,) = reaches(settings, str(lake))
    return reach.until and format_instant(reach.until), reach.because


def planned(settings, lake, **request):
    with pytest.MonkeyPatch.context() as alone:
        # A session of another file would be asked what it has.
        alone.setattr(SparkContext, "_active_spark_context", None)
        return make_plan(deferred(no_spark), settings, str(lake), Request(**request))


def test_a_row_at_or_past_the_end_completes_a_slice(lake, pipeline, both, land):
    rule = {"by": "row", "settle": "10 minutes"}
    settings = pipeline(left__complete=rule)
    assert until(settings, lake) == (
        "2024-01-01T03:20Z",
        "its last clock is 2024-01-01T03:30Z, and settle is 10 minutes",
    )
    (reach,) = reaches(settings, str(lake))
    land("left", 4 + 1 / 6)
    (then,) = reaches(settings, str(lake))
    assert [one.covers(at(4)) for one in (reach, then)] == [False, True], "exactly at the end is enough"


def test_a_row_is_found_without_statistics_and_absurd_ones_do_not_count(lake, pipeline, land):
    land("left", 1, 2.5, 24 * 365 * 200, stats=False)
    assert until(pipeline(left__complete="row"), lake) == ("2024-01-01T02:30Z", "its last clock is 2024-01-01T02:30Z")
    land("right", 1, 24 * 365 * 200)
    settings = pipeline(left__complete=None, right__complete="row")
    assert until(settings, lake)[0] == "2024-01-01T01:00Z", "where statistics tell of an absurd one the rows are read"


def test_numbers_serve_as_clocks(lake, pipeline):
    for column in ([1704070800.5, float("nan")], [1704070800, None]):
        write_deltalake(lake / "left", pa.table({"at": column}), mode="overwrite", schema_mode="overwrite")
        clock = {"column": "at", "unit": "s"}
        assert until(pipeline(left__arrival=clock, left__complete="row"), lake)[0].startswith("2024-01-01T01:00")


def test_a_commit_completes_a_slice_and_upkeep_is_none(lake, pipeline, land):
    settings = pipeline(left__complete={"by": "commit", "settle": "1 hour"})
    before = datetime.now(UTC) - timedelta(seconds=1)
    land("left", 0.5)
    land("left", 0.75)
    written = DeltaTable(lake / "left").history(1)[0]["timestamp"]
    DeltaTable(lake / "left").optimize.compact(commit_properties=CommitProperties())
    (reach,) = reaches(settings, str(lake))
    assert reach.until == datetime.fromtimestamp(written / 1000, UTC) - timedelta(hours=1)
    assert reach.covers(before - timedelta(hours=1))
    assert not reach.covers(datetime.now(UTC))


def test_a_marker_table_says_up_to_when(lake, pipeline, land):
    land("left", 0.5)
    marks = {"feed": ["left", "left", "right"], "until": pa.array([at(1), at(3), at(9)], pa.timestamp("us", "UTC"))}
    write_deltalake(lake / "marks", pa.table(marks))
    assert until(pipeline(left__complete=MARKER), lake) == ("2024-01-01T03:00Z", "says marks")
    (reach,) = reaches(pipeline(left__complete=MARKER), str(lake))
    assert (reach.covers(at(3)), reach.covers(at(4))) == (True, False)
    with pytest.raises(InputError, match="marker table marks has no column upto; it has feed, until"):
        until(pipeline(left__complete=MARKER | {"column": "upto"}), lake)


def test_a_plan_refuses_what_was_asked_for_and_stops_before_what_was_not(lake, pipeline, both):
    settings = pipeline(left__complete="row", right__complete="row")
    with pytest.raises(IncompleteError) as refused:
        planned(settings, lake, end=at(4))
    assert str(refused.value) == (
        "slices up to 2024-01-01T04:00Z are not complete yet: left is complete up to 2024-01-01T03:30Z (its last clock "
        "is 2024-01-01T03:30Z); right is complete up to 2024-01-01T02:15Z (its last clock is 2024-01-01T02:15Z); run "
        "up to 2024-01-01T02:00Z, or pass --not-complete-yet"
    )
    assert refused.value.exit_code == 2
    assert planned(settings, lake, end=at(2)).slices == 2
    plan = planned(settings, lake)
    assert plan.slices == 2
    assert [note for note in plan.notes if note.startswith("slices from 2024-01-01T02:00Z on wait: left is complete")]
    assert plan.describe()["complete"]["right"]["until"] == "2024-01-01T02:15Z"
    assert planned(settings, lake, end=at(4), not_complete_yet=True).slices == 4
    assert planned(settings, lake, drain=True).slices == 4, "an input that ends is complete"
    assert planned(pipeline(), lake, end=at(4)).slices == 4, "without a rule nothing waits"


def test_only_airflow_tells_of_assets(lake, pipeline, both):
    settings = pipeline(left__complete={"by": "asset", "asset": "orders"})
    with pytest.raises(
        IncompleteError, match="left is complete up to no slice \\(only Airflow knows of asset orders\\)"
    ):
        planned(settings, lake, end=at(1))
    assert planned(settings, lake, end=at(1), assets_seen=True).slices == 1


def test_slices_that_did_not_wait_are_known_by_the_ledger(spark, lake, pipeline, both):
    settings = pipeline(left__complete="row", right__complete="row")
    plan = make_plan(spark, settings, str(lake), Request(end=at(4), not_complete_yet=True))
    list(execute(spark, plan, lambda *_: None))
    known = Ledger.of(settings, str(lake)).rows["incomplete"]
    told = [[part["input"] for part in json.loads(one)] if isinstance(one, str) else None for one in known]
    assert told == [None, None, ["right"], ["left", "right"]]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("rows", "should be 'row', 'commit', 'asset' or 'marker'"),
        ({"by": "asset"}, "by: asset needs asset"),
        ({"by": "marker", "table": "m"}, "by: marker needs table and column|by: marker needs column"),
        ({"by": "row", "column": "c"}, "column: means nothing with by: row; leave it out"),
        ({"by": "row", "settle": "-1 hour"}, "settle must not be negative"),
    ],
)
def test_a_rule_is_one_of_four(pipeline, rule, told):
    with pytest.raises(PipelineFileError, match=told):
        pipeline(left__complete=rule)


def test_a_rule_changes_no_row(pipeline):
    ruled = pipeline(left__complete={"by": "row", "settle": "1 hour"}, right__complete="commit")
    assert ruled.semantic_settings() == pipeline(left__complete=None, right__complete=None).semantic_settings()


def test_slices_end_where_the_file_says(lake, pipeline, both):
    settings = pipeline(left__complete=None, right__complete=None, slices__end="2024-01-01T02:00Z")
    plan = planned(settings, lake)
    assert (plan.slices, plan.notes) == (2, ("rows lie behind slices.end, 2024-01-01T02:00Z, and take no part",))
    with pytest.raises(SliceOrderError, match="--to 2024-01-01T03:00Z is after the pipeline's last slice"):
        planned(settings, lake, end=at(3))
