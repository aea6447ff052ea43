"""Translate a join of a compiled plan into settings of dialect flink-sql."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from tidemark.config.dialect_support import flink_version_defaults
from tidemark.config.loader import PLACEHOLDER
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_duration
from tidemark.errors import ImportRefusedError
from tidemark.importing.draft import Omission, Section, Setting
from tidemark.importing.expressions import Call, Column, Expression, Literal, list_conjuncts, transform_columns
from tidemark.importing.flink_bounds import CLEANUP, read_interval, read_time_zone, read_windows
from tidemark.importing.flink_durations import parse_flink_setting
from tidemark.importing.flink_expression_sql import get_length, get_type_root, to_sql
from tidemark.importing.flink_expressions import parse_expression
from tidemark.importing.flink_input import PlanInput, find_join_time, trace_inputs
from tidemark.importing.flink_output import JoinOutput, read_output
from tidemark.importing.flink_plan import FlinkPlan, PlanNode
from tidemark.importing.stream_join import StreamInput, StreamJoin
from tidemark.importing.written_expressions import write_conjunction, write_key

IDLE_TIMEOUT = "table.exec.source.idle-timeout"
_EPOCH_UNITS = {0: "s", 3: "ms"}
_CHANGELOG_CONNECTORS = re.compile(r"upsert-.*|.*-cdc")
_CHANGELOG_FORMATS = ("debezium", "canal", "maxwell", "ogg")
_CHANGELOG_MODE, _APPEND = "changelog.mode", "append"
_APPEND_ONLY_CONNECTORS = ("kafka", "filesystem")
"""Connectors whose tables are append-only, also with a primary key, unless their format is a changelog's."""
_TIME_PRECISION = 3
"""Precision of Flink's event times: milliseconds."""
_IDLE_RULE = (2, 2)
"""Flink version since which operators of two inputs raise their watermark while both are idle."""
_IDLE_OPTION = "scan.watermark.idle-timeout"


@dataclass(frozen=True)
class JobSettings:
    """Properties of a job that its plan lacks."""

    settings: Mapping[str, str]
    """Flink settings by name."""
    tables: Mapping[str, Mapping[str, str]]
    """Options of tables by name, if the plan has others."""
    is_job_plan: bool
    """True if the job's own Flink has compiled the plan."""
    name: str = ""
    """Name of the file."""
    joins_before: int = 0
    """Number of joins in the plans of earlier queries of the script."""


def import_flink_join(plan: FlinkPlan, node: PlanNode, job: JobSettings) -> StreamJoin:
    """Translate an interval join or a window join.

    Raises:
        ImportRefusedError: A pipeline cannot express the join.
    """
    plan.check_is_known(node)
    inputs = trace_inputs(plan, node)
    for side, rows in inputs.items():
        _check_append_only(side, rows, job)
    spec = node.join_spec
    is_interval = node.kind == "interval-join"
    pair = _get_pair_columns(inputs)
    is_last = node.is_one_sided or not any(plan.list_next_joins(node))
    is_chained = not is_last or any(rows.join_node for rows in inputs.values())
    output = read_output(plan, node, pair, inner=spec["joinType"] == "INNER") if is_last else JoinOutput()
    conditions = [*list_conjuncts(_parse_condition(spec, pair)), *output.conditions]
    join: Section = {
        "type": Setting(str(spec["joinType"]).lower(), f"joinType {spec['joinType']}"),
        "keys": _read_keys(spec, inputs),
        **(read_interval(node, inputs, job.settings) if is_interval else read_windows(node, spec, inputs)),
    }
    if conditions:
        condition = write_conjunction(conditions, to_sql, f"the condition of the join ({node.label})")
        join["condition"] = Setting(condition, "nonEquiCondition")
    is_event_time = not is_interval or node.content["intervalJoinSpec"]["windowBounds"]["isEventTime"]
    top_level: Section = {}
    if job.is_job_plan:
        top_level["flink_version"] = Setting(plan.version, "flinkVersion of the plan")
    read_inputs = {
        side: _read_input(side, rows, job, is_event_time=is_event_time)
        if rows.join_node is None
        else _read_join_input(plan, node, side, rows, job)
        for side, rows in inputs.items()
    }
    idle_omissions = tuple(_drop_version_of_idle_inputs(plan, read_inputs, top_level, join, is_interval=is_interval))
    if not is_interval:
        top_level |= read_time_zone(node, job.settings)
    if not is_last:
        reader = next(plan.list_next_joins(node))
        top_level["output_stream"] = Setting(value=True, origin=f"node {reader.node_id} reads it")
    name, name_origin = _get_name(plan, node, job)
    return StreamJoin(
        title=f"{node.label}: {inputs['left'].short_name} with {inputs['right'].short_name}",
        name=name,
        name_origin=name_origin,
        dialect=Setting("flink-sql", "the plan is of Flink SQL"),
        inputs=read_inputs,
        join=join,
        top_level=top_level,
        select=output.select,
        omissions=(
            *_list_job_omissions(inputs, job, is_interval=is_interval, is_chained=is_chained),
            *output.omissions,
            *idle_omissions,
        ),
    )


