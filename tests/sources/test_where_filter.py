"""Filter rows by `where` before the join, and join on key expressions."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.cli.status_summary import summarize_status
from tidemark.comparison.chain_history import explain_rows
from tidemark.comparison.compare import compare
from tidemark.comparison.dialect_diff import compare_dialects
from tidemark.comparison.result import ComparisonRequest
from tidemark.errors import InputError, PipelineFileError
from tidemark.execution.run import execute
from tidemark.joins.keys import key_column
from tidemark.ledger.staleness import NOTHING_CONSUMED
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import override_settings
from tidemark.streaming.spark_query import create_spark_query

ROW = "id string, k string, happened timestamp, arrived timestamp, v int"


def at(hour, minute=0, year=2024):
    return datetime(year, 1, 1, hour, minute, tzinfo=UTC)


LEFT = [
    ("on time", "a", at(0, 10), at(0, 10), 1),
    ("early", "a", at(0, 52), at(0, 16), -1),
    ("ahead", "a", at(1, 5), at(0, 20), -1),
    ("keyless", None, at(0, 50), at(0, 21), -1),
    ("timeless", "a", None, at(0, 22), -1),
    ("absurd", "a", at(1, year=2030), at(0, 23), -1),
    ("unknown", "a", at(0, 24), at(0, 24), None),
    ("behind", "a", at(0, 30), at(0, 40), 2),
    ("after", "a", at(1, 20), at(1, 25), 3),
]
"""Left rows, of which `where: v > 0` filters out six. Two of them raise the left watermark, to 0:42 and to 0:55, so
that row `behind` is late for it."""
RIGHT = [
    ("first", "a", at(0, 10), at(0, 11), 1),
    ("other", "z", at(1), at(0, 15), 1),
    ("second", "a", at(1, 20), at(1, 26), 1),
]
FIRST_PAIR, LATE_PAIR, LAST_PAIR = ("on time", "first"), ("behind", "first"), ("after", "second")


@pytest.fixture
def run_until(spark, lake, pipeline):
    def execute_plan(hour, slices_per_job=1, **changes):
        settings = pipeline(**changes)
        plan = create_plan(spark, settings, str(lake), Request(end=at(hour), slices_per_job=slices_per_job))
        results = list(execute(spark, plan, lambda *_: None))
        assert {item.validation_result.outcome for item in results} == {"passed"}
        return settings, plan

    return execute_plan


@pytest.mark.parametrize(
    ("dialect", "filter_position", "slices_per_job", "emitted", "late"),
    [
        pytest.param(
            "flink-datastream", None, 1, {FIRST_PAIR, LAST_PAIR}, [("behind", "late")], marks=pytest.mark.slow
        ),
        ("flink-datastream", "after_watermark", 2, {FIRST_PAIR, LAST_PAIR}, [("behind", "late")]),
        ("flink-datastream", "before_watermark", 1, {FIRST_PAIR, LATE_PAIR, LAST_PAIR}, []),
        ("flink-sql", None, 1, {FIRST_PAIR, LAST_PAIR}, [("behind", "late_but_processed")]),
        ("spark", None, 1, {FIRST_PAIR, LATE_PAIR, LAST_PAIR}, []),
    ],
)
def test_filtered_rows_raise_watermark_only_after_watermark(
    spark, lake, write, run_until, dialect, filter_position, slices_per_job, emitted, late
):
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    settings, plan = run_until(
        2,
        slices_per_job,
        dialect=dialect,
        left__where="v > 0",
        **({"left__filter": filter_position} if filter_position else {}),
    )
    read = spark.read.format("delta").load

    assert {(row["left_id"], row["right_id"]) for row in read(plan.tables.emissions).collect()} == emitted
    assert [(row["left"]["id"], row["reason"]) for row in read(plan.tables.late).collect()] == late

    ledger = read(plan.tables.ledger).orderBy("slice").collect()
    assert [row["left"]["read"] for row in ledger] == [2, 1]

    counts_filtered = filter_position != "before_watermark" and dialect != "spark"
    counted = [6, 0] if counts_filtered else [0, 0]

    assert [(row["left_filtered"], row["right_filtered"]) for row in ledger] == [(n, 0) for n in counted]

    status = summarize_status(settings, str(lake))
    assert (status.left.filtered, status.right.filtered) == (6 if counts_filtered else None, None)

    if dialect == "flink-sql":
        # A timer of `on time` has swept the left side as soon as a row that was left out let the watermark pass it.
        assert ledger[0]["left_last_cleanup_ms"] == at(0, 42).timestamp() * 1000


def explain_left_rows(spark, lake, settings, *ids):
    return [explain_rows(spark, settings, str(lake), "left", {"id": item})[0].steps for item in ids]


def test_deleting_rows_filtered_after_watermark_is_rejected(spark, lake, write, run_until):
    """`explain` describes filtered rows, and deleting one stops the next run."""
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    settings, _ = run_until(2, left__where="v > 0")
    ahead, absurd = explain_left_rows(spark, lake, settings, "ahead", "absurd")

    assert ahead == (
        "happened 2024-01-01T01:05Z",
        "filtered by where (v > 0): it does not take part, but moves the watermark",
    )
    assert absurd == (
        "happened at no known time",
        "filtered by where (v > 0): it does not take part, nor move the watermark, because its times are out of bounds",
    )

    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE id = 'ahead'")
    with pytest.raises(InputError, match=r"input left: version 1 deleted or changed rows"):
        run_until(3, left__where="v > 0")


def test_deleting_rows_filtered_at_source_is_accepted(spark, lake, write, run_until, capsys):
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    changes = {"left__where": "v > 0", "left__filter": "before_watermark"}
    settings, _ = run_until(2, **changes)
    [[_, message]] = explain_left_rows(spark, lake, settings, "ahead")

    assert message == "filtered by where (v > 0): before the watermark, as if the table did not contain it"

    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE id = 'ahead'")
    write("left", [("late_arriving_rows", "a", at(0, 31), at(0, 31), -1), ("next", "a", at(2, 1), at(2, 1), 4)], ROW)
    _, plan = run_until(3, **changes)
    with override_settings(spark, {"spark.sql.maxMetadataStringLength": "1000"}):
        plan.inputs[0].read_slices(plan.grid, 0, 2, NOTHING_CONSUMED).explain()

    assert "GreaterThan(v,0)" in capsys.readouterr().out, "the filter is pushed down to the scan"

    newest = spark.read.format("delta").load(plan.tables.ledger).orderBy(F.desc("slice")).first()
    assert (newest["left"]["read"], newest["late_arriving_rows"]) == (1, 0)


def test_compare_dialects_applies_filter_of_each_dialect(spark, lake, pipeline, write):
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    settings = pipeline(left__where="v > 0", join__keys=[{"left": "upper(k)", "right": "upper(k)"}])
    comparison = compare_dialects(spark, settings, str(lake), range(2))
    emitted = {item.dialect: item.emissions for item in comparison.results}

    assert emitted == {"flink-datastream": 2, "flink-sql": 2, "spark": 3}
    assert comparison.key_columns == ("left_k", "left_happened", "right_k", "right_happened")

    differing = {(item.only_in, item.not_in, item.example["left_id"]) for item in comparison.differences}
    assert differing == {("spark", flink, "behind") for flink in ("flink-datastream", "flink-sql")}


def test_compare_with_unfiltered_stream_explains_filtered_rows(spark, lake, write, run_until):
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    settings, plan = run_until(2, left__where="v > 0", left__filter="before_watermark")
    emitted = spark.read.format("delta").load(plan.tables.emissions).drop("_slice", "_pane", "_result_time")
    as_first = emitted.where("left_id = 'on time'")
    unknown = {"left_id": F.lit("unknown"), "left_v": F.lit(None).cast("int")}
    times = {f"left_{name}": F.lit(at(0, 24)) for name in ("happened", "arrived")}
    write("streamed", emitted.unionByName(as_first.withColumns(unknown | times)))
    comparison = compare(spark, settings, str(lake), ComparisonRequest("streamed", try_settings=False), None)

    assert [(item.cause, item.rows, item.examples[0]["_detail"]) for item in comparison.causes] == [
        ("rejected in the batch", 1, "filtered")
    ]


def test_key_expressions_match_and_reject_null_keys(spark, lake, pipeline, write, run_until):
    schema = "email string, happened timestamp, arrived timestamp, v int, {} struct<n: bigint>"
    people = [("A@x", 1), ("a@X", 2), (None, 2)]
    write("left", [(email, at(0, 10), at(0, 10), v, (v,)) for email, v in people], schema.format("s"))
    write("right", [("a@x", at(0, 10), at(0, 10), 3, (2,))], schema.format("t").replace("email", "mail"))
    keys = [{"left": "lower(email)", "right": "mail"}, {"left": "s.n + 1", "right": "t.n + 0"}]
    _, plan = run_until(1, join__keys=keys)
    read = spark.read.format("delta").load

    assert [row["left_email"] for row in read(plan.tables.emissions).collect()] == ["A@x"]

    [rejected] = read(plan.tables.late).collect()
    assert (rejected["left"]["email"], rejected["reason"]) == (None, "null_key")
    assert "which keys are columns, and of which types the others are" in plan.spark_queries

    spark_plan = create_plan(
        spark,
        pipeline(dialect="spark", join__keys=keys, right__where="v > 2", output="other"),
        str(lake),
        Request(end=at(1)),
    )
    query = create_spark_query(spark_plan.pipeline, spark_plan.inputs)

    assert "(lower(`left_email`) = `right_mail`) AND (`left_s`.n + 1 = `right_t`.n + 0)" in query.on
    assert (query.left.source, query.right.source) == (None, "v > 2")


def test_key_column_prefers_column_over_expression(spark):
    schema = T.StructType([T.StructField(name, T.StringType()) for name in ("k", "lower(k)", "a.b")])
    rows = spark.createDataFrame([("X", "it", "dotted")], schema)
    names = ("lower(k)", "upper(k)", "a.b")
    assert tuple(rows.select(*(key_column(schema, name) for name in names)).first()) == ("it", "X", "dotted")


@pytest.fixture(scope="module")
def small_lake(spark, tmp_path_factory):
    """Create a lake with one row per input, for tests that only plan."""
    folder = tmp_path_factory.mktemp("a_pair")
    for side in ("left", "right"):
        spark.createDataFrame(RIGHT[:1], ROW).coalesce(1).write.format("delta").save(str(folder / side))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"left__where": "vv > 0"}, InputError, "input left: where: vv is not a column of the input. Did you mean v?"),
        (
            {"left__where": "v + 1"},
            PipelineFileError,
            "left.where: (v + 1) has type INT, but a condition must be BOOLEAN",
        ),
        (
            {"left__where": "to_timestamp(k) < happened AND CAST(concat('no', 'w') AS timestamp) > happened"},
            PipelineFileError,
            "left.where: a string such as 'now', used as a time, is the time of the run",
        ),
        (
            {"join__keys": [{"left": "lower(kk)", "right": "k"}]},
            InputError,
            "it is not a valid expression: expression 'lower(kk)': kk is not a column of the input. Did you mean k?",
        ),
        ({"join__keys": ["rand()"]}, InputError, "rand() returns another value in each run"),
        ({"join__keys": ["k k"]}, InputError, "input left has no column k k (named as key)"),
        (
            {"join__keys": [{"left": "length(k)", "right": "k"}]},
            InputError,
            "keys left.length(k) (int) and right.k (string) have different types",
        ),
        (
            {"join__keys": [{"left": "array(k) + 1", "right": "k"}]},
            InputError,
            "it is not a valid expression: the two sides of array(k) + 1 have types ARRAY<STRING> and INT",
        ),
    ],
)
def test_plan_invalid_where_or_key_expression_is_rejected(spark, small_lake, pipeline, changes, error, message):
    with pytest.raises(error) as raised:
        create_plan(spark, pipeline(**changes), small_lake, Request())
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
