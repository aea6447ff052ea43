"""Complete an imported join to a pipeline file, and check that it is valid."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tidemark.config.loader import PLACEHOLDER
from tidemark.config.local_days import get_day_start, to_local_day
from tidemark.config.output_stream import OUTPUT_STREAM, find_output_problems, parse_input, to_input
from tidemark.config.pipeline import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import TimeZone, format_instant, from_micros, parse_duration, to_micros
from tidemark.config.validation_errors import explain_validation_error
from tidemark.errors import ImportRefusedError
from tidemark.importing.draft import Draft, Omission, Section, Setting, flatten, get_values
from tidemark.importing.stream_join import StreamInput, StreamJoin

DEFAULT_SLICE = "1 hour"
_EVENT_TIME = "event-time"
_COMMIT = "commit"
_CHECKPOINT = "checkpoint:"
_ARRIVAL_FORMS = f"--arrival COLUMN, {_COMMIT}, kafka:COLUMN, checkpoint:PATH (Spark) or {_EVENT_TIME}"
_URI = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")
_TIME_ZONE = TypeAdapter[str](TimeZone)
_EXAMPLE_START = datetime(2000, 1, 1, tzinfo=UTC)
_EXAMPLES: dict[str, Any] = {
    "slices.every": DEFAULT_SLICE,
    "time_zone": "UTC",
    **{f"{side}.arrival.starting_version": 0 for side in SIDES},
}
"""Values in place of open settings, to check the other settings; `slices.start` is `_EXAMPLE_START`, rounded down."""


@dataclass(frozen=True)
class ImportOptions:
    """What the user adds to a plan."""

    name: str
    """Name of the pipeline; empty for the name of the join."""
    lake: str = ""
    """Lake root, to which paths of tables are relative."""
    left_table: str | None = None
    right_table: str | None = None
    arrival: str | None = None
    start: str | None = None
    every: str | None = None
    first_batch: datetime | None = None
    """Time of a query's first micro-batch, in place of `start`."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the pipeline file by dotted names."""


def create_draft(join: StreamJoin, options: ImportOptions) -> Draft:
    """Add to an imported join what no plan has: tables, arrival and slices.

    Raises:
        ImportRefusedError: The settings are not valid together.
    """
    return _create_draft(join, options)[0]


def _create_draft(join: StreamJoin, options: ImportOptions) -> tuple[Draft, Pipeline]:
    """Create the draft of a join, and the pipeline that it is once its open settings are filled in."""
    tables = {"left": options.left_table, "right": options.right_table}
    is_processing_time = "time" in join.join
    settings: Section = {
        "name": Setting(options.name or to_pipeline_name(join.name), "--name" if options.name else join.name_origin),
        "dialect": join.dialect,
        **{name: entry for name, entry in join.top_level.items() if isinstance(entry, Setting)},
        **{
            side: _complete_input(side, join.inputs[side], tables[side], options, on_arrival=is_processing_time)
            for side in SIDES
        },
        "join": deepcopy(join.join),
        **{name: entry for name, entry in join.top_level.items() if not isinstance(entry, Setting)},
        "slices": _create_slices(join, options) | join.slices,
    }
    if join.select:
        settings["select"] = dict(join.select)
    for name, value in options.overrides.items():
        _override(settings, name, value)
    omissions = [item for item in join.omissions if not _is_settled(item.subject, settings)]
    stream = settings.pop(OUTPUT_STREAM, None)
    draft = Draft(join.title, settings, omissions, join.notes)
    pipeline = _check(draft, join, options)
    if isinstance(stream, Setting) and not stream.value:
        settings[OUTPUT_STREAM] = stream
    elif isinstance(stream, Setting):
        if reason := next(find_output_problems(pipeline), None):
            omissions.append(Omission(OUTPUT_STREAM, f"The next join cannot read the output: {reason}"))
        else:
            settings[OUTPUT_STREAM] = stream
            pipeline = pipeline.model_copy(update={OUTPUT_STREAM: True})
    return draft, pipeline


