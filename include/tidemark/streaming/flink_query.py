"""Translate a flink-sql pipeline's join into Flink SQL, over ordered rows of both inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from tidemark.config import Interval, Join, Pipeline, WindowSettings
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import to_millis
from tidemark.errors import PipelineFileError
from tidemark.joins.factory import has_irregular_clock_changes
from tidemark.joins.join_type import SEMI_ANTI_TYPES
from tidemark.joins.keys import key_name
from tidemark.streaming.flink_obstacles import find_obstacles

ROWS = "side STRING, number BIGINT, event_ms BIGINT"
"""Columns that Flink reads, besides the keys as text: `key_0`, `key_1` and so on."""
ANSWER = "left_number BIGINT, right_number BIGINT, window_start STRING, window_end STRING"
"""Columns that Flink writes: the numbers of the rows (null if absent), and the window's bounds in the time zone."""

_WINDOW_ENDS = ("start", "end")
_TABLE = """
CREATE TABLE both_sides ({columns}, ts AS TO_TIMESTAMP_LTZ(event_ms, 3), WATERMARK FOR ts AS ts - {tick}) {files}
"""
_VIEW = "CREATE VIEW {side}_rows AS SELECT number, ts, {keys} FROM both_sides WHERE side = '{side}'"
_INSERT = "INSERT INTO answer {query}"
_JOIN = "SELECT {columns} FROM {left} l {how} JOIN {right} r ON {on}"
_SEMI_ANTI_JOIN = "SELECT {columns} FROM {left} l WHERE {how} (SELECT * FROM {right} r WHERE {on})"
_WINDOWS = "(SELECT * FROM TABLE({function}(TABLE {rows}, DESCRIPTOR(ts), {spans})))"
_FILES = "WITH ('connector' = 'filesystem', 'path' = '{folder}', 'format' = 'json')"


@dataclass(frozen=True)
class FlinkQuery:
    """Settings and statements of a Flink process."""

    settings: dict[str, str]
    statements: list[str]
    """Statements to run; the last is the query."""


def create_flink_query(pipeline: Pipeline, rows: str, answer: str) -> FlinkQuery:
    """Translate a pipeline without arrivals to a query over rows in the order of event time.

    Rows of one instant are simultaneous in Tidemark, so the watermark is 1 ms behind: otherwise the first row of an
    instant could expire rows that match the second. In this order nothing else depends on the watermark, so the delays
    are not needed.

    Args:
        rows: Folder of JSON lines with `ROWS` and the keys.
        answer: Folder for the output, JSON lines with `ANSWER`.

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
            **list_settings(pipeline.time_zone, pipeline.join.min_cleanup_interval_ms),
        },
        statements=[
            _TABLE.format(columns=columns, tick=tick, files=_format_connector(rows)),
            *(_VIEW.format(side=side, keys=", ".join(keys)) for side in SIDES),
            f"CREATE TABLE answer ({ANSWER}) {_format_connector(answer)}",
            _INSERT.format(query=_format_query(pipeline.join, keys)),
        ],
    )


def list_settings(time_zone: str, min_cleanup_interval: int) -> dict[str, str]:
    """Return Flink's settings that a query depends on.

    Args:
        time_zone: Time zone of windows.
        min_cleanup_interval: Least time in ms for which an interval join keeps expired rows.
    """
    return {
        "table.local-time-zone": time_zone,
        "table.exec.interval-join.min-cleanup-interval": f"{min_cleanup_interval} ms",
    }


def _find_obstacles(pipeline: Pipeline) -> Iterator[str]:
    """Yield the reasons why Flink cannot run a pipeline's join over rows in the order of event time."""
    yield from find_obstacles(pipeline)
    if has_irregular_clock_changes(pipeline):
        yield f"is in {pipeline.time_zone}, where delays decide the rows of a window, and this job has none. Use UTC."


def _format_query(join: Join, keys: list[str]) -> str:
    numbers = ["l.number", "CAST(NULL AS BIGINT)" if join.type in SEMI_ANTI_TYPES else "r.number"]
    bounds = [f"CAST({bound} AS STRING)" for bound in list_window_bounds(join)] or ["CAST(NULL AS STRING)"] * 2
    sides = {side: format_windows(join.window, f"{side}_rows") for side in SIDES}
    return format_join(join, sides, [f"l.{key} = r.{key}" for key in keys], [*numbers, *bounds])


def format_join(
    join: Join, sides: Mapping[SideName, str], key_conditions: Sequence[str], columns: Sequence[str]
) -> str:
    """Return the query of an interval join or window join.

    Args:
        join: The join. Its type may be semi or anti.
        sides: Tables or subqueries with the rows of each side. They have the time attribute `ts`, or for a window join
            the windows' bounds.
        key_conditions: Conditions for equal keys, over `l` and `r`.
        columns: Columns to select, over `l`, and over `r` unless the join is semi or anti.
    """
    if join.interval:
        conditions = list(_list_bounds(join.interval))
    else:
        conditions = [f"l.window_{end} = r.window_{end}" for end in _WINDOW_ENDS]
    template = _JOIN
    how = join.type.upper()
    if join.type in SEMI_ANTI_TYPES:
        template, how = _SEMI_ANTI_JOIN, {"semi": "EXISTS", "anti": "NOT EXISTS"}[join.type]
    on = " AND ".join([*key_conditions, *conditions])
    return template.format(left=sides["left"], right=sides["right"], how=how, on=on, columns=", ".join(columns))


def list_window_bounds(join: Join) -> list[str]:
    """List the SQL of start and end of a result's window; empty if the join has no windows."""
    if join.window is None:
        return []
    if join.type in SEMI_ANTI_TYPES:
        return [f"l.window_{end}" for end in _WINDOW_ENDS]
    return [f"COALESCE(l.window_{end}, r.window_{end})" for end in _WINDOW_ENDS]


def _list_bounds(interval: Interval) -> Iterator[str]:
    for bound, operator in zip((interval.lower, interval.upper), interval.operators, strict=True):
        assert bound is not None, "checked by the pipeline file"
        yield f"r.ts {operator} l.ts + {_format_interval(bound)}"


def format_windows(settings: WindowSettings | None, rows: str) -> str:
    """Return a subquery for a table's rows in their windows; without windows, the table."""
    match settings:
        case None:
            return rows
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
