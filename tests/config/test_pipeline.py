"""Settings of a pipeline file: short forms, defaults and derived values."""

import re
from datetime import UTC, datetime, timedelta

import jsonschema
import pytest
import yaml

from tests.config.pipeline_files import (
    APIA_DAYS,
    LOCAL_DAYS,
    PROJECT,
    load_base,
    read_as_json,
    read_base,
    write_variant,
)
from tidemark.config import build_json_schema, load_pipeline, types, with_overrides
from tidemark.config.types import format_duration, parse_allowance, parse_duration, parse_instant
from tidemark.errors import PipelineFileError

BETWEEN = "expect_column_values_to_be_between"

BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted((PROJECT / "docs").glob("*.md"))
    if page.stem != "test-pipelines"  # blocks of test files
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    if not block.startswith("expectation_suite:")
]


@pytest.mark.parametrize("block", BLOCKS)
def test_load_yaml_block_of_the_docs_is_valid(tmp_path, block):
    settings = yaml.safe_load(block)
    rest = {name: part for name, part in read_base().items() if name not in settings}
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(rest) + block)

    assert settings.keys() <= load_pipeline(file).model_dump(exclude_unset=True).keys()


def test_load_bare_on_off_yes_no_are_text(tmp_path):
    file = write_variant(tmp_path / "words.yaml", join__keys=["origin"])
    file.write_text(
        file.read_text().replace("- origin", "- on\n  - no") + "quality_defaults: off\nexpose_row_values: yes\n"
    )
    loaded = load_pipeline(file)
    assert [(key.left, key.right) for key in loaded.join.keys] == [("on", "on"), ("no", "no")]
    assert (loaded.quality_defaults, loaded.expose_row_values) == (False, True)


def test_event_time_equality_in_flink_sql_becomes_an_empty_interval(tmp_path):
    interval = {"lower": "0 s", "upper": "0 s"}
    equal = write_variant(tmp_path / "e.yaml", dialect="flink-sql", join__interval=None, join__event_time_equality=True)
    worded = write_variant(
        tmp_path / "w.yaml", dialect="flink-sql", join__interval=None, join__event_time_equality="on"
    )
    bounded = write_variant(tmp_path / "b.yaml", dialect="flink-sql", join__interval=interval)
    jsonschema.validate(read_as_json(equal), build_json_schema())

    assert load_pipeline(equal) == load_pipeline(worded) == load_pipeline(bounded)
    assert load_pipeline(equal).output_affecting_settings() == load_pipeline(bounded).output_affecting_settings()


@pytest.mark.parametrize(
    ("interval", "half"),
    [
        ({"lower": "-5 ms", "upper": "10 ms"}, 7),
        ({"lower": "-5 ms", "upper": "10 ms", "lower_inclusive": False}, 7),
        ({"lower": "-5 ms", "upper": "10 ms", "lower_inclusive": False, "upper_inclusive": False}, 6),
        ({"lower": "0 s", "upper": "0 s", "upper_inclusive": False}, 0),
    ],
)
def test_min_cleanup_interval_half_is_half_the_distance_of_the_bounds(tmp_path, interval, half):
    path = write_variant(
        tmp_path / "p.yaml", dialect="flink-sql", join__interval=interval, join__min_cleanup_interval="half"
    )
    jsonschema.validate(read_as_json(path), build_json_schema())
    pipeline = load_pipeline(path)

    assert pipeline.join.min_cleanup_interval_ms == half
    assert pipeline.output_affecting_settings()["join"]["min_cleanup_interval"] == "half"

    explicit = write_variant(
        tmp_path / "e.yaml", dialect="flink-sql", join__interval=interval, join__min_cleanup_interval=f"{half} ms"
    )
    assert load_pipeline(explicit).join.min_cleanup_interval_ms == half


