"""Import joins of Structured Streaming queries from their analysed plans."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from tidemark.cli.app import main
from tidemark.config import load_pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant
from tidemark.errors import ImportRefusedError, UserError
from tidemark.importing.draft_completion import ImportOptions, _create_table, create_draft
from tidemark.importing.expressions import Column
from tidemark.importing.pipeline_writer import format_pipeline_file
from tidemark.importing.spark_input import SparkInput
from tidemark.importing.spark_join import _check_reader, _list_reader_omissions, import_spark_join
from tidemark.importing.spark_query import _find_function, read_plan, read_settings
from tidemark.importing.stream_join import StreamInput
from tidemark.sources.resolution import open_inputs
from tidemark.spark.temporary_settings import override_settings
from tidemark.streaming.resume_query import filter_at_source, join_sides, select_side
from tidemark.streaming.spark_query import create_spark_query

SCHEMA = "id int, k string, happened timestamp, arrived timestamp, v int"
WINDOWS = {"sliding": {"size": "1 hour", "slide": "20 minutes"}, "offset": "7 minutes"}
EXPORTED = {
    "interval": {"interval": {"lower": "-30 minutes", "upper": "1 hour", "upper_inclusive": False}},
    "interval_left": {
        "type": "left",
        "interval": {"lower": "0 seconds", "lower_inclusive": False, "upper": "1 day 250 ms"},
        "condition": "(left_v < right_v) OR (left_id IN (1, 2))",
    },
    "one_bound": {"interval": {"upper": "10 minutes"}},
    "equality": {"type": "full", "event_time_equality": True},
    "equality_and_interval": {"event_time_equality": True, "interval": {"lower": "0 seconds", "upper": "1 second"}},
    "tumbling_semi": {"type": "semi", "window": {"tumbling": "10 minutes", "offset": "2 minutes"}},
    "tumbling_right": {"type": "right", "window": {"tumbling": "1 day"}},
    "sliding_inner": {"window": WINDOWS},
    "uneven_sliding": {"window": {"sliding": {"size": "1 hour", "slide": "25 minutes"}}},
    "window_inequality": {
        "window_inequality": {"left": WINDOWS, "right": {"tumbling": "20 minutes"}, "comparison": "left > right"}
    },
}
"""Joins that `tidemark stream` exports."""
OPTIONS = {"arrival": "event-time", "start": "2024-01-01T00:00Z", "every": "1 hour"}


@pytest.fixture
def read_back(tmp_path):
    """Return a function that writes a draft as a pipeline file, and loads it."""

    def read(draft):
        (tmp_path / "imported.yaml").write_text(format_pipeline_file(draft, "test"))
        return load_pipeline(tmp_path / "imported.yaml")

    return read


def test_import_of_a_live_query_gives_its_pipeline(spark, lake, write, pipeline, read_back):
    for side in SIDES:
        write(side, [], SCHEMA)
    changes = {"left__where": r"v > 3 AND k <> 'it\'s'", "left__watermark_delay": "1 minute 500 ms"}
    policy = {"spark": {"multiple_watermark_policy": "max", "late_watermark": "current_batch"}}
    for name, join in EXPORTED.items():
        expected = pipeline(
            dialect="spark", join={"keys": ["k", {"left": "id", "right": "v"}], **join}, **changes, **policy
        )
        inputs = open_inputs(spark, expected, str(lake))
        query = asdict(create_spark_query(expected, inputs))
        streams = [spark.readStream.format("delta").load(source.table.path) for source in inputs]
        sides = {
            side: select_side(filter_at_source(rows, query[side]), side, query[side]["columns"], query[side]["time"])
            for side, rows in zip(SIDES, streams, strict=True)
        }
        with override_settings(spark, query["settings"]):
            stream_join = import_spark_join(read_plan(join_sides(query, sides)), name, None, read_settings(spark))
        imported = read_back(create_draft(stream_join, ImportOptions("", str(lake), **OPTIONS)))

        assert (name, imported.join) == (name, expected.join)
        assert imported.spark == expected.spark
        for side in SIDES:
            source, expected_source = getattr(imported, side), getattr(expected, side)
            assert source.table == expected_source.table, "the path of the stream, relative to the lake root"
            assert source.event_time == expected_source.event_time
            assert source.watermark_delay == expected_source.watermark_delay
        assert imported.left.where == expected.left.where


QUERIES = """
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def read(name):
    rows = SparkSession.active().readStream.format("rate").load()
    return rows.select(F.col("value").alias(f"{name}Id"), F.col("timestamp").alias(f"{name}Time"))


