"""Propose pipeline files for two tables, from their logs and samples, without a JVM."""

import io
import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.cli.app import main
from tidemark.config import load_pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import to_micros
from tidemark.importing.delay_proposal import MAX_LATE_SHARE, create_delay_choice
from tidemark.importing.table_sample import SampleLimits, read_sample
from tidemark.importing.time_candidates import create_arrival_choice, create_event_time_choice
from tidemark.watermarks.disorder import ON_TIME, Arrivals, find_late_rows, measure_disorder

START = datetime(2024, 5, 1, tzinfo=UTC)
BOUNDS = ["--lower", "0 s", "--upper", "1 hour"]
ROWS, COMMITS = 240, 12


def create_rows(seed, **columns):
    """Create rows in order of arrival, up to 50 seconds late.

    Args:
        seed: Seed of the lateness.
        columns: Functions from number, event time and arrival to a value, by column.
    """
    chance = random.Random(seed)
    times = [(START + timedelta(seconds=30 * number), chance.randrange(20)) for number in range(ROWS)]
    times = [(time, time + timedelta(seconds=late if number % 9 else 90)) for number, (time, late) in enumerate(times)]
    times.sort(key=lambda pair: pair[1])
    return [{name: create(n, *times[n]) for name, create in columns.items()} for n in range(ROWS)]


