import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import pytest
import yaml

from tidemark.config import changed as with_changes
from tidemark.config import load_pipeline, load_reference, pipeline_files, pipeline_schema
from tidemark.config.types import format_duration, parse_allowance
from tidemark.errors import PipelineFileError

PROJECT = Path(__file__).resolve().parents[2]
BEFORE = {"left": {"tumbling": "1 min"}, "right": {"tumbling": "5 min"}, "holds": "left < right"}
FILES = pipeline_files(PROJECT / "include" / "pipelines")


def as_editors_read(path):
    """Editors take an unquoted instant for a string, as JSON has nothing else."""
    return json.loads(json.dumps(yaml.safe_load(path.read_text()), default=str))


def changed(path, **changes):
    content = yaml.safe_load(FILES[0].read_text())
    for name, value in changes.items():
        *parents, last = name.split("__")
        target = content
        for parent in parents:
            target = target[parent]
        target[last] = value
    path.write_text(yaml.safe_dump(content))
    return path


DAYS = {"slices__every": "1 day", "slices__start": "2026-10-23T22:00Z", "slices__time_zone": "Europe/Berlin"}
APIA = DAYS | {"slices__time_zone": "Pacific/Apia"}
RECORDED = {"left__watermark": "w", "left__watermark_delay": None}
RESTARTED = {"restarts": ["2013-01-02T03:04:05Z"]}
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted((PROJECT / "docs").glob("*.md"))
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    if not block.startswith("suite:")
]


@pytest.mark.parametrize("block", BLOCKS)
def test_what_the_docs_show_is_taken_as_it_stands(tmp_path, block):
    shown = yaml.safe_load(block)
    rest = {name: part for name, part in yaml.safe_load(FILES[0].read_text()).items() if name not in shown}
    file = tmp_path / "shown.yaml"
    file.write_text(yaml.safe_dump(rest) + block)
    assert shown.keys() <= load_pipeline(file).model_dump(by_alias=True, exclude_unset=True).keys()