def _drop_version_of_idle_inputs(
    plan: FlinkPlan, inputs: Mapping[SideName, StreamInput], top_level: Section, join: Section, *, is_interval: bool
) -> Iterator[Omission]:
    """Remove a version before Flink 2.2 if both inputs can be idle, because a pipeline has the rule since 2.2.

    The defaults of that version are written out.
    """
    is_earlier = "flink_version" in top_level and plan.is_before(_IDLE_RULE)
    if not is_earlier or not all("idle_timeout" in source.settings for source in inputs.values()):
        return
    del top_level["flink_version"]
    for name, value in flink_version_defaults(plan.version).items() if is_interval else ():
        origin = f"default of Flink {plan.version}; if the job sets it, pass --conf {CLEANUP}=T"
        join.setdefault(name, Setting(value, origin))
    yield Omission(
        "flink_version",
        f"The plan is of Flink {plan.version}, whose join keeps its watermark while both inputs are idle. The pipeline "
        "raises it, as Flink does since 2.2, so rows after an idle time can differ.",
    )


def _get_name(plan: FlinkPlan, node: PlanNode, job: JobSettings) -> tuple[str, str]:
    """Return the name of a join's result, and the place of the name. Before another join it ends with a number."""
    sinks = [sink for sink in map(_get_sink_name, plan.find_sinks(node)) if sink]
    name, origin = (sinks[0], "output table of the job") if sinks else (job.name, "name of the file")
    if any(plan.list_next_joins(node)):
        number = job.joins_before + plan.list_joins().index(node) + 1
        return f"{name}_join{number}", f"{origin}, and the number of the join"
    return name, origin


def _read_join_input(plan: FlinkPlan, node: PlanNode, side: SideName, rows: PlanInput, job: JobSettings) -> StreamInput:
    """Read an input that is the output of another join."""
    assert rows.join_node, "only for the output of a join"
    time = find_join_time(node, side, rows)
    if (upstream_side := rows.sides_by_time.get(time)) is None:
        raise ImportRefusedError(
            f"the time of the {side} input is not an event time of the {rows.join_node.label}. Join on the rowtime "
            "attribute, or on the windows, of one of its inputs."
        )
    origin = f"the {upstream_side} time of node {rows.join_node.node_id}"
    settings: Section = {"event_time": Setting(upstream_side, origin)}
    settings |= _read_filters(side, rows, has_watermark=True)
    return StreamInput(rows.short_name, settings, join=import_flink_join(plan, rows.join_node, job))


def _get_pair_columns(inputs: Mapping[SideName, PlanInput]) -> list[Expression]:
    return [
        transform_columns(column, partial(replace, side=side))
        for side, rows in inputs.items()
        for column in rows.columns
    ]


def _parse_condition(spec: Mapping[str, Any], pair: list[Expression]) -> Expression | None:
    condition = spec.get("nonEquiCondition")
    return parse_expression(condition, pair) if condition else None


