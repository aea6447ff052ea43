"""Joins that give none or many rows for a pair: the rows, what is counted, and what commands make of them."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from tidemark.cli.status import summarize_status
from tidemark.comparison.compare import compare
from tidemark.comparison.dialect_diff import compare_dialects
from tidemark.comparison.minimal_example import write_minimal_example
from tidemark.comparison.result import ComparisonRequest
from tidemark.comparison.row_history import explain_rows
from tidemark.comparison.what_if import vary_setting
from tidemark.config.candidate_version import with_stored_config
from tidemark.errors import PipelineFileError, UserError
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.planning.plan import Request, create_plan
from tidemark.streaming.spark_query import create_spark_query

ROW = "id int, k string, happened timestamp, arrived timestamp, items array<struct<sku: string, n: int>>"


def at(hour, minute=0):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


def row(number, k, hour, minute, items=None):
    return number, k, at(hour, minute), at(hour, minute), items


LEFT = [
    row(1, "a", 0, 10, [("x", 1), ("y", 2)]),
    row(2, "a", 0, 20, []),
    row(3, "b", 0, 30, [("z", 3)]),
    row(4, "a", 1, 20, [None, ("x", 4), ("w", 5)]),
    row(5, "a", 1, 30),
]
"""The third has no partner; of the others each has one, and one has neither items nor an array of them."""
RIGHT = [row(11, "a", 0, 5), row(12, "a", 1, 15)]
ITEMS = "transform(left_items, i -> named_struct('order', left_id, 'sku', i.sku, 'right_id', right_id))"
NULLS = ITEMS.replace("named_struct", "if(i IS NULL, NULL, named_struct").replace("))", ")))")
LEFTS = ITEMS.replace(", 'right_id', right_id", "")
GROUPS = "transform(left, l -> named_struct('order', l.id, 'first', left[0].id, 'right_id', get(right, 0).id))"
FIRST = {(0, 1, "x", 11), (0, 1, "y", 11)}


@pytest.fixture(scope="module")
def shared(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flattened")
    for side, rows in (("left", LEFT), ("right", RIGHT)):
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").save(str(folder / side))
    return str(folder)


@pytest.fixture
def run(spark, shared, pipeline):
    def go(output, slices_per_job=1, **changes):
        settings = pipeline(output=output, **changes)
        plan = create_plan(spark, settings, shared, Request(slices_per_job=slices_per_job, drain=True))
        done = list(execute(spark, plan, lambda *_: None))
        assert {one.verdict.outcome for one in done} == {"passed"}
        return settings, [one for job in done for one in job.rows]

    return go


def interval(**more):
    return {"keys": ["k"], "interval": {"lower": "-30 minutes", "upper": "0 seconds"}, **more}


HOURLY = {"keys": ["k"], "window": {"tumbling": "1 hour"}}


FIFTH = {(1, 4, "x", 12), (1, 4, "w", 12)}


@pytest.mark.parametrize(
    ("dialect", "join", "flatten", "rows", "counts"),
    [
        pytest.param("flink-sql", interval(type="left"), NULLS,
                     {*FIRST, (1, 3, "z", None), (1, None, None, None), *FIFTH},
                     [(2, 2), (3, 4)], id="a struct that is null, padded rows"),
        pytest.param("spark", HOURLY | {"type": "semi"}, LEFTS, {one[:3] for one in (*FIRST, (1, 4, None), *FIFTH)},
                     [(2, 2), (2, 3)], id="semi", marks=pytest.mark.slow),
        pytest.param("flink-sql", HOURLY | {"type": "anti"}, LEFTS, {(1, 3, "z")}, [(0, 0), (1, 1)], id="anti"),
        pytest.param("flink-datastream", HOURLY | {"api": "cogroup"}, GROUPS,
                     {(1, 1, 1, 11), (1, 2, 1, 11), (1, 3, 3, None), (1, 4, 4, 12), (1, 5, 4, 12)},
                     [(0, 0), (3, 5)], id="coGroup"),
    ],
)  # fmt: skip
def test_rows_by_hand(spark, shared, run, request, dialect, join, flatten, rows, counts):
    output = request.node.callspec.id.replace(" ", "_")
    _, ledger = run(output, dialect=dialect, join=join, explode=flatten, left__watermark_delay="0 seconds")
    assert emitted(spark, shared, output) == sorted(rows, key=str)
    assert [(one["pairs"], one["emissions"]) for one in ledger] == counts


def emitted(spark, lake, output):
    """The hour of the slice and the user's columns."""
    found = spark.read.format("delta").load(f"{lake}/{output}/emissions")
    names = [name for name in found.columns if not name.startswith("_")]
    return sorted(map(tuple, found.select(F.hour("_slice"), *names).collect()), key=str)


