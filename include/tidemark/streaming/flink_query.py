"""A flink-sql pipeline's join in Flink's own SQL, over rows of both inputs in one order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from tidemark.config import Interval, Join, Pipeline, WindowSettings
from tidemark.config.sides import SIDES
from tidemark.config.types import millis
from tidemark.errors import PipelineFileError
from tidemark.joins import has_odd_changes
from tidemark.joins.keys import key_name
from tidemark.joins.window_output import HALVES

ROWS = "side STRING, number BIGINT, event_ms BIGINT"
"""What Flink reads of a row, beside its keys as text: `key_0`.. ."""
ANSWER = "left_number BIGINT, right_number BIGINT, window_start STRING, window_end STRING"
"""What it writes: the numbers of the rows, null where there is none, and the window's bounds (in the time zone)."""

_LONGEST = timedelta(days=99)
_TABLE = """
CREATE TABLE both_sides ({columns}, ts AS TO_TIMESTAMP_LTZ(event_ms, 3), WATERMARK FOR ts AS ts - {tick}) {files}
"""
_VIEW = "CREATE VIEW {side}_rows AS SELECT number, ts, {keys} FROM both_sides WHERE side = '{side}'"
_INTO = "INSERT INTO answer {query}"
_JOIN = "SELECT l.number, r.number, {bounds} FROM {left} l {how} JOIN {right} r ON {on}"
_HALF = "SELECT l.number, CAST(NULL AS BIGINT), {bounds} FROM {left} l WHERE {how} (SELECT * FROM {right} r WHERE {on})"
_WINDOWS = "(SELECT * FROM TABLE({function}(TABLE {rows}, DESCRIPTOR(ts), {spans})))"
_FILES = "WITH ('connector' = 'filesystem', 'path' = '{folder}', 'format' = 'json')"


@dataclass(frozen=True)
class FlinkQuery:
    """What a Flink process runs."""

    settings: dict[str, str]
    statements: list[str]
    """The last one is the query."""


def flink_query(pipeline: Pipeline, rows: str, answer: str) -> FlinkQuery:
    """The query of a pipeline, from a folder of JSON lines (`ROWS` and the keys) into another (`ANSWER`).

    The rows have to be in order of event time. Rows of one instant are simultaneous in Tidemark, so that the watermark
    stays 1 ms behind: no row of the instant may close what another one waits for. In this order nothing else depends
    on the watermark, and the delays of the pipeline are not needed.

    Raises:
        PipelineFileError: Flink could not run it over rows in this order.
    """
    for wrong in _unsuitable(pipeline):
        raise PipelineFileError(f"{pipeline.name} {wrong}")
    keys = [key_name(number) for number in range(len(pipeline.join.keys))]
    columns = ", ".join([ROWS, *(f"{key} STRING" for key in keys)])
    tick = _span(timedelta(milliseconds=1))
    return FlinkQuery(
        settings={
            "parallelism.default": "1",
            "table.local-time-zone": pipeline.time_zone,
            "table.exec.interval-join.min-cleanup-interval": f"{pipeline.join.min_cleanup_ms} ms",
        },
        statements=[
            _TABLE.format(columns=columns, tick=tick, files=_files(rows)),
            *(_VIEW.format(side=side, keys=", ".join(keys)) for side in SIDES),
            f"CREATE TABLE answer ({ANSWER}) {_files(answer)}",
            _INTO.format(query=_query(pipeline.join, keys)),
        ],
    )


def _unsuitable(pipeline: Pipeline) -> Iterator[str]:
    if pipeline.dialect != "flink-sql":
        yield f"is of dialect {pipeline.dialect}; this twin is a real Flink: dialect: flink-sql or flink-datastream"
    if pipeline.recorded:
        yield f"goes by what was recorded as {pipeline.recorded[0]}.watermark; this twin makes its own: name a delay"
    if pipeline.clock != "event-time":
        yield "runs by arrival; this twin reads in order of event time: leave `arrival` out on both sides"
    if (pipeline.join.reach or timedelta()) > _LONGEST:
        yield f"joins rows that are further apart than {_LONGEST.days} days, for which Flink SQL has no interval"
    if pipeline.join.condition:
        yield "has a join.condition, which is Spark SQL, and not Flink's; this twin has none: leave it out"
    if has_odd_changes(pipeline):
        yield f"is in {pipeline.time_zone}, where delays decide which rows a window has; this twin has none"
    if pipeline.join.window and pipeline.join.window.session:
        yield "joins on sessions, which each input's own watermark closes; here both inputs have one watermark"


def _query(join: Join, keys: list[str]) -> str:
    same = [f"l.{key} = r.{key}" for key in keys]
    if join.interval:
        on, none = " AND ".join([*same, *_bounds(join.interval)]), "CAST(NULL AS STRING)"
        sides = {side: f"{side}_rows" for side in SIDES}
        return _JOIN.format(**sides, how=join.type.upper(), on=on, bounds=f"{none}, {none}")
    assert join.window, "settings.dialects sees to it"
    ends = ("start", "end")
    on = " AND ".join([*same, *(f"l.window_{end} = r.window_{end}" for end in ends)])
    sides = {side: _windows(join.window, f"{side}_rows") for side in SIDES}
    if join.type in HALVES:
        bounds = ", ".join(f"CAST(l.window_{end} AS STRING)" for end in ends)
        return _HALF.format(**sides, how={"semi": "EXISTS", "anti": "NOT EXISTS"}[join.type], on=on, bounds=bounds)
    bounds = ", ".join(f"CAST(COALESCE(l.window_{end}, r.window_{end}) AS STRING)" for end in ends)
    return _JOIN.format(**sides, how=join.type.upper(), on=on, bounds=bounds)


def _bounds(interval: Interval) -> Iterator[str]:
    for bound, operator in zip((interval.lower, interval.upper), interval.comparisons, strict=True):
        assert bound is not None, "settings.dialects sees to it"
        yield f"r.ts {operator} l.ts + {_span(bound)}"


def _windows(settings: WindowSettings, rows: str) -> str:
    match settings:
        case WindowSettings(tumbling=timedelta() as size):
            function, spans = "TUMBLE", [size]
        case WindowSettings(sliding=sliding) if sliding:
            function, spans = "HOP", [sliding.slide, sliding.size]
        case WindowSettings(cumulate=cumulate) if cumulate:
            function, spans = "CUMULATE", [cumulate.step, cumulate.size]
    lengths = ", ".join(_span(span) for span in [*spans, settings.offset])
    return _WINDOWS.format(function=function, rows=rows, spans=lengths)


def _span(span: timedelta) -> str:
    days, rest = divmod(millis(abs(span)), 86_400_000)
    seconds, ms = divmod(rest, 1000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}"
    return f"INTERVAL {'-' if span < timedelta() else ''}'{days} {clock}' DAY TO SECOND(3)"


def _files(folder: str) -> str:
    return _FILES.format(folder=folder.replace("'", "''"))
