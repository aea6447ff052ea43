"""Rows that `where` leaves out before the join, and keys that are made of an input's columns."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.cli.status import status_of
from tidemark.comparison.compare import Asked, compare
from tidemark.comparison.dialect_diff import dialects
from tidemark.comparison.row_history import explain
from tidemark.errors import InputError, PipelineFileError
from tidemark.execution.run import execute
from tidemark.joins.keys import key_column
from tidemark.ledger.staleness import NOTHING_CONSUMED
from tidemark.planning.plan import Request, make_plan
from tidemark.streaming.spark_query import query_text

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
"""`where: v > 0` leaves out six. Two of them move the left watermark, to 0:42 and then to 0:55, so that `behind` comes
behind it."""
RIGHT = [
    ("first", "a", at(0, 10), at(0, 11), 1),
    ("other", "z", at(1), at(0, 15), 1),
    ("second", "a", at(1, 20), at(1, 26), 1),
]
FIRST, BEHIND, AFTER = ("on time", "first"), ("behind", "first"), ("after", "second")


@pytest.fixture
def run(spark, lake, pipeline):
    def go(hour, slices_per_job=1, **changes):
        settings = pipeline(**changes)
        plan = make_plan(spark, settings, str(lake), Request(end=at(hour), slices_per_job=slices_per_job))
        done = list(execute(spark, plan, lambda *_: None))
        assert {one.verdict.outcome for one in done} == {"passed"}
        return settings, plan

    return go


@pytest.mark.parametrize(
    ("dialect", "where_at", "slices_per_job", "emitted", "late"),
    [
        pytest.param("flink-datastream", None, 1, {FIRST, AFTER}, [("behind", "late")], marks=pytest.mark.slow),
        ("flink-datastream", "watermark", 2, {FIRST, AFTER}, [("behind", "late")]),
        ("flink-datastream", "source", 1, {FIRST, BEHIND, AFTER}, []),
        ("flink-sql", None, 1, {FIRST, AFTER}, [("behind", "behind_watermark")]),
        ("spark", None, 1, {FIRST, BEHIND, AFTER}, []),
    ],
)
def test_rows_left_out_move_the_watermark_where_the_stream_has_it_so(
    spark, lake, write, run, dialect, where_at, slices_per_job, emitted, late
):
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    settings, plan = run(
        2, slices_per_job, dialect=dialect, left__where="v > 0", **({"left__where_at": where_at} if where_at else {})
    )
    read = spark.read.format("delta").load
    assert {(row["left_id"], row["right_id"]) for row in read(plan.tables.emissions).collect()} == emitted
    assert [(row["left"]["id"], row["reason"]) for row in read(plan.tables.late).collect()] == late
    ledger = read(plan.tables.ledger).orderBy("slice").collect()
    assert [row["left"]["read"] for row in ledger] == [2, 1]
    behind = where_at != "source" and dialect != "spark"
    counted = [6, 0] if behind else [0, 0]
    assert [(row["left_filtered"], row["right_filtered"]) for row in ledger] == [(n, 0) for n in counted]
    status = status_of(settings, str(lake))
    assert (status.left.filtered, status.right.filtered) == (6 if behind else None, None)
    if dialect == "flink-sql":
        # A timer of `on time` has swept the left side as soon as a row that was left out let the watermark pass it.
        assert ledger[0]["left_swept_ms"] == at(0, 42).timestamp() * 1000


def lives(spark, lake, settings, *ids):
    return [explain(spark, settings, str(lake), "left", {"id": one})[0].steps for one in ids]


def test_what_is_left_out_behind_the_watermark_has_been_read(spark, lake, write, run):
    """It stops a run if it goes; `explain` says what it did, and `telling` rows of an input are found as before."""
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    settings, _ = run(2, left__where="v > 0")
    ahead, absurd = lives(spark, lake, settings, "ahead", "absurd")
    assert ahead == (
        "happened 2024-01-01T01:05Z",
        "left out by where (v > 0): it takes no part, and moves the watermark",
    )
    assert absurd == (
        "happened at no known time",
        "left out by where (v > 0): and as its times are not to be believed, it does not move the watermark either",
    )
    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE id = 'ahead'")
    with pytest.raises(InputError, match=r"input left is not append-only: version 1 deleted or changed rows"):
        run(3, left__where="v > 0")


def test_what_is_left_out_at_the_source_nobody_has_read(spark, lake, write, run, capsys):
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    changes = {"left__where": "v > 0", "left__where_at": "source"}
    settings, _ = run(2, **changes)
    [[_, told]] = lives(spark, lake, settings, "ahead")
    assert told == "left out by where (v > 0): at the source, so that it is as if the table did not have it"
    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE id = 'ahead'")
    write("left", [("landed", "a", at(0, 31), at(0, 31), -1), ("next", "a", at(2, 1), at(2, 1), 4)], ROW)
    _, plan = run(3, **changes)
    plan.inputs[0].rows(plan.grid, 0, 2, NOTHING_CONSUMED).explain()
    assert "GreaterThan(v,0)" in capsys.readouterr().out, "the scan goes by it"
    newest = spark.read.format("delta").load(plan.tables.ledger).orderBy(F.desc("slice")).first()
    assert (newest["left"]["read"], newest["landed"]) == (1, 0)


def test_dialects_filter_each_as_it_does(spark, lake, pipeline, write):
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    settings = pipeline(left__where="v > 0", join__keys=[{"left": "upper(k)", "right": "upper(k)"}])
    found = dialects(spark, settings, str(lake), range(2))
    emitted = {one.dialect: one.emissions for one in found.answered}
    assert emitted == {"flink-datastream": 2, "flink-sql": 2, "spark": 3}
    assert found.identity == ("left_k", "left_happened", "right_k", "right_happened")
    differing = {(one.only_in, one.not_in, one.example["left_id"]) for one in found.differences}
    assert differing == {("spark", flink, "behind") for flink in ("flink-datastream", "flink-sql")}


def test_a_stream_that_did_not_filter_is_told_of_the_rows_left_out(spark, lake, write, run):
    write("left", LEFT, ROW)
    write("right", RIGHT, ROW)
    settings, plan = run(2, left__where="v > 0", left__where_at="source")
    emitted = spark.read.format("delta").load(plan.tables.emissions).drop("_slice", "_pane", "_result_time")
    as_first = emitted.where("left_id = 'on time'")
    unknown = {"left_id": F.lit("unknown"), "left_v": F.lit(None).cast("int")}
    times = {f"left_{name}": F.lit(at(0, 24)) for name in ("happened", "arrived")}
    write("streamed", emitted.unionByName(as_first.withColumns(unknown | times)))
    found = compare(spark, settings, str(lake), Asked("streamed", try_settings=False), None)
    assert [(one.cause, one.rows, one.examples[0]["_detail"]) for one in found.causes] == [
        ("rejected in the batch", 1, "filtered")
    ]


def test_keys_are_made_of_columns(spark, lake, pipeline, write, run):
    schema = "email string, happened timestamp, arrived timestamp, v int, {} struct<n: bigint>"
    people = [("A@x", 1), ("a@X", 2), (None, 2)]
    write("left", [(email, at(0, 10), at(0, 10), v, (v,)) for email, v in people], schema.format("s"))
    write("right", [("a@x", at(0, 10), at(0, 10), 3, (2,))], schema.format("t").replace("email", "mail"))
    keys = [{"left": "lower(email)", "right": "mail"}, {"left": "s.n + 1", "right": "t.n + 0"}]
    _, plan = run(1, join__keys=keys)
    read = spark.read.format("delta").load
    assert [row["left_email"] for row in read(plan.tables.emissions).collect()] == ["A@x"]
    [nobody] = read(plan.tables.late).collect()
    assert (nobody["left"]["email"], nobody["reason"]) == (None, "null_key")
    assert "which keys are columns, and of which types the others are" in plan.asked
    asked = make_plan(
        spark,
        pipeline(dialect="spark", join__keys=keys, right__where="v > 2", output="other"),
        str(lake),
        Request(end=at(1)),
    )
    query = query_text(asked.pipeline, asked.inputs)
    assert "(lower(`left_email`) = `right_mail`) AND (`left_s`.n + 1 = `right_t`.n + 0)" in query.on
    assert (query.left.source, query.right.source) == (None, "v > 2")


def test_a_name_that_is_a_column_is_no_expression(spark):
    schema = T.StructType([T.StructField(name, T.StringType()) for name in ("k", "lower(k)", "a.b")])
    rows = spark.createDataFrame([("X", "it", "dotted")], schema)
    names = ("lower(k)", "upper(k)", "a.b")
    assert tuple(rows.select(*(key_column(schema, name) for name in names)).first()) == ("it", "X", "dotted")


@pytest.fixture(scope="module")
def a_pair(spark, tmp_path_factory):
    """A lake with a row of each side, for what only plans."""
    folder = tmp_path_factory.mktemp("a_pair")
    for side in ("left", "right"):
        spark.createDataFrame(RIGHT[:1], ROW).coalesce(1).write.format("delta").save(str(folder / side))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"left__where": "vv > 0"}, InputError, "input left: where: vv is no column of it; did you mean v?"),
        ({"left__where": "v + 1"}, PipelineFileError, "left.where: Cannot resolve"),
        (
            {"left__where": "to_timestamp(k) < happened AND CAST(concat('no', 'w') AS timestamp) > happened"},
            PipelineFileError,
            "left.where: a text such as 'now' is the time of the run",
        ),
        (
            {"join__keys": [{"left": "lower(kk)", "right": "k"}]},
            InputError,
            "no key is made of it: expression 'lower(kk)': kk is no column of it; did you mean k?",
        ),
        ({"join__keys": ["rand()"]}, InputError, "rand() gives something else in each run"),
        ({"join__keys": ["k k"]}, InputError, "input left has no column k k (named as key)"),
        (
            {"join__keys": [{"left": "length(k)", "right": "k"}]},
            InputError,
            "keys left.length(k) (int) and right.k (string) are of different types",
        ),
        ({"join__keys": [{"left": "array(k) + 1", "right": "k"}]}, InputError, "no key is made of it: Cannot resolve"),
    ],
)
def test_what_makes_no_sense_is_told_when_a_plan_is_made(spark, a_pair, pipeline, changes, error, told):
    with pytest.raises(error) as raised:
        make_plan(spark, pipeline(**changes), a_pair, Request())
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)