def test_on_off_yes_and_no_are_words(tmp_path):
    file = changed(tmp_path / "words.yaml", join__keys=["origin"])
    file.write_text(file.read_text().replace("- origin", "- on\n  - no") + "quality_defaults: off\nshow_rows: yes\n")
    loaded = load_pipeline(file)
    assert [(key.left, key.right) for key in loaded.join.keys] == [("on", "on"), ("no", "no")]
    assert (loaded.quality_defaults, loaded.show_rows) == (False, True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"left__event_tme": "x"}, "left.event_tme: unknown field; did you mean event_time?"),
        ({"qualitty": []}, "qualitty: unknown field; did you mean quality?"),
        ({"join__keys": [{"left": "a", "rigth": "b"}]}, "join.keys.0.rigth: unknown field; did you mean right?"),
        ({"left__arrival": None}, "right names an arrival column and left does not"),
        ({"join__interval": {"lower": "1 s", "upper": "-1 s"}}, "lower (1 second) is above upper (-1 second)"),
        ({"join__keys": [True]}, "join.keys.0: true and false without quotes are no names; write the name in"),
        ({"left__event_time": True}, "left.event_time: true and false without"),
        ({"compare": {"with": "t", True: ["k"]}}, "compare: true and false without"),
        ({"join__type": "left"}, "join.type: flink-datastream has inner for interval joins, not left"),
        (
            {"join__type": "cross"},
            "join.type: should be 'inner', 'left', 'right', 'full', 'semi' or 'anti', not 'cross'",
        ),
        ({"join__window": {"tumbling": "1 hour"}}, "join: give exactly one of interval, window"),
        (
            {"join__interval": None, "join__window_inequality": BEFORE},
            "join: flink-datastream has no window_inequality; it has interval, window",
        ),
        (
            {"dialect": "spark", "join__window_inequality": BEFORE},
            "join: give exactly one of interval, window, event_time_equality, window_inequality",
        ),
        (
            {"dialect": "spark", "join__interval": None, "join__window_inequality": {**BEFORE, "holds": "<"}},
            "join.window_inequality.holds: should be 'left < right', 'left <= right', 'left > right' or",
        ),
        (
            {
                "dialect": "spark",
                "join__interval": None,
                "join__window_inequality": {**BEFORE, "right": {"session": {"gap": "1 min"}}},
            },
            "join.window_inequality.right: spark joins on tumbling and sliding windows only",
        ),
        (
            {
                "dialect": "spark",
                "join__interval": None,
                "join__window_inequality": {**BEFORE, "left": {"sliding": {"size": "1 min", "slide": "1 hour"}}},
            },
            "join.window_inequality.left.sliding: spark has no slide above the size",
        ),
        (
            {"dialect": "spark", "join__interval": None, "join__window_inequality": BEFORE, "join__type": "left"},
            "join.type: spark refuses a left join without right.watermark_delay and left > right (or >=): no row",
        ),
        (
            {
                "dialect": "spark",
                "left__watermark_delay": None,
                "join__interval": None,
                "join__window_inequality": BEFORE,
                "join__type": "full",
            },
            "join.type: spark refuses a full join without right.watermark_delay and left > right (or >=), or left.",
        ),
        (
            {"join__interval": None, "join__event_time_equality": True},
            "join: flink-datastream has no event_time_equality",
        ),
        (
            {"join__min_cleanup": "third"},
            "join.min_cleanup: 'third' is not a duration; write a number and a unit, such as",
        ),
        (
            {"join__min_cleanup": "1 fortnight"},
            "'fortnight' is not a unit of time; use ms, seconds, minutes, hours, days or weeks; or half",
        ),
        ({"join__min_cleanup": "half"}, "join.min_cleanup: is for interval joins of flink-sql only"),
        ({"engine": 1.2}, "engine: 1.2 is not a version; write it in quotes, such as '1.17'"),
        ({"dialect": "spark", "engine": "4.1"}, "engine: is a version of Flink; leave it out with dialect spark"),
        ({"join__interval": {"lower": "1 s"}}, "join.interval: flink-datastream needs both lower and upper"),
        ({"join__interval": None, "join__window": {"tumbling": "0 s"}}, "join.window.tumbling: must be longer than"),
        ({"join__interval": None, "join__window": {}}, "give exactly one of tumbling, sliding, session, cumulate"),
        (
            {"dialect": "flink-sql", "join__time": "processing"},
            "left.event_time: on processing time a row's time is its arrival: name that here too",
        ),
        (
            {"dialect": "flink-sql", "join__time": "processing", "left__event_time": "departed_at"},
            "left.watermark_delay: there is no watermark with join.time: processing; leave it out",
        ),
        ({"join__time": "processing"}, "join.time: is for window joins of flink-datastream and interval joins of "),
        ({"join__api": "cogroup"}, "join.api: is for window joins of flink-datastream only"),
        ({"join__allowed_lateness": "1 s"}, "join.allowed_lateness: is for window joins of flink-datastream only"),
        ({"slices__every": "1 fortnight"}, "slices.every: 'fortnight' is not a unit of time"),
        ({"slices__every": "0 s"}, "slices.every: must be longer than nothing"),
        ({"slices__start": "soon"}, "slices.start: 'soon' is not an instant"),
        ({"left__watermark_delay": "-1 s"}, "left.watermark_delay: must not be negative"),
        ({"left__watermark_delay": "10 us"}, "left.watermark_delay: 10 us is finer than a millisecond"),
        ({"left__watermark_delay": 5}, "left.watermark_delay: 5 is not a duration; write a number and a unit"),
        ({"left__idle_after": "0 s"}, "left.idle_after: must be longer than nothing"),
        ({"dialect": "spark", "right__partition": "p"}, "right.partition: is for Flink's dialects"),
        ({"left__watermark": "w"}, "left: watermark: is what the job recorded, in place of watermark_delay; leave one"),
        (
            {**RECORDED, "dialect": "spark"},
            "left.watermark: is for Flink's dialects; what a Spark query had is told by",
        ),
        ({**RECORDED, "left__arrival": None, "right__arrival": None}, "left.watermark: was recorded as rows arrived; "),
        ({**RECORDED, "right__idle_after": "1 s"}, "right.idle_after: does not go with a watermark that was recorded"),
        (
            {**RECORDED, "join__interval": None, "join__window": {"tumbling": "1 h"}, "join__trigger": {"count": 2}},
            "join.trigger: does not go with a recorded watermark; put left.watermark_delay in its place",
        ),
        ({"restarts": ["soon"]}, "restarts.0: 'soon' is not an instant"),
        (
            {**RESTARTED, "dialect": "spark"},
            "restarts: a Spark query has its watermark in its checkpoint, so that none",
        ),
        (
            {**RESTARTED, "dialect": "flink-sql", "join__interval": None, "join__window": {"tumbling": "1 h"}},
            "restarts: go with intervals of flink-sql only: what its windows keep differs by version of Flink; leave",
        ),
        (
            {**RESTARTED, "join__interval": None, "join__window": {"session": {"gap": "1 h"}}},
            "restarts: go with tumbling windows only; which of a row's windows have fired before one is not kept",
        ),
        (
            {**RESTARTED, "join__interval": None, "join__window": {"tumbling": "1 h"}, "join__emit": "latest"},
            "restarts: do not go with join.emit; leave one of them out",
        ),
        (
            {**RESTARTED, "left__arrival": None, "right__arrival": None},
            "restarts: are told by when rows arrived; name an arrival column on both inputs",
        ),
        ({**RESTARTED, "right__idle_after": "1 s"}, "restarts: do not go with right.idle_after; leave one of them out"),
        (
            {"time_zone": "Europe/Berln"},
            "'Europe/Berln' is no name of the IANA time zone database; did you mean Europe/",
        ),
        ({"time_zone": "+02:00"}, "time_zone: '+02:00' is an offset, as which Flink SQL takes no zone; write a name"),
        ({"time_zone": "CET"}, "time_zone: 'CET' is no name of the IANA time zone database; write one such as"),
        ({"time_zone": "Europe/Berlin"}, "time_zone: is for windows; bounds of an interval are the same in every zone"),
        (
            {"time_zone": "Europe/Berlin", "join__interval": None, "join__window": {"tumbling": "1 day"}},
            "time_zone: windows of Flink's DataStream API are told in UTC; give them an `offset` in place of it",
        ),
        (
            {
                "dialect": "spark",
                "time_zone": "Europe/Berlin",
                "join__interval": None,
                "join__window": {"tumbling": "1 day"},
            },
            "time_zone: Spark's window() counts from 1970 in UTC, whatever the session's time zone; leave it out",
        ),
        ({"join__keys": []}, "join.keys: "),
        ({"name": "9 lives"}, "name: "),
        ({"join__condition": "left_v +"}, "join.condition: is no SQL expression, at +; see its syntax there"),
        ({"join__condition": "rand() < 0.1"}, "join.condition: rand() gives something else in each run"),
        ({"select": {"k": "left_k", "n": "count(*)"}}, "select: n: count() is over many rows"),
        ({"select": ["left_k", "_metadata"]}, "select: _metadata is no column of the join"),
        ({"flatten": "explode(left_items)"}, "flatten: explode() makes other rows of a row; give `flatten` the array"),
        ({"flatten": "array(struct(left_k))", "select": ["left_k"]}, "flatten: the fields of its structs"),
        ({"compare": {"on": ["k"]}}, "compare.with: is missing"),
        ({"compare": {"with": "s", "wihtin": 1}}, "compare.wihtin: unknown field; did you mean within?"),
        ({"compare": {"wtih": "s"}}, "compare.wtih: unknown field; did you mean with?"),
        ({"compare": {"with": "s", "within": -1}}, "compare.within: should be greater than or equal to 0, not -1"),
        ({"compare": {"with": "s", "every": "90 min"}}, "compare.every (1 hour 30 minutes) has to be a multiple of"),
        ({"compact": {"after": "-1 hour", "into": "1 day"}}, "compact.after: must not be negative"),
        ({"slices__time_zone": "Europe/Berlin"}, "slices: every (1 hour) goes with no time_zone, in which slices are"),
        (DAYS | {"slices__time_zone": "Europe/Berlim"}, "slices.time_zone: 'Europe/Berlim' is no name of the IANA"),
        (
            DAYS | {"slices__start": "2026-10-24T00:00Z"},
            "no midnight in Europe/Berlin; the one before is 2026-10-23T22",
        ),
        (DAYS | {"slices__start": "0001-01-01T00:00Z"}, "slices: 0001-01-01T00:00Z lies in no year from 1 to 9999 of"),
        (DAYS | {"slices__end": "2026-10-26T22:00Z"}, "is no slice boundary; the one before is 2026-10-25T23:00Z"),
        (DAYS | {"slices__end": "2026-10-22T22:00Z"}, "slices: end (2026-10-22T22:00Z) is not after start"),
        (DAYS | {"compare": {"with": "s", "every": "2 days"}}, "compare.every (2 days) has to be 1 day, as slices are"),
        (
            APIA | {"slices__start": "2011-12-01T10:00Z"},
            "slices: time_zone: 2011-12-30 is no whole day in Pacific/Apia",
        ),
        ({"compact": {"after": "1 day", "into": "90 min"}}, "compact.into (1 hour 30 minutes) has to be a multiple of"),
        ({"compact": {"after": "1 day", "into": "1 hour"}}, "compact.into (1 hour) has to be a multiple of"),
        ({"compact": {"after": "1 day"}}, "compact.into: is missing"),
        *(
            ({"retention": {name: "59 minutes"}}, f"retention.{name}: must be 1 hour at least: a query or a job may")
            for name in ("superseded", "states", "garbage", "docs", "logs")
        ),
        ({"retention": {"logs": "1 day"}}, "retention: logs (1 day) needs superseded: files of versions that no log"),
        (
            {"retention": {"superseded": "2 days", "logs": "1 day"}},
            "retention: logs (1 day) is shorter than superseded (2 days), whose versions need their log; make it 2",
        ),
        (
            {"compare": {"with": "s", "budget": {"unexplained": "a few"}}},
            "compare.budget.unexplained: 'a few' is not a number of rows; write it as 5, or as a share of all",
        ),
        ({"compare": {"with": "s", "budget": {"differing": -1}}}, "compare.budget.differing: -1 is not a number of"),
    ],
)
def test_mistakes_are_told_in_one_line_with_the_remedy(tmp_path, changes, told):
    path = changed(tmp_path / "p.yaml", **changes)
    with pytest.raises(PipelineFileError) as raised:
        load_pipeline(path)
    assert told in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["a: [", "- just a list", "\x00"])
