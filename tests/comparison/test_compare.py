"""`compare` finds each injected cause, and no other."""

import json
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

from tests.comparison.conftest import HOUR, LEFT_JOIN, ROW, START
from tidemark import cli
from tidemark.cli.compare import _override_settings
from tidemark.comparison.causes import ComparedViews, _read_reference
from tidemark.comparison.committed_view import CommittedView
from tidemark.config import load_pipeline, with_overrides
from tidemark.errors import InputError, SliceOrderError, UserError


def get_best_trial(result):
    """Return the best trial of other settings, which is supported."""
    assert result.setting_trials[0].is_supported
    return result.setting_trials[0]


def count_causes(result):
    """Count rows by cause and the table that lacks them."""
    return {(cause.cause, cause.missing_in): cause.rows for cause in result.causes}


@pytest.mark.promise("A comparison explains every difference from the streamed table by its cause.")
def test_compare_damaged_stream_assigns_each_cause(
    spark, lake, inputs, pipeline, run_pipeline, compare_with, read_emissions
):
    """The stream joins in the order of arrival and is then damaged; the pipeline joins in the order of event time."""
    by_arrival = run_pipeline(pipeline(dialect="flink-sql", join=LEFT_JOIN, output="by_arrival"))
    by_time = pipeline(dialect="flink-sql", join=LEFT_JOIN, left__arrival=None, right__arrival=None)
    run_pipeline(by_time)
    stream = read_emissions(by_arrival)
    result = compare_with(by_time, stream, by_arrival)
    expected = count_causes(result)
    assert set(expected) == {
        ("partner already evicted", "stream"),
        ("padded before its partner arrived", "batch"),
        ("rejected in the stream", "stream"),
    }
    assert result.unexplained == 0
    assert result.same + result.differences == (read_emissions(by_time).exceptAll(stream).count() + stream.count())
    late = next(cause for cause in result.causes if cause.cause == "partner already evicted").examples[0]
    assert late["_lateness_ms"] > 0
    assert late["_limiting_side"] in {"left", "right"}

    # Rows in both tables.
    doubled, changed_row, foreign, missing = (
        stream.intersectAll(read_emissions(by_time)).where("right_id IS NOT NULL").orderBy("left_id").take(4)
    )
    added = [
        doubled,
        spark.createDataFrame([changed_row], stream.schema).withColumn("right_v", F.col("right_v") + 1).first(),
    ]
    added.append(spark.createDataFrame([foreign], stream.schema).withColumn("right_id", F.lit(-1)).first())
    damaged = stream.exceptAll(spark.createDataFrame([changed_row, missing], stream.schema))
    damaged = damaged.unionByName(spark.createDataFrame(added, stream.schema))
    result = compare_with(by_time, damaged, by_arrival)
    assert {
        key: rows - expected.get(key, 0) for key, rows in count_causes(result).items() if rows != expected.get(key)
    } == {
        ("emitted twice", "batch"): 1,
        ("changed value", "batch"): 1,
        ("changed value", "stream"): 1,
        ("missing in an input", "batch"): 1,
        ("unexplained", "stream"): 1,
    }
    assert result.changed == sum(agreement.changed for agreement in result.agreement) == 1
    assert result.differences == sum(cause.rows for cause in result.causes) - 1, "a changed row counts once"
    changed = next(cause for cause in result.causes if cause.cause == "changed value").examples[0]
    assert changed["_detail"] == "right_v"
    assert set(result.summarize_example(changed)) == {"left_k", "left_happened", "right_k", "right_happened", "right_v"}
    assert result.unexplained == sum(agreement.unexplained for agreement in result.agreement) == 1

    without_value = compare_with(by_time, damaged.drop("left_v"), by_arrival, ignore_columns=("left_v",))
    assert count_causes(without_value) == count_causes(result), "an ignored column identifies no row of an input"

    close = compare_with(by_time, damaged, by_arrival, float_tolerance=1.5)
    others = {key: rows for key, rows in count_causes(result).items() if key[0] != "changed value"}
    assert count_causes(close) == others, "a value within the tolerance identifies no row"
    assert close.same == result.same + 1

    apart = compare_with(by_time, damaged, by_arrival, float_tolerance=0.5)
    assert count_causes(apart) == count_causes(result)
    example = next(cause for cause in apart.causes if cause.cause == "changed value").examples[0]
    assert example["_detail"] == "right_v"


