"""A real Structured Streaming query of the same join, and its replay from its checkpoint: the same rows."""

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from tidemark.cli.app import main
from tidemark.config import load_pipeline
from tidemark.config.types import from_micros, parse_instant
from tidemark.errors import InputError, PipelineFileError, SliceOrderError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.streaming.live_query import TwinPaths, stream
from tidemark.streaming.replay_source import parse_rate
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.query_trace import QueryTrace

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "id int, k string, happened timestamp, arrived timestamp, v int"
REPEATED = "array_repeat(named_struct('left_id', left_id, 'right_id', right_id), left_v)"
BEFORE = {
    "left": {"sliding": {"size": "1 hour", "slide": "30 minutes"}},
    "right": {"tumbling": "20 minutes", "offset": "5 minutes"},
    "holds": "left <= right",
}
INTERVAL = {"lower": "-30 minutes", "upper": "1 hour", "upper_inclusive": False}


def rows_of(chance, count, first):
    """Rows over seven hours, some hours late, some without key or time, one that never arrived."""
    for number in range(first, first + count):
        arrived = START + timedelta(minutes=chance.randrange(7 * 60))
        happened = arrived - timedelta(microseconds=chance.randrange(chance.choice([1, 4]) * 3_600_000_000))
        when = None if chance.random() < 0.05 else happened
        yield number, chance.choice(["a", "b", None]), when, None if number == first else arrived, chance.randrange(5)


@pytest.fixture
def settings(write, pipeline):
    """A pipeline of dialect spark over inputs with disorder."""

    def make(seed, **changes):
        chance = random.Random(seed)
        for side, first in (("left", 0), ("right", 500)):
            write(side, list(rows_of(chance, 150, first)), SCHEMA)
        join = {"keys": ["k"], "interval": INTERVAL, **changes.pop("join", {})}
        return pipeline(dialect="spark", left__watermark_delay="20 minutes", join=join, **changes)

    return make


@pytest.fixture
def twin(spark, lake):
    def run(settings, rate):
        paths = TwinPaths.of(settings, str(lake), None, None)
        with tuned_for_tiny_queries(spark):
            return stream(spark, settings, str(lake), paths, rate, lambda *_: None)

    return run


def replayed(spark, lake, settings, told, per_job="auto"):
    """Run all slices of the pipeline that replays a twin; gives how many jobs that took."""
    end = parse_instant(told.replay_to)
    plan = make_plan(spark, settings, str(lake), Request(end=end, slices_per_job=per_job))
    return len(list(execute(spark, plan, lambda *_: None)))


def emitted(spark, path):
    rows = spark.read.format("delta").load(str(path))
    names = ("left_id", "right_id", "_window_start", "_window_end", "_right_window_start", "_right_window_end")
    ids = [F.col(name) if name in rows.columns else F.lit(None) for name in names]
    return Counter(tuple(row) for row in rows.select(*ids, "_emission").collect())


@pytest.mark.parametrize(
    ("join", "more"),
    [
        pytest.param({"type": "inner"}, {}, marks=pytest.mark.slow),
        (
            {"type": "left", "condition": "left_v <= 3 AND left_v <> right_v"},
            {"spark": {"watermark_policy": "max"}, "flatten": REPEATED},
        ),
        pytest.param(
            {"type": "semi", "interval": None, "window": {"sliding": {"size": "1 hour", "slide": "30 minutes"}}},
            {},
            marks=pytest.mark.slow,
        ),
        pytest.param({"type": "full", "interval": None, "window_inequality": BEFORE}, {}, marks=pytest.mark.slow),
    ],
    ids=["inner", "left, condition, max, flatten", "semi, sliding", "full, windows compared"],
)
def test_a_replay_of_the_twins_trace_equals_the_twin(spark, lake, settings, twin, join, more):
    told = twin(settings(str(join), join=join, **more), 60)
    assert told.batches >= 5
    assert told.dropped > 0
    expected = emitted(spark, told.table)
    assert expected.total() == told.rows > 30
    replay = load_pipeline(told.replay)
    assert replayed(spark, lake, replay, told) == 1
    assert emitted(spark, lake / replay.output / "emissions") == expected