@pytest.mark.slow
def test_pairs_are_what_is_counted_and_rows_what_is_compared(spark, shared, run, tmp_path):
    settings, ledger = run("orders", slices_per_job=2, explode=ITEMS)
    assert emitted(spark, shared, "orders") == sorted({*FIRST, (1, 4, None, 12), *FIFTH}, key=str)
    assert [(one["pairs"], one["emissions"]) for one in ledger] == [(2, 2), (2, 3)]
    status = summarize_status(settings, shared)
    assert (status.pairs, status.emissions) == (4, 5)
    assert check_integrity(settings, shared).issues == ()
    lives = [explain_rows(spark, settings, shared, "left", {"id": str(number)})[0].steps[2] for number in (1, 2)]
    assert lives == [
        "matched in slice 2024-01-01T00:00Z, pairs: 1, rows that explode made of them: 2",
        "matched in slice 2024-01-01T00:00Z, pairs: 1, rows that explode made of them: 0",
    ]
    of_pairs = vary_setting(spark, settings, shared, "join.interval.lower", [timedelta(minutes=-30)], range(2))
    assert of_pairs.outcomes[0].matched == 4
    found = compare_dialects(spark, settings, shared, range(2))
    assert {one.emissions for one in found.results} == {4}

    rows = spark.read.format("delta").load(f"{shared}/orders/emissions").drop("_slice", "_pane", "_result_time")
    strange = rows.limit(1).withColumn("right_id", F.lit(99))
    streamed = rows.where("sku IS NULL OR sku <> 'y'").unionByName(strange).drop("_emission")
    streamed.write.format("delta").save(f"{shared}/streamed")
    told = compare(spark, settings, shared, ComparisonRequest("streamed", try_settings=False), None)
    assert {(one.cause, one.missing_in, one.rows) for one in told.causes} == {
        ("missing in an input", "batch", 1),
        ("unexplained", "stream", 1),
    }
    assert [one.same for one in told.agreement] == [1, 3]
    with pytest.raises(UserError, match="a row of `explode` is not a pair"):
        write_minimal_example(spark, settings, shared, told, 1, tmp_path / "vector.jsonl")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"explode": "left_items.sku"}, "explode: the expression has type array<string>, but an array of structs"),
        ({"explode": "left_id"}, "explode: the expression has type int, but"),
        ({"explode": "array(named_struct('n', 1, 'N', 2))"}, "explode: N and n are the same name to Spark"),
        ({"explode": "array(named_struct('_slice', 1))"}, "explode: _slice and _slice are the same name to Spark"),
        ({"explode": "array(struct(left_idd))"}, "explode: A column, variable, or function parameter with name"),
        ({"explode": ITEMS, "dialect": "spark", "join": interval(type="semi")}, "`right_id` cannot be resolved"),
    ],
)
def test_what_makes_no_rows_is_told_when_a_plan_is_made(spark, shared, pipeline, changes, told):
    with pytest.raises(PipelineFileError) as raised:
        create_plan(spark, pipeline(**changes, output="none"), shared, Request())
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_query_makes_the_same_rows(spark, shared, pipeline):
    settings = pipeline(dialect="spark", explode=ITEMS, output="none")
    plan = create_plan(spark, settings, shared, Request())
    assert "whether `explode` makes sense" in plan.spark_queries
    assert create_spark_query(settings, plan.inputs).select == [f"inline({ITEMS})", "_emission"]


def test_the_settings_of_a_run_say_how_it_made_rows(pipeline):
    was = pipeline(explode=ITEMS)
    now = pipeline(select=["left_id"])
    assert with_stored_config(now, was.output_affecting_settings()).explode == ITEMS
    assert with_stored_config(was, now.output_affecting_settings()).explode is None