@pytest.mark.parametrize(
    ("dialect", "partition"), [("flink-datastream", "partition"), ("flink-sql", "partition"), ("spark", None)]
)
def test_kafka_arrival_sets_the_columns_of_kafka_records(tmp_path, dialect, partition):
    ms = {"column": "timestamp", "unit": "ms"}
    short = write_variant(
        tmp_path / "p.yaml",
        dialect=dialect,
        left__arrival={"kafka": "timestamp"},
        right__arrival={"kafka": ms},
        right__tiebreak="seq",
    )
    jsonschema.validate(read_as_json(short), build_json_schema())
    long = write_variant(
        tmp_path / "e.yaml",
        dialect=dialect,
        left__arrival="timestamp",
        left__tiebreak="offset",
        left__partition=partition,
        right__arrival=ms,
        right__tiebreak="seq",
        right__partition=partition,
    )

    assert load_pipeline(short).output_affecting_settings() == load_pipeline(long).output_affecting_settings()

    typo = write_variant(tmp_path / "t.yaml", left__arrival={"kafka": "timestamp", "tiebreak": "offset"})
    with pytest.raises(PipelineFileError, match="left.arrival"):
        load_pipeline(typo)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"flink_version": "1.17.2"}, "half"),
        ({"flink_version": "1.9"}, "half"),
        ({"flink_version": "1.18"}, timedelta()),
        ({"flink_version": "2.3"}, timedelta()),
        ({"flink_version": "1.17", "join__min_cleanup_interval": "0 s"}, timedelta()),
        ({"flink_version": "1.17", "join__interval": None, "join__window": {"tumbling": "1 hour"}}, timedelta()),
    ],
)
def test_flink_version_sets_missing_defaults(tmp_path, settings, expected):
    path = write_variant(tmp_path / "p.yaml", dialect="flink-sql", **settings)
    explicit_settings = {"flink_version": None, "join__min_cleanup_interval": expected or "0 s"}
    explicit = write_variant(tmp_path / "e.yaml", **{**settings, "dialect": "flink-sql", **explicit_settings})

    pipeline = load_pipeline(path)

    jsonschema.validate(read_as_json(path), build_json_schema())
    assert pipeline.join.min_cleanup_interval == expected
    assert load_pipeline(explicit).output_affecting_settings() == pipeline.output_affecting_settings()


@pytest.mark.parametrize(
    "settings",
    [
        {"flink_version": "2.2"},
        {"flink_version": "2.1.1", "right__idle_timeout": None},
        {"flink_version": "2.1.1", "join__interval": None, "join__window": {"tumbling": "1 hour"}},
    ],
)
def test_flink_version_with_known_rule_of_idle_inputs_is_accepted(tmp_path, settings):
    idle = {"left__idle_timeout": "1 minute", "right__idle_timeout": "1 minute"}

    pipeline = load_pipeline(write_variant(tmp_path / "p.yaml", **(idle | settings)))

    assert pipeline.flink_version == settings["flink_version"]


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"watermark_delay": "5 minutes"}, timedelta(hours=1)),
        ({"watermark_delay": "7 minutes"}, timedelta(minutes=70)),
        ({"watermark_delay": "7 minutes", "allowed_clock_skew": "1 minute"}, timedelta(minutes=1)),
        ({"watermark_delay": None, "recorded_watermark": "seen"}, timedelta(hours=1)),
        ({"arrival": "commit"}, timedelta(hours=1)),
        ({"arrival": None}, None),
    ],
)
def test_get_allowed_clock_skew_default_is_ten_delays_or_a_slice(tmp_path, changes, allowed):
    settings = {"watermark_delay": "5 minutes", **changes}
    both = {f"{side}__{name}": value for name, value in settings.items() for side in ("left", "right")}

    pipeline = load_pipeline(write_variant(tmp_path / "p.yaml", **both))

    assert [pipeline.get_allowed_clock_skew(side) for side in ("left", "right")] == [allowed, allowed]
    columns = [expectation.kwargs["column"] for expectation in pipeline.default_expectations]
    assert [name for name in columns if "ahead" in name] == (
        [] if allowed is None else ["left_rows_ahead", "right_rows_ahead"]
    )


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({"dialect": "spark", "right__watermark_delay": None}, ["left_rows_ahead"]),
        ({"join__interval": None, "join__window": {"tumbling": "1 hour"}, "join__time": "processing"}, []),
        ({"quality_defaults": "off"}, []),
    ],
)
def test_default_expectations_leave_out_inputs_without_rows_ahead(tmp_path, changes, measured):
    pipeline = load_pipeline(write_variant(tmp_path / "p.yaml", **changes))

    columns = [expectation.kwargs["column"] for expectation in pipeline.default_expectations]

    assert [name for name in columns if "ahead" in name] == measured