@pytest.mark.slow
def test_a_replay_slice_by_slice_equals_the_twin(spark, lake, settings, twin):
    told_by = settings(1, join={"type": "left"})
    told = twin(told_by, 60)
    with pytest.raises(InputError, match="is there already"):
        twin(told_by, 60)
    replay = load_pipeline(told.replay)
    trace = QueryTrace.read(spark, told.checkpoint, replay)
    span = timedelta(microseconds=trace.batches[-1].clock - trace.batches[0].clock)
    # The third of the time that the query took, or a little more, has no regard for where its batches end.
    every = timedelta(seconds=span // timedelta(seconds=3) + 1)
    slices = replay.slices.model_copy(update={"every": every, "start": from_micros(trace.batches[0].clock)})
    thirds, grid = replay.model_copy(update={"slices": slices}), Grid.of(slices)
    plan = make_plan(spark, thirds, str(lake), Request(end=grid.datetime_of(trace.end(grid)), slices_per_job=1))
    list(execute(spark, plan, lambda *_: None))
    assert 2 <= plan.slices <= 3
    emissions = spark.read.format("delta").load(str(lake / replay.output / "emissions"))
    assert emissions.select("_slice").distinct().count() >= 2
    assert emitted(spark, lake / replay.output / "emissions") == emitted(spark, told.table)
    late = spark.read.format("delta").load(str(lake / replay.output / "late")).where("reason = 'late'").count()
    assert late == told.dropped > 0


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["idle", "back_to_back"])
def test_a_twin_by_slices_equals_the_pipeline_itself(spark, lake, settings, twin, batches):
    told_by = settings(2, join={"type": "left"}, spark={"batches": batches})
    told = twin(told_by, "slice")
    plan = make_plan(spark, told_by, str(lake), Request(drain=True))
    list(execute(spark, plan, lambda *_: None))
    assert emitted(spark, lake / "orders" / "emissions") == emitted(spark, told.table)