impressions, clicks = read("impression"), read("click")
watermarked = impressions.withWatermark("impressionTime", "2 hours"), clicks.withWatermark("clickTime", "3 hours")
SAME = "impressionId = clickId"


def documented():
    condition = f"{SAME} AND clickTime >= impressionTime AND clickTime <= impressionTime + interval 1 hour"
    return watermarked[0].join(watermarked[1], F.expr(condition), "leftOuter")


def filtered_after(spark):
    pairs = watermarked[0].join(watermarked[1], F.expr(SAME))
    return pairs.where("clickTime BETWEEN impressionTime AND impressionTime + interval 1 hour").where("clickId > 2")


def windowed():
    first, second = (rows.withColumn("w", F.window(f"{name}Time", "5 minutes"))
                     for name, rows in zip(("impression", "click"), watermarked))
    return first.join(second, "w").where(SAME).select("w", "impressionId", F.col("clickTime").alias("at"))


def no_time():
    return impressions.join(clicks, F.expr(SAME))


def aggregated():
    return impressions.withWatermark("impressionTime", "1 hour").groupBy(F.window("impressionTime", "1 hour")).count()


def filtered_outer():
    return documented().where("clickId IS NULL")


def late_filter():
    return watermarked[0].where("impressionTime > timestamp'2024-01-01'").join(watermarked[1], F.expr(SAME))


def twice():
    condition = f"{SAME} AND clickTime <= impressionTime + interval 1 hour + interval 1 hour"
    return watermarked[0].join(watermarked[1], F.expr(condition))


def static():
    return watermarked[0].join(SparkSession.active().range(3), F.expr("id = impressionId"))


def batch():
    return SparkSession.active().range(3)


def chained():
    third = read("third").withWatermark("thirdTime", "1 hour")
    return documented().join(third, F.expr("thirdId = clickId AND thirdTime <= clickTime + interval 1 hour"))


def time_as_key():
    second = clicks.withColumn("other", F.col("clickTime")).withColumn("clickTime", F.expr("other + interval 1 day"))
    condition = F.expr(f"{SAME} AND other = impressionTime")
    return watermarked[0].join(second.withWatermark("clickTime", "1 hour"), condition)


def random_filter():
    return watermarked[0].where(F.rand() < 0.1).join(watermarked[1], F.expr(f"{SAME} AND clickTime = impressionTime"))


def cast_filter():
    first = watermarked[0].where("try_cast(CAST(impressionId AS STRING) AS INT) > 2")
    return first.join(watermarked[1], F.expr(f"{SAME} AND clickTime = impressionTime"))


def escaped_filter():
    first = watermarked[0].where("CAST(impressionId AS STRING) LIKE '1!%' ESCAPE '!'")
    return first.join(watermarked[1], F.expr(f"{SAME} AND clickTime = impressionTime"))


def null_safe():
    return watermarked[0].join(watermarked[1], F.expr("impressionId <=> clickId AND clickTime = impressionTime"))


def uneven():
    first, second = (rows.withColumn("w", F.window(f"{name}Time", size))
                     for name, rows, size in zip(("impression", "click"), watermarked, ("5 minutes", "6 minutes")))
    return first.join(second, "w").where(SAME)


BOUND = f"{SAME} AND clickTime BETWEEN impressionTime AND impressionTime + interval"


def days():
    return watermarked[0].join(watermarked[1], F.expr(f"{BOUND} 7 days"))