def test_time_bounds_and_expectations_have_short_forms(tmp_path):
    flat = {"type": "expect_column_values_to_not_be_null", "column": "left_a", "severity": "warning"}
    kwargs = {"type": flat["type"], "kwargs": {"column": "left_a"}, "severity": "warning"}
    single = {flat["type"]: {"column": "left_a", "severity": "warning"}}
    for off in (False, "off"):
        jsonschema.validate(read_as_json(write_variant(tmp_path / "p.yaml", time_bounds=off)), build_json_schema())
        assert load_pipeline(tmp_path / "p.yaml").time_bounds is None
    assert load_pipeline(write_variant(tmp_path / "p.yaml", time_bounds="no")).time_bounds is None
    forms = [load_pipeline(write_variant(tmp_path / "p.yaml", quality=[form])) for form in (flat, kwargs, single)]
    assert len({str(pipeline.quality) for pipeline in forms}) == 1


def test_default_expectation_that_the_file_has_too_is_left_out(tmp_path):
    settings = {"type": BETWEEN, "on": "history", "max_value": 2, "min_value": 0.5}
    same = {**settings, "column": "rows_vs_baseline", "severity": "warning"}
    stricter = {**settings, "column": "match_rate_vs_baseline"}

    pipeline = load_pipeline(write_variant(tmp_path / "p.yaml", quality=[same, stricter]))

    columns = [expectation.kwargs["column"] for expectation in pipeline.default_expectations]
    assert "rows_vs_baseline" not in columns
    assert "match_rate_vs_baseline" in columns, "another severity has results of its own"


def test_output_affecting_settings_exclude_quality_and_output_folder(tmp_path):
    base = load_base().output_affecting_settings()
    other = write_variant(tmp_path / "p.yaml", quality=[], output="x", expose_row_values=True)
    assert load_pipeline(other).output_affecting_settings() == base
    assert (
        load_pipeline(write_variant(tmp_path / "p.yaml", left__watermark_delay="1 h")).output_affecting_settings()
        != base
    )


COMPARE = {
    "table": "streamed/x",
    "key_columns": ["left_k"],
    "every": "1 day",
    "budget": {"unexplained": "0.1 %", "differing": 7},
}


def test_output_affecting_settings_exclude_compare(tmp_path):
    pipeline = load_pipeline(write_variant(tmp_path / "p.yaml", compare=COMPARE))
    jsonschema.validate(read_as_json(tmp_path / "p.yaml"), build_json_schema())

    assert pipeline.output_affecting_settings() == load_base().output_affecting_settings()

    compare = pipeline.compare
    assert (compare.table, compare.key_columns) == ("streamed/x", ["left_k"])
    assert (compare.ignore_columns, compare.float_tolerance) == ([], 0)
    assert format_duration(compare.every) == "1 day"
    assert (str(compare.budget.unexplained), str(compare.budget.differing)) == ("0.1 %", "7")


def test_with_overrides_replaces_settings_of_a_comparison(tmp_path):
    pipeline = load_pipeline(write_variant(tmp_path / "p.yaml", compare=COMPARE))
    overrides = {"compare.table": "other", "compare.key_columns": [], "compare.budget.differing": "8"}

    compare = with_overrides(pipeline, overrides).compare

    assert (compare.table, compare.key_columns, str(compare.budget.differing)) == ("other", [], "8")
    assert (compare.every, compare.budget.unexplained) == (pipeline.compare.every, pipeline.compare.budget.unexplained)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"compare.table": "other", "compare.keycolumns": ["a"]},
            "compare.keycolumns: unknown field. Did you mean key_columns?",
        ),
        (
            {"compare.table": "other", "compare.table.name": "x"},
            "compare.table.name: there is no such setting. compare.table is a value without fields.",
        ),
        ({"left.watermark_delay": None}, "the pipeline: left.watermark_delay: is missing"),
    ],
)
def test_with_overrides_names_an_invalid_setting_once(overrides, message):
    with pytest.raises(PipelineFileError) as raised:
        with_overrides(load_base(), overrides)

    assert str(raised.value).startswith(message)