def test_a_live_query_over_the_inputs_is_replayed(spark, lake, settings, write, twin, tmp_path, capsys):
    """It begins with what is there, goes on with what comes, and is started twice; some rows it leaves out."""
    keys = [{"left": "upper(k)", "right": "concat(upper(k), '')"}]
    told_by = settings(3, left__where="v <> 1", join={"keys": keys})
    command = ["stream", str(tmp_path / "pipeline.yaml"), "--lake", str(lake), "--rate", "now", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    write("left", list(rows_of(random.Random(4), 60, 200)), SCHEMA)
    told = twin(told_by, "now")
    assert told.batches > first["batches"] > 0
    spark.sql(f"OPTIMIZE delta.`{lake}/left`")
    replay = load_pipeline(told.replay)
    replayed(spark, lake, replay, told)
    assert emitted(spark, lake / replay.output / "emissions") == emitted(spark, told.table)

    end = parse_instant(told.replay_to) + timedelta(minutes=1)
    with pytest.raises(SliceOrderError, match="is after the end of the trace"):
        make_plan(spark, replay, str(lake), Request(end=end))
    with pytest.raises(SliceOrderError, match="a trace tells which batches ran"):
        make_plan(spark, replay, str(lake), Request(drain=True))
    other = replay.model_copy(update={"spark": replay.spark.model_copy(update={"watermark_policy": "max"})})
    with pytest.raises(InputError, match="ran with spark.sql.streaming.multipleWatermarkPolicy min"):
        make_plan(spark, other, str(lake), Request())
    elsewhere = replay.model_copy(update={"left": replay.left.model_copy(update={"table": "elsewhere"})})
    write("elsewhere", [(1, "a", START, START, 1)], SCHEMA)
    with pytest.raises(InputError, match="has not read the left table"):
        make_plan(spark, elsewhere, str(lake), Request())


@pytest.mark.slow
def test_a_query_over_files_is_replayed(spark, lake, pipeline, tmp_path, monkeypatch):
    """A file a batch; the rows are in Delta tables that say from which file each came.

    The query filters behind its watermark, which Spark does below it: rows left out do not move it.
    """
    chance, sides = random.Random(5), {}
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for side, first in (("left", 0), ("right", 500)):
        folder = str(tmp_path / side)
        rows = sorted(rows_of(chance, 150, first), key=lambda row: row[3] or START)
        for part in range(0, 150, 25):
            spark.createDataFrame(rows[part : part + 25], SCHEMA).coalesce(1).write.mode("append").parquet(folder)
        read = spark.read.parquet(folder).withColumn("source_file", F.col("_metadata.file_path"))
        read.write.format("delta").save(str(lake / side))
        live = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(folder)
        live = live.withWatermark("happened", "20 minutes" if side == "left" else "0 minutes")
        live = live.where("v <> 1")
        sides[side] = live.select(*(F.col(name).alias(f"{side}_{name}") for name in live.columns))
    within = "left_k = right_k AND right_happened BETWEEN left_happened - INTERVAL 30 MINUTES AND left_happened"
    live = sides["left"].join(sides["right"], F.expr(within)).withColumn("_emission", F.lit("matched"))
    checkpoint, table = str(tmp_path / "checkpoint"), str(lake / "streamed")
    sink = live.writeStream.format("delta").option("checkpointLocation", checkpoint).trigger(availableNow=True)
    with tuned_for_tiny_queries(spark):
        sink.start(table).awaitTermination()

    monkeypatch.setenv("TIDEMARK_ROOTS", str(tmp_path))  # where the checkpoint is, which is not in the lake
    told = {"trace": checkpoint, "file": "source_file"}
    delays = {"left__watermark_delay": "20 minutes", "right__watermark_delay": "0 minutes"}
    delays |= {f"{side}__where": "v <> 1" for side in sides}
    slices = {"every": "1 hour", "start": f"{hour:%Y-%m-%dT%H:%M:%SZ}"}
    replay = pipeline(dialect="spark", left__arrival=told, right__arrival=told, slices=slices, **delays)
    trace = QueryTrace.read(spark, checkpoint, replay)
    assert len(trace.batches) >= 6
    end = from_micros(Grid.of(replay.slices).start_of(trace.end(Grid.of(replay.slices))))
    list(execute(spark, make_plan(spark, replay, str(lake), Request(end=end)), lambda *_: None))
    expected = emitted(spark, table)
    assert emitted(spark, lake / "orders" / "emissions") == expected
    assert expected.total() > 10
    late = spark.read.format("delta").load(str(lake / "orders" / "late"))
    assert late.where("reason = 'late'").count() > 0


def test_what_has_no_twin(pipeline, twin):
    with pytest.raises(PipelineFileError, match="is of dialect flink-datastream"):
        twin(pipeline(), "slice")


def test_rates():
    assert [parse_rate(text) for text in ("slice", "now", "20 rows", "7")] == ["slice", "now", 20, 7]
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate("0 rows")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left__arrival": {"trace": "c"}}, "name the same checkpoint on both"),
        ({"left__arrival": {"trace": "c"}, "right__arrival": {"trace": "d"}}, "name the same checkpoint on both"),
        (
            {"dialect": "flink-sql", "left__arrival": {"trace": "c"}, "right__arrival": {"trace": "c"}},
            "a trace is that of a Spark query; flink-sql needs a column",
        ),
        ({"left__arrival": {"trace": "c", "starting": 3}}, "left.arrival.starting: unknown field"),
    ],
)
def test_traces_that_make_no_sense(pipeline, changes, message):
    with pytest.raises(PipelineFileError, match=message):
        pipeline(**{"dialect": "spark", **changes})
