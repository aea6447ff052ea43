"""Flink reference jobs over small inputs give the output of the pipeline."""

import random
from copy import deepcopy
from datetime import UTC, datetime, timedelta

import pytest

from jobs import flink_java, flink_reference
from jobs.flink_streams import FlinkStreams
from tests.conftest import PROJECT, write_pipeline
from tidemark.comparison import ComparisonRequest, compare
from tidemark.config import load_pipeline
from tidemark.errors import InputError, PipelineFileError, UserError
from tidemark.execution.run import execute
from tidemark.pipeline_tests.chain import Chain
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.streaming.flink_query import create_flink_query
from tidemark.streaming.flink_windows import create_window_settings

START = datetime(2024, 1, 1, tzinfo=UTC)
AUTUMN_CLOCK_CHANGE = datetime(2024, 10, 27, 1, tzinfo=UTC)
"""The end of summer time in Europe/Berlin."""
BY_TIME = {"dialect": "flink-sql", "left__arrival": None, "right__arrival": None}
RECORDED = {"left__watermark_delay": None, "left__recorded_watermark": "w"}
BOUNDS = {"lower": "-30 minutes", "upper": "0 seconds", "lower_inclusive": False}
TRIGGERED = {
    "dialect": "flink-datastream",
    "left__tiebreak": "position",
    "right__tiebreak": "position",
    "join": {
        "keys": ["k"],
        "window": {"tumbling": "20 minutes", "offset": "-1 minute"},
        "allowed_lateness": "2 minutes",
        "trigger": {"delta": "90 seconds", "purging": True},
        "evictor": {"count": 3, "evict_after": True},
    },
}


def generate_rows(seed, start=START):
    """Generate rows over three hours on whole minutes: many simultaneous, some without a key, one without a time."""
    generator = random.Random(seed)
    for number in range(150):
        happened = start + timedelta(minutes=generator.randrange(180), microseconds=generator.choice([0, 400]))
        yield generator.choice(["a", "b", "", None]), None if number == 0 else happened, number / 2, [number]


@pytest.mark.skipif(not flink_java.FLINK.exists(), reason="make flink-reference installs Flink")
@pytest.mark.parametrize(
    ("join", "start", "changes"),
    [
        ({"type": "full", "interval": BOUNDS}, START, {}),
        (
            {
                "type": "left",
                "window": {"sliding": {"size": "20 minutes", "slide": "10 minutes"}, "offset": "-1 minute"},
            },
            START,
            {},
        ),
        (
            {"type": "full", "window": {"tumbling": "20 minutes"}},
            AUTUMN_CLOCK_CHANGE - timedelta(hours=2),
            {"time_zone": "Europe/Berlin", "slices__start": "2024-10-26T00:00Z"},
        ),
    ],
    ids=["interval", "window", "local time"],
)
def test_run_flink_reference_sql_join_equals_the_pipeline(spark, lake, write, pipeline, join, start, changes):
    for side, seed in (("left", 1), ("right", 2)):
        write(side, list(generate_rows(seed, start)), "k string, happened timestamp, v double, tags array<int>")
    settings = pipeline(**BY_TIME, join={"keys": ["k"], **join}, **changes)

    with tuned_for_tiny_queries(spark):
        reference = flink_reference.run_flink_reference(spark, settings, str(lake))
        list(execute(spark, create_plan(spark, settings, str(lake), Request(drain=True)), lambda *_: None))
        comparison = compare(spark, settings, str(lake), ComparisonRequest(reference.table, try_settings=False), None)

    assert reference.rows_read == 2 * 149
    assert (comparison.same, comparison.causes) == (reference.rows, ())
    table = spark.read.format("delta").load(reference.table)
    emissions = {row["_emission"] for row in table.select("_emission").collect()}
    assert emissions == {"matched", "padded_left", *(["padded_right"] if join["type"] == "full" else [])}


@pytest.mark.skipif(not flink_java.FLINK.exists(), reason="make flink-reference installs Flink")
@pytest.mark.parametrize("changes", [TRIGGERED, {}], ids=["window", "interval"])
def test_run_flink_reference_by_arrival_equals_the_pipeline(spark, lake, write, pipeline, changes):
    columns = "k string, happened timestamp, v double, arrived timestamp, position bigint"
    for side, seed in (("left", 1), ("right", 2)):
        generator = random.Random(seed)
        delays = [timedelta(minutes=generator.randrange(15)) for _ in range(150)]
        rows = [
            (key, time, v, (time or START) + delay)
            for (key, time, v, _), delay in zip(generate_rows(seed), delays, strict=True)
        ]
        write(side, [(*row, position) for position, row in enumerate(rows)], columns)
    settings = pipeline(**deepcopy(changes), left__where="v > 5")

    with tuned_for_tiny_queries(spark):
        reference = flink_reference.run_flink_reference(spark, settings, str(lake))
        list(execute(spark, create_plan(spark, settings, str(lake), Request(drain=True)), lambda *_: None))
        comparison = compare(spark, settings, str(lake), ComparisonRequest(reference.table, try_settings=False), None)

    assert reference.rows > 20
    assert (comparison.same, comparison.causes) == (reference.rows, ())