def text_filter():
    second = clicks.where("clickTime > '2024-01-01'").withWatermark("clickTime", "3 hours")
    return watermarked[0].join(second, F.expr(f"{BOUND} 1 hour"))


def residual_time():
    return watermarked[0].join(watermarked[1], F.expr(f"{BOUND} 1 hour AND date(clickTime) >= date(impressionTime)"))


def residual_time_after():
    pairs = watermarked[0].join(watermarked[1], F.expr(f"{BOUND} 1 hour"))
    return pairs.where("date(clickTime) > date(impressionTime)")


def filtered_time_outer():
    return watermarked[0].join(watermarked[1], F.expr(f"{BOUND} 1 hour AND clickTime >= '2024-01-01'"), "leftOuter")


def filtered_time():
    pairs = watermarked[0].join(watermarked[1], F.expr(f"{BOUND} 1 hour AND impressionTime >= '2024-01-01'"))
    return pairs.where("clickTime IS NOT NULL")


def computed_bound():
    first = watermarked[0].withColumn("deadline", F.expr("impressionTime + interval 1 hour"))
    return first.join(watermarked[1], F.expr(f"{SAME} AND clickTime BETWEEN impressionTime AND deadline"), "leftOuter")


def moved_time():
    first = watermarked[0].withColumn("impressionTime", F.expr("impressionTime + interval 1 hour"))
    return first.join(watermarked[1], F.expr(f"{SAME} AND clickTime >= impressionTime"))


def window_before_watermark():
    first, second = (rows.withColumn("w", F.window(f"{name}Time", "5 minutes")).withWatermark(f"{name}Time", "1 hour")
                     for name, rows in (("impression", impressions), ("click", clicks)))
    return first.join(second, "w").where(SAME)


def other_times():
    first, second = (rows.withColumn(name, F.expr(f"timestamp_millis({name}Id)"))
                     for name, rows in zip(("impression", "click"), watermarked))
    return first.join(second, F.expr(f"{SAME} AND click >= impression"))


def no_watermarks():
    return impressions.join(clicks, F.expr(f"{BOUND} 1 hour"))


def with_parts(spark):
    watermarked[0].createOrReplaceTempView("impressions")
    watermarked[1].createOrReplaceTempView("clicks")
    parts = "i AS (SELECT impressionTime, impressionId FROM impressions WHERE impressionId > 1), c AS (TABLE clicks)"
    return spark.sql(f"WITH {parts} SELECT impressionId AS _id, clickId AS id FROM i JOIN c ON {BOUND} 1 hour")


def with_part_twice(spark):
    impressions.withWatermark("impressionTime", "1 hour").createOrReplaceTempView("impressions")
    condition = "a.impressionId = b.impressionId AND b.impressionTime = a.impressionTime"
    part = "i AS (SELECT * FROM impressions WHERE impressionId > 1)"
    return spark.sql(f"WITH {part} SELECT a.impressionId FROM i AS a JOIN i AS b ON {condition}")


def repartitioned():
    return watermarked[0].repartition(3).join(watermarked[1].coalesce(1), F.expr(f"{BOUND} 1 hour"))


def epoch(spark):
    first = impressions.select("impressionId", F.expr("CAST(impressionId AS TIMESTAMP) AS impressionTime"))
    return first.withWatermark("impressionTime", "1 hour").join(watermarked[1], F.expr(f"{BOUND} 1 hour"))


def broken():
    raise ValueError("no broker")