def test_not_a_pipeline_at_all(tmp_path, content):
    path = tmp_path / "p.yaml"
    path.write_text(content)
    with pytest.raises(PipelineFileError, match=r"p\.yaml"):
        load_pipeline(path)


def test_an_unknown_name_suggests_the_nearest(monkeypatch):
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(PROJECT / "include" / "pipelines"))
    with pytest.raises(PipelineFileError, match="did you mean flights_weather?"):
        load_pipeline("flight_weather")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_schema_accepts_what_the_settings_accept(path):
    jsonschema.validate(as_editors_read(path), pipeline_schema())


@pytest.mark.parametrize("changes", [{"left__event_tme": "x"}, {"join__type": "cross"}, {"join__keys": [3]}])
def test_the_schema_refuses_what_the_settings_refuse(tmp_path, changes):
    content = as_editors_read(changed(tmp_path / "p.yaml", **changes))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, pipeline_schema())


def test_the_published_schema_is_the_one_generated():
    published = json.loads((PROJECT / "docs" / "pipeline.schema.json").read_text())
    assert published == pipeline_schema(), "run: tidemark schema > docs/pipeline.schema.json"


def test_equal_event_times_of_flink_sql_are_an_interval_of_nothing(tmp_path):
    interval = {"lower": "0 s", "upper": "0 s"}
    equal = changed(tmp_path / "e.yaml", dialect="flink-sql", join__interval=None, join__event_time_equality=True)
    bounded = changed(tmp_path / "b.yaml", dialect="flink-sql", join__interval=interval)
    jsonschema.validate(as_editors_read(equal), pipeline_schema())
    assert load_pipeline(equal) == load_pipeline(bounded)
    assert load_pipeline(equal).semantic_settings() == load_pipeline(bounded).semantic_settings()