def _is_settled(subject: str, settings: Section) -> bool:
    """Return True if the file has a setting that the plan lacks."""
    names = dict(flatten(settings))
    parent = subject.partition(".")[0]
    if subject == "slices":
        return "left.arrival.streaming_checkpoint" in names
    if subject == "idle_timeout":
        return all(f"{side}.{subject}" in names for side in SIDES)
    if subject.endswith(".partition") and f"{parent}.arrival" in names:
        return subject in names or isinstance(names[f"{parent}.arrival"].value, dict)
    return subject in names


def to_pipeline_name(text: str) -> str:
    """Return a valid pipeline name for a name of something else.

    >>> to_pipeline_name("enriched orders.v2"), to_pipeline_name("2024"), to_pipeline_name("K\u00fcche")
    ('enriched_orders_v2', 'p_2024', 'Kuche')
    """
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", ascii_text).strip("_") or "imported"
    return name if name[0].isalpha() else f"p_{name}"


def _complete_input(
    side: SideName, source: StreamInput, table: str | None, options: ImportOptions, *, on_arrival: bool
) -> Section:
    if source.join and table:
        raise ImportRefusedError(
            f"the {side} input is the output of another join ({source.join.title}). Leave out --{side}-table."
        )
    if source.join:
        name = Setting(to_pipeline_name(source.join.name), source.join.title)
        return {"pipeline": name, **source.settings}
    settings: Section = {"table": _create_table(side, source, table, options.lake)}
    if event_time := source.settings.get("event_time"):
        settings["event_time"] = event_time
    arrival = _create_arrival(options.arrival)
    if on_arrival:
        settings["event_time"] = Setting(_get_arrival_column(arrival), "the arrival: the only time on processing time")
    if checkpoint := get_checkpoint(options.arrival):
        settings["arrival"] = {"streaming_checkpoint": Setting(checkpoint, "--arrival"), **source.checkpoint_settings}
    elif arrival:
        settings["arrival"] = arrival
    return settings | {name: entry for name, entry in source.settings.items() if name != "event_time"}


def _create_table(side: SideName, source: StreamInput, table: str | None, lake: str) -> Setting:
    """Return the table that the user gives, else the path of the stream, relative to the lake root if it is there."""
    if table:
        return Setting(table, f"--{side}-table")
    if not source.path:
        return Setting(PLACEHOLDER, f"Delta table with the rows of {source.source}: --{side}-table")
    path = source.path.removeprefix("file:")
    if not _URI.match(path):
        root, absolute = Path(lake).absolute(), Path(path).absolute()
        path = str(absolute.relative_to(root) if absolute.is_relative_to(root) else absolute)
    return Setting(path, "path of the stream")


def get_checkpoint(arrival: str | None) -> str | None:
    """Return the path of the checkpoint that `--arrival` names; None for another arrival."""
    return arrival.removeprefix(_CHECKPOINT) if arrival and arrival.startswith(_CHECKPOINT) else None


def _create_arrival(text: str | None) -> Setting | None:
    kind, separator, name = (text or "").partition(":")
    match kind, separator, name:
        case ("", _, _):
            return Setting(PLACEHOLDER, f"the order in which rows arrived: {_ARRIVAL_FORMS}")
        case ("kafka" | "checkpoint", ":", ""):
            raise ImportRefusedError(f"--arrival {text} has no name after the colon. Write {_ARRIVAL_FORMS}.")
        case ("kafka", ":", column):
            return Setting({"kafka": column}, "--arrival")
    return None if text == _EVENT_TIME else Setting(text, "--arrival")


def _get_arrival_column(arrival: Setting | None) -> Any:
    match arrival:
        case Setting(value={"kafka": column}):
            return column
        case Setting(value=str(column)) if column != _COMMIT:
            return column
    raise ImportRefusedError(
        "the join is on processing time, whose only time is a column with each row's arrival. Pass --arrival COLUMN."
    )


