"""Explode pairs to none or many rows: emitted rows, counts, and commands that work with pairs."""

from datetime import UTC, datetime, timedelta

import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F

from tidemark.cli.status_summary import summarize_status
from tidemark.comparison.chain_history import explain_rows
from tidemark.comparison.compare import compare
from tidemark.comparison.dialect_diff import compare_dialects
from tidemark.comparison.minimal_example import find_minimal_example
from tidemark.comparison.result import ComparisonRequest
from tidemark.comparison.what_if import vary_setting
from tidemark.config.candidate_version import with_stored_config
from tidemark.errors import PipelineFileError, UserError
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.streaming.spark_query import create_spark_query

ROW = "id int, k string, happened timestamp, arrived timestamp, items array<struct<sku: string, n: int>>"


def at(hour, minute=0):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


def create_row(number, k, hour, minute, items=None):
    return number, k, at(hour, minute), at(hour, minute), items


LEFT = [
    create_row(1, "a", 0, 10, [("x", 1), ("y", 2)]),
    create_row(2, "a", 0, 20, []),
    create_row(3, "b", 0, 30, [("z", 3)]),
    create_row(4, "a", 1, 20, [None, ("x", 4), ("w", 5)]),
    create_row(5, "a", 1, 30),
]
"""Left rows: the third has no match, the others have one; the second has no items, the fifth a null array."""
RIGHT = [create_row(11, "a", 0, 5), create_row(12, "a", 1, 15)]
ITEMS = "transform(left_items, i -> named_struct('order', left_id, 'sku', i.sku, 'right_id', right_id))"
NULLS = ITEMS.replace("named_struct", "if(i IS NULL, NULL, named_struct").replace("))", ")))")
LEFTS = ITEMS.replace(", 'right_id', right_id", "")
GROUPS = "transform(left, l -> named_struct('order', l.id, 'first', left[0].id, 'right_id', get(right, 0).id))"
FIRST = {(0, 1, "x", 11), (0, 1, "y", 11)}