@pytest.mark.parametrize(
    ("interval", "half"),
    [
        ({"lower": "-5 ms", "upper": "10 ms"}, 7),
        ({"lower": "-5 ms", "upper": "10 ms", "lower_inclusive": False}, 7),
        ({"lower": "-5 ms", "upper": "10 ms", "lower_inclusive": False, "upper_inclusive": False}, 6),
        ({"lower": "0 s", "upper": "0 s", "upper_inclusive": False}, 0),
    ],
)
def test_half_of_what_the_bounds_reach_over_was_flinks_cleanup(tmp_path, interval, half):
    path = changed(tmp_path / "p.yaml", dialect="flink-sql", join__interval=interval, join__min_cleanup="half")
    jsonschema.validate(as_editors_read(path), pipeline_schema())
    pipeline = load_pipeline(path)
    assert pipeline.join.min_cleanup_ms == half
    assert pipeline.semantic_settings()["join"]["min_cleanup"] == "half"
    explicit = changed(
        tmp_path / "e.yaml", dialect="flink-sql", join__interval=interval, join__min_cleanup=f"{half} ms"
    )
    assert load_pipeline(explicit).join.min_cleanup_ms == half


@pytest.mark.parametrize(
    ("dialect", "partition"), [("flink-datastream", "partition"), ("flink-sql", "partition"), ("spark", None)]
)
def test_a_table_landed_from_kafka_is_said_by_one_word(tmp_path, dialect, partition):
    ms = {"column": "timestamp", "unit": "ms"}
    short = changed(
        tmp_path / "p.yaml",
        dialect=dialect,
        left__arrival={"kafka": "timestamp"},
        right__arrival={"kafka": ms},
        right__tiebreak="seq",
    )
    jsonschema.validate(as_editors_read(short), pipeline_schema())
    long = changed(
        tmp_path / "e.yaml",
        dialect=dialect,
        left__arrival="timestamp",
        left__tiebreak="offset",
        left__partition=partition,
        right__arrival=ms,
        right__tiebreak="seq",
        right__partition=partition,
    )
    assert load_pipeline(short).semantic_settings() == load_pipeline(long).semantic_settings()
    typo = changed(tmp_path / "t.yaml", left__arrival={"kafka": "timestamp", "tiebreak": "offset"})
    with pytest.raises(PipelineFileError, match="left.arrival"):
        load_pipeline(typo)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"engine": "1.17.2"}, "half"),
        ({"engine": "1.9"}, "half"),
        ({"engine": "1.18"}, timedelta()),
        ({"engine": "2.3"}, timedelta()),
        ({"engine": "1.17", "join__min_cleanup": "0 s"}, timedelta()),
        ({"engine": "1.17", "join__interval": None, "join__window": {"tumbling": "1 hour"}}, timedelta()),
    ],
)
def test_flinks_version_chooses_what_is_not_told(tmp_path, settings, expected):
    told = changed(tmp_path / "p.yaml", dialect="flink-sql", **settings)
    jsonschema.validate(as_editors_read(told), pipeline_schema())
    pipeline = load_pipeline(told)
    assert pipeline.join.min_cleanup == expected
    written_out = {**settings, "dialect": "flink-sql", "engine": None, "join__min_cleanup": expected or "0 s"}
    same = changed(tmp_path / "e.yaml", **written_out)
    assert load_pipeline(same).semantic_settings() == pipeline.semantic_settings()


