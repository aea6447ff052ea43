"""Every cause is found where it was put, and nothing else is."""

import json

import pytest
from pyspark.sql import functions as F

from tests.comparison.conftest import HOUR, LEFT_JOIN, ROW, START
from tidemark import cli
from tidemark.errors import InputError, SliceOrderError, UserError


def found(told):
    return {(cause.cause, cause.missing_in): cause.rows for cause in told.causes}


def test_each_fault_has_its_name(spark, lake, inputs, pipeline, ran, compared, emitted):
    """A stream in the order of arrival, then damaged, against the pipeline in the order of event time."""
    by_arrival = ran(pipeline(dialect="flink-sql", join=LEFT_JOIN, output="by_arrival"))
    by_time = pipeline(dialect="flink-sql", join=LEFT_JOIN, left__arrival=None, right__arrival=None)
    ran(by_time)
    stream = emitted(by_arrival)
    told = compared(by_time, stream, by_arrival)
    natural = found(told)
    assert set(natural) == {
        ("evicted before its partner", "stream"),
        ("padded before its partner came", "batch"),
        ("rejected in the stream", "stream"),
    }
    assert told.unexplained == 0
    assert told.same + told.differences == (emitted(by_time).exceptAll(stream).count() + stream.count())
    late = next(cause for cause in told.causes if cause.cause == "evicted before its partner").examples[0]
    assert late["_behind_ms"] > 0
    assert late["_held_by"] in {"left", "right"}

    # Rows that both have.
    one, two, three, four = (
        stream.intersectAll(emitted(by_time)).where("right_id IS NOT NULL").orderBy("left_id").take(4)
    )
    spoilt = [one, spark.createDataFrame([two], stream.schema).withColumn("right_v", F.col("right_v") + 1).first()]
    spoilt.append(spark.createDataFrame([three], stream.schema).withColumn("right_id", F.lit(-1)).first())
    damaged = stream.exceptAll(spark.createDataFrame([two, four], stream.schema))
    damaged = damaged.unionByName(spark.createDataFrame(spoilt, stream.schema))
    told = compared(by_time, damaged, by_arrival)
    assert {key: rows - natural.get(key, 0) for key, rows in found(told).items() if rows != natural.get(key)} == {
        ("emitted twice", "batch"): 1,
        ("changed value", "batch"): 1,
        ("changed value", "stream"): 1,
        ("missing in an input", "batch"): 1,
        ("unexplained", "stream"): 1,
    }
    changed = next(cause for cause in told.causes if cause.cause == "changed value").examples[0]
    assert changed["_detail"] == "right_v"
    assert set(told.brief(changed)) == {"left_k", "left_happened", "right_k", "right_happened", "right_v"}
    assert told.unexplained == sum(one.unexplained for one in told.agreement) == 1

    close = compared(by_time, damaged, by_arrival, within=1.5)
    assert ("changed value", "batch") not in found(close)
    assert close.same == told.same + 1


def test_late_where_late_rows_are_dropped(inputs, pipeline, ran, compared, emitted):
    join = LEFT_JOIN | {"type": "inner"}
    by_arrival = ran(pipeline(join=join, output="by_arrival"))
    by_time = ran(pipeline(join=join, left__arrival=None, right__arrival=None))
    told = compared(by_time, emitted(by_arrival), by_arrival)
    assert set(found(told)) == {("late in the stream", "stream"), ("rejected in the stream", "stream")}
    late = next(cause for cause in told.causes if cause.cause == "late in the stream").examples[0]
    assert late["_behind_ms"] > 0
    assert late["_held_by"] in {"left", "right"}


def test_the_same_table_has_no_differences(lake, inputs, pipeline, ran, compared, emitted, capsys, tmp_path):
    settings = ran(pipeline(join=LEFT_JOIN | {"type": "inner"}))
    told = compared(settings, emitted(settings))
    assert (told.differences, told.causes) == (0, ())
    assert sum(one.same for one in told.agreement) == told.same == emitted(settings).count() > 100
    command = ["compare", str(tmp_path / "pipeline.yaml"), "--with", "stream", "--lake", str(lake), "--json"]
    assert cli.main(command) == 0
    assert json.loads(capsys.readouterr().out)["same"] == told.same


def test_what_has_not_come_yet_is_pending(inputs, pipeline, ran, compared, emitted):
    whole = ran(pipeline(dialect="flink-sql", join=LEFT_JOIN, output="whole"))
    half = ran(pipeline(dialect="flink-sql", join=LEFT_JOIN), end=START + 3 * HOUR)
    ahead = compared(half, emitted(whole))
    assert {cause for cause, _ in found(ahead)} == {"pending"}
    behind = compared(whole, emitted(half), until=START + 3 * HOUR)
    assert {cause for cause, _ in found(behind)} == {"pending"}
    assert behind.differences == 0
    untold = compared(whole, emitted(half), half)
    assert {cause for cause, _ in found(untold)} == {"pending"}, "the story of the stream is not told to its end"


def test_rows_that_landed_after_their_slice(inputs, write, pipeline, ran, compared, emitted):
    settings = ran(pipeline(join=LEFT_JOIN | {"type": "inner"}, late_landing="reprocess"), end=START + 4 * HOUR)
    at = START + 2 * HOUR
    write("left", [(950, "a", at, at, 0.0)], ROW)
    after = ran(pipeline(join=LEFT_JOIN | {"type": "inner"}, output="after"), end=START + 4 * HOUR)
    told = compared(settings, emitted(after))
    assert {cause for cause, _ in found(told)} == {"landed after the slice"}