def write_table(lake, name, rows, commits=COMMITS, schema=None):
    size = -(-len(rows) // commits)
    for start in range(0, len(rows), size):
        table = pa.Table.from_pylist(rows[start : start + size], schema=schema)
        write_deltalake(str(lake / name), table, mode="append")


def key(number, *_):
    return f"k{number}"


def event(_, time, arrival):
    return time


def arrived(_, time, arrival):
    return arrival


USUAL = {"k": key, "event_time": event, "received_at": arrived}
"""Columns of a table without open questions."""


@pytest.fixture
def propose(lake, tmp_path, monkeypatch):
    """Return a function that writes two tables, and proposes a valid pipeline for them."""
    monkeypatch.chdir(tmp_path)

    def run(left, right, *options, commits=COMMITS):
        write_table(lake, "left", create_rows(1, **left), commits)
        write_table(lake, "right", create_rows(2, **right), commits)
        arguments = ["init", "left", "right", "--lake", str(lake), "--output", "p.yaml", *BOUNDS, *options]
        assert main(arguments) == 0
        assert main(["validate", "p.yaml"]) == 0
        return load_pipeline(tmp_path / "p.yaml")

    return run


@pytest.fixture
def refuse(lake, tmp_path, monkeypatch, capsys):
    """Return a function that runs the command and returns its error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        assert main(["init", *arguments, "--lake", str(lake)]) == 2
        assert not list(tmp_path.glob("*.yaml"))
        return " ".join(capsys.readouterr().err.split())

    return run


@pytest.fixture
def usual_tables(lake):
    write_table(lake, "left", create_rows(1, **USUAL))
    write_table(lake, "right", create_rows(2, **USUAL))


def test_init_of_usual_tables_proposes_all_but_the_bounds(propose, tmp_path):
    pipeline = propose(USUAL, USUAL)

    assert pipeline.dialect == "flink-sql"
    assert pipeline.model_dump(mode="json", exclude_defaults=True)["left"] == {
        "table": "left",
        "event_time": {"column": "event_time"},
        "arrival": {"column": "received_at"},
        "watermark_delay": "1 minute",
    }
    assert [(pair.left, pair.right) for pair in pipeline.join.keys] == [("k", "k")]
    assert pipeline.slices.start == START
    text = (tmp_path / "p.yaml").read_text()
    assert "version 11, 12 files, 240 rows" in text
    assert "sample: 240 rows of the newest 12 files" in text
    assert "240 and 240 distinct values, 100 % common" in text
    assert "at or after the event time in 100 % of rows" in text
    assert max(len(line) for line in text.splitlines()) <= 118


def epoch(factor):
    return lambda _, time, __: int(time.timestamp() * factor)


OTHER = {"k": key, "ts": event, "loaded_at": arrived}
TABLES = {
    "names with blanks, dots, capitals and quotes": (
        {"Order 'ID'": key, "placed.at": event, "Received At": arrived},
        {"order-id": key, 'Shipped "At"': event, "ingest.time": arrived},
    ),
    "epoch seconds": ({**OTHER, "ts": epoch(1)}, OTHER),
    "epoch milliseconds": ({**OTHER, "ts": epoch(1000)}, OTHER),
    "epoch microseconds": ({**OTHER, "ts": epoch(1_000_000)}, OTHER),
    "epoch nanoseconds": ({**OTHER, "ts": epoch(1_000_000_000)}, OTHER),
    "epoch as fraction": ({**OTHER, "ts": lambda _, time, __: time.timestamp() + 0.25}, OTHER),
    "epoch as decimal": ({**OTHER, "ts": lambda _, time, __: Decimal(int(time.timestamp()))}, OTHER),
    "dates only": ({**OTHER, "ts": lambda _, time, __: time.date()}, OTHER),
    "times without zone": ({**OTHER, "ts": lambda _, time, __: time.replace(tzinfo=None)}, OTHER),
    "a few nulls": (
        {
            "k": lambda number, *_: None if number % 7 == 0 else f"k{number}",
            "ts": lambda number, time, _: None if number % 70 == 0 else time,
            "loaded_at": lambda number, _, arrival: None if number % 130 == 5 else arrival,
        },
        OTHER,
    ),
    "implausible times": (
        {**OTHER, "ts": lambda number, time, _: datetime(2999, 1, 1, tzinfo=UTC) if number == 5 else time},
        OTHER,
    ),
    "nested keys": (
        {"order": lambda number, *_: {"Id": number, "x y": "a"}, "ts": event, "loaded_at": arrived},
        {"order_id": lambda number, *_: number, "ts": event, "loaded_at": arrived},
    ),
    "nested keys with odd names": (
        {"order": lambda number, *_: {"the.id": f"k{number}"}, "ts": event, "loaded_at": arrived},
        {"id": key, "ts": event, "loaded_at": arrived},
    ),
    "whole numbers of two lengths": (
        {**OTHER, "k": lambda number, *_: np.int32(number)},
        {**OTHER, "k": lambda number, *_: number},
    ),
    "a column with the word for unwritten settings": (
        {"k": key, "TODO": event, "loaded_at": arrived},
        OTHER,
    ),
    "other columns": (
        {
            **OTHER,
            "tags": lambda *_: ["a"],
            "flag": lambda *_: True,
            "price": lambda n, *_: n / 7,
            "b": lambda *_: b"x",
        },
        {**OTHER, "day": lambda _, time, __: time.date(), "qty": lambda number, *_: number % 5},
    ),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("dialect", ["flink-sql", "flink-datastream", "spark"])
def test_init_writes_a_valid_file_for(name, dialect, propose):
    left, right = TABLES[name]
    pipeline = propose(left, right, "--dialect", dialect, "--set", "slices.every=10 minutes", commits=2)

    event_times = [name for name, create in left.items() if name not in {"loaded_at", "Received At"}]
    assert pipeline.left.event_time.column in event_times
    assert pipeline.left.arrival.column in {"loaded_at", "Received At"}
    assert pipeline.dialect == dialect


def test_key_of_a_field_is_written_as_its_path(propose):
    nested = propose(*TABLES["nested keys"])

    assert [(pair.left, pair.right) for pair in nested.join.keys] == [("order.Id", "order_id")]


def test_key_of_a_field_with_a_dot_is_quoted(propose):
    nested = propose(*TABLES["nested keys with odd names"])

    assert [(pair.left, pair.right) for pair in nested.join.keys] == [("order.`the.id`", "id")]


def test_number_that_meets_a_text_is_cast(propose):
    number = {**USUAL, "the id": lambda number, *_: number}
    text = {**USUAL, "the_id": lambda number, *_: str(number)}
    del number["k"], text["k"]

    pipeline = propose(number, text)

    assert [(pair.left, pair.right) for pair in pipeline.join.keys] == [("CAST(`the id` AS STRING)", "the_id")]


def test_kafka_records_arrive_by_their_timestamp_and_offset(propose):
    records = {
        "k": key,
        "event_time": event,
        "timestamp": arrived,
        "offset": lambda number, *_: number,
        "partition": lambda number, *_: number % 3,
    }

    pipeline = propose(records, records)

    assert pipeline.left.arrival.column == "timestamp"
    assert (pipeline.left.tiebreak, pipeline.left.partition) == ("offset", "partition")
    assert pipeline.left.event_time.column == "event_time"


def move_commits(lake, start=START, distance=timedelta(minutes=11)):
    """Change the times of the commits of both tables."""
    for file in lake.glob("*/_delta_log/*.json"):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = to_micros(start + int(file.stem) * distance) // 1000
        file.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("names", [("k", "event_time"), ("k", "event_time", "commit")])
def test_table_of_many_commits_arrives_by_commit(names, lake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = {name: {**USUAL, "commit": key}[name] for name in names}
    write_table(lake, "left", create_rows(1, **left))
    write_table(lake, "right", create_rows(2, **USUAL))
    move_commits(lake)

    assert main(["init", "left", "right", "--lake", str(lake), "--output", "p.yaml", *BOUNDS]) == 0
    pipeline = load_pipeline(tmp_path / "p.yaml")

    assert type(pipeline.left.arrival).__name__ == "CommitArrival"
    assert pipeline.left.arrival.is_bare_word == ("commit" not in names)
    assert pipeline.right.arrival.column == "received_at"


def test_column_named_commit_can_be_the_arrival(propose):
    tables = {"k": key, "event_time": event, "commit": arrived}

    pipeline = propose(tables, tables, "--arrival", "column commit")

    assert pipeline.left.arrival.column == "commit"


def test_table_that_was_loaded_at_once_has_no_clear_arrival(lake, refuse):
    write_table(lake, "left", create_rows(1, **USUAL))
    write_table(lake, "right", create_rows(2, k=key, event_time=event))

    message = refuse("left", "right", *BOUNDS)

    assert "the arrival of the right input is not clear" in message
    assert "commit (12 commits with rows, the rows of a commit at the same time, during" in message


HOUR = timedelta(hours=1)


def write_hourly_table(lake, first_event, statistics):
    """Write a table of ten hours, each a commit of 100 rows."""
    for number in range(10):
        times = [first_event + number * HOUR + minute * timedelta(minutes=0.5) for minute in range(100)]
        rows = pa.table({"event_time": pa.array(times, pa.timestamp("us", "UTC"))})
        options = {} if statistics else {"configuration": {"delta.dataSkippingNumIndexedCols": "0"}}
        write_deltalake(str(lake / "t"), rows, mode="append", **options)
    move_commits(lake, distance=HOUR)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("rows", [50, 200, 1000])
def test_sample_of_few_commits_of_a_table_with_many_has_a_clear_arrival(rows, statistics, lake):
    write_hourly_table(lake, START, statistics=statistics)
    sample = read_sample(str(lake), "t", SampleLimits(rows=rows))
    event_time = create_event_time_choice(sample, "left").default.value

    choice = create_arrival_choice(sample, event_time, "left")

    assert choice.default.label == "commit"


def test_span_of_commits_is_that_of_the_log_if_the_sample_is_a_part(lake):
    years = [START + number * timedelta(days=365) for number in (-9, -5, 0)]
    times = pa.array([time for time in years for _ in range(1000)], pa.timestamp("us", "UTC"))
    write_deltalake(str(lake / "t"), pa.table({"event_time": times}))
    write_hourly_table(lake, START, statistics=True)
    sample = read_sample(str(lake), "t", SampleLimits(rows=950))
    event_time = create_event_time_choice(sample, "left").default.value

    choice = create_arrival_choice(sample, event_time, "left")

    assert choice.default is None, "most rows were loaded at once"
    assert "11 commits with rows" in choice.candidates[0].figures


def test_arrivals_of_two_clocks_that_a_person_chooses_are_accepted(lake, tmp_path, monkeypatch):
    write_table(lake, "left", create_rows(1, **USUAL))
    write_table(lake, "right", create_rows(2, k=key, event_time=event))
    move_commits(lake, start=datetime(2026, 5, 1, tzinfo=UTC))
    monkeypatch.setattr("tidemark.cli.terminal_decisions.is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n" * 7))
    options = ["--set", "slices.every=1000 days", "--output", str(tmp_path / "p.yaml")]

    assert main(["init", "left", "right", "--lake", str(lake), *BOUNDS, *options]) == 0

    pipeline = load_pipeline(tmp_path / "p.yaml")
    assert (pipeline.left.arrival.column, type(pipeline.right.arrival).__name__) == ("received_at", "CommitArrival")
    assert "The samples of the inputs have no arrival in common." in (tmp_path / "p.yaml").read_text()


def test_arrivals_of_two_clocks_are_refused_unless_they_are_decided(lake, refuse, tmp_path):
    write_table(lake, "left", create_rows(1, **USUAL))
    write_table(lake, "right", create_rows(2, k=key, event_time=event))
    move_commits(lake, start=datetime(2026, 5, 1, tzinfo=UTC))

    message = refuse("left", "right", *BOUNDS)

    assert "the inputs have no arrival in common: left 2024-05-01T00:00" in message
    decided = ["--set", "left.arrival=received_at", "--set", "right.arrival=commit", "--set", "slices.every=1000 days"]
    assert main(["init", "left", "right", "--lake", str(lake), "--output", "p.yaml", *BOUNDS, *decided]) == 0


def test_key_of_a_number_and_a_text_is_cast(propose):
    number = {**USUAL, "n": lambda number, *_: number}
    text = {**USUAL, "t": lambda number, *_: str(number)}

    pipeline = propose(number, text, "--key", "n=T")

    assert [(pair.left, pair.right) for pair in pipeline.join.keys] == [("CAST(n AS STRING)", "t")]


def test_key_of_types_that_are_not_compared_is_refused(usual_tables, refuse):
    message = refuse("left", "right", *BOUNDS, "--key", "k=received_at")

    assert "--key: k is string and received_at is timestamp, which a join does not compare." in message


def test_few_commits_are_no_clear_arrival(lake, refuse):
    for side in SIDES:
        write_table(lake, side, create_rows(1, k=key, event_time=event), commits=2)

    message = refuse("left", "right", *BOUNDS)

    assert (
        "the arrival of the left input is not clear. Pass --arrival for both inputs, or --set left.arrival=" in message
    )
    assert "commit (2 commits with rows" in message
    assert "event-time (in the order of event times" in message


def test_event_times_can_be_the_order_of_arrival(propose):
    tables = {"k": key, "event_time": event}

    pipeline = propose(tables, tables, "--arrival", "event-time", commits=1)

    assert pipeline.clock == "event-time"


def test_event_time_order_of_one_input_only_is_refused(usual_tables, refuse):
    message = refuse("left", "right", *BOUNDS, "--set", "left.arrival=event-time")

    assert "one input arrives in the order of event times, and the other by column" in message


def test_options_decide_and_their_figures_are_written(propose, tmp_path):
    both = {**USUAL, "placed_at": event, "other": key}

    pipeline = propose(
        both,
        USUAL,
        *("--set", "left.event_time=placed_at", "--key", "other=k", "--key", "k", "--type", "left"),
        *("--set", "left.watermark_delay=10m", "--set", "slices.start=2024-04-30", "--set", "slices.every=1 day"),
        *("--set", "name=on", "--set", "right.idle_timeout=1h", "--set", "output=010"),
    )

    settings = pipeline.model_dump(mode="json", exclude_defaults=True)
    assert settings["left"]["event_time"] == {"column": "placed_at"}
    assert settings["left"]["watermark_delay"] == "10 minutes"
    assert settings["right"]["idle_timeout"] == "1 hour"
    assert settings["join"]["keys"] == [{"left": "other", "right": "k"}, {"left": "k", "right": "k"}]
    assert (pipeline.name, pipeline.output, pipeline.join.type) == ("on", "010", "left")
    assert "--set, 0 % late" in (tmp_path / "p.yaml").read_text()


def test_first_slice_of_a_time_zone_begins_at_its_midnight(propose):
    pipeline = propose(USUAL, USUAL, "--set", "slices.time_zone=Europe/Berlin", "--set", "slices.every=1 day")

    assert pipeline.slices.start == START - timedelta(hours=2)


def test_rows_before_the_first_slice_are_not_measured(propose, tmp_path):
    propose(USUAL, USUAL, "--set", "slices.start=2024-05-01T01:00Z")

    assert "late for the lower watermark" in (tmp_path / "p.yaml").read_text()
    assert f"late rows of {ROWS}" not in (tmp_path / "p.yaml").read_text()


def test_windows_replace_the_bounds(usual_tables, lake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert main(["init", "left", "right", "--lake", str(lake), "--window", "1 hour"]) == 0

    assert load_pipeline(tmp_path / "left_right.yaml").join.window.tumbling == timedelta(hours=1)


def test_any_other_condition_is_set(usual_tables, lake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert main(["init", "left", "right", "--lake", str(lake), "--set", "join.window.session.gap=5 m"]) == 0

    assert load_pipeline(tmp_path / "left_right.yaml").join.window.session.gap == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            [*BOUNDS, "--set", "join.interval.upper_inclusive=false"],
            {"lower": "0 seconds", "upper": "1 hour", "upper_inclusive": False},
        ),
        (["--lower", "0 s", "--set", "join.interval.upper=3 h"], {"lower": "0 seconds", "upper": "3 h"}),
        (["--window", "1 hour", "--set", "join.window.offset=10 m"], {"tumbling": "1 hour", "offset": "10 m"}),
    ],
)
def test_settings_extend_a_condition_by_options(usual_tables, lake, tmp_path, monkeypatch, options, expected):
    monkeypatch.chdir(tmp_path)

    assert main(["init", "left", "right", "--lake", str(lake), *options]) == 0

    assert expected in yaml.safe_load((tmp_path / "left_right.yaml").read_text())["join"].values()


def test_bounds_are_never_guessed(usual_tables, refuse):
    message = refuse("left", "right")

    assert "the lower bound of right time - left time is your decision. Pass --lower" in message
    assert "Right time - left time of 240 left rows and the nearest right row of equal key" in message
    assert "upper bound" in refuse("left", "right", "--lower", "0 s")
    assert "--set slices.every=DURATION" in refuse("left", "right", *BOUNDS, "--dialect", "spark")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lower", "soon"], "--lower: 'soon' is not a duration"),
        (["--window", "1h", "--lower", "1h"], "--window cannot be combined with --lower"),
        ([*BOUNDS, "--set", "slices.every=0"], "slices.every: must be positive"),
        ([*BOUNDS, "--set", "slices.start=noon"], "slices.start: 'noon' is not an instant"),
        ([*BOUNDS, "--dialect", "flink"], "--dialect: flink is no dialect"),
        ([*BOUNDS, "--type", "outer"], "--type: outer is no join type"),
        ([*BOUNDS, "--set", "left.arrival={streaming_checkpoint: c}"], "cannot be measured"),
        ([*BOUNDS, "--set", "left.event_time={column: k, unit: ms}"], "k is no column of numbers"),
        ([*BOUNDS, "--key", "=k"], "--key =k is no key"),
        ([*BOUNDS, "--key", "kk"], "--key: table left: kk is not a column of the input. Did you mean k?"),
        ([*BOUNDS, "--key", "k=lower(kk)"], "--key: table right: kk is not a column of the input. Did you mean k?"),
        ([*BOUNDS, "--key", "on"], "--key: table left: on is not a column of the input."),
        (
            [*BOUNDS, "--set", "left.event_time=event"],
            "cannot be the event time of the left input. Did you mean event_time?",
        ),
        ([*BOUNDS, "--arrival", "k"], "k cannot be the arrival of the left input"),
        (
            [*BOUNDS, "--type", "semi"],
            "join.type: flink-sql does not support semi",
        ),
    ],
)
def test_wrong_option_is_one_line(options, message, usual_tables, refuse):
    assert message in refuse("left", "right", *options)


def test_similar_event_times_are_listed_with_figures(lake, refuse):
    write_table(lake, "left", create_rows(1, k=key, ordered_at=event, shipped_at=event, received_at=arrived))
    write_table(lake, "right", create_rows(1, **USUAL))

    message = refuse("left", "right", *BOUNDS)

    assert (
        "the event time of the left input is not clear. Pass --set left.event_time=COLUMN with one of the candidates"
        in message
    )
    assert "ordered_at (timestamp, 2024-05-01T00:00Z to 2024-05-01T01:59:30Z)" in message
    assert "shipped_at" in message


def test_similar_keys_are_listed_with_figures(lake, refuse):
    for side in SIDES:
        write_table(
            lake, side, create_rows(1, order_id=key, customer_id=lambda n, *_: f"c{n % 50}", ts=event, loaded=arrived)
        )

    message = refuse("left", "right", *BOUNDS)

    assert "the join key is not clear. Pass --key with one of the candidates" in message
    assert "order_id (string, 240 and 240 distinct values, 100 % common)" in message
    assert "customer_id (string, 50 and 50 distinct values, 100 % common)" in message


def test_numbers_that_may_be_anything_are_no_clear_event_time(lake, refuse):
    numbers = {"k": key, "amount": epoch(1)}
    write_table(lake, "left", create_rows(1, **numbers))
    write_table(lake, "right", create_rows(1, **USUAL))

    message = refuse("left", "right", *BOUNDS)

    assert "--set left.event_time=COLUMN with one of the candidates: amount (bigint in s" in message


def test_table_without_times_is_refused(lake, refuse):
    write_table(lake, "left", create_rows(1, k=key, v=lambda number, *_: number, text=lambda _, time, __: str(time)))
    write_table(lake, "right", create_rows(1, **USUAL))

    assert "left table left has no column with times" in refuse("left", "right", *BOUNDS)


def test_tables_without_common_values_are_refused(lake, refuse):
    write_table(lake, "left", create_rows(1, a=key, event_time=event, received_at=arrived))
    write_table(lake, "right", create_rows(1, b=lambda n, *_: f"x{n}", event_time=event, received_at=arrived))

    assert "have no pair of columns with comparable types that share a value" in refuse("left", "right", *BOUNDS)


def test_folder_without_log_is_refused(lake, refuse, usual_tables):
    (lake / "files").mkdir()
    (lake / "files" / "a.parquet").write_bytes(b"PAR1")

    (lake / "days" / "day=1").mkdir(parents=True)
    for file in (lake / "days" / "day=1" / "a.CSV", lake / "rows.csv", lake / "rows.orc", lake / "rows"):
        file.touch()

    for name, kind in {
        "files": "a folder of Parquet files",
        "days": "a folder of CSV files",
        "rows.csv": "a CSV file",
        "rows.orc": "an ORC file",
    }.items():
        guide = "Write a table from it as in docs/init.md#tables-of-csv-or-parquet-files"
        assert f"{name} at {lake / name} is {kind}, not a Delta table. {guide}" in refuse(name, "right", *BOUNDS)
    assert "rows is a file, not a Delta table" in refuse("rows", "right", *BOUNDS)
    assert "there is no Delta table none at" in refuse("left", "none", *BOUNDS)


def test_table_outside_the_lake_is_refused(refuse, usual_tables, tmp_path):
    assert "lies outside the lake root" in refuse("left", str(tmp_path / "x"), *BOUNDS)


def test_empty_tables_need_options(lake, tmp_path, monkeypatch, refuse):
    types = {"k": pa.string(), "event_time": pa.timestamp("us", "UTC"), "received_at": pa.timestamp("us", "UTC")}
    for side in SIDES:
        write_deltalake(str(lake / side), pa.table({name: pa.array([], dtype) for name, dtype in types.items()}))

    assert "Pass --arrival" in refuse("left", "right", *BOUNDS)
    options = [*BOUNDS, "--arrival", "received_at"]
    assert "the start of the first slice is your decision. Pass --set slices.start=T" in refuse(
        "left", "right", *options
    )
    options += ["--set", "slices.start=2024-01-01"]
    assert "Pass --set left.watermark_delay=DURATION, such as '10 minutes'. The disorder is unknown" in refuse(
        "left", "right", *options
    )
    options += ["--set", "left.watermark_delay=1 m", "--set", "right.watermark_delay=2 m"]
    assert main(["init", "left", "right", "--lake", str(lake), *options]) == 0
    assert load_pipeline(tmp_path / "left_right.yaml").right.watermark_delay == timedelta(minutes=2)


def test_existing_file_is_replaced_only_by_force(usual_tables, lake, tmp_path, monkeypatch, capsys):
    output = tmp_path / "p.yaml"
    output.write_text("mine")
    arguments = ["init", "left", "right", "--lake", str(lake), "--output", str(output), *BOUNDS]

    assert main(arguments) == 2
    assert "exists already. Pass --force" in " ".join(capsys.readouterr().err.split())
    assert output.read_text() == "mine"
    (tmp_path / "left_right.yaml").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "left", "right", "--lake", str(lake), *BOUNDS]) == 2
    assert "left_right.yaml exists already. Pass --force" in " ".join(capsys.readouterr().err.split())
    assert main([*arguments, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(output)
    assert load_pipeline(output).name == "left_right"


def test_unit_of_numbers_can_be_set(propose):
    pipeline = propose({**USUAL, "n": epoch(1000)}, USUAL, "--set", "left.event_time={column: n, unit: us}")

    assert (pipeline.left.event_time.column, pipeline.left.event_time.unit) == ("n", "us")


def test_time_before_2000_is_no_start(propose):
    rows = {**USUAL, "event_time": lambda number, time, _: datetime(1970, 1, 1, tzinfo=UTC) if number == 50 else time}

    pipeline = propose(rows, rows, "--arrival", "event-time")

    assert pipeline.slices.start == START


@pytest.mark.parametrize(
    ("value", "column"), [("received_at", "received_at"), ("{column: received_at}", "received_at"), ("commit", None)]
)
def test_arrival_of_a_side_can_be_set(value, column, propose):
    pipeline = propose(USUAL, USUAL, "--set", f"left.arrival={value}")

    assert getattr(pipeline.left.arrival, "column", None) == column
    assert pipeline.right.arrival.column == "received_at"


def test_terminal_asks_with_figures(usual_tables, lake, tmp_path, monkeypatch, capsys):
    answers = ["", "9", "1", "", "", "", "soon", "0 s", "1 hour", "2", ""]
    monkeypatch.setattr("tidemark.cli.terminal_decisions.is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(answers) + "\n"))

    assert main(["init", "left", "right", "--lake", str(lake), "--output", str(tmp_path / "p.yaml")]) == 0

    error = " ".join(capsys.readouterr().err.split())
    assert "Choose the event time of the left input" in error
    assert "240 and 240 distinct values" in error
    assert "--lower: 'soon' is not a duration" in error
    assert "Right time - left time of 240 left rows" in error
    pipeline = load_pipeline(tmp_path / "p.yaml")
    assert pipeline.join.interval.upper == timedelta(hours=1)
    assert pipeline.left.watermark_delay == timedelta()


def test_terminal_offers_windows_for_bounds(usual_tables, lake, tmp_path, monkeypatch):
    monkeypatch.setattr("tidemark.cli.terminal_decisions.is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*[""] * 5, "window", "1 hour", "", "", ""])))

    assert main(["init", "left", "right", "--lake", str(lake), "--output", str(tmp_path / "p.yaml")]) == 0

    assert load_pipeline(tmp_path / "p.yaml").join.window.tumbling == timedelta(hours=1)


def test_sample_is_bounded(lake):
    write_table(lake, "left", create_rows(1, **USUAL), commits=12)

    sample = read_sample(str(lake), "left", SampleLimits(rows=50, files=64))
    few_files = read_sample(str(lake), "left", SampleLimits(rows=1000, files=2))

    assert (sample.rows, sample.sampled_files, sample.row_count) == (50, 3, 240)
    assert (few_files.rows, few_files.sampled_files) == (40, 2)
    assert few_files.commit_times.min() > sample.first_commit


def test_sample_has_partition_values_and_encoded_paths(lake):
    rows = [{"day of": date(2024, 5, 1 + n % 3), "k": f"a b{n % 2}", "n": n} for n in range(9)]
    write_deltalake(str(lake / "t"), pa.Table.from_pylist(rows), partition_by=["day of", "k"])

    sample = read_sample(str(lake), "t", SampleLimits())

    assert sample.rows == 9
    assert len(sample.find_column("k").hashes) == 2
    assert len(np.unique(sample.find_column("day of").numbers)) == 3


def test_sample_reads_timestamps_of_all_writers(lake):
    times = [START, datetime(9999, 12, 31, tzinfo=UTC), None]
    table = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC"))})
    write_deltalake(str(lake / "t"), table)
    (file,) = (lake / "t").glob("*.parquet")
    pq.write_table(table, file, use_deprecated_int96_timestamps=True)

    column = read_sample(str(lake), "t", SampleLimits()).find_column("t")

    assert column.numbers.tolist() == [*(to_micros(time) for time in times[:2]), 0]
    assert column.is_null.tolist() == [False, False, True]


def test_sample_of_a_table_with_column_mapping_uses_physical_names(lake):
    write_deltalake(str(lake / "t"), pa.table({"col-1": [1, 2], "col-2": [{"col-3": "a"}, None]}))
    log = lake / "t" / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    names = {"col-1": "id", "col-2": "s", "col-3": "x.y"}
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate([*schema["fields"], *schema["fields"][1]["type"]["fields"]], 1):
                physical = field["name"]
                field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
                field["name"] = names[physical]
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    log.write_text("\n".join(map(json.dumps, actions)))

    sample = read_sample(str(lake), "t", SampleLimits())

    assert [column.leaf.path for column in sample.columns] == [("id",), ("s", "x.y")]
    assert sample.find_column("id").numbers.tolist() == [1, 2]
    assert sample.columns[1].is_null.tolist() == [False, True]


row = st.tuples(st.integers(0, 12), st.integers(0, 1), st.integers(-3_000, 9_000), st.integers(0, 2))
streams = st.lists(row, max_size=25)
DIALECTS = ("flink-datastream", "flink-sql", "spark")


def to_arrivals(rows):
    clock, tiebreak, event_time, partition = (np.array([row[n] for row in rows], np.int64) for n in range(4))
    return Arrivals.create(clock, event_time, tiebreak, partition)


def find_late_by_loop(left, right, delays, dialect):
    """Replay both inputs position by position; return if each row is late, for its own and the combined watermark."""
    watermarks = {"left": None, "right": None}
    newest = {"left": {}, "right": {}}
    rows = [("left", number, *row) for number, row in enumerate(left)]
    rows += [("right", number, *row) for number, row in enumerate(right)]
    late = {}
    for position in sorted({row[2:4] for row in rows}):
        simultaneous = [row for row in rows if row[2:4] == position]
        for side, number, _, _, event_time, _ in simultaneous:
            own, both = watermarks[side], list(watermarks.values())
            combined = None if None in both else min(both)
            late[side, number] = tuple(is_late(event_time, watermark, dialect) for watermark in (own, combined))
        for side, _, _, _, event_time, partition in simultaneous:
            newest[side][partition] = max(newest[side].get(partition, event_time // 1000), event_time // 1000)
        for side in SIDES:
            if newest[side]:
                extra = 1 if dialect == "flink-datastream" else 0
                watermark = min(newest[side].values()) - delays[side] - extra
                watermarks[side] = watermark if watermarks[side] is None else max(watermarks[side], watermark)
    return late


def is_late(event_time, watermark, dialect):
    if watermark is None:
        return False
    return event_time <= watermark * 1000 if dialect == "spark" else event_time // 1000 < watermark


@given(streams, streams, st.integers(0, 5), st.integers(0, 5), st.sampled_from(DIALECTS))
def test_measured_late_rows_are_those_of_a_replay(left, right, left_delay, right_delay, dialect):
    delays = {"left": left_delay, "right": right_delay}
    expected = find_late_by_loop(left, right, delays, dialect)
    arrivals = {"left": to_arrivals(left), "right": to_arrivals(right)}

    combined = dict(zip(SIDES, find_late_rows(*arrivals.values(), (left_delay, right_delay), dialect), strict=True))

    for side, rows in (("left", left), ("right", right)):
        disorder = measure_disorder(arrivals[side], dialect)
        assert (disorder >= delays[side]).tolist() == [expected[side, number][0] for number in range(len(rows))]
        assert combined[side].tolist() == [expected[side, number][1] for number in range(len(rows))]


@settings(deadline=None)
@given(st.lists(st.integers(ON_TIME, 10**10), min_size=1), st.integers(1, 3000))
def test_proposed_delay_accepts_at_most_the_share_of_late_rows(disorder, rows_on_time):
    values = np.array([*disorder, *[ON_TIME] * rows_on_time], np.int64)

    choice = create_delay_choice(values, "delay", "--delay")

    shares = {item.value: np.mean(values >= item.value // timedelta(milliseconds=1)) for item in choice.candidates}
    assert choice.default
    assert shares[choice.default.value] <= MAX_LATE_SHARE
    assert all(share > MAX_LATE_SHARE for delay, share in shares.items() if delay < choice.default.value)
    assert min(shares.values()) == 0
