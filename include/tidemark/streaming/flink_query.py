"""Translate a flink-sql pipeline's join into Flink SQL, over ordered rows of both inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from tidemark.config import Interval, Join, Pipeline, WindowSettings
from tidemark.config.sides import SIDES
from tidemark.config.types import to_millis
from tidemark.errors import PipelineFileError
from tidemark.joins.factory import has_irregular_clock_changes
from tidemark.joins.keys import key_name
from tidemark.joins.window_output import SEMI_ANTI_TYPES

ROWS = "side STRING, number BIGINT, event_ms BIGINT"
"""Columns that Flink reads, besides the keys as text: `key_0`, `key_1` and so on."""
ANSWER = "left_number BIGINT, right_number BIGINT, window_start STRING, window_end STRING"
"""Columns that Flink writes: the numbers of the rows (null if absent), and the window's bounds in the time zone."""

_MAX_INTERVAL = timedelta(days=99)
_TABLE = """
CREATE TABLE both_sides ({columns}, ts AS TO_TIMESTAMP_LTZ(event_ms, 3), WATERMARK FOR ts AS ts - {tick}) {files}
"""
_VIEW = "CREATE VIEW {side}_rows AS SELECT number, ts, {keys} FROM both_sides WHERE side = '{side}'"
_INSERT = "INSERT INTO answer {query}"
_JOIN = "SELECT l.number, r.number, {bounds} FROM {left} l {how} JOIN {right} r ON {on}"
_HALF = "SELECT l.number, CAST(NULL AS BIGINT), {bounds} FROM {left} l WHERE {how} (SELECT * FROM {right} r WHERE {on})"
_WINDOWS = "(SELECT * FROM TABLE({function}(TABLE {rows}, DESCRIPTOR(ts), {spans})))"
_FILES = "WITH ('connector' = 'filesystem', 'path' = '{folder}', 'format' = 'json')"


@dataclass(frozen=True)
class FlinkQuery:
    """Settings and statements of a Flink process."""

    settings: dict[str, str]
    statements: list[str]
    """Statements to run; the last is the query."""


def create_flink_query(pipeline: Pipeline, rows: str, answer: str) -> FlinkQuery:
    """Translate a pipeline to a query over rows in the order of event time.

    Rows of one instant are simultaneous in Tidemark, so the watermark is 1 ms behind: no row of an instant may close
    what another one waits for. In this order nothing else depends on the watermark, so the delays are not needed.

    Args:
        rows: folder of JSON lines with `ROWS` and the keys.
        answer: folder for the output, JSON lines with `ANSWER`.

    Raises:
        PipelineFileError: Flink cannot run the join over rows in this order.
    """
    for reason in _find_obstacles(pipeline):
        raise PipelineFileError(f"{pipeline.name} {reason}")
    keys = [key_name(number) for number in range(len(pipeline.join.keys))]
    columns = ", ".join([ROWS, *(f"{key} STRING" for key in keys)])
    tick = _format_interval(timedelta(milliseconds=1))
    return FlinkQuery(
        settings={
            "parallelism.default": "1",
            "table.local-time-zone": pipeline.time_zone,
            "table.exec.interval-join.min-cleanup-interval": f"{pipeline.join.min_cleanup_interval_ms} ms",
        },
        statements=[
            _TABLE.format(columns=columns, tick=tick, files=_format_connector(rows)),
            *(_VIEW.format(side=side, keys=", ".join(keys)) for side in SIDES),
            f"CREATE TABLE answer ({ANSWER}) {_format_connector(answer)}",
            _INSERT.format(query=_format_query(pipeline.join, keys)),
        ],
    )


def _find_obstacles(pipeline: Pipeline) -> Iterator[str]:
    """Yield the reasons why Flink cannot run a pipeline."""
    if pipeline.dialect != "flink-sql":
        yield f"has dialect {pipeline.dialect}. A Flink reference needs dialect flink-sql or flink-datastream."
    if pipeline.recorded_watermark_sides:
        side = pipeline.recorded_watermark_sides[0]
        yield f"has a recorded watermark ({side}.recorded_watermark), and this job computes its own. Name a delay."
    if pipeline.clock != "event-time":
        yield "runs by arrival, and this job reads in the order of event time. Remove `arrival` on both sides."
    if (pipeline.join.max_time_distance or timedelta()) > _MAX_INTERVAL:
        yield f"joins rows more than {_MAX_INTERVAL.days} days apart, which Flink SQL cannot express. Shorten it."
    if pipeline.join.condition:
        yield "has a join.condition in Spark SQL, which Flink cannot evaluate. Remove it."
    if has_irregular_clock_changes(pipeline):
        yield f"is in {pipeline.time_zone}, where delays decide the rows of a window, and this job has none. Use UTC."
    if pipeline.join.window and pipeline.join.window.session:
        yield "joins on sessions, which need a watermark per input; this job has a common one. Use other windows."


def _format_query(join: Join, keys: list[str]) -> str:
    same = [f"l.{key} = r.{key}" for key in keys]
    if join.interval:
        on, none = " AND ".join([*same, *_list_bounds(join.interval)]), "CAST(NULL AS STRING)"
        sides = {side: f"{side}_rows" for side in SIDES}
        return _JOIN.format(**sides, how=join.type.upper(), on=on, bounds=f"{none}, {none}")
    assert join.window, "checked by the pipeline file"
    ends = ("start", "end")
    on = " AND ".join([*same, *(f"l.window_{end} = r.window_{end}" for end in ends)])
    sides = {side: _format_windows(join.window, f"{side}_rows") for side in SIDES}
    if join.type in SEMI_ANTI_TYPES:
        bounds = ", ".join(f"CAST(l.window_{end} AS STRING)" for end in ends)
        return _HALF.format(**sides, how={"semi": "EXISTS", "anti": "NOT EXISTS"}[join.type], on=on, bounds=bounds)
    bounds = ", ".join(f"CAST(COALESCE(l.window_{end}, r.window_{end}) AS STRING)" for end in ends)
    return _JOIN.format(**sides, how=join.type.upper(), on=on, bounds=bounds)


def _list_bounds(interval: Interval) -> Iterator[str]:
    for bound, operator in zip((interval.lower, interval.upper), interval.operators, strict=True):
        assert bound is not None, "checked by the pipeline file"
        yield f"r.ts {operator} l.ts + {_format_interval(bound)}"


def _format_windows(settings: WindowSettings, rows: str) -> str:
    match settings:
        case WindowSettings(tumbling=timedelta() as size):
            function, spans = "TUMBLE", [size]
        case WindowSettings(sliding=sliding) if sliding:
            function, spans = "HOP", [sliding.slide, sliding.size]
        case WindowSettings(cumulate=cumulate) if cumulate:
            function, spans = "CUMULATE", [cumulate.step, cumulate.size]
    lengths = ", ".join(_format_interval(span) for span in [*spans, settings.offset])
    return _WINDOWS.format(function=function, rows=rows, spans=lengths)


def _format_interval(span: timedelta) -> str:
    days, rest = divmod(to_millis(abs(span)), 86_400_000)
    seconds, ms = divmod(rest, 1000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}"
    return f"INTERVAL {'-' if span < timedelta() else ''}'{days} {clock}' DAY TO SECOND(3)"


def _format_connector(folder: str) -> str:
    return _FILES.format(folder=folder.replace("'", "''"))