"""
REASONS = {
    "aggregated": "has no join of two streams",
    "static": "has no join of two streams",
    "batch": "does not return a streaming DataFrame",
    "no_time": "compares neither the event times nor windows of both inputs",
    "filtered_outer": "filters the rows of an outer or semi join",
    "late_filter": "filtered by its event time after the watermark",
    "twice": "adds two intervals to a time",
    "chained": "there are 2 joins. Choose with --join N: 1: inner join; 2: left join",
    "time_as_key": "compares the event time of one input with another column",
    "random_filter": "a filter of an input has Rand",
    "cast_filter": "a filter of an input has try_cast",
    "escaped_filter": "a filter of an input has LikeWithEscape",
    "null_safe": "is compared by <=>",
    "uneven": "windows of different sizes",
    "residual_time": "reads timestamp, the event time of the left input, by which Spark evicts rows. Compare only",
    "residual_time_after": "reads timestamp, the event time of the left input",
    "filtered_time_outer": "the right input, by which Spark evicts rows. Filter the input before the join",
    "filtered_time": "the left input, by which Spark evicts rows. Filter the input before the join and before",
    "computed_bound": "reads timestamp, the event time of the left input, by which Spark evicts rows. Compare only",
    "moved_time": "are not those of withWatermark",
    "window_before_watermark": "a window computed before withWatermark",
    "other_times": "are not those of withWatermark",
    "broken": "broken failed: ValueError: no broker",
    "missing": "has no function missing",
}


@pytest.fixture
def queries(tmp_path, monkeypatch):
    """Write the module of queries, and work in its folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stream_queries.py").write_text(QUERIES)
    yield "stream_queries"
    sys.modules.pop("stream_queries", None)


FILLED = [
    "--left-table",
    "i",
    "--right-table",
    "c",
    "--arrival",
    "at",
    "--start",
    "2024-01-01T00:00Z",
    "--every",
    "1 m",
]


def test_import_of_a_function_writes_its_query(spark, queries, tmp_path):
    for function in ("documented", "filtered_after", "windowed"):
        assert main(["import", f"{queries}:{function}", *FILLED]) == 0

    documented, filtered, windowed = map(load_pipeline, ("documented.yaml", "filtered_after.yaml", "windowed.yaml"))
    assert documented.join.model_dump(mode="json", exclude_defaults=True) == {
        "type": "left",
        "keys": [{"left": "value", "right": "value"}],
        "interval": {"lower": "0 seconds", "upper": "1 hour"},
    }
    assert filtered.join.interval == documented.join.interval
    assert filtered.join.condition == "right_value > 2"
    assert windowed.join.window.tumbling.total_seconds() == 300
    assert windowed.select == {"impressionId": "left_value", "at": "right_timestamp"}


def test_import_of_a_query_that_a_pipeline_cannot_express_is_refused(spark, queries, capsys, tmp_path):
    for function, reason in REASONS.items():
        assert main(["import", f"{queries}:{function}", *FILLED]) == 2
        assert reason in " ".join(capsys.readouterr().err.split())
    assert main(["import", f"{queries}:chained", "--join", "1", *FILLED]) == 2
    assert "the left input of the join is another join" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("*.yaml"))
    assert main(["import", f"{queries}:chained", "--join", "2", *FILLED]) == 0
    assert "before Join" in capsys.readouterr().out


ZONE = "spark.sql.session.timeZone"


def test_import_of_days_in_another_time_zone_is_refused(spark, queries, capsys):
    assert main(["import", f"{queries}:days", *FILLED]) == 0
    assert f"- {ZONE}: The query is analysed in UTC." in capsys.readouterr().out
    assert load_pipeline("days.yaml").join.interval.upper.days == 7

    berlin = ["--conf", f"{ZONE}=Europe/Berlin"]
    assert main(["import", f"{queries}:days", *FILLED, *berlin, "--output", "berlin.yaml"]) == 2
    assert "adds days in the time zone Europe/Berlin" in " ".join(capsys.readouterr().err.split())
    assert spark.conf.get(ZONE) == "UTC"


def test_import_analyses_the_query_in_the_time_zone_of_the_job(spark, queries, capsys):
    berlin = ["--conf", f"{ZONE}=Europe/Berlin"]

    assert main(["import", f"{queries}:text_filter", *FILLED, *berlin]) == 2
    assert "a cast in the time zone Europe/Berlin" in " ".join(capsys.readouterr().err.split())
    assert main(["import", f"{queries}:documented", *FILLED, *berlin]) == 0
    assert ZONE not in capsys.readouterr().out
    assert main(["import", f"{queries}:days", *FILLED, "--conf", f"{ZONE}=Nowhere"]) == 2
    assert f"--conf {ZONE}=Nowhere: Spark refuses it." in " ".join(capsys.readouterr().err.split())