def _create_slices(join: StreamJoin, options: ImportOptions) -> Section:
    is_micro_batch = join.dialect.value == "spark" and not get_checkpoint(options.arrival)
    if options.every:
        every = Setting(options.every, "--every")
    elif is_micro_batch:
        every = Setting(PLACEHOLDER, "time between two micro-batches of the query: --every")
    else:
        every = Setting(DEFAULT_SLICE, "default of --every; it does not change the rows")
    if options.start:
        start = Setting(options.start, "--start")
    elif options.first_batch and not every.is_open:
        zone = options.overrides.get("slices.time_zone", "UTC")
        start = Setting(floor_to_slice(options.first_batch, every, zone), "first batch of the checkpoint, rounded down")
    else:
        start = Setting(PLACEHOLDER, "time from which the stream read: --start")
    return {"every": every, "start": start}


def floor_to_slice(instant: datetime, every: Setting, zone: Any) -> str:
    """Round an instant down to a multiple of the slice's length, or in a time zone to its midnight.

    Raises:
        ImportRefusedError: The length is no positive duration, or there is no such zone.
    """
    if zone != "UTC":
        return _floor_to_midnight(instant, zone)
    try:
        length = to_micros(parse_duration(every.value))
    except ValueError as error:
        raise ImportRefusedError(f"--every: {error}") from None
    if length <= 0:
        raise ImportRefusedError(f"--every: {every.value!r} is not positive. Write a length such as '1 hour'.")
    return format_instant(from_micros(to_micros(instant) // length * length))


def _floor_to_midnight(instant: datetime, zone: Any) -> str:
    try:
        name = _TIME_ZONE.validate_python(zone)
    except ValidationError as error:
        raise ImportRefusedError(f"slices.time_zone: {error.errors()[0]['ctx']['error']}") from None
    return format_instant(from_micros(get_day_start(to_local_day(to_micros(instant), name), name)))


def _override(settings: Section, name: str, value: Any) -> None:
    *parents, last = name.split(".")
    section = settings
    for parent in parents:
        entry = section.setdefault(parent, {})
        if isinstance(entry, Setting):
            raise ImportRefusedError(f"--set {name}: {parent} has a value, not settings. Set {parent} as a whole.")
        section = entry
    section[last] = Setting(value, "--set")


def _fill_in(section: Section, examples: Mapping[str, Any], prefix: str = "") -> Section:
    """Replace open settings by examples, by their dotted names."""
    filled: Section = {}
    for name, entry in section.items():
        if not isinstance(entry, Setting):
            filled[name] = _fill_in(entry, examples, f"{prefix}{name}.")
        elif entry.is_open:
            example = "NULL" if prefix == "select." else "example"
            filled[name] = replace(entry, value=examples.get(f"{prefix}{name}", example))
        else:
            filled[name] = entry
    return filled


def _create_upstream(join: StreamJoin, options: ImportOptions) -> Pipeline:
    """Create the pipeline of a join whose output another join reads.

    Raises:
        ImportRefusedError: The join has no output that another join can read.
    """
    # Both joins have the same slices. Other settings of the user are those of the join that reads the output.
    overrides = {name: value for name, value in options.overrides.items() if name.partition(".")[0] == "slices"}
    upstream_options = replace(options, name="", left_table=None, right_table=None, overrides=overrides)
    draft, pipeline = _create_draft(join, upstream_options)
    for omission in draft.omissions:
        if omission.subject == OUTPUT_STREAM:
            raise ImportRefusedError(f"{join.title}: {omission.reason}")
    return pipeline


def _check(draft: Draft, join: StreamJoin, options: ImportOptions) -> Pipeline:
    """Check that the file is valid once its open settings are filled in, and return the pipeline.

    Raises:
        ImportRefusedError: It is not.
    """
    stated = dict(flatten(draft.settings))
    zone = stated["slices.time_zone"].value if "slices.time_zone" in stated else "UTC"
    examples = {**_EXAMPLES, "slices.start": _floor_to_midnight(_EXAMPLE_START, zone)}
    content = get_values(_fill_in(draft.settings, examples))
    try:
        for side, source in join.inputs.items():
            if source.join:
                upstream = _create_upstream(source.join, options)
                content[side] = to_input(parse_input(content[side]), upstream)
        return Pipeline.model_validate(content)
    except ValidationError as error:
        raise ImportRefusedError(
            f"the pipeline file would not be valid: {explain_validation_error(error, Pipeline)}"
        ) from None
    except ValueError as error:
        raise ImportRefusedError(f"the pipeline file would not be valid: {error}") from None