def test_pipelines_share_inputs_by_name(tmp_path):
    content = yaml.safe_load(FILES[0].read_text())
    (tmp_path / "inputs").mkdir()
    for name, side in (("flights", "left"), ("weather", "right")):
        (tmp_path / "inputs" / f"{name}.yaml").write_text(yaml.safe_dump(content[side]))
    sooner = {"use": "weather", "watermark_delay": "7 minutes"}
    short = changed(tmp_path / "p.yaml", left="flights", right=sooner)
    jsonschema.validate(as_editors_read(short), pipeline_schema())
    whole = load_pipeline(changed(tmp_path / "w.yaml", right__watermark_delay="7 minutes"))
    assert load_pipeline(short) == whole
    assert [file.name for file in pipeline_files(tmp_path)] == ["p.yaml", "w.yaml"], "an input is no pipeline"


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ("flihgts", r"p.yaml: left: there is no input flihgts in .*inputs; did you mean flights\?"),
        ({"use": "../p"}, "left: there is no input ../p in"),
        ({"use": ["flights"]}, r"left: there is no input \['flights'\] in"),
        ("list", "list.yaml is no input: expected fields such as table, event_time"),
        ("typo", r"p.yaml with inputs/typo.yaml: left.event_tme: unknown field; did you mean event_time\?"),
        ({"use": "flights", "usee": 1}, "p.yaml with inputs/flights.yaml: left.usee: unknown field"),
    ],
)
def test_a_shared_input_that_does_not_serve_is_told_in_one_line(tmp_path, left, told):
    (tmp_path / "inputs").mkdir()
    flights = {"table": "flights", "event_time": "scheduled_departure", "watermark_delay": "0 s"}
    for name, content in (("flights", flights), ("list", [1]), ("typo", {**flights, "event_tme": "x"})):
        (tmp_path / "inputs" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(PipelineFileError, match=told):
        load_pipeline(changed(tmp_path / "p.yaml", left=left, right__arrival=None))


def test_guard_and_expectations_have_short_forms(tmp_path):
    flat = {"type": "expect_column_values_to_not_be_null", "column": "left_a", "severity": "warning"}
    kwargs = {"type": flat["type"], "kwargs": {"column": "left_a"}, "severity": "warning"}
    single = {flat["type"]: {"column": "left_a", "severity": "warning"}}
    for off in (False, "off"):
        jsonschema.validate(as_editors_read(changed(tmp_path / "p.yaml", guard=off)), pipeline_schema())
        pipeline = load_pipeline(changed(tmp_path / "p.yaml", guard=off, quality=[flat, kwargs, single]))
        assert pipeline.guard is None
    assert len(set(map(str, pipeline.quality))) == 1


def test_settings_that_do_not_change_the_answer_are_not_semantic(tmp_path):
    base = load_pipeline(FILES[0]).semantic_settings()
    other = changed(tmp_path / "p.yaml", quality=[], output="x", show_rows=True)
    assert load_pipeline(other).semantic_settings() == base
    assert load_pipeline(changed(tmp_path / "p.yaml", left__watermark_delay="1 h")).semantic_settings() != base


COMPARE = {"with": "streamed/x", "on": ["left_k"], "every": "1 day", "budget": {"unexplained": "0.1 %", "differing": 7}}


def test_how_to_compare_is_no_setting_of_the_join(tmp_path):
    pipeline = load_pipeline(changed(tmp_path / "p.yaml", compare=COMPARE))
    jsonschema.validate(as_editors_read(tmp_path / "p.yaml"), pipeline_schema())
    assert pipeline.semantic_settings() == load_pipeline(FILES[0]).semantic_settings()
    told = pipeline.compare
    assert (told.table, told.on, told.ignore, told.within) == ("streamed/x", ["left_k"], [], 0)
    assert format_duration(told.every) == "1 day"
    assert (str(told.budget.unexplained), str(told.budget.differing)) == ("0.1 %", "7")


def test_options_come_before_the_settings_of_a_comparison(tmp_path):
    pipeline = load_pipeline(changed(tmp_path / "p.yaml", compare=COMPARE))
    told = with_changes(pipeline, {"compare.with": "other", "compare.on": [], "compare.budget.differing": "8"}).compare
    assert (told.table, told.on, str(told.budget.differing)) == ("other", [], "8")
    assert (told.every, told.budget.unexplained) == (pipeline.compare.every, pipeline.compare.budget.unexplained)
    bare = with_changes(load_pipeline(FILES[0]), {"compare.with": "other"}).compare
    assert (bare.table, bare.told_by, str(bare.budget.unexplained), bare.budget.differing) == ("other", None, "0", None)


@pytest.mark.parametrize(
    ("allowed", "rows", "most"),
    [(0, 10, 0), ("5", 3, 5), ("0.1 %", 5123, 5), ("100%", 7, 7), ("12.5 %", 8, 1), ("0 %", 9, 0)],
)
def test_what_is_allowed_is_a_number_or_a_share_of_the_rows(allowed, rows, most):
    assert parse_allowance(allowed).of(rows) == most


@pytest.mark.parametrize("text", ["", "-1", "1.5", "5 rows", "% 5", True, None])
def test_what_is_neither_a_number_nor_a_share_is_not_allowed(text):
    with pytest.raises(ValueError, match="write it as 5, or as a share of all such as '0.1 %'"):
        parse_allowance(text)


def test_who_tells_of_the_stream_is_looked_for_beside_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(PROJECT / "include" / "pipelines"))
    monkeypatch.chdir("/")
    (tmp_path / "stories").mkdir()
    changed(tmp_path / "stories" / "near.yaml", name="near")
    changed(tmp_path / "stories" / "flights_weather.yaml", name="beside")

    def told_by(name):
        return load_reference(changed(tmp_path / "stories" / "p.yaml", compare={"with": "s", "told_by": name})).name

    assert [told_by(name) for name in ("near", "near.yaml", "../stories/near.yaml")] == ["near"] * 3
    assert told_by("flights_weather") == "beside"
    assert told_by("flights_weather_event_time") == "flights_weather_event_time"
    with pytest.raises(PipelineFileError, match=r"p\.yaml: compare\.told_by: there is no pipeline neer .*near"):
        told_by("neer")
    assert load_reference(FILES[0]) is None