def test_import_of_an_inner_join_without_watermarks_has_no_delays(spark, queries):
    assert main(["import", f"{queries}:no_watermarks", *FILLED]) == 0

    pipeline = load_pipeline("no_watermarks.yaml")
    assert pipeline.join.interval.upper.total_seconds() == 3600
    assert pipeline.left.watermark_delay is pipeline.right.watermark_delay is None
    assert pipeline.left.event_time.column == "timestamp"


def test_import_reads_parts_of_with_and_repartitions(spark, queries):
    for function in ("with_parts", "with_part_twice", "repartitioned"):
        assert main(["import", f"{queries}:{function}", *FILLED]) == 0

    pipeline = load_pipeline("with_parts.yaml")
    assert (pipeline.left.where, pipeline.right.where) == ("value > 1", None)
    assert pipeline.join == load_pipeline("repartitioned.yaml").join
    assert pipeline.select == {"id_2": "left_value", "id": "right_value"}
    twice = load_pipeline("with_part_twice.yaml")
    assert twice.left.where == twice.right.where == "value > 1"
    assert twice.join.event_time_equality


def test_import_of_a_cast_number_as_event_time_has_its_unit(spark, queries):
    policy = ["--conf", "spark.sql.streaming.multipleWatermarkPolicy=MAX"]

    assert main(["import", f"{queries}:epoch", *FILLED, *policy]) == 0

    pipeline = load_pipeline("epoch.yaml")
    assert (pipeline.left.event_time.column, pipeline.left.event_time.unit) == ("value", "s")
    assert pipeline.spark.multiple_watermark_policy == "max"


@pytest.fixture
def read_delta(lake, write, monkeypatch):
    """Return a function that writes a module with a query over Delta tables with options of the left reader."""
    for side in SIDES:
        write(side, [], SCHEMA)
    monkeypatch.chdir(lake)
    monkeypatch.setenv("TIDEMARK_LAKE", str(lake))

    def write_module(options):
        Path(lake, "delta_queries.py").write_text(f"""
from pyspark.sql import functions as F


def build(spark):
    left, right = (
        spark.readStream.format("delta").options(**options).load(f"{lake}/{{side}}").withWatermark("happened", "1 hour")
        for side, options in (("left", {options!r}), ("right", {{}}))
    )
    return left.alias("l").join(right.alias("r"), F.expr("l.k = r.k AND r.happened = l.happened"))
""")
        sys.modules.pop("delta_queries", None)
        return "delta_queries:build"

    yield write_module
    sys.modules.pop("delta_queries", None)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"startingVersion": "0"}, 0),
        ({"startingVersion": "latest"}, "TODO"),
        ({"startingTimestamp": "2024-01-01"}, "TODO"),
    ],
)
def test_import_writes_where_the_reader_begins_or_leaves_it_open(options, value, spark, read_delta, lake, capsys):
    source = read_delta(options)
    offsets = lake / "checkpoint" / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / "0").write_text(f"v1\n{json.dumps({'batchTimestampMs': 1_704_067_199_500})}\n{{}}")
    name = next(iter(options))

    assert main(["import", source, "--arrival", "arrived", "--output", "c.yaml"]) == 0
    omission = f"- left.arrival.starting_version: The reader has {name} {options[name]}"
    assert (omission in capsys.readouterr().out) == (value != 0), "version 0 is the table's beginning"
    assert main(["import", source, "--arrival", "checkpoint:checkpoint", "--output", "r.yaml"]) == 0
    assert "left.arrival.starting_version: The reader" not in capsys.readouterr().out
    content = yaml.safe_load(Path("r.yaml").read_text())
    assert content["left"]["arrival"]["starting_version"] == value
    assert "starting_version" not in content["right"]["arrival"]