def test_create_window_settings_converts_spans_to_milliseconds(pipeline):
    spans = {"left_lag": 600_001, "right_lag": 1, "allowed_lateness": 120_000, "delta": 90_000}
    windows = {"size": 1_200_000, "offset": -60_000}

    settings = create_window_settings(pipeline(**deepcopy(TRIGGERED)))

    assert settings == {**spans, **windows, "purging": 1, "evictor_count": 3, "evictor_after": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"join__trigger": "processing_time", "join__evictor": None}, "depends on processing time"),
        ({"join__api": "cogroup"}, "is a coGroup, and this job writes pairs"),
        ({"join__condition": "left_v > 1"}, "has a join.condition in Spark SQL"),
        ({"left__tiebreak": None}, "Give both inputs a tiebreak"),
        ({"left__partition": "k"}, "has partitions or idle_timeout on left"),
    ],
    ids=["clock", "coGroup", "condition", "order", "partitions"],
)
def test_create_window_settings_unsupported_join_raises(pipeline, changes, message):
    with pytest.raises(PipelineFileError, match=message):
        create_window_settings(pipeline(**(deepcopy(TRIGGERED) | changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dialect": "spark"}, "orders has dialect spark. A Flink reference needs"),
        ({"join__condition": "left_v > 1"}, "has a join.condition in Spark SQL"),
        (
            {"left__arrival": "arrived", "right__arrival": "arrived", **RECORDED},
            "left.recorded_watermark.* Name a delay",
        ),
        ({"join": {"keys": ["k"], "window": {"session": {"gap": "1 hour"}}}}, "joins on sessions"),
        ({"join__interval__lower": "-100 days"}, "more than 99 days apart"),
        (
            {"join": {"keys": ["k"], "window": {"tumbling": "1 day"}}, "time_zone": "Australia/Adelaide"},
            "is in Australia/Adelaide, where delays decide the rows of a window",
        ),
    ],
    ids=["dialect", "condition", "recorded", "sessions", "far apart", "time zone"],
)
def test_create_flink_query_unsupported_join_raises(pipeline, changes, message):
    with pytest.raises(PipelineFileError, match=message):
        create_flink_query(pipeline(**(BY_TIME | changes)), "rows", "answer")


def write_chain_by_arrival(folder, dialect, **second):
    """Write two pipelines in order of arrival, and load the second one, which also joins on a column of each table."""
    times = {"event_time": "happened", "arrival": "arrived", "watermark_delay": "10 minutes", "tiebreak": "position"}
    tables = {side: {"table": side, **times} for side in ("left", "right")}
    write_pipeline(folder / "orders.yaml", dialect=dialect, **tables, output_stream=True)
    left = {"pipeline": "orders", **({"event_time": "right"} if dialect == "flink-sql" else {})}
    keys = [{"left": "left_k", "right": "k"}, {"left": "right_place", "right": "place"}]
    changes = {"name": "shipped", "left": left, "right": {"table": "shipments", **times}, "join__keys": keys, **second}
    return write_pipeline(folder / "shipped.yaml", dialect=dialect, **changes)


def row(input_name, number, clock, event_time, *keys):
    values = {"input": input_name, "number": number, "clock": clock, "tiebreak": 0}
    return values | {"event_time": event_time, "keys": keys, "is_filtered": False}


ROWS = [
    row("orders.left", 0, 1, 3_600_000, "=a", "=a"),
    row("orders.right", 1, 2, 3_500_000, "=a", None),
    row("right", 2, 2, 7_000, "=a", "=b"),
    row("orders.right", 3, 3, 60_000, "=a", "=b"),
    {**row("right", 4, 4, 9_000, "=c", "=b"), "is_filtered": True},
]
"""Rows of which two are simultaneous, the fourth is older than one before, and the last only moves the watermark."""


def test_list_lines_chain_of_intervals_joins_by_columns_of_both_tables(tmp_path):
    chain = Chain.from_pipeline(write_chain_by_arrival(tmp_path, "flink-datastream"))

    lines = [line.split("\t") for line in FlinkStreams(chain).list_lines(ROWS)]

    assert lines == [
        ["inputs", "input_0", "input_1", "input_2"],
        ["keys", "2"],
        ["pairs", "join_0", "input_1", "input_2", "-1800000", "0", "0", "0"],
        ["pairs", "join_1", "join_0", "input_0", "-1800000", "0", "2,5", "0,2"],
        ["output", "join_1"],
        ["event", "input_1", "=a", "3600000", "2999999", "0", "=a"],
        ["row", "input_2", "=a", "3500000", "2899999", "1", ""],
        ["row", "input_0", "=a", "7000", "-593001", "2", "=b"],
        ["wait"],
        ["watermark", "input_2", "2899999"],
        ["watermark", "input_0", "-593001"],
        ["wait"],
        ["event", "input_2", "=a", "60000", "2899999", "3", "=b"],
        ["watermark", "input_0", "-591001"],
        ["wait"],
        ["end"],
    ]


def test_list_lines_window_join_after_interval_join_selects_ids_and_bounds(tmp_path):
    second = {"join__type": "full", "join__interval": None, "join__window": {"tumbling": "1 hour"}}
    chain = Chain.from_pipeline(write_chain_by_arrival(tmp_path, "flink-sql", **second))

    lines = [line.split("\t") for line in FlinkStreams(chain).list_lines([ROWS[0], *ROWS[2:]])]

    ((*_, view),) = [line for line in lines if line[0] == "view"]
    assert view.startswith("SELECT l.k AS input_1_k, l.id AS input_1_id, l.k2 AS input_1_k2, r.k AS input_2_k, ")
    assert "r.ts AS ts FROM input_1_rows l INNER JOIN input_2_rows r ON l.k = r.k AND r.ts >= l.ts + " in view
    ((_, query),) = [line for line in lines if line[0] == "query"]
    bounds = "COALESCE(l.window_start, r.window_start), COALESCE(l.window_end, r.window_end)"
    assert query.startswith(f"SELECT l.input_1_id, l.input_2_id, r.id, {bounds} FROM (SELECT * FROM TABLE(TUMBLE(")
    assert "r ON l.input_1_k2 = r.k AND l.input_2_k2 = r.k2 AND l.window_start = r.window_start" in query
    assert ["event", "input_1", "=a", "3600000", "3000000", "0", "=a"] in lines


def test_list_lines_simultaneous_rows_of_flink_sql_raises(tmp_path):
    lines = FlinkStreams(Chain.from_pipeline(write_chain_by_arrival(tmp_path, "flink-sql"))).list_lines(ROWS)
    with pytest.raises(InputError, match="2 rows of orders.right and right have arrival .* and the same tiebreak"):
        list(lines)


@pytest.mark.parametrize(
    ("dialect", "second", "message"),
    [
        ("flink-datastream", {"join__interval": None, "join__window": {"tumbling": "1 hour"}}, "is a window join of"),
        (
            "flink-sql",
            {"join__min_cleanup_interval": "1 minute"},
            "orders has another min_cleanup_interval than shipped",
        ),
        ("flink-sql", {"right__tiebreak": None}, "Give right a tiebreak"),
        ("flink-sql", {"left__where": "left_k > 'a'"}, "has left.where on the output of a pipeline"),
        ("flink-sql", {"join__keys": [{"left": "lower(left_k)", "right": "k"}]}, r"has the key lower\(left_k\), and"),
        ("flink-sql", {"join__condition": "right_v > 1"}, "has a join.condition in Spark SQL"),
        ("flink-datastream", {"join__interval__upper_inclusive": False, "join__interval__lower": "0 s"}, "has no time"),
    ],
    ids=["windows", "cleanup", "order", "where", "computed key", "condition", "empty interval"],
)
def test_flink_streams_unsupported_chain_raises(tmp_path, dialect, second, message):
    chain = Chain.from_pipeline(write_chain_by_arrival(tmp_path, dialect, **second))
    with pytest.raises(PipelineFileError, match=message):
        FlinkStreams(chain)


@pytest.mark.parametrize(
    "select", [{"at": "_slice"}, ["left_k", "left__window_start"], {"n": "coalesce(left_right__emitted_at, 1)"}]
)
def test_choose_job_selected_column_of_tidemark_alone_raises(tmp_path, pipeline, select):
    with pytest.raises(PipelineFileError, match="orders selects .*, which Flink does not provide"):
        flink_reference.choose_job(Chain.from_pipeline(pipeline(select=select)), tmp_path)


def test_run_flink_reference_without_flink_names_the_remedy(monkeypatch, lake):
    monkeypatch.setattr(flink_java, "FLINK", PROJECT / ".venv-nowhere" / "bin" / "python")
    settings = load_pipeline(PROJECT / "benchmarks" / "flights_weather_sql.yaml")
    with pytest.raises(UserError, match="Flink is not installed in .venv-nowhere. Run make flink-reference"):
        flink_reference.run_flink_reference(None, settings, str(lake))