@pytest.mark.parametrize(
    ("settings", "changes", "difference"),
    [
        (
            {"dialect": "flink-sql", "join": {"keys": ["k"], "window": {"tumbling": "1 hour"}}},
            {"time_zone": "Asia/Kolkata"},
            "time_zone is Asia/Kolkata (UTC in the pipeline)",
        ),
        (
            {"dialect": "flink-sql"},
            {"watermark_strategy": "datastream"},
            "watermark_strategy is datastream (not set in the pipeline)",
        ),
        (
            {"dialect": "spark"},
            {"spark.late_watermark": "current_batch"},
            "spark.late_watermark is current_batch (previous_batch in the pipeline)",
        ),
        (
            {"dialect": "flink-sql", "left__where": "v > 1"},
            {"left.where": "v > 2", "left.filter": "after_watermark", "left.idle_timeout": "1 minute"},
            "left.idle_timeout is 1 minute (not set in the pipeline); left.where is v > 2 (v > 1 in the pipeline)",
        ),
    ],
)
def test_settings_difference_has_settings_of_the_engine_and_inputs(pipeline, settings, changes, difference):
    ours = pipeline(**settings)
    theirs = with_overrides(ours, changes)

    batch, reference = (SimpleNamespace(pipeline=each) for each in (ours, theirs))

    assert sorted(ComparedViews(batch, reference, None).settings_difference.split("; ")) == difference.split("; ")


def test_compare_dropped_late_rows_assigns_late_in_the_stream(
    inputs, pipeline, run_pipeline, compare_with, read_emissions
):
    join = LEFT_JOIN | {"type": "inner"}
    by_arrival = run_pipeline(pipeline(join=join, output="by_arrival"))
    by_time = run_pipeline(pipeline(join=join, left__arrival=None, right__arrival=None))
    result = compare_with(by_time, read_emissions(by_arrival), by_arrival)

    assert set(count_causes(result)) == {("late in the stream", "stream"), ("rejected in the stream", "stream")}

    late = next(cause for cause in result.causes if cause.cause == "late in the stream").examples[0]
    assert late["_lateness_ms"] > 0
    assert late["_limiting_side"] in {"left", "right"}


def test_compare_rejected_row_has_its_own_reason_if_the_other_row_is_late(
    spark, lake, inputs, write, pipeline, run_pipeline, compare_with, read_emissions
):
    write("right", [(990, "a", START + HOUR, None, 0.0)], ROW)
    settings = run_pipeline(pipeline(join=LEFT_JOIN | {"type": "inner"}))
    stream = read_emissions(settings)
    late = spark.read.format("delta").load(str(lake / "orders" / "late")).where("side = 'left' AND reason = 'late'")
    left = late.orderBy("left.id").select("left.*").first().asDict()
    right = {"id": 990, "k": "a", "happened": START + HOUR, "arrived": None, "v": 0.0}
    values = {
        f"{side}_{name}": value for side, row in (("left", left), ("right", right)) for name, value in row.items()
    }
    columns = {name: F.lit(value).cast(stream.schema[name].dataType) for name, value in values.items()}

    result = compare_with(settings, stream.unionByName(stream.limit(1).withColumns(columns)))

    assert count_causes(result) == {("rejected in the batch", "batch"): 1}
    example = result.causes[0].examples[0]
    assert (example["_input"], example["_detail"]) == ("right", "null_arrival")


def test_compare_equal_table_has_no_differences(
    lake, inputs, pipeline, run_pipeline, compare_with, read_emissions, capsys, tmp_path
):
    settings = run_pipeline(pipeline(join=LEFT_JOIN | {"type": "inner"}))
    result = compare_with(settings, read_emissions(settings))

    assert (result.differences, result.causes) == (0, ())
    assert (
        sum(agreement.same for agreement in result.agreement) == result.same == read_emissions(settings).count() > 100
    )

    command = ["compare", "run", str(tmp_path / "pipeline.yaml"), "--with", "stream", "--lake", str(lake), "--json"]
    assert cli.main(command) == 0
    assert json.loads(capsys.readouterr().out)["same"] == result.same