@pytest.mark.parametrize(
    ("filters", "remedy"),
    [
        ((), "leave out earlier rows by --set left.where=CONDITION"),
        ((Column(("ok",), "boolean", "left"),), "add a condition to left.where in the file"),
    ],
)
def test_omission_of_a_start_does_not_advise_to_replace_an_imported_filter(filters, remedy):
    rows = SparkInput("delta", {"startingversion": "7"}, {}, filters=filters)

    assert [remedy in omission.reason for omission in _list_reader_omissions("left", rows)] == [True]


def test_import_of_a_change_feed_is_refused():
    rows = SparkInput("delta", {"readchangefeed": "true"}, {})

    with pytest.raises(ImportRefusedError, match=r"reads the changes of a table \(readChangeFeed\)"):
        _check_reader("left", rows)


def test_import_with_a_checkpoint_replays_its_batches(spark, queries, tmp_path, capsys):
    offsets = tmp_path / "lake" / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    header = {
        "batchWatermarkMs": 0,
        "batchTimestampMs": 1_704_067_199_500,
        "conf": {"spark.sql.streaming.multipleWatermarkPolicy": "max"},
    }
    (offsets / "0").write_text(f"v1\n{json.dumps(header)}\n{{}}")
    tables = ["--left-table", "i", "--right-table", "c", "--arrival", "checkpoint:checkpoint"]

    assert main(["import", f"{queries}:documented", *tables]) == 0

    assert "Fill in" not in capsys.readouterr().out
    settings = load_pipeline("documented.yaml").model_dump(mode="json", exclude_defaults=True)
    assert settings["left"]["arrival"] == {"streaming_checkpoint": "checkpoint"}
    assert settings["slices"] == {"every": "1 hour", "start": "2023-12-31T23:00Z"}
    assert settings["spark"] == {"multiple_watermark_policy": "max"}

    by_uri = [*tables[:-1], f"checkpoint:file://{tmp_path}/lake/checkpoint", "--output", "by_uri.yaml"]
    assert main(["import", f"{queries}:documented", *by_uri]) == 0
    assert load_pipeline("by_uri.yaml").spark.multiple_watermark_policy == "max"
    days = [*tables, "--every", "1 day", "--set", "slices.time_zone=Europe/Berlin", "--output", "days.yaml"]
    assert main(["import", f"{queries}:documented", *days]) == 0
    assert format_instant(load_pipeline("days.yaml").slices.start) == "2023-12-31T23:00Z"
    assert main(["import", f"{queries}:documented", *tables, "--every", "0 s", "--output", "zero.yaml"]) == 2
    assert "--every: '0 s' is not positive." in capsys.readouterr().err


def test_import_with_a_checkpoint_that_lost_its_first_batch_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert main(["import", "m:build", "--arrival", "checkpoint:checkpoint"]) == 2
    assert "has no first batch." in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("path", "table"),
    [
        ("lake/raw/orders", "raw/orders"),
        ("file:///elsewhere/orders", "/elsewhere/orders"),
        ("s3a://bucket/orders", "s3a://bucket/orders"),
        ("dbfs:/mnt/orders", "dbfs:/mnt/orders"),
    ],
)
def test_table_of_a_stream_is_relative_to_the_lake_root(path, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = StreamInput("delta", {}, "delta", path)

    assert _create_table("left", source, None, str(tmp_path / "lake")).value == table


def test_import_of_an_invalid_module_is_one_line(queries, tmp_path):
    (tmp_path / "invalid_queries.py").write_text("def build(:")
    for source, message in (
        (":build", ":build names no module"),
        ("invalid_queries:build", "invalid_queries failed: SyntaxError: .* Import it in a Python session first"),
        (".queries:build", ".queries failed: TypeError"),
    ):
        with pytest.raises(UserError, match=message):
            _find_function(source)


def test_import_of_an_unknown_module_is_one_line(spark, queries, capsys):
    assert main(["import", "no_such_module:build"]) == 2
    assert "no_such_module cannot be imported" in " ".join(capsys.readouterr().err.split())
