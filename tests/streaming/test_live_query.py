"""A live query, and its replay from its checkpoint, give the same rows."""

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

from tidemark.cli.app import main
from tidemark.config import load_pipeline
from tidemark.config.types import from_micros, parse_instant, to_micros
from tidemark.errors import InputError, PipelineFileError, SliceOrderError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import (
    FILTER_INFERENCE_SETTINGS,
    override_settings,
    tuned_for_tiny_queries,
)
from tidemark.streaming.live_query import LiveQueryPaths, _write_replay, run_live_query
from tidemark.streaming.replay_source import parse_rate
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.query_trace import QueryTrace

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "id int, k string, happened timestamp, arrived timestamp, v int"
REPEATED = "array_repeat(named_struct('left_id', left_id, 'right_id', right_id), left_v)"
WINDOW_INEQUALITY = {
    "left": {"sliding": {"size": "1 hour", "slide": "30 minutes"}},
    "right": {"tumbling": "20 minutes", "offset": "5 minutes"},
    "comparison": "left <= right",
}
INTERVAL = {"lower": "-30 minutes", "upper": "1 hour", "upper_inclusive": False}


def generate_rows(generator, count, first):
    """Generate rows over seven hours: some hours late, some without key or time, one without arrival."""
    for number in range(first, first + count):
        arrived = START + timedelta(minutes=generator.randrange(7 * 60))
        happened = arrived - timedelta(microseconds=generator.randrange(generator.choice([1, 4]) * 3_600_000_000))
        event_time = None if generator.random() < 0.05 else happened
        yield (
            number,
            generator.choice(["a", "b", None]),
            event_time,
            None if number == first else arrived,
            generator.randrange(5),
        )


@pytest.fixture
def create_pipeline(write, pipeline):
    """Write inputs with disorder, and create a pipeline of dialect spark over them."""

    def create(seed, **changes):
        generator = random.Random(seed)
        for side, first in (("left", 0), ("right", 500)):
            write(side, list(generate_rows(generator, 150, first)), SCHEMA)
        join = {"keys": ["k"], "interval": INTERVAL, **changes.pop("join", {})}
        return pipeline(dialect="spark", left__watermark_delay="20 minutes", join=join, **changes)

    return create


@pytest.fixture
def run_query(spark, lake):
    """Run the live query of a pipeline."""

    def run(settings, rate):
        paths = LiveQueryPaths.from_pipeline(settings, str(lake), None, None)
        with tuned_for_tiny_queries(spark):
            return run_live_query(spark, settings, str(lake), paths, rate, lambda *_: None)

    return run


def run_replay(spark, lake, settings, result, per_job="auto"):
    """Run all slices of the pipeline that replays a live query, and return the number of jobs."""
    end = parse_instant(result.replay_to)
    plan = create_plan(spark, settings, str(lake), Request(end=end, slices_per_job=per_job))
    return len(list(execute(spark, plan, lambda *_: None)))


def count_emissions(spark, path):
    """Count emissions by their ids, windows and kind."""
    rows = spark.read.format("delta").load(str(path))
    names = ("left_id", "right_id", "_window_start", "_window_end", "_right_window_start", "_right_window_end")
    ids = [F.col(name) if name in rows.columns else F.lit(None) for name in names]
    return Counter(tuple(row) for row in rows.select(*ids, "_emission").collect())


@pytest.mark.parametrize(
    ("join", "changes"),
    [
        pytest.param({"type": "inner"}, {}, marks=pytest.mark.slow),
        (
            {"type": "left", "condition": "left_v <= 3 AND left_v <> right_v"},
            {"spark": {"multiple_watermark_policy": "max"}, "explode": REPEATED},
        ),
        pytest.param(
            {"type": "semi", "interval": None, "window": {"sliding": {"size": "1 hour", "slide": "30 minutes"}}},
            {},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"type": "full", "interval": None, "window_inequality": WINDOW_INEQUALITY}, {}, marks=pytest.mark.slow
        ),
    ],
    ids=["inner", "left, condition, max, explode", "semi, sliding", "full, windows compared"],
)
def test_replay_equals_live_query(spark, lake, create_pipeline, run_query, join, changes):
    result = run_query(create_pipeline(str(join), join=join, **changes), 60)
    assert result.batches >= 5
    assert result.dropped > 0

    expected = count_emissions(spark, result.table)
    assert expected.total() == result.rows > 30

    replay = load_pipeline(result.replay)
    assert run_replay(spark, lake, replay, result) == 1
    assert count_emissions(spark, lake / replay.output / "emissions") == expected