@pytest.fixture(scope="module")
def inputs_lake(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flattened")
    for side, rows in (("left", LEFT), ("right", RIGHT)):
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").save(str(folder / side))
    return str(folder)


@pytest.fixture
def run_pipeline(spark, inputs_lake, pipeline):
    def execute_plan(output, slices_per_job=1, **changes):
        settings = pipeline(output=output, **changes)
        plan = create_plan(spark, settings, inputs_lake, Request(slices_per_job=slices_per_job, drain=True))
        results = list(execute(spark, plan, lambda *_: None))
        assert {result.validation_result.outcome for result in results} == {"passed"}
        return settings, [row for result in results for row in result.rows]

    return execute_plan


def create_interval_join(**changes):
    return {"keys": ["k"], "interval": {"lower": "-30 minutes", "upper": "0 seconds"}, **changes}


HOURLY = {"keys": ["k"], "window": {"tumbling": "1 hour"}}


FIFTH = {(1, 4, "x", 12), (1, 4, "w", 12)}


@pytest.mark.parametrize(
    ("dialect", "join", "expression", "rows", "counts"),
    [
        pytest.param("flink-sql", create_interval_join(type="left"), NULLS,
                     {*FIRST, (1, 3, "z", None), (1, None, None, None), *FIFTH},
                     [(2, 2), (3, 4)], id="a struct that is null, padded rows"),
        pytest.param("spark", HOURLY | {"type": "semi"}, LEFTS, {row[:3] for row in (*FIRST, (1, 4, None), *FIFTH)},
                     [(2, 2), (2, 3)], id="semi", marks=pytest.mark.slow),
        pytest.param("flink-sql", HOURLY | {"type": "anti"}, LEFTS, {(1, 3, "z")}, [(0, 0), (1, 1)], id="anti"),
        pytest.param("flink-datastream", HOURLY | {"api": "cogroup"}, GROUPS,
                     {(1, 1, 1, 11), (1, 2, 1, 11), (1, 3, 3, None), (1, 4, 4, 12), (1, 5, 4, 12)},
                     [(0, 0), (3, 5)], id="coGroup"),
    ],
)  # fmt: skip
def test_explode_emits_expected_rows(
    spark, inputs_lake, run_pipeline, request, dialect, join, expression, rows, counts
):
    output = request.node.callspec.id.replace(" ", "_")
    _, ledger = run_pipeline(output, dialect=dialect, join=join, explode=expression, left__watermark_delay="0 seconds")
    assert read_emissions(spark, inputs_lake, output) == sorted(rows, key=str)
    assert [(row["pairs"], row["emissions"]) for row in ledger] == counts


def read_emissions(spark, lake, output):
    """Read the hour of the slice and the user's columns."""
    emissions = spark.read.format("delta").load(f"{lake}/{output}/emissions")
    names = [name for name in emissions.columns if not name.startswith("_")]
    return sorted(map(tuple, emissions.select(F.hour("_slice"), *names).collect()), key=str)


@pytest.mark.slow
def test_explode_pairs_are_counted_and_rows_are_compared(spark, inputs_lake, run_pipeline, tmp_path):
    settings, ledger = run_pipeline("orders", slices_per_job=2, explode=ITEMS)
    assert read_emissions(spark, inputs_lake, "orders") == sorted({*FIRST, (1, 4, None, 12), *FIFTH}, key=str)
    assert [(row["pairs"], row["emissions"]) for row in ledger] == [(2, 2), (2, 3)]

    status = summarize_status(settings, inputs_lake)
    assert (status.pairs, status.emissions) == (4, 5)
    assert check_integrity(settings, inputs_lake).issues == ()

    def explain_matches():
        rows = [explain_rows(spark, settings, inputs_lake, "left", {"id": str(number)})[0] for number in (1, 2)]
        return [row.steps[2] for row in rows]

    steps = [
        "matched in slice 2024-01-01T00:00Z, rows before explode: 1, after it: 2",
        "matched in slice 2024-01-01T00:00Z, rows before explode: 1, after it: 0",
    ]
    assert explain_matches() == steps

    right = f"{inputs_lake}/right"
    added = spark.createDataFrame([create_row(13, "a", 0, 6)], ROW)
    added.write.format("delta").mode("append").save(right)
    assert explain_matches() == steps, "the slice has not read the partner that was added later"
    DeltaTable.forPath(spark, right).delete("id = 13")

    variations = vary_setting(spark, settings, inputs_lake, "join.interval.lower", [timedelta(minutes=-30)], range(2))
    assert variations.outcomes[0].matched == 4

    dialects = compare_dialects(spark, settings, inputs_lake, range(2))
    assert {result.emissions for result in dialects.results} == {4}

    rows = spark.read.format("delta").load(f"{inputs_lake}/orders/emissions").drop("_slice", "_pane", "_result_time")
    wrong_row = rows.limit(1).withColumn("right_id", F.lit(99))
    streamed = rows.where("sku IS NULL OR sku <> 'y'").unionByName(wrong_row).drop("_emission")
    streamed.write.format("delta").save(f"{inputs_lake}/streamed")
    comparison = compare(spark, settings, inputs_lake, ComparisonRequest("streamed", try_settings=False), None)
    assert {(group.cause, group.missing_in, group.rows) for group in comparison.causes} == {
        ("missing in an input", "batch", 1),
        ("unexplained", "stream", 1),
    }
    assert [agreement.same for agreement in comparison.agreement] == [1, 3]
    (number,) = (group.examples[0]["_number"] for group in comparison.causes if group.cause == "unexplained")
    with pytest.raises(UserError, match="a row of `explode` is not a pair"):
        find_minimal_example(spark, settings, inputs_lake, comparison, number)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"explode": "left_items.sku"}, "explode: the expression has type array<string>, but an array of structs"),
        ({"explode": "left_id"}, "explode: the expression has type int, but"),
        ({"explode": "array(named_struct('n', 1, 'N', 2))"}, "explode: N and n are the same name to Spark"),
        ({"explode": "array(named_struct('_slice', 1))"}, "explode: _slice: names that begin with _ are Tidemark's"),
        ({"explode": "array(struct(left_idd))"}, "explode: there is no column left_idd. Did you mean left_id?"),
        (
            {"explode": ITEMS, "dialect": "spark", "join": create_interval_join(type="semi")},
            "there is no column right_id",
        ),
    ],
)
def test_create_plan_invalid_explode_is_rejected(spark, inputs_lake, pipeline, changes, message):
    with pytest.raises(PipelineFileError) as raised:
        create_plan(spark, pipeline(**changes, output="none"), inputs_lake, Request())
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_spark_query_explodes_by_inline(spark, inputs_lake, pipeline):
    settings = pipeline(dialect="spark", explode=ITEMS, output="none")
    plan = create_plan(spark, settings, inputs_lake, Request())
    assert "whether `explode` is valid" in plan.spark_queries
    assert create_spark_query(settings, plan.inputs).select == [f"inline({ITEMS})", "_emission"]


def test_stored_config_restores_explode(pipeline):
    exploded = pipeline(explode=ITEMS)
    selected = pipeline(select=["left_id"])
    assert with_stored_config(selected, exploded.output_affecting_settings()).explode == ITEMS
    assert with_stored_config(exploded, selected.output_affecting_settings()).explode is None