def _read_keys(spec: Mapping[str, Any], inputs: Mapping[SideName, PlanInput]) -> Setting:
    pairs = []
    for left, right, filters_nulls in zip(spec["leftKeys"], spec["rightKeys"], spec["filterNulls"], strict=True):
        if not filters_nulls:
            raise ImportRefusedError(
                "a key of the join is compared by IS NOT DISTINCT FROM, and a pipeline compares keys by =. Replace "
                "null keys by a value in both tables."
            )
        names = [
            write_key(rows.columns[key], side, to_sql)
            for (side, rows), key in zip(inputs.items(), (left, right), strict=True)
        ]
        pairs.append(names[0] if names[0] == names[1] else dict(zip(SIDES, names, strict=True)))
    if not pairs:
        raise ImportRefusedError("the join has no equal keys, and a pipeline needs one. Join on a column too.")
    return Setting(pairs, "leftKeys and rightKeys")


def _read_input(side: SideName, rows: PlanInput, job: JobSettings, *, is_event_time: bool) -> StreamInput:
    settings: Section = {}
    watermark = rows.watermark
    if is_event_time and watermark:
        settings["event_time"] = _read_event_time(watermark.time, watermark.node)
        delay = format_duration(timedelta(milliseconds=watermark.delay_ms))
        settings["watermark_delay"] = Setting(delay, watermark.node.quote("watermark"))
        settings |= _read_idle_timeout(rows, job)
    settings |= _read_filters(side, rows, has_watermark=is_event_time)
    options = job.tables.get(rows.table, rows.options)
    return StreamInput(rows.short_name, settings, str(options.get("connector", "")))


def _read_event_time(time: Expression, node: PlanNode) -> Setting:
    match time:
        case Column(path=(name,), dtype=dtype):
            return Setting(name, f"rowtime attribute, {dtype}")
        case Call(name="TO_TIMESTAMP_LTZ", operands=(Column(path=(name,)), Literal(value=int(precision)))):
            if unit := _EPOCH_UNITS.get(precision):
                return Setting(
                    {"column": name, "unit": unit}, f"rowtime attribute TO_TIMESTAMP_LTZ({name}, {precision})"
                )
        case Call(name="CAST", operands=(Column(path=(name,), dtype=dtype),), dtype=target):
            keeps_ms = get_length(target) >= min(_TIME_PRECISION, get_length(dtype))
            if get_type_root(dtype) == get_type_root(target) and keeps_ms:
                return Setting(name, f"rowtime attribute CAST({name} AS {target})")
    return Setting(PLACEHOLDER, f"the job computes it ({node.label}): name a column that has the result")


def _read_idle_timeout(rows: PlanInput, job: JobSettings) -> Section:
    assert rows.watermark, "only for inputs with a watermark"
    if rows.watermark.idle_ms:
        span = timedelta(milliseconds=rows.watermark.idle_ms)
        return {"idle_timeout": Setting(format_duration(span), rows.watermark.node.title)}
    options = job.tables.get(rows.table, {})
    settings = {
        f"{_IDLE_OPTION} of {rows.table}": options.get(_IDLE_OPTION) if options.get("connector") == "kafka" else None
    }
    for name, value in (settings | {IDLE_TIMEOUT: job.settings.get(IDLE_TIMEOUT)}).items():
        if value and (span := parse_flink_setting(name, value)) > timedelta():
            return {"idle_timeout": Setting(format_duration(span), f"{name}: {value}")}
    return {}


def _read_filters(side: SideName, rows: PlanInput, *, has_watermark: bool) -> Section:
    if not rows.filters:
        return {}
    positions = {rows_filter.is_before_watermark for rows_filter in rows.filters}
    if len(positions) > 1 and has_watermark:
        raise ImportRefusedError(
            f"the {side} input is filtered both before and after its watermark, and a pipeline has one filter. Remove "
            "one of them from the query."
        )
    conditions = [part for rows_filter in rows.filters for part in list_conjuncts(rows_filter.condition)]
    node = rows.filters[-1].node
    where = write_conjunction(conditions, to_sql, f"the filter of the {side} input ({node.label})")
    settings: Section = {"where": Setting(where, node.quote("where"))}
    if has_watermark and positions == {True}:
        settings["filter"] = Setting("before_watermark", f"{node.title} is below the watermark")
    return settings