@pytest.mark.slow
def test_replay_in_small_slices_equals_live_query(spark, lake, create_pipeline, run_query):
    settings = create_pipeline(1, join={"type": "left"})
    result = run_query(settings, 60)
    with pytest.raises(InputError, match="exists already"):
        run_query(settings, 60)

    replay = load_pipeline(result.replay)
    trace = QueryTrace.read(spark, result.checkpoint, replay)
    span = timedelta(microseconds=trace.batches[-1].clock - trace.batches[0].clock)
    # A third of the run time, rounded up, so that slices do not end with batches.
    every = timedelta(seconds=span // timedelta(seconds=3) + 1)
    slices = replay.slices.model_copy(update={"every": every, "start": from_micros(trace.batches[0].clock)})
    thirds, grid = replay.model_copy(update={"slices": slices}), Grid.from_config(slices)
    plan = create_plan(
        spark, thirds, str(lake), Request(end=grid.datetime_of(trace.find_end_slice(grid)), slices_per_job=1)
    )
    list(execute(spark, plan, lambda *_: None))
    assert 2 <= plan.slice_count <= 3

    emissions = spark.read.format("delta").load(str(lake / replay.output / "emissions"))
    assert emissions.select("_slice").distinct().count() >= 2
    assert count_emissions(spark, lake / replay.output / "emissions") == count_emissions(spark, result.table)

    late = spark.read.format("delta").load(str(lake / replay.output / "late")).where("reason = 'late'").count()
    assert late == result.dropped > 0


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["idle", "back_to_back"])
def test_live_query_by_slices_equals_pipeline(spark, lake, create_pipeline, run_query, batches):
    settings = create_pipeline(2, join={"type": "left"}, spark={"micro_batches": batches})
    result = run_query(settings, "slice")
    plan = create_plan(spark, settings, str(lake), Request(drain=True))
    list(execute(spark, plan, lambda *_: None))
    assert count_emissions(spark, lake / "orders" / "emissions") == count_emissions(spark, result.table)


def test_replay_equals_resumed_live_query(spark, lake, create_pipeline, write, run_query, tmp_path, capsys):
    """Run the query twice, with more rows the second time, and with a filter."""
    keys = [{"left": "upper(k)", "right": "concat(upper(k), '')"}]
    settings = create_pipeline(3, left__where="v <> 1", join={"keys": keys})
    command = ["stream", str(tmp_path / "pipeline.yaml"), "--lake", str(lake), "--rate", "now", "--json"]
    assert main(command) == 0

    first = json.loads(capsys.readouterr().out)
    write("left", list(generate_rows(random.Random(4), 60, 200)), SCHEMA)
    result = run_query(settings, "now")
    assert result.batches > first["batches"] > 0

    spark.sql(f"OPTIMIZE delta.`{lake}/left`")
    replay = load_pipeline(result.replay)
    run_replay(spark, lake, replay, result)
    assert count_emissions(spark, lake / replay.output / "emissions") == count_emissions(spark, result.table)

    end = parse_instant(result.replay_to) + timedelta(minutes=1)
    with pytest.raises(SliceOrderError, match="is after the batches of .* Use --to .* or earlier"):
        create_plan(spark, replay, str(lake), Request(end=end))
    with pytest.raises(SliceOrderError, match="--drain: has no effect with a streaming checkpoint"):
        create_plan(spark, replay, str(lake), Request(drain=True))

    other = replay.model_copy(update={"spark": replay.spark.model_copy(update={"multiple_watermark_policy": "max"})})
    with pytest.raises(InputError, match="ran with spark.sql.streaming.multipleWatermarkPolicy min"):
        create_plan(spark, other, str(lake), Request())

    other_table = replay.model_copy(update={"left": replay.left.model_copy(update={"table": "elsewhere"})})
    write("elsewhere", [(1, "a", START, START, 1)], SCHEMA)
    with pytest.raises(InputError, match="has not read the left table"):
        create_plan(spark, other_table, str(lake), Request())