def test_with_overrides_without_compare_fills_in_defaults():
    compare = with_overrides(load_base(), {"compare.table": "other"}).compare

    assert (compare.table, compare.reference) == ("other", None)
    assert (str(compare.budget.unexplained), compare.budget.differing) == ("0", None)


@pytest.mark.parametrize(
    ("allowance", "rows", "expected"),
    [(0, 10, 0), ("5", 3, 5), ("0.1 %", 5123, 5), ("100%", 7, 7), ("12.5 %", 8, 1), ("0 %", 9, 0)],
)
def test_parse_allowance_number_or_share_returns_max_rows(allowance, rows, expected):
    assert parse_allowance(allowance).max_rows(rows) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5", "5 rows", "% 5", True, None])
def test_parse_allowance_invalid_value_raises(text):
    with pytest.raises(ValueError, match="Write it as 5, or as a share of all rows such as '0.1 %'"):
        parse_allowance(text)


def test_restarts_are_sorted_and_unique(tmp_path):
    restarts = ["2013-01-01T05:00:00Z", "2013-01-01T04:00:00Z", "2013-01-01T06:00:00+01:00"]

    settings = load_pipeline(write_variant(tmp_path / "p.yaml", restarts=restarts)).output_affecting_settings()

    assert settings.pop("restarts") == ["2013-01-01T04:00Z", "2013-01-01T05:00Z"]
    assert settings == load_base().output_affecting_settings()


def test_slices_end_must_be_a_slice_boundary(tmp_path):
    base = load_base()
    start, every = base.slices.start, base.slices.every
    ended = load_pipeline(write_variant(tmp_path / "p.yaml", slices__end=start + 3 * every))

    assert ended.output_affecting_settings() == base.output_affecting_settings()
    with pytest.raises(PipelineFileError, match=r"slices: end \(.*\) is not a slice boundary. Use the previous one, "):
        load_pipeline(write_variant(tmp_path / "p.yaml", slices__end=start + 1.5 * every))
    with pytest.raises(PipelineFileError, match="is not after start"):
        load_pipeline(write_variant(tmp_path / "p.yaml", slices__end=start))
    days = load_pipeline(write_variant(tmp_path / "p.yaml", **LOCAL_DAYS, slices__end="2026-10-25T23:00Z"))
    assert [pipeline.slices.last_start for pipeline in (days, ended, base)] == [
        datetime(2026, 10, 24, 22, tzinfo=UTC),
        start + 2 * every,
        None,
    ]
    assert load_pipeline(write_variant(tmp_path / "p.yaml", slices__time_zone="UTC")) == base
    later = load_pipeline(write_variant(tmp_path / "p.yaml", **APIA_DAYS | {"slices__start": "2012-01-01T00:00+14:00"}))
    assert later.slices.last_start is None


def test_output_affecting_settings_exclude_airflow(tmp_path):
    block = {"owner": "flights", "execution_timeout": "1 hour"}
    pipeline = load_pipeline(write_variant(tmp_path / "p.yaml", airflow=block))
    assert pipeline.output_affecting_settings() == load_base().output_affecting_settings()
    assert pipeline.airflow.owner == "flights"


def test_airflow_owner_with_template_raises(tmp_path):
    with pytest.raises(PipelineFileError, match="airflow.owner"):
        load_pipeline(write_variant(tmp_path / "p.yaml", airflow={"owner": "{{ var.value.x }}"}))