def _check_append_only(side: SideName, rows: PlanInput, job: JobSettings) -> None:
    """Refuse a changelog, which the planner does not see with another connector."""
    options = job.tables.get(rows.table, {})
    formats = [value for name, value in options.items() if name == "format" or name.endswith(".format")]
    is_changelog = (
        _CHANGELOG_CONNECTORS.fullmatch(options.get("connector", ""))
        or options.get(_CHANGELOG_MODE, _APPEND).lower() != _APPEND
        or any(value.startswith(_CHANGELOG_FORMATS) for value in formats)
    )
    if is_changelog:
        raise ImportRefusedError(
            f"the {side} input ({rows.table}) is a changelog with updates, which Flink's interval and window joins "
            "refuse. Join an append-only table."
        )


def _list_job_omissions(
    inputs: Mapping[SideName, PlanInput], job: JobSettings, *, is_interval: bool, is_chained: bool
) -> Iterator[Omission]:
    if not job.is_job_plan:
        yield Omission("flink_version", "The job's Flink may be older than the planner. Pass --set flink_version=X.Y.")
        yield from _list_changelog_omissions(inputs, job)
    if is_interval and CLEANUP not in job.settings:
        yield Omission(
            "join.min_cleanup_interval", f"A plan does not have it. If the job sets it, pass --conf {CLEANUP}=T."
        )
    if is_chained:
        reason = "A chain has no watermarks per partition and no idle timeouts. If the job has them, rows can differ."
        yield Omission("watermarks", reason)
        return
    if any(_lacks_idle_timeout(rows, job) for rows in inputs.values()):
        yield Omission("idle_timeout", f"A plan does not have it. If the job sets it, pass --conf {IDLE_TIMEOUT}=T.")
    for side, rows in inputs.items():
        options = job.tables.get(rows.table, rows.options)
        if _IDLE_OPTION in options and options.get("connector") != "kafka":
            yield Omission(
                f"{side}.idle_timeout",
                f"Only some connectors apply {_IDLE_OPTION}. If this one does, pass --set {side}.idle_timeout=T.",
            )
        if rows.watermark and (rows.watermark.is_per_partition or options.get("connector") == "kafka"):
            yield Omission(
                f"{side}.partition",
                f"The source has a watermark per partition. Pass --arrival kafka:COLUMN, or --set {side}.partition=C.",
            )


def _list_changelog_omissions(inputs: Mapping[SideName, PlanInput], job: JobSettings) -> Iterator[Omission]:
    """Yield tables that may be changelogs, which only the job's own connector shows."""
    for rows in inputs.values():
        connector = job.tables.get(rows.table, {}).get("connector", "")
        if rows.has_primary_key and connector and connector not in _APPEND_ONLY_CONNECTORS:
            yield Omission(
                f"primary key of {rows.short_name}",
                f"If the connector {connector} reads updates, Flink refuses the join. Import the job's COMPILE PLAN.",
            )


def _lacks_idle_timeout(rows: PlanInput, job: JobSettings) -> bool:
    """Return True if the job may have an idle timeout that neither plan nor settings have."""
    has_setting = IDLE_TIMEOUT in job.settings or _IDLE_OPTION in job.tables.get(rows.table, rows.options)
    return rows.watermark is not None and rows.watermark.idle_ms is None and not has_setting


def _get_sink_name(sink: PlanNode) -> str:
    identifier = str(sink.content.get("dynamicTableSink", {}).get("table", {}).get("identifier", ""))
    name = identifier.replace("`", "").rpartition(".")[2]
    return "" if name.startswith("_query") else name
