"""Translate the bounds or the windows of a compiled join."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tidemark.config.loader import PLACEHOLDER
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_duration
from tidemark.errors import ImportRefusedError
from tidemark.importing.draft import Section, Setting, get_values
from tidemark.importing.expressions import Expression
from tidemark.importing.flink_durations import parse_flink_setting, parse_iso_duration
from tidemark.importing.flink_input import PlanInput, find_join_time
from tidemark.importing.flink_plan import PlanNode

CLEANUP = "table.exec.interval-join.min-cleanup-interval"
TIME_ZONE = "table.local-time-zone"
_UNSET_TIME_ZONE = "default"
_WHOLE_HOURS = re.compile(r"(?:GMT|UTC)?([+-])(\d{1,2})(?::?00)?")


def read_interval(node: PlanNode, inputs: Mapping[SideName, PlanInput], job_settings: Mapping[str, str]) -> Section:
    """Read the bounds of an interval join.

    Flink's bounds are those of left time - right time, in ms, inclusive. A pipeline file has those of right time - left
    time, so they are swapped and negated.

    Raises:
        ImportRefusedError: The times are not those of the watermarks.
    """
    bounds = node.content["intervalJoinSpec"]["windowBounds"]
    for side, rows in inputs.items():
        if bounds["isEventTime"]:
            _check_event_time(side, rows, find_join_time(node, side, rows))
    lower, upper = (timedelta(milliseconds=-bounds[name]) for name in ("leftUpperBound", "leftLowerBound"))
    settings: Section = {
        "interval": {
            "lower": Setting(
                format_duration(lower), f"leftUpperBound {bounds['leftUpperBound']} ms, with the other sign"
            ),
            "upper": Setting(
                format_duration(upper), f"leftLowerBound {bounds['leftLowerBound']} ms, with the other sign"
            ),
        }
    }
    if not bounds["isEventTime"]:
        settings["time"] = Setting("processing", "isEventTime is false")
    if cleanup := job_settings.get(CLEANUP):
        value = format_duration(parse_flink_setting(CLEANUP, cleanup))
        settings["min_cleanup_interval"] = Setting(value, f"{CLEANUP}: {cleanup}")
    return settings


def _check_event_time(side: SideName, rows: PlanInput, time: Expression | None) -> None:
    """Check that a join is on the time of the watermark. The output of another join has the watermark of that join."""
    if rows.join_node:
        return
    if rows.watermark is None:
        raise ImportRefusedError(
            f"the plan has no watermark of the {side} input ({rows.table}). Declare WATERMARK FOR in its table."
        )
    if rows.mini_batch_node:
        raise ImportRefusedError(
            f"the watermark of the {side} input is delayed to the ends of mini-batches ({rows.mini_batch_node.label}), "
            "which a pipeline does not reproduce. Switch table.exec.mini-batch.enabled off in the job, or record "
            "CURRENT_WATERMARK for each row."
        )
    if time != rows.watermark.time:
        raise ImportRefusedError(
            f"the time of the {side} input in the join is not the time of its watermark ({rows.watermark.node.label}). "
            "Join on the rowtime attribute of the table."
        )


def read_windows(node: PlanNode, spec: Mapping[str, Any], inputs: Mapping[SideName, PlanInput]) -> Section:
    """Read the windows of a window join.

    Raises:
        ImportRefusedError: A pipeline does not have such windows, or the windows of both inputs differ.
    """
    window = node.content["leftWindowing"]["window"]
    for side, rows in inputs.items():
        windowing = node.content[f"{side}Windowing"]
        if rows.window is None or windowing.get("strategy") != "WindowAttached":
            raise ImportRefusedError(
                f"the windows of the {side} input are not those of a window function over {rows.table} ({node.label}). "
                "Apply TUMBLE, HOP, CUMULATE or SESSION to the table."
            )
        _check_event_time(side, rows, rows.window_time)
        keys = [rows.columns[key] for key in spec[f"{side}Keys"]]
        _check_session_keys(side, rows, keys)
    settings = _read_window(window)
    if get_values(settings) != get_values(_read_window(node.content["rightWindowing"]["window"])):
        raise ImportRefusedError(f"the windows of both inputs differ ({node.label}). Use equal windows.")
    if len({node.content[f"{side}Windowing"]["timeAttributeType"]["type"] for side in SIDES}) > 1:
        raise ImportRefusedError(
            f"the windows of the inputs are over TIMESTAMP and TIMESTAMP_LTZ ({node.label}), and so in two time zones. "
            "Use one type."
        )
    return {"window": settings}


def _check_session_keys(side: SideName, rows: PlanInput, keys: list[Expression]) -> None:
    assert rows.window is not None, "checked by read_windows"
    if rows.window["type"] != "SessionWindow" or rows.window_node is None:
        return
    if set(rows.session_keys) != set(keys):
        raise ImportRefusedError(
            f"the sessions of the {side} input are not per key of the join ({rows.window_node.label}). Partition them "
            "by the keys."
        )


def _read_window(window: Mapping[str, Any]) -> Section:
    spans = {
        name: parse_iso_duration(str(value)) for name, value in window.items() if str(value).startswith(("P", "-P"))
    }
    settings: Section
    match window["type"]:
        case "TumblingWindow":
            settings, step = {"tumbling": _span(spans, "size", "size of TUMBLE")}, spans["size"]
        case "HoppingWindow":
            sliding: Section = {
                "size": _span(spans, "size", "size of HOP"),
                "slide": _span(spans, "slide", "slide of HOP"),
            }
            settings, step = {"sliding": sliding}, spans["slide"]
        case "CumulativeWindow":
            cumulate: Section = {
                "size": _span(spans, "maxSize", "maximum size of CUMULATE"),
                "step": _span(spans, "step", "step of CUMULATE"),
            }
            settings, step = {"cumulate": cumulate}, spans["maxSize"]
        case "SessionWindow":
            return {"session": {"gap": _span(spans, "gap", "gap of SESSION")}}
        case kind:
            raise ImportRefusedError(
                f"the plan has windows of type {kind}, which are not translated. Use TUMBLE, HOP, CUMULATE or SESSION."
            )
    if offset := spans.get("offset"):
        rest = abs(offset) % step
        origin = f"offset of the window function, {window['offset']}"
        settings["offset"] = Setting(format_duration(rest if offset > timedelta() else -rest), origin)
    return settings


def _span(spans: Mapping[str, timedelta], name: str, origin: str) -> Setting:
    return Setting(format_duration(spans[name]), origin)


def read_time_zone(node: PlanNode, job_settings: Mapping[str, str]) -> Section:
    """Read the time zone of windows, which only a TIMESTAMP_LTZ depends on."""
    if node.content["leftWindowing"]["timeAttributeType"].get("type") != "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
        return {}
    zone = (node.content.get("configuration") or {}).get(TIME_ZONE)
    zone = job_settings.get(TIME_ZONE) if zone in (None, _UNSET_TIME_ZONE) else zone
    if zone is None:
        origin = f"the job does not set {TIME_ZONE}, so it is the zone of Flink's machines: --conf {TIME_ZONE}=ZONE"
        return {"time_zone": Setting(PLACEHOLDER, origin)}
    return {"time_zone": Setting(_to_named_zone(zone), f"{TIME_ZONE}: {zone}")}


def _to_named_zone(zone: str) -> str:
    """Return the IANA name of an offset of whole hours; other zones as they are.

    >>> [_to_named_zone(zone) for zone in ("GMT+08:00", "GMT-3:00", "GMT+00:00", "GMT+05:30", "Asia/Tokyo")]
    ['Etc/GMT-8', 'Etc/GMT+3', 'UTC', 'GMT+05:30', 'Asia/Tokyo']
    """
    if not (match := _WHOLE_HOURS.fullmatch(zone)):
        return zone
    sign, hours = match[1], int(match[2])
    # The signs of these names are those of POSIX: Etc/GMT-8 is 8 hours ahead of UTC.
    return f"Etc/GMT{'-' if sign == '+' else '+'}{hours}" if hours else "UTC"