def test_where_filters_at_the_position_that_the_dialect_supports(tmp_path):
    (tmp_path / "inputs").mkdir()
    shared = {**read_base()["left"], "where": "carrier <> 'XX'"}
    (tmp_path / "inputs" / "flights.yaml").write_text(yaml.safe_dump(shared))
    flink = load_pipeline(write_variant(tmp_path / "flink.yaml", left={"use": "flights"}))
    spark = load_pipeline(write_variant(tmp_path / "spark.yaml", left={"use": "flights"}, dialect="spark"))
    at_source = load_pipeline(
        write_variant(tmp_path / "at.yaml", left={"use": "flights", "filter": "before_watermark"})
    )
    pipelines = (flink, spark, at_source)

    has_early_filter = [pipeline.has_filter_before_watermark(pipeline.left) for pipeline in pipelines]

    assert [pipeline.left.where for pipeline in pipelines] == ["carrier <> 'XX'"] * 3
    assert has_early_filter == [False, True, True]
    assert not flink.has_filter_before_watermark(flink.right)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left__where": "rand() < 0.5"}, "left.where: rand() returns another value in each run"),
        ({"left__where": ""}, "left.where: is empty. Remove it."),
        ({"right__filter": "before_watermark"}, "right: filter: needs where. Add where, or remove filter."),
        (
            {"dialect": "spark", "left__where": "v > 1", "left__filter": "after_watermark"},
            "left.filter: Spark's optimizer pushes a filter below withWatermark, so filtered rows never advance the",
        ),
    ],
)
def test_where_invalid_raises(tmp_path, changes, message):
    with pytest.raises(PipelineFileError) as raised:
        load_pipeline(write_variant(tmp_path / "wrong.yaml", **changes))
    assert message in str(raised.value)


def test_expression_keys_list_their_columns(tmp_path):
    keys = ["k", {"left": "lower(email)", "right": "s.mail"}]
    join = load_pipeline(write_variant(tmp_path / "keys.yaml", join__keys=keys)).join
    assert join.key_output_columns == ["left_k", "right_k", "left_lower(email)", "left_email", "right_s.mail"]
    assert join.keys[1].list_column_candidates("left") == {"lower(email)", "email"}
    assert join.keys[1].list_column_candidates("right") == {"s.mail", "s"}


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("5s", timedelta(seconds=5)),
        ("45m", timedelta(minutes=45)),
        ("45 min", timedelta(minutes=45)),
        ("45 MINUTES", timedelta(minutes=45)),
        ("1h", timedelta(hours=1)),
        ("-1H 30m", timedelta(minutes=-90)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
    ],
)
def test_parse_duration_accepts_short_units(text, duration):
    assert parse_duration(text) == duration


def test_parse_instant_without_zone_is_utc_and_noted_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(types, "_NOTED_INSTANTS", [])
    pipeline = load_pipeline(write_variant(tmp_path / "p.yaml", slices__start="2013-01-01T00:00"))

    instants = [parse_instant("2013-01-01"), parse_instant(datetime(2013, 1, 1)), pipeline.slices.start]  # noqa: DTZ001

    assert instants == [datetime(2013, 1, 1, tzinfo=UTC)] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "note: times without a zone are UTC, such as 2013-01-01T00:00. Write Z or an offset to choose the zone."
    ]


def test_parse_instant_with_zone_is_not_noted(monkeypatch, caplog):
    monkeypatch.setattr(types, "_NOTED_INSTANTS", [])

    assert parse_instant("2013-01-01T01:00+01:00") == parse_instant("2013-01-01T00:00Z")
    parse_instant("2013-01-01", note_missing_zone=False)

    assert not caplog.records


def test_watched_inputs_need_completeness_rule_of_tables(pipeline):
    assert pipeline(left__complete="commit", right__complete="row", airflow={"watch_inputs": True}).airflow.watch_inputs
    for rule in (None, {"by": "asset", "asset": "a"}):
        with pytest.raises(PipelineFileError, match="airflow.watch_inputs: right.complete is missing or waits for an"):
            pipeline(left__complete="commit", right__complete=rule, airflow={"watch_inputs": True})