@pytest.mark.parametrize("join", [LEFT_JOIN, {"keys": ["k"], "window": {"tumbling": "50 minutes"}}])
def test_compare_unfinished_table_assigns_pending(inputs, pipeline, run_pipeline, compare_with, read_emissions, join):
    complete = run_pipeline(pipeline(dialect="flink-sql", join=join, output="complete"))
    half = run_pipeline(pipeline(dialect="flink-sql", join=join), end=START + 3 * HOUR)
    stream_ahead = compare_with(half, read_emissions(complete))

    assert {cause for cause, _ in count_causes(stream_ahead)} == {"pending"}

    batch_ahead = compare_with(complete, read_emissions(half), until=START + 3 * HOUR)
    assert {cause for cause, _ in count_causes(batch_ahead)} == {"pending"}
    assert batch_ahead.differences == 0

    unfinished_reference = compare_with(complete, read_emissions(half), half)
    assert {cause for cause, _ in count_causes(unfinished_reference)} == {"pending"}


def test_compare_padded_row_that_the_pipeline_has_matched_is_not_pending(
    inputs, pipeline, run_pipeline, compare_with, read_emissions
):
    """The pipeline still buffers the row, but it pads no row that it has matched."""
    half = run_pipeline(pipeline(dialect="flink-sql", join=LEFT_JOIN), end=START + 3 * HOUR)
    emissions = read_emissions(half)
    newest = emissions.where("right_id IS NOT NULL").orderBy(F.desc("left_happened"), "left_id").first()["left_id"]
    is_newest = F.col("left_id") == newest
    nulls = {
        name: F.lit(None).cast(emissions.schema[name].dataType)
        for name in emissions.columns
        if name.startswith("right_")
    }
    padded = emissions.where(is_newest).limit(1).withColumns({**nulls, "_emission": F.lit("padded_left")})

    result = compare_with(half, emissions.where(~is_newest).unionByName(padded))

    pairs = emissions.where(is_newest).count()
    assert count_causes(result) == {
        ("padded before its partner arrived", "batch"): 1,
        ("padded before its partner arrived", "stream"): pairs,
    }
    assert result.differences == 1 + pairs


@pytest.mark.parametrize("kind", ["left", pytest.param("full", marks=pytest.mark.slow)])
def test_compare_outer_join_of_unknown_emission_knows_the_input_rows(
    inputs, pipeline, run_pipeline, compare_with, read_emissions, kind
):
    """The stream's columns do not show if a row is padded."""
    join = LEFT_JOIN | {"type": kind}
    select = {"id": "left_id", "v": "coalesce(right_v, 0)"}
    complete = run_pipeline(pipeline(dialect="flink-sql", join=join, output="complete"))
    half = run_pipeline(pipeline(dialect="flink-sql", join=join, select=select), end=START + 3 * HOUR)
    stream = read_emissions(complete).where("left_id IS NOT NULL")

    result = compare_with(half, stream.selectExpr(*(f"{text} AS {name}" for name, text in select.items())))

    assert {cause for cause, missing_in in count_causes(result) if missing_in == "batch"} == {"pending"}
    assert kind == "full" or len(result.causes) == 1


def test_compare_slice_committed_meanwhile_does_not_count(
    spark, lake, inputs, pipeline, run_pipeline, compare_with, read_emissions, monkeypatch
):
    settings = run_pipeline(pipeline(join=LEFT_JOIN | {"type": "inner"}), end=START + 3 * HOUR)
    stream, view = read_emissions(settings), CommittedView.read(spark, settings, str(lake))
    stream.write.format("delta").save(str(lake / "streamed"))
    run_pipeline(settings, end=START + 4 * HOUR)
    monkeypatch.setattr(CommittedView, "read", lambda *_: view)

    result = compare_with(settings, "streamed")

    assert result.differences == 0
    assert result.same == spark.read.format("delta").load(str(lake / "streamed")).count() > 0