@pytest.mark.slow
def test_replay_equals_live_query_over_files(spark, lake, pipeline, tmp_path, monkeypatch):
    """Read a file per batch; Delta tables contain its rows with the name of the file.

    The query filters after its watermark, but Spark pushes the filter below it, so filtered rows do not move it.
    """
    generator, sides = random.Random(5), {}
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for side, first in (("left", 0), ("right", 500)):
        folder = str(tmp_path / side)
        rows = sorted(generate_rows(generator, 150, first), key=lambda row: row[3] or START)
        for part in range(0, 150, 25):
            spark.createDataFrame(rows[part : part + 25], SCHEMA).coalesce(1).write.mode("append").parquet(folder)
        read = spark.read.parquet(folder).withColumn("source_file", F.col("_metadata.file_path"))
        read.write.format("delta").save(str(lake / side))
        live = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(folder)
        live = live.withWatermark("happened", "20 minutes" if side == "left" else "0 minutes")
        live = live.where("v <> 1")
        sides[side] = live.select(*(F.col(name).alias(f"{side}_{name}") for name in live.columns))
    condition = "left_k = right_k AND right_happened BETWEEN left_happened - INTERVAL 30 MINUTES AND left_happened"
    live = sides["left"].join(sides["right"], F.expr(condition)).withColumn("_emission", F.lit("matched"))
    checkpoint, table = str(tmp_path / "checkpoint"), str(lake / "streamed")
    sink = live.writeStream.format("delta").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    # Without inferred filters, which are off in Tidemark's sessions, Spark would join rows with null keys.
    with override_settings(spark, FILTER_INFERENCE_SETTINGS), tuned_for_tiny_queries(spark):
        sink.start(table).awaitTermination()

    monkeypatch.setenv("TIDEMARK_ALLOWED_ROOTS", str(tmp_path))  # the checkpoint is outside the lake
    arrival = {"streaming_checkpoint": checkpoint, "file_column": "source_file"}
    delays = {"left__watermark_delay": "20 minutes", "right__watermark_delay": "0 minutes"}
    delays |= {f"{side}__where": "v <> 1" for side in sides}
    slices = {"every": "1 hour", "start": f"{hour:%Y-%m-%dT%H:%M:%SZ}"}
    replay = pipeline(dialect="spark", left__arrival=arrival, right__arrival=arrival, slices=slices, **delays)
    trace = QueryTrace.read(spark, checkpoint, replay)
    assert len(trace.batches) >= 6

    end = from_micros(Grid.from_config(replay.slices).start_of(trace.find_end_slice(Grid.from_config(replay.slices))))
    list(execute(spark, create_plan(spark, replay, str(lake), Request(end=end)), lambda *_: None))
    expected = count_emissions(spark, table)
    assert count_emissions(spark, lake / "orders" / "emissions") == expected
    assert expected.total() > 10

    late = spark.read.format("delta").load(str(lake / "orders" / "late"))
    assert late.where("reason = 'late'").count() > 0


def test_replay_leaves_out_settings_that_the_checkpoint_replaces(pipeline, tmp_path):
    completeness = {"left__complete": "row", "right__complete": {"by": "commit"}}
    suite = {"name": "s", "expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "left_k"}}]}
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    periods = {"slices__every": "30 seconds", "compare": {"table": "t", "every": "90 seconds"}}
    settings = pipeline(
        dialect="spark",
        spark={"micro_batches": "back_to_back"},
        expectation_suite="suite.json",
        **completeness,
        **periods,
    )
    paths = LiveQueryPaths("table", str(tmp_path / "checkpoint"), "feed", str(tmp_path / "elsewhere" / "replay.yaml"))
    trace = SimpleNamespace(batches=[SimpleNamespace(clock=to_micros(START))])

    replay = load_pipeline(_write_replay(settings, paths, trace, has_feed=True))

    assert (replay.left.complete, replay.right.complete, replay.spark.micro_batches) == (None, None, "idle")
    assert replay.quality == settings.quality


def test_run_live_query_other_dialect_raises(pipeline, run_query):
    with pytest.raises(PipelineFileError, match="has dialect flink-datastream"):
        run_query(pipeline(), "slice")


def test_parse_rate_reads_each_form():
    assert [parse_rate(text) for text in ("slice", "now", "20 rows", "7")] == ["slice", "now", 20, 7]
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate("0 rows")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left__arrival": {"streaming_checkpoint": "c"}}, "Set the same streaming_checkpoint on both"),
        (
            {"left__arrival": {"streaming_checkpoint": "c"}, "right__arrival": {"streaming_checkpoint": "d"}},
            "Set the same streaming_checkpoint on both",
        ),
        (
            {
                "dialect": "flink-sql",
                "left__arrival": {"streaming_checkpoint": "c"},
                "right__arrival": {"streaming_checkpoint": "c"},
            },
            "only dialect spark has streaming checkpoints. Set a column for flink-sql",
        ),
        ({"left__arrival": {"streaming_checkpoint": "c", "starting": 3}}, "left.arrival.starting: unknown field"),
    ],
)
def test_pipeline_invalid_checkpoint_arrival_raises(pipeline, changes, message):
    with pytest.raises(PipelineFileError, match=message):
        pipeline(**{"dialect": "spark", **changes})