def test_restarts_are_a_set_of_instants(tmp_path):
    told = ["2013-01-01T05:00:00Z", "2013-01-01T04:00:00Z", "2013-01-01T06:00:00+01:00"]
    found = load_pipeline(changed(tmp_path / "p.yaml", restarts=told)).semantic_settings()
    assert found.pop("restarts") == ["2013-01-01T04:00Z", "2013-01-01T05:00Z"]
    assert found == load_pipeline(FILES[0]).semantic_settings()


def test_slices_may_end_and_only_on_their_grid(tmp_path):
    base = load_pipeline(FILES[0])
    ended = load_pipeline(changed(tmp_path / "p.yaml", slices__end=base.slices.start + 3 * base.slices.every))
    assert ended.semantic_settings() == base.semantic_settings()
    with pytest.raises(PipelineFileError, match=r"slices: end \(.*\) is no slice boundary; the one before is "):
        load_pipeline(changed(tmp_path / "p.yaml", slices__end=base.slices.start + 1.5 * base.slices.every))
    with pytest.raises(PipelineFileError, match="is not after start"):
        load_pipeline(changed(tmp_path / "p.yaml", slices__end=base.slices.start))
    days = load_pipeline(changed(tmp_path / "p.yaml", **DAYS, slices__end="2026-10-25T23:00Z"))
    assert [one.slices.last for one in (days, ended, base)] == [
        datetime(2026, 10, 24, 22, tzinfo=UTC),
        base.slices.start + 2 * base.slices.every,
        None,
    ]
    assert load_pipeline(changed(tmp_path / "p.yaml", slices__time_zone="UTC")) == base
    later = load_pipeline(changed(tmp_path / "p.yaml", **APIA | {"slices__start": "2012-01-01T00:00+14:00"}))
    assert later.slices.last is None


