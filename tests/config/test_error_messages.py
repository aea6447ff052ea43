"""Error messages of invalid pipeline files: one line with field, problem and remedy."""

import pytest

from tests.config.pipeline_files import APIA_DAYS, LOCAL_DAYS, write_variant
from tidemark.config import load_pipeline
from tidemark.errors import PipelineFileError

COMPARED_WINDOWS = {"left": {"tumbling": "1 min"}, "right": {"tumbling": "5 min"}, "comparison": "left < right"}

NOT_NULL = "expect_column_values_to_not_be_null"


RECORDED = {"left__recorded_watermark": "w", "left__watermark_delay": None}

KAFKA = {f"{side}__arrival": {"kafka": "at"} for side in ("left", "right")}

RESTARTED = {"restarts": ["2013-01-02T03:04:05Z"]}

SQL_SESSIONS = {"dialect": "flink-sql", "join__interval": None, "join__window": {"session": {"gap": "1 minute"}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left__event_tme": "x"}, "left.event_tme: unknown field. Did you mean event_time?"),
        ({"qualitty": []}, "qualitty: unknown field. Did you mean quality?"),
        ({"join__keys": [{"left": "a", "rigth": "b"}]}, "join.keys.0.rigth: unknown field. Did you mean right?"),
        ({"left__arrival": None}, "right has an arrival column and left has none"),
        ({"join__interval": {"lower": "1 s", "upper": "-1 s"}}, "lower (1 second) is above upper (-1 second)"),
        ({"join__keys": [True]}, "join.keys.0: is true or false instead of a name. Write the name in"),
        ({"left__event_time": True}, "left.event_time: is true or false instead"),
        ({"compare": {"table": "t", True: ["k"]}}, "compare: is true or false instead"),
        (
            {"airflow": {"repair": {"approve_above": {}}}},
            "airflow.repair.approve_above: has neither slices nor rows.",
        ),
        ({"join__type": "left"}, "join.type: flink-datastream does not support left for interval joins. Use inner."),
        (
            {"join__type": "cross"},
            "join.type: should be 'inner', 'left', 'right', 'full', 'semi' or 'anti', not 'cross'",
        ),
        ({"join__window": {"tumbling": "1 hour"}}, "join: set exactly one of interval, window"),
        (
            {"join__interval": None, "join__window_inequality": COMPARED_WINDOWS},
            "join: flink-datastream does not support window_inequality. Use interval or window.",
        ),
        (
            {"dialect": "spark", "join__window_inequality": COMPARED_WINDOWS},
            "join: set exactly one of interval, window, event_time_equality, window_inequality",
        ),
        (
            {
                "dialect": "spark",
                "join__interval": None,
                "join__window_inequality": {**COMPARED_WINDOWS, "comparison": "<"},
            },
            "join.window_inequality.comparison: should be 'left < right', 'left <= right', 'left > right' or",
        ),
        (
            {
                "dialect": "spark",
                "join__interval": None,
                "join__window_inequality": {**COMPARED_WINDOWS, "right": {"session": {"gap": "1 min"}}},
            },
            "join.window_inequality.right: spark joins on tumbling and sliding windows only",
        ),
        (
            {
                "dialect": "spark",
                "join__interval": None,
                "join__window_inequality": {
                    **COMPARED_WINDOWS,
                    "left": {"sliding": {"size": "1 min", "slide": "1 hour"}},
                },
            },
            "join.window_inequality.left.sliding: spark does not support a slide above the size",
        ),
        (
            {
                "dialect": "spark",
                "join__interval": None,
                "join__window_inequality": COMPARED_WINDOWS,
                "join__type": "left",
            },
            "join.type: spark refuses a left join that cannot evict rows. Set right.watermark_delay and left > right",
        ),
        (
            {
                "dialect": "spark",
                "left__watermark_delay": None,
                "join__interval": None,
                "join__window_inequality": COMPARED_WINDOWS,
                "join__type": "full",
            },
            "join.type: spark refuses a full join that cannot evict rows. Set right.watermark_delay and left >",
        ),
        (
            {"join__interval": None, "join__event_time_equality": True},
            "join: flink-datastream does not support event_time_equality",
        ),
        (
            {"join__min_cleanup_interval": "third"},
            "join.min_cleanup_interval: 'third' is not a duration. Write a whole number and a unit, such as",
        ),
        (
            {"join__min_cleanup_interval": "1 fortnight"},
            "Use ms, s, m, h, d or w, or the words seconds, minutes, hours, days or weeks. Or write half.",
        ),
        ({"join__min_cleanup_interval": "half"}, "join.min_cleanup_interval: is for interval joins of flink-sql only"),
        ({"flink_version": 1.2}, "flink_version: 1.2 is not a version. Quote it, such as '1.17'"),
        ({"dialect": "spark", "flink_version": "4.1"}, "flink_version: has no effect in dialect spark. Remove it."),
        ({"dialect": "spark", "watermark_strategy": "sql"}, "watermark_strategy: has no effect in dialect spark."),
        (
            {
                "dialect": "spark",
                "left__arrival": {"streaming_checkpoint": "c"},
                "right__arrival": {"streaming_checkpoint": "c"},
                "spark": {"micro_batches": "back_to_back"},
            },
            "spark.micro_batches: has no effect with a streaming checkpoint. Remove it.",
        ),
        (
            {"time_bounds": {"earliest": "2024-01-01T00:00Z", "latest": "2023-01-01T00:00Z"}},
            "time_bounds: earliest must be before latest",
        ),
        (
            {"time_bounds": {"max_ahead_of_arrival": "-1 hour"}},
            "time_bounds: max_ahead_of_arrival must not be negative",
        ),
        (
            {"quality": [{"expect_table_row_count_to_be_between": 10}]},
            "quality.0: expect_table_row_count_to_be_between: needs arguments by name instead of 10. Write expect_",
        ),
        ({"join__interval": {"lower": "1 s"}}, "join.interval: flink-datastream needs both lower and upper"),
        ({"join__interval": None, "join__window": {"tumbling": "0 s"}}, "join.window.tumbling: must be positive"),
        ({"join__interval": None, "join__window": {}}, "set exactly one of tumbling, sliding, session, cumulate"),
        (
            {"dialect": "flink-sql", "join__time": "processing"},
            "left.event_time: differs from arrival, the only time on processing time. Set it to that column.",
        ),
        (
            {"dialect": "flink-sql", "join__time": "processing", "left__event_time": "departed_at"},
            "left.watermark_delay: has no effect with join.time: processing. Remove it.",
        ),
        (
            {"left__arrival": None, "right__arrival": None, "left__allowed_clock_skew": "1 hour"},
            "left.allowed_clock_skew: has an effect only if the input has an arrival and its event times make a",
        ),
        (
            {"dialect": "spark", "right__watermark_delay": None, "right__allowed_clock_skew": "1 hour"},
            "right.allowed_clock_skew: has an effect only if",
        ),
        (
            {"flink_version": "2.1.1", "left__idle_timeout": "1 minute", "right__idle_timeout": "1 minute"},
            "flink_version: before Flink 2.2 this join keeps its watermark while both inputs are idle, which is not",
        ),
        (
            {**SQL_SESSIONS, "left__idle_timeout": "1 minute"},
            "left.idle_timeout: is not supported with session windows of flink-sql",
        ),
        ({"left__allowed_clock_skew": "0 s"}, "left.allowed_clock_skew: must be positive"),
        ({"join__time": "processing"}, "join.time: is for window joins of flink-datastream and interval joins of "),
        ({"join__api": "cogroup"}, "join.api: is for window joins of flink-datastream only"),
        ({"join__allowed_lateness": "-1 s"}, "join.allowed_lateness: must not be negative"),
        ({"join__min_cleanup_interval": "-1 s"}, "join.min_cleanup_interval: must not be negative"),
        ({"join__allowed_lateness": "1 s"}, "join.allowed_lateness: is for window joins of flink-datastream only"),
        ({"slices__every": "1 fortnight"}, "slices.every: 'fortnight' is not a unit of time"),
        ({"slices__every": "45M"}, "slices.every: 'M' may mean minutes or months. Write m for minutes"),
        ({"join__keys": "tailnum"}, "join.keys: should be a list. Write [tailnum]."),
        ({"join__keys": {"left": "a", "right": "b"}}, "join.keys: should be a list. Begin each entry with '- '."),
        ({"join__keys": None}, "join.keys: should be a list. Write its entries, or remove the setting."),
        ({"select": "left_carrier"}, "select: should be a list. Write [left_carrier]."),
        ({"restarts": "2013-01-01T00:00Z"}, "restarts: should be a list. Write [2013-01-01T00:00Z]."),
        ({"compare": {"table": "t", "key_columns": "a, b"}}, "compare.key_columns: should be a list. Write [a, b]."),
        ({"compare": {"table": "t", "ignore_columns": "a"}}, "compare.ignore_columns: should be a list. Write [a]."),
        ({"quality": "expect_x"}, "quality: should be a list. Write [expect_x]."),
        (
            {"quality": [*({"expect_column_to_exist": {"column": name}} for name in "aba")]},
            "quality: expectation 3 (expect_column_to_exist) is the same check as expectation 1, with the same",
        ),
        (
            {"quality": ["expect_x"]},
            "quality.0: expect_x is not an allowed expectation. docs/pipeline.schema.json lists",
        ),
        ({"quality": [f"{NOT_NULL}l"]}, f"{NOT_NULL}l is not an allowed expectation. Did you mean {NOT_NULL}?"),
        ({"quality": [NOT_NULL]}, f"quality.0: {NOT_NULL} needs settings. Write the entry as {{{NOT_NULL}: {{...}}}}."),
        (
            {"quality": [{f"{NOT_NULL}l": {"column": "k"}, "severity": "info"}]},
            f"quality.0: {NOT_NULL}l is not an allowed expectation. Did you mean {NOT_NULL}?",
        ),
        (
            {"quality": [{NOT_NULL: {"column": "k"}, "severity": "info"}]},
            f"quality.0: {NOT_NULL} has other settings beside it. Write {{type: {NOT_NULL}, ...}}.",
        ),
        ({"quality": [{"expect_column_to_exist": {"column": "a", "notes": 3}}]}, "notes: should be a list. Write [3]."),
        (
            {"quality": [{"expect_column_values_to_be_in_set": {"column": "a", "value_set": "x"}}]},
            "expect_column_values_to_be_in_set: value_set should be a list. Write [x].",
        ),
        (
            {"notify": [{"email": {"connection": "tidemark_x", "to": "a@example.org"}}]},
            "notify.0.email.to: should be a list. Write [a@example.org].",
        ),
        ({"left__tiebreak": ["offset"]}, "left.tiebreak: should be a single value, not a list. Write offset."),
        ({"slices__every": "0 s"}, "slices.every: must be positive"),
        ({"slices__start": "soon"}, "slices.start: 'soon' is not an instant"),
        ({"left__watermark_delay": "-1 s"}, "left.watermark_delay: must not be negative"),
        ({"left__watermark_delay": "10 us"}, "left.watermark_delay: 10 us is finer than a millisecond"),
        ({"left__watermark_delay": False}, "left.watermark_delay: False is not a duration. Write a whole number and a"),
        ({"left__watermark_delay": 5}, "left.watermark_delay: 5 is not a duration. Write a whole number and a unit"),
        ({"left__idle_timeout": "0 s"}, "left.idle_timeout: must be positive"),
        (
            {**RESTARTED, **KAFKA},
            "left.partition. Remove one of them. With arrival: {kafka: COLUMN} write partition: null.",
        ),
        (
            {**KAFKA, "left__recorded_watermark": "w", "left__watermark_delay": None},
            "right.partition: cannot be combined with left.recorded_watermark. Remove it. With arrival: {kafka",
        ),
        ({**KAFKA, "output_stream": True}, "left.partition is not supported in a chain. Remove it. With arrival"),
        (
            {
                **KAFKA,
                "dialect": "flink-sql",
                "join__time": "processing",
                **{f"{side}__event_time": "at" for side in ("left", "right")},
                **{f"{side}__watermark_delay": None for side in ("left", "right")},
            },
            "left.partition: has no effect with join.time: processing. Remove it. With arrival: {kafka: COLUMN} write",
        ),
        ({"dialect": "spark", "right__partition": "p"}, "right.partition: is for Flink's dialects"),
        ({"left__recorded_watermark": "w"}, "left: recorded_watermark: replaces watermark_delay. Remove one"),
        (
            {**RECORDED, "dialect": "spark"},
            "left.recorded_watermark: is for Flink's dialects only. For a Spark query, set arrival to its",
        ),
        (
            {**RECORDED, "left__arrival": None, "right__arrival": None},
            "left.recorded_watermark: was recorded in arrival order. ",
        ),
        (
            {**RECORDED, "right__idle_timeout": "1 s"},
            "right.idle_timeout: cannot be combined with left.recorded_watermark. Remove it.",
        ),
        (
            {**RECORDED, "join__interval": None, "join__window": {"tumbling": "1 h"}, "join__trigger": {"count": 2}},
            "join.trigger: cannot be combined with a recorded watermark. Set left.watermark_delay instead.",
        ),
        ({"restarts": ["soon"]}, "restarts.0: 'soon' is not an instant"),
        (
            {**RESTARTED, "dialect": "spark"},
            "restarts: have no effect on a Spark query, whose watermark is in its checkpoint. Remove them.",
        ),
        (
            {**RESTARTED, "dialect": "flink-sql", "join__interval": None, "join__window": {"tumbling": "1 h"}},
            "restarts: need an interval in flink-sql, because the state of its windows differs by Flink version.",
        ),
        (
            {**RESTARTED, "join__interval": None, "join__window": {"session": {"gap": "1 h"}}},
            "restarts: need tumbling windows, because fired windows of a row are not stored. Remove them.",
        ),
        (
            {**RESTARTED, "join__interval": None, "join__window": {"tumbling": "1 h"}, "join__emit": "latest"},
            "restarts: cannot be combined with join.emit. Remove one of them.",
        ),
        (
            {**RESTARTED, "left__arrival": None, "right__arrival": None},
            "restarts: are instants of the arrival clock. Set an arrival column on both inputs.",
        ),
        (
            {**RESTARTED, "right__idle_timeout": "1 s"},
            "restarts: cannot be combined with right.idle_timeout. Remove one of them.",
        ),
        (
            {"time_zone": "Europe/Berln"},
            "'Europe/Berln' is not in the IANA time zone database. Did you mean Europe/",
        ),
        ({"time_zone": "+02:00"}, "time_zone: '+02:00' is an offset, not a name. Write a name of the IANA"),
        ({"time_zone": "CET"}, "time_zone: 'CET' is not in the IANA time zone database. Write one such as"),
        ({"time_zone": "Europe/Berlin"}, "time_zone: needs windows, because interval bounds are equal in every zone"),
        (
            {"time_zone": "Europe/Berlin", "join__interval": None, "join__window": {"tumbling": "1 day"}},
            "time_zone: windows of Flink's DataStream API are in UTC. Set their `offset` instead.",
        ),
        (
            {
                "dialect": "spark",
                "time_zone": "Europe/Berlin",
                "join__interval": None,
                "join__window": {"tumbling": "1 day"},
            },
            "time_zone: Spark's window() counts from 1970 in UTC, whatever the session's time zone. Remove it.",
        ),
        ({"join__keys": []}, "p.yaml: join.keys: is empty. Write at least one entry."),
        ({"join__keys": [1]}, "join.keys.0: should be a mapping, not 1. Its fields: left, right."),
        (
            {"name": "9 lives"},
            "name: '9 lives' is not valid. Pipeline name: letters, digits, _ and -, beginning with a",
        ),
        ({"cluster": {"executor_memory": "2"}}, "cluster.executor_memory: '2' is not valid. JVM heap size of each"),
        ({"cluster": {"executors": {"min": 3, "max": 1}}}, "p.yaml: cluster.executors: min (3) is above max (1)."),
        ({"cluster": {"executors": 0}}, "p.yaml: cluster.executors: should be greater than or equal to 1, not 0."),
        ({"cluster": {"executors": "x"}}, "p.yaml: cluster.executors: should be a whole number, not 'x'."),
        ({"airflow": {"retries": 1.5}}, "airflow.retries: should be a whole number, not 1.5."),
        ({"expose_row_values": "maybe"}, "expose_row_values: should be true or false, not 'maybe'."),
        ({"left__table": 5}, "left.table: should be a text in quotes, not 5."),
        ({"select": {"a": None}}, "p.yaml: select.a: should be a text, not None."),
        ({"join__window": "1 hour"}, "join.window: should be a mapping, not '1 hour'. Its fields: tumbling, sliding,"),
        (
            {"join__condition": "left_v +"},
            "join.condition: is not an SQL expression. Correct the syntax at +, character",
        ),
        ({"join__condition": "rand() < 0.1"}, "join.condition: rand() returns another value in each run"),
        ({"select": {"k": "left_k", "n": "count(*)"}}, "select: n: count() aggregates many rows"),
        ({"select": ["left_k", "_metadata"]}, "select: _metadata is not a column of the join"),
        ({"select": {"_id": "left_k"}}, "select: _id: names that begin with _ are Tidemark's. Use another one."),
        ({"output": "hr/candidates/wide"}, "output: hr/candidates/wide is the folder of a candidate version. Use"),
        (
            {"explode": "explode(left_items)"},
            "explode: explode() changes the number of rows. Set `explode` to the array",
        ),
        ({"explode": "array(struct(left_k))", "select": ["left_k"]}, "explode: cannot be combined with select"),
        ({"compare": {"key_columns": ["k"]}}, "compare.table: is missing"),
        (
            {"compare": {"table": "s", "float_tolerence": 1}},
            "compare.float_tolerence: unknown field. Did you mean float_tolerance?",
        ),
        ({"compare": {"tabel": "s"}}, "compare.tabel: unknown field. Did you mean table?"),
        (
            {"compare": {"table": "s", "float_tolerance": -1}},
            "compare.float_tolerance: should be greater than or equal to 0, not -1",
        ),
        ({"compare": {"table": "s", "every": "90 min"}}, "compare.every (1 hour 30 minutes) is not a multiple of"),
        ({"compact": {"settled_after": "-1 hour", "period": "1 day"}}, "compact.settled_after: must not be negative"),
        (
            {"slices__time_zone": "Europe/Berlin"},
            "slices: every (1 hour) cannot be combined with time_zone. Set every to 1 day",
        ),
        (LOCAL_DAYS | {"slices__time_zone": "Europe/Berlim"}, "slices.time_zone: 'Europe/Berlim' is not in the IANA"),
        (
            LOCAL_DAYS | {"slices__start": "2026-10-24T00:00Z"},
            "not a midnight in Europe/Berlin. Use the previous one, 2026-10-23T22",
        ),
        (
            LOCAL_DAYS | {"slices__start": "0001-01-01T00:00Z"},
            "slices: 0001-01-01T00:00Z is outside the years 1 to 9999 of",
        ),
        (
            LOCAL_DAYS | {"slices__end": "2026-10-26T22:00Z"},
            "is not a slice boundary. Use the previous one, 2026-10-25T23:00Z",
        ),
        (LOCAL_DAYS | {"slices__end": "2026-10-22T22:00Z"}, "slices: end (2026-10-22T22:00Z) is not after start"),
        (
            LOCAL_DAYS | {"compare": {"table": "s", "every": "2 days"}},
            "compare.every (2 days) differs from the slices, which are days of",
        ),
        (
            APIA_DAYS | {"slices__start": "2011-12-01T10:00Z"},
            "slices: time_zone: 2011-12-30 is not a whole day in Pacific/Apia",
        ),
        (
            {"compact": {"settled_after": "1 day", "period": "90 min"}},
            "compact.period (1 hour 30 minutes) is not a multiple of",
        ),
        ({"compact": {"settled_after": "1 day", "period": "1 hour"}}, "compact.period (1 hour) is not a multiple of"),
        ({"compact": {"settled_after": "1 day"}}, "compact.period: is missing"),
        *(
            (
                {"retention": {name: "59 minutes"}},
                f"retention.{name}: must be at least 1 hour, as running jobs may need",
            )
            for name in ("replaced_files", "checkpoints", "uncommitted_files", "data_docs", "log_files")
        ),
        (
            {"retention": {"log_files": "1 day"}},
            "retention: log_files (1 day) needs replaced_files. Set it too, because files of",
        ),
        (
            {"retention": {"replaced_files": "2 days", "log_files": "1 day"}},
            "retention: log_files (1 day) is shorter than replaced_files (2 days), whose versions need their log",
        ),
        (
            {"compare": {"table": "s", "budget": {"unexplained": "a few"}}},
            "compare.budget.unexplained: 'a few' is not a number of rows. Write it as 5, or as a share of all",
        ),
        ({"compare": {"table": "s", "budget": {"differing": -1}}}, "compare.budget.differing: -1 is not a number of"),
    ],
)
def test_load_invalid_setting_raises_a_single_line_with_remedy(tmp_path, changes, message):
    path = write_variant(tmp_path / "p.yaml", **changes)
    with pytest.raises(PipelineFileError) as raised:
        load_pipeline(path)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_load_unknown_field_does_not_name_fields_that_only_code_sets(tmp_path):
    with pytest.raises(PipelineFileError, match=r"Available: table, .*, complete\.$"):
        load_pipeline(write_variant(tmp_path / "p.yaml", left__zzz=1))