def test_compare_rows_after_commit_assigns_late_arriving_row(
    inputs, write, pipeline, run_pipeline, compare_with, read_emissions
):
    settings = run_pipeline(
        pipeline(join=LEFT_JOIN | {"type": "inner"}, on_late_arriving_rows="reprocess"), end=START + 4 * HOUR
    )
    instant = START + 2 * HOUR
    write("left", [(950, "a", instant, instant, 0.0)], ROW)
    after = run_pipeline(pipeline(join=LEFT_JOIN | {"type": "inner"}, output="after"), end=START + 4 * HOUR)
    result = compare_with(settings, read_emissions(after))

    assert {cause for cause, _ in count_causes(result)} == {"late-arriving row"}


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
def test_compare_stream_under_other_settings_names_them(
    spark, inputs, pipeline, run_pipeline, compare_with, read_emissions, changes, name
):
    """A row deleted from the stream's table only remains without a cause."""
    shared = {key: value for key, value in changes.items() if key in {"join", "select"}}
    other = run_pipeline(pipeline(**{"join": inner_join()} | changes, output="other"))
    settings = run_pipeline(pipeline(**{"join": inner_join()} | shared))
    ours, theirs = read_emissions(settings), read_emissions(other)
    both = ours.intersectAll(theirs).orderBy(ours.columns).limit(1).collect()
    result = compare_with(settings, theirs.exceptAll(spark.createDataFrame(both, theirs.schema)))

    best = get_best_trial(result)
    counts = count_causes(result)
    assert list(best.settings) == [name]
    named = sum(rows for (cause, _), rows in counts.items() if cause == "other settings")
    assert best.explains == named > best.contradicts
    assert {cause for cause, _ in counts} == {"other settings", "unexplained"}
    assert counts["unexplained", "stream"] >= 1
    details = {
        example["_detail"] for cause in result.causes for example in cause.examples if cause.cause == "other settings"
    }
    assert details == {best.summary}
    if "dialect" in changes:
        assert (best.settings, best.contradicts) == (changes, 0)
        assert named == ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"left.watermark_delay": "22 minutes 30 seconds", "right.watermark_delay": "15 minutes"}, id="half delays"
        ),
        pytest.param(
            {"left.watermark_delay": "30 minutes", "join.interval.upper": "10 minutes"},
            id="delay and bound", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_compare_stream_under_two_other_settings_names_both(
    inputs, pipeline, run_pipeline, compare_with, read_emissions, changes
):
    """No setting explains all rows alone."""
    delays = {"left__watermark_delay": "45 minutes", "right__watermark_delay": "30 minutes"}
    settings = run_pipeline(pipeline(join=inner_join(), **delays))
    other = run_pipeline(with_overrides(settings, {"output": "other", **changes}))
    ours, theirs = read_emissions(settings), read_emissions(other)
    result = compare_with(settings, theirs)

    best = get_best_trial(result)
    singles = [trial for trial in result.setting_trials if len(trial.settings) == 1]
    differing = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
    assert (best.settings, best.explains, best.contradicts) == (changes, differing, 0)
    assert {cause.cause for cause in result.causes} == {"other settings"}
    assert result.differences == differing > max(trial.support for trial in singles) > 0


def test_compare_stream_with_another_window_offset_names_it(
    inputs, pipeline, run_pipeline, compare_with, read_emissions
):
    windows = {"tumbling": "1 hour"}
    settings = run_pipeline(pipeline(join={"keys": ["k"], "window": windows}))
    other = run_pipeline(pipeline(join={"keys": ["k"], "window": windows | {"offset": "20 minutes"}}, output="other"))
    ours, theirs = read_emissions(settings), read_emissions(other)

    result = compare_with(settings, theirs)

    differing = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
    best = get_best_trial(result)
    assert (best.settings, best.explains) == ({"join.window.offset": "20 minutes"}, differing)
    assert {cause.cause for cause in result.causes} == {"other settings"}


def test_compare_stream_with_windows_of_another_time_zone_says_so(
    inputs, pipeline, run_pipeline, compare_with, read_emissions
):
    settings = run_pipeline(pipeline(join={"keys": ["k"], "window": {"tumbling": "1 hour"}}))
    hour = F.expr("INTERVAL 1 HOUR")
    bounds = {name: F.col(name) + hour for name in ("_window_start", "_window_end")}

    result = compare_with(settings, read_emissions(settings).withColumns(bounds))

    [note] = [note for note in result.notes if "without a cause" in note]
    assert {cause.cause for cause in result.causes} == {"unexplained"}
    assert "equal but for their windows, which begin 1 hour later in the stream. Compare the time zone" in note


def test_compare_rows_changed_by_hand_rejects_other_settings(
    spark, inputs, pipeline, run_pipeline, compare_with, read_emissions
):
    """A longer delay would emit the late pair and a shorter one would lack a row, but other rows contradict both."""
    settings = run_pipeline(pipeline(join=inner_join()))
    by_time = run_pipeline(pipeline(join=inner_join(), left__arrival=None, right__arrival=None, output="by_time"))
    ours = read_emissions(settings).localCheckpoint()
    late = (
        read_emissions(by_time)
        .exceptAll(ours)
        .where("left_arrived IS NOT NULL")
        .orderBy("left_id", "right_id")
        .limit(1)
    )
    rest = ours.exceptAll(ours.orderBy("left_id", "right_id").limit(2))
    result = compare_with(settings, rest.unionByName(late))

    assert count_causes(result) == {("unexplained", "batch"): 1, ("unexplained", "stream"): 2}
    assert not any(trial.is_supported for trial in result.setting_trials[:1])
    assert all(trial.explains <= trial.contradicts for trial in result.setting_trials)
    assert any(trial.explains for trial in result.setting_trials)

    (added,), removed = (cause.examples for cause in result.causes)
    assert added["_lateness_ms"] > 0
    assert added["_detail"] == "and yet in the stream"
    assert {example["_detail"] for example in removed} == {"its rows are on time, and yet not in the stream"}
    assert any(result.setting_trials[0].summary in note for note in result.notes)


def test_compare_rows_of_skipped_slices_support_no_other_settings(
    inputs, pipeline, run_pipeline, compare_with, read_emissions
):
    """The stream has skipped rows, and pairs of them with later rows. Any settings would emit them."""
    complete = run_pipeline(pipeline(join=inner_join(), output="complete"))
    settings = run_pipeline(pipeline(join=inner_join()), end=START + HOUR)
    run_pipeline(settings, start=START + 3 * HOUR, from_empty_state=True)

    result = compare_with(settings, read_emissions(complete))

    assert {cause for cause, _ in count_causes(result)} == {"unexplained"}
    assert not any(trial.explains for trial in result.setting_trials)


def test_compare_every_pane_assigns_re_fired_pane(inputs, pipeline, run_pipeline, compare_with, read_emissions):
    join = {"keys": ["k"], "window": {"tumbling": "1 hour"}, "allowed_lateness": "2 hours"}
    every = run_pipeline(pipeline(join=join, output="every"))
    latest = run_pipeline(pipeline(join=join | {"emit": "latest"}))
    result = compare_with(latest, read_emissions(every))

    assert count_causes(result) == {
        ("re-fired pane", "batch"): read_emissions(every).count() - read_emissions(latest).count()
    }
    assert result.differences > 0


def test_compare_value_that_the_type_cannot_hold_differs(inputs, pipeline, run_pipeline, compare_with, read_emissions):
    select = {"id": "left_id", "v": "right_v", "day": "CAST(left_happened AS DATE)", "tenth": "CAST(0.1 AS FLOAT)"}
    settings = run_pipeline(pipeline(join=LEFT_JOIN, dialect="flink-sql", select=select))
    rows = read_emissions(settings)
    wide = rows.withColumns({"v": F.col("v").cast("bigint"), "day": F.col("day").cast("timestamp")})
    values = {
        "v": F.when(F.col("v").isNull(), 3_000_000_000).otherwise(F.col("v")),  # null as an INT
        "day": F.when(F.col("id") % 2 == 1, F.col("day") + F.expr("INTERVAL 1 HOUR")).otherwise(F.col("day")),
    }
    other_rows = [wide.withColumn(name, value) for name, value in values.items()]

    assert compare_with(settings, wide, try_settings=False).differences == 0
    for stream, is_other in zip(other_rows, (F.col("v").isNull(), F.col("id") % 2 == 1), strict=True):
        result = compare_with(settings, stream, try_settings=False)
        assert result.same == rows.where(~is_other).count() < rows.count()
    as_double = wide.withColumn("tenth", F.lit(0.1))
    assert compare_with(settings, as_double, try_settings=False).same == 0
    assert compare_with(settings, as_double, try_settings=False, float_tolerance=1e-6).differences == 0


def test_compare_maps_and_unusual_names_without_emission(
    spark, inputs, write, pipeline, run_pipeline, compare_with, read_emissions
):
    """A matched row whose selected columns of the partner are null equals a padded row."""
    write("right", [(950, "a", START + HOUR, START + HOUR, None)], ROW)
    select = {"id": "left_id", "a.b": "left_k", "w": "right_v", "tags": "map(left_k, left_v, 'other', 1.0D)"}
    settings = run_pipeline(pipeline(join=LEFT_JOIN, dialect="flink-sql", select=select))
    rows = read_emissions(settings)
    assert not rows.where("_emission = 'matched' AND w IS NULL").isEmpty()
    stream = rows.drop("_emission").withColumn("tags", F.expr("map('other', 1.0D, `a.b`, tags[`a.b`])"))

    assert compare_with(settings, stream, try_settings=False).differences == 0

    single = rows.groupBy("id").count().where("count = 1").orderBy("id").first()["id"]
    is_changed = F.col("id") == single
    tags = F.when(is_changed, F.expr("map('other', 2.0D)")).otherwise(F.col("tags"))
    result = compare_with(settings, stream.withColumns({"tags": tags, "id": F.when(~is_changed, F.col("id"))}))

    assert count_causes(result) == {("changed value", "batch"): 1, ("changed value", "stream"): 1}
    assert result.causes[0].examples[0]["_detail"] == "id, tags"

    result = compare_with(settings, stream.withColumn("tags", tags), try_settings=False)

    assert count_causes(result) == {("changed value", "batch"): 1, ("changed value", "stream"): 1}
    assert result.causes[0].examples[0]["_detail"] == "tags", "the input rows are known"


def test_compare_set_of_an_option_is_refused():
    pipeline = load_pipeline("flights_weather")
    for name, advice in (("table", "--with"), ("reference", "--reference"), ("every", "in the pipeline file")):
        with pytest.raises(UserError, match=advice):
            _override_settings(pipeline, "streamed", [f"{name}=1"])


def test_compare_with_a_reference_without_a_column_names_both():
    reference = SimpleNamespace(
        pipeline=SimpleNamespace(name="slow"), read_emissions=lambda: SimpleNamespace(columns=["left_k"])
    )
    with pytest.raises(UserError, match="reference slow does not emit column left_v.*ignore_columns=left_v"):
        _read_reference(reference, ["left_k", "left_v"])


def test_compare_invalid_request_raises_short_error(lake, inputs, pipeline, run_pipeline, compare_with, read_emissions):
    settings = pipeline(join=LEFT_JOIN | {"type": "inner"})
    with pytest.raises(SliceOrderError, match="has no committed slice. Run tidemark run .*pipeline.yaml first"):
        compare_with(settings, "left")

    run_pipeline(settings, end=START + HOUR)
    with pytest.raises(InputError, match="^compare.table: there is no Delta table nowhere"):
        compare_with(settings, "nowhere")

    rows = read_emissions(settings)
    with pytest.raises(InputError, match="table stream has no column left_k.*pass --set ignore_columns=left_k"):
        compare_with(settings, rows.drop("left_k"))
    with pytest.raises(UserError, match="ignore_columns: emissions has no column left_w. Did you mean left_v"):
        compare_with(settings, rows, ignore_columns=("left_w",))
    with pytest.raises(UserError, match="has no committed slice from"):
        compare_with(settings, rows, start=START + 2 * HOUR)

    typed = rows.withColumn("left_k", F.struct("left_k"))
    typed.write.format("delta").save(str(lake / "typed"))

    with pytest.raises(InputError, match="column left_k is struct<left_k:string> in table typed"):
        compare_with(settings, "typed")