def test_how_airflow_runs_it_is_no_setting_of_the_join(tmp_path):
    block = {"owner": "flights", "execution_timeout": "1 hour"}
    pipeline = load_pipeline(changed(tmp_path / "p.yaml", airflow=block))
    assert pipeline.semantic_settings() == load_pipeline(FILES[0]).semantic_settings()
    assert pipeline.airflow.owner == "flights"


def test_airflow_is_told_no_code(tmp_path):
    with pytest.raises(PipelineFileError, match="airflow.owner"):
        load_pipeline(changed(tmp_path / "p.yaml", airflow={"owner": "{{ var.value.x }}"}))


def test_where_is_of_one_input_and_filters_where_the_dialect_can(tmp_path):
    (tmp_path / "inputs").mkdir()
    shared = {**yaml.safe_load(FILES[0].read_text())["left"], "where": "carrier <> 'XX'"}
    (tmp_path / "inputs" / "flights.yaml").write_text(yaml.safe_dump(shared))
    flink = load_pipeline(changed(tmp_path / "flink.yaml", left={"use": "flights"}))
    spark = load_pipeline(changed(tmp_path / "spark.yaml", left={"use": "flights"}, dialect="spark"))
    at_source = load_pipeline(changed(tmp_path / "at.yaml", left={"use": "flights", "where_at": "source"}))
    assert [one.left.where for one in (flink, spark, at_source)] == ["carrier <> 'XX'"] * 3
    assert [one.filters_at_source(one.left) for one in (flink, spark, at_source)] == [False, True, True]
    assert not flink.filters_at_source(flink.right)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"left__where": "rand() < 0.5"}, "left.where: rand() gives something else in each run"),
        ({"left__where": ""}, "left.where: is empty; leave it out"),
        ({"right__where_at": "source"}, "right: where_at: means nothing without where; leave it out"),
        (
            {"dialect": "spark", "left__where": "v > 1", "left__where_at": "watermark"},
            "left.where_at: Spark's optimizer moves a filter below withWatermark, so that rows left out never move the",
        ),
    ],
)
def test_a_where_that_cannot_be_is_refused(tmp_path, changes, told):
    with pytest.raises(PipelineFileError) as refused:
        load_pipeline(changed(tmp_path / "wrong.yaml", **changes))
    assert told in str(refused.value)


def test_keys_that_are_made_are_told_by_the_columns_they_are_made_of(tmp_path):
    keys = ["k", {"left": "lower(email)", "right": "s.mail"}]
    join = load_pipeline(changed(tmp_path / "keys.yaml", join__keys=keys)).join
    assert join.telling_columns == ["left_k", "right_k", "left_lower(email)", "left_email", "right_s.mail"]
    assert join.keys[1].columns("left") == {"lower(email)", "email"}
    assert join.keys[1].columns("right") == {"s.mail", "s"}