def inner_join():
    return {"type": "inner", "keys": ["k"], "interval": {"lower": "-30 minutes", "upper": "30 minutes"}}


CONDITION = inner_join() | {"condition": "left_id % 7 <> right_id % 5"}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        pytest.param(
            {"left__watermark_delay": "2 hours"}, "left.watermark_delay", id="longer delay", marks=pytest.mark.slow
        ),
        pytest.param(
            {"join__interval__upper": "10 minutes"}, "join.interval.upper", id="narrower bound", marks=pytest.mark.slow
        ),
        pytest.param({"dialect": "flink-sql"}, "dialect", id="flink-sql"),
        pytest.param(
            {"join": CONDITION, "select": {"a": "left_id", "b": "right_id", "sum": "left_v + right_v"},
             "left__watermark_delay": "2 hours"}, "left.watermark_delay", id="computed columns and a condition",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"left__watermark_delay": "5 minutes"}, "left.watermark_delay", id="shorter delay", marks=pytest.mark.slow
        ),
        pytest.param(
            {"join__interval__upper": "50 minutes"}, "join.interval.upper", id="wider bound", marks=pytest.mark.slow
        ),
        pytest.param({"dialect": "spark"}, "dialect", id="spark", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_other_settings_are_named_where_the_stream_as_a_whole_speaks_for_them(
    spark, inputs, pipeline, ran, compared, emitted, changes, name
):
    """A row that nobody has lost but the stream's table stays without a cause."""
    shared = {key: value for key, value in changes.items() if key in {"join", "select"}}
    other = ran(pipeline(**{"join": inner_join()} | changes, output="other"))
    settings = ran(pipeline(**{"join": inner_join()} | shared))
    ours, theirs = emitted(settings), emitted(other)
    both = ours.intersectAll(theirs).orderBy(ours.columns).limit(1).collect()
    told = compared(settings, theirs.exceptAll(spark.createDataFrame(both, theirs.schema)))

    best, counts = told.settings, found(told)
    assert list(best.settings) == [name]
    named = sum(rows for (cause, _), rows in counts.items() if cause == "other settings")
    assert best.explains == named > best.contradicts
    assert {cause for cause, _ in counts} == {"other settings", "unexplained"}
    assert counts["unexplained", "stream"] >= 1
    details = {one["_detail"] for cause in told.causes for one in cause.examples if cause.cause == "other settings"}
    assert details == {best.told}
    if "dialect" in changes:
        assert (best.settings, best.contradicts) == (changes, 0)
        assert named == ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()


def test_rows_put_in_and_taken_out_by_hand_keep_their_own_story(spark, inputs, pipeline, ran, compared, emitted):
    """A longer delay would give the late pair, and a shorter one would lack a row; the other rows contradict both."""
    settings = ran(pipeline(join=inner_join()))
    by_time = ran(pipeline(join=inner_join(), left__arrival=None, right__arrival=None, output="by_time"))
    ours = emitted(settings).localCheckpoint()
    late = emitted(by_time).exceptAll(ours).where("left_arrived IS NOT NULL").orderBy("left_id", "right_id").limit(1)
    rest = ours.exceptAll(ours.orderBy("left_id", "right_id").limit(2))
    told = compared(settings, rest.unionByName(late))
    assert found(told) == {("unexplained", "batch"): 1, ("unexplained", "stream"): 2}
    assert told.settings is None
    assert all(one.explains <= one.contradicts for one in told.tried)
    assert any(one.explains for one in told.tried), "alone, the rows would speak for some of them"
    (put_in,), taken_out = (cause.examples for cause in told.causes)
    assert put_in["_behind_ms"] > 0
    assert put_in["_detail"] == "and yet in the stream"
    assert {one["_detail"] for one in taken_out} == {"its rows are on time, and yet not in the stream"}
    assert any(told.tried[0].told in note for note in told.notes)


def test_earlier_firings_of_a_window(inputs, pipeline, ran, compared, emitted):
    join = {"keys": ["k"], "window": {"tumbling": "1 hour"}, "allowed_lateness": "2 hours"}
    every = ran(pipeline(join=join, output="every"))
    latest = ran(pipeline(join=join | {"emit": "latest"}))
    told = compared(latest, emitted(every))
    assert found(told) == {("re-fired pane", "batch"): emitted(every).count() - emitted(latest).count()}
    assert told.differences > 0


def test_mistakes_are_one_line(lake, inputs, pipeline, ran, compared, emitted):
    settings = pipeline(join=LEFT_JOIN | {"type": "inner"})
    with pytest.raises(SliceOrderError, match="has no committed slice to compare; run it first"):
        compared(settings, "left")
    ran(settings, end=START + HOUR)
    with pytest.raises(InputError, match="there is no Delta table nowhere"):
        compared(settings, "nowhere")
    rows = emitted(settings)
    with pytest.raises(InputError, match="table stream has no column left_k .*pass --ignore left_k"):
        compared(settings, rows.drop("left_k"))
    with pytest.raises(UserError, match="--ignore left_w: the emissions has no column left_w .did you mean left_v"):
        compared(settings, rows, ignored=("left_w",))
    with pytest.raises(UserError, match="no slice from .* is committed"):
        compared(settings, rows, start=START + 2 * HOUR)
    typed = rows.withColumn("left_k", F.struct("left_k"))
    typed.write.format("delta").save(str(lake / "typed"))
    with pytest.raises(InputError, match="column left_k is struct<left_k:string> in table typed"):
        compared(settings, "typed")
