"""Propose a streaming join from samples of two tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemark.config.allowed_functions import InputColumns
from tidemark.config.dialect_support import can_join_null_keys
from tidemark.config.expressions import check_expression, is_column_path
from tidemark.config.join import JoinTypeName, KeyPair
from tidemark.config.pipeline import Dialect
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import (
    format_duration,
    format_instant,
    format_micros,
    from_micros,
    parse_duration,
    parse_instant,
    to_micros,
)
from tidemark.errors import UserError
from tidemark.importing.choice import Candidate, Choice, DecisionMaker, Defaults, Question
from tidemark.importing.delay_proposal import compute_late_share, create_delay_choice, describe_disorder
from tidemark.importing.draft import Draft, Section, Setting
from tidemark.importing.draft_completion import DEFAULT_SLICE, ImportOptions, create_draft, floor_to_slice
from tidemark.importing.key_candidates import (
    KeyValues,
    create_key_choice,
    measure_distances,
    select_keys,
    write_key_name,
    write_keys,
)
from tidemark.importing.stream_join import StreamInput, StreamJoin
from tidemark.importing.table_sample import SampledColumn, TableSample
from tidemark.importing.time_candidates import (
    EVENT_TIME,
    KAFKA_OFFSET,
    KAFKA_PARTITION,
    ArrivalValues,
    TimeValues,
    create_arrival_choice,
    create_epoch_candidate,
    create_event_time_choice,
    format_share,
    read_arrival_label,
    select_candidate,
    select_valid_rows,
)
from tidemark.watermarks.disorder import Arrivals, find_late_rows, measure_disorder

_MS = timedelta(milliseconds=1)
_UNKNOWN_DISORDER = "The disorder is unknown, because the sample has no row with a valid arrival and event time."
_SHAPES = ("join.interval", "join.window", "join.event_time_equality", "join.window_inequality")
"""Settings that `--set` can set in place of the bounds, or in addition to them."""
_EVERY, _START = "slices.every", "slices.start"
_DECISIONS = {_EVERY, _START} | {
    f"{side}.{name}" for side in SIDES for name in ("event_time", "arrival", "watermark_delay")
}
"""Settings that the proposal decides, unless `--set` does."""


@dataclass(frozen=True)
class TableJoinOptions:
    """Settings that the user has decided. None and empty: not decided."""

    name: str = ""
    dialect: Dialect = "flink-sql"
    join_type: JoinTypeName = "inner"
    keys: tuple[str, ...] = ()
    arrival: str | None = None
    """Arrival of both inputs."""
    lower: str | None = None
    upper: str | None = None
    window: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the pipeline file by dotted names. Some of them are decisions, which change the figures."""

    @property
    def further_settings(self) -> dict[str, Any]:
        """The settings that change no figure."""
        return {name: value for name, value in self.overrides.items() if name not in _DECISIONS}

    def get_text(self, name: str) -> str | None:
        """Return a setting as text; None if it is not set."""
        return None if (value := self.overrides.get(name)) is None else str(value)


@dataclass(frozen=True)
class _Input:
    """The decisions about an input."""

    sample: TableSample
    event_time: TimeValues
    event_time_origin: str
    arrival: ArrivalValues
    arrival_origin: str


def propose_draft(samples: dict[SideName, TableSample], options: TableJoinOptions, decisions: DecisionMaker) -> Draft:
    """Propose a pipeline file for the join of two tables.

    Raises:
        UserError: A decision is missing, or the settings are not valid together.
    """
    return _Proposal(samples, options, decisions).create_draft()


class _Proposal:
    def __init__(
        self, samples: dict[SideName, TableSample], options: TableJoinOptions, decisions: DecisionMaker
    ) -> None:
        self._samples, self._options, self._decisions = samples, options, decisions

    def create_draft(self) -> Draft:
        """Make all decisions, the inputs first, because the figures of the others depend on them."""
        inputs = self._decide_inputs()
        keys, key_origin, key_values = self._decide_keys(inputs)
        distances = (
            measure_distances(key_values[0], {side: inputs[side].event_time for side in SIDES}) if key_values else ""
        )
        shape = self._decide_shape(distances)
        every = self._decide_every()
        start = self._decide_start(inputs, every)
        delays, delay_origins, notes = self._decide_delays(inputs, key_values, start, every)
        join = StreamJoin(
            title=f"{self._options.join_type} join of {self._samples['left'].name} with {self._samples['right'].name}",
            name="_".join(self._samples[side].name.rstrip("/").rsplit("/", 1)[-1] for side in SIDES),
            name_origin="names of the tables",
            dialect=Setting(self._options.dialect, "--dialect"),
            inputs={side: _create_input(inputs[side], delays[side], delay_origins[side]) for side in SIDES},
            join={
                "type": Setting(self._options.join_type, "--type"),
                "keys": Setting(keys, key_origin),
                **shape,
            },
            slices={"every": every, "start": start},
            notes=notes,
        )
        return create_draft(join, ImportOptions("", arrival=EVENT_TIME, overrides=self._options.further_settings))

    def _decide_inputs(self) -> dict[SideName, _Input]:
        times: dict[SideName, tuple[Choice, Candidate]] = {}
        for side in SIDES:
            choice = create_event_time_choice(self._samples[side], side)
            times[side] = choice, self._decide_event_time(choice, side)
        inputs: dict[SideName, _Input] = {}
        for side in SIDES:
            choice, chosen = times[side]
            arrivals = create_arrival_choice(self._samples[side], chosen.value, side)
            label = read_arrival_label(self._options.overrides.get(f"{side}.arrival", self._options.arrival), side)
            arrival = self._decisions.choose(arrivals) if label is None else select_candidate(arrivals, label)
            inputs[side] = _Input(
                self._samples[side],
                chosen.value,
                choice.explain(chosen),
                arrival.value,
                arrivals.explain(arrival),
            )
        kinds = [inputs[side].arrival.kind == EVENT_TIME for side in SIDES]
        if any(kinds) and not all(kinds):
            raise UserError(
                f"one input arrives in the order of event times, and the other by {_other_kind(inputs)}. Pass "
                f"--arrival {EVENT_TIME} for both, or name the arrival of both."
            )
        self._check_clocks(inputs)
        return inputs

    def _check_clocks(self, inputs: dict[SideName, _Input]) -> None:
        """Refuse to choose arrivals of which all of one input are before all of the other, as of two clocks.

        Raises:
            UserError: They are, and neither an option nor a person at a terminal has decided one.
        """
        is_asked = not isinstance(self._decisions, Defaults)  # a person has chosen what no option decides
        is_set = self._options.arrival or any(f"{side}.arrival" in self._options.overrides for side in SIDES)
        ranges = [_find_arrival_range(source.arrival) for source in inputs.values()]
        if is_asked or is_set or None in ranges:
            return
        (left_first, left_last), (right_first, right_last) = (span for span in ranges if span)
        if left_last < right_first or right_last < left_first:
            raise UserError(
                f"the inputs have no arrival in common: left {format_micros(left_first)} to "
                f"{format_micros(left_last)}, right {format_micros(right_first)} to {format_micros(right_last)}. Pass "
                "--arrival for both inputs, or --set left.arrival=ARRIVAL and --set right.arrival=ARRIVAL."
            )

    def _decide_event_time(self, choice: Choice, side: SideName) -> Candidate:
        match self._options.overrides.get(f"{side}.event_time"):
            case None:
                return self._decisions.choose(choice)
            case {"column": name, "unit": unit}:
                return create_epoch_candidate(self._samples[side], choice, str(name), unit)
            case {"column": name} | name:
                return select_candidate(choice, str(name))

    def _decide_keys(self, inputs: dict[SideName, _Input]) -> tuple[list[Any], str, list[KeyValues]]:
        times = {side: _list_stream_columns(inputs[side]) for side in SIDES}
        try:
            choice = create_key_choice(self._samples, times)
        except UserError:
            if not self._options.keys:
                raise
            choice = None
        if self._options.keys:
            settings, values = select_keys(choice, self._options.keys)
            for key in map(KeyPair.model_validate, settings):
                _check_key(self._samples["left"], key.left)
                _check_key(self._samples["right"], key.right)
            settings = [_match_types(self._samples, setting) for setting in settings]
            figures = [str(item) for item in choice.candidates if item.label in self._options.keys] if choice else []
            return settings, "; ".join(["--key", *figures]), values
        assert choice, "it was created"
        chosen = self._decisions.choose(choice)
        return [chosen.value.setting], choice.explain(chosen), [chosen.value]

    def _decide_shape(self, distances: str) -> Section:
        """Return the bounds or the window. No figure shows them, so they are never proposed."""
        options = self._options
        is_set = any(name.startswith(_SHAPES) for name in options.overrides)
        if options.window is not None:
            if options.lower is not None or options.upper is not None:
                raise UserError("--window cannot be combined with --lower and --upper. Pass bounds or a window.")
            return {"window": {"tumbling": Setting(_format("--window", options.window), "--window")}}
        bounds = {}
        for name in ("lower", "upper"):
            text = getattr(options, name)
            if text is None and is_set:
                continue
            if text is None:
                text = self._decisions.answer(
                    Question(
                        f"{name} bound of right time - left time",
                        f"--{name}",
                        "'1 hour'",
                        partial(_format, f"--{name}"),
                        distances,
                        "window" if name == "lower" and options.upper is None else "",
                    )
                )
            if text == "window":
                question = Question(
                    "size of the tumbling windows", "--window", "'1 hour'", partial(_format, "--window")
                )
                return {"window": {"tumbling": Setting(self._decisions.answer(question), "--window")}}
            bounds[name] = Setting(_format(f"--{name}", text), f"--{name}")
        if distances and "lower" in bounds:
            bounds["lower"] = replace(bounds["lower"], origin=f"--lower. {distances}")
        return {"interval": dict(bounds)} if bounds else {}

    def _decide_every(self) -> Setting:
        text = self._options.get_text(_EVERY)
        if text is not None:
            return Setting(_format_length(text), "--set")
        if self._options.dialect != "spark":
            return Setting(DEFAULT_SLICE, "default; it does not change the rows")
        subject = "time between two micro-batches, which are the slices,"
        question = Question(subject, f"--set {_EVERY}=DURATION", "'10 minutes'", _format_length)
        return Setting(self._decisions.answer(question), "--set")

    def _decide_start(self, inputs: dict[SideName, _Input], every: Setting) -> Setting:
        if (text := self._options.get_text(_START)) is not None:
            return Setting(_format_start(text), "--set")
        earliest = [input_.arrival.earliest for input_ in inputs.values() if input_.arrival.earliest is not None]
        if not earliest:
            question = Question("start of the first slice", f"--set {_START}=T", "2024-01-01T00:00Z", _format_start)
            return Setting(self._decisions.answer(question), "--set")
        first = from_micros(min(earliest))
        start = floor_to_slice(first, every, self._options.get_text("slices.time_zone") or "UTC")
        return Setting(start, f"first arrival {format_instant(first)}, rounded down")

    def _decide_delays(
        self, inputs: dict[SideName, _Input], keys: list[KeyValues], start: Setting, every: Setting
    ) -> tuple[dict[SideName, str], dict[SideName, str], tuple[str, ...]]:
        origin, length = to_micros(parse_instant(start.value)), to_micros(parse_duration(every.value))
        rejects_null_keys = not can_join_null_keys(self._options.dialect)
        null_keys = {side: [getattr(key, side).is_null for key in keys if rejects_null_keys] for side in SIDES}
        rows = {side: self._get_arrivals(inputs[side], null_keys[side], origin, length) for side in SIDES}
        delays: dict[SideName, str] = {}
        origins: dict[SideName, str] = {}
        for side in SIDES:
            delays[side], origins[side] = self._decide_delay(side, rows[side])
        left, right = rows["left"], rows["right"]
        if left is None or right is None or not len(left) or not len(right):
            return delays, origins, ()
        first, last = max(left.clock.min(), right.clock.min()), min(left.clock.max(), right.clock.max())
        common = left.select_between(first, last), right.select_between(first, last)
        if not all(map(len, common)):
            return delays, origins, ("The samples of the inputs have no arrival in common.",)
        lengths = [parse_duration(delays[side]) // _MS for side in SIDES]
        late = find_late_rows(*common, (lengths[0], lengths[1]), self._options.dialect)
        for side, is_late in zip(SIDES, late, strict=True):
            figures = f"{is_late.sum():,} of {len(is_late):,} ({format_share(float(is_late.mean()))})"
            origins[side] += f"; with both delays {figures} late for the lower watermark of both inputs"
        return delays, origins, ()

    def _get_arrivals(
        self, source: _Input, null_keys: list[npt.NDArray[np.bool_]], start: int, every: int
    ) -> Arrivals | None:
        """Return the rows of a sample that no rule rejects, on the clock; None if their arrival is unknown."""
        if source.arrival.micros is None:
            return None
        valid = select_valid_rows(source.event_time, source.arrival)
        for is_null in null_keys:
            valid = valid & ~is_null
        clock = source.arrival.micros
        valid = valid & (clock >= start)  # rows before the first slice take no part
        if self._options.dialect == "spark":
            clock = (clock - start) // every
        tiebreak = partition = None
        if source.arrival.kind == "kafka":
            if offset := source.sample.find_column(KAFKA_OFFSET):
                tiebreak = offset.numbers[valid].astype(np.int64)
            if self._options.dialect != "spark" and (column := source.sample.find_column(KAFKA_PARTITION)):
                partition = np.unique(column.numbers[valid], return_inverse=True)[1].astype(np.int64)
        if self._options.dialect == "spark":
            tiebreak = None
        return Arrivals.create(clock[valid], source.event_time.micros[valid], tiebreak, partition)

    def _decide_delay(self, side: SideName, rows: Arrivals | None) -> tuple[str, str]:
        name, subject = f"{side}.watermark_delay", f"watermark delay of the {side} input"
        option = f"--set {name}=DURATION"
        text = self._options.get_text(name)
        if rows is None or not len(rows):
            question = Question(subject, option, "'10 minutes'", partial(_format, option), _UNKNOWN_DISORDER)
            delay = self._decisions.answer(question) if text is None else _format(name, text)
            return delay, f"--set; {_UNKNOWN_DISORDER}"
        disorder = measure_disorder(rows, self._options.dialect)
        choice = create_delay_choice(disorder, subject, option)
        figures = describe_disorder(choice, disorder)
        if text is None:
            chosen = self._decisions.choose(choice)
            return chosen.label, figures
        delay = _format(name, text)
        share = format_share(compute_late_share(disorder, parse_duration(delay)))
        return delay, f"--set, {share} late; {figures}"


def _find_arrival_range(arrival: ArrivalValues) -> tuple[int, int] | None:
    """Return the first and last arrival of an input in microseconds; None if they are unknown."""
    if arrival.micros is None or arrival.earliest is None:
        return None
    micros = arrival.micros if arrival.time is None else arrival.micros[arrival.time.is_valid]
    return (arrival.earliest, int(micros.max())) if len(micros) else None


def _other_kind(inputs: dict[SideName, _Input]) -> str:
    return next(source.arrival.kind for source in inputs.values() if source.arrival.kind != EVENT_TIME)


def _check_key(sample: TableSample, key: str) -> None:
    """Check that a key is a column, a field of one, or an expression over the columns of its table.

    Raises:
        UserError: It is none of them.
    """
    if key in sample.column_names:
        return
    check = InputColumns(sample.column_names)
    try:
        if is_column_path(key):
            check(key.partition(".")[0])
        else:
            check_expression(key, check)
    except ValueError as error:
        raise UserError(f"--key: table {sample.name}: {error}") from None


def _match_types(samples: dict[SideName, TableSample], setting: Any) -> Any:
    """Return a key in the form of a pipeline file, with the columns' own spelling.

    A whole number is cast to text if the other side is a text.

    Raises:
        UserError: The columns have types that a join does not compare.
    """
    key = KeyPair.model_validate(setting)
    left, right = _find_column(samples["left"], key.left), _find_column(samples["right"], key.right)
    if left is None or right is None:  # an expression, or a type that only a run checks
        names = {
            "left": write_key_name(left, samples["left"]) if left else key.left,
            "right": write_key_name(right, samples["right"]) if right else key.right,
        }
        return names if isinstance(setting, dict) or names["left"] != names["right"] else names["left"]
    written = write_keys(samples, left, right)
    if written is None:
        raise UserError(
            f"--key: {key.left} is {left.leaf.dtype.simpleString()} and {key.right} is "
            f"{right.leaf.dtype.simpleString()}, which a join does not compare. Cast one of them in --key LEFT=RIGHT."
        )
    return written[0] if written[0] == written[1] else dict(zip(SIDES, written, strict=True))


def _find_column(sample: TableSample, key: str) -> SampledColumn | None:
    """Return the column or field that a key names, whatever its case; None for an expression or an unsampled type."""
    path = [key] if key in sample.column_names else key.split(".") if is_column_path(key) else []
    names = [name.lower() for name in path]
    columns = (column for column in sample.columns if [name.lower() for name in column.leaf.path] == names)
    return next(columns, None)


def _list_stream_columns(source: _Input) -> set[str]:
    names = {source.event_time.name}
    if source.arrival.time:
        names.add(source.arrival.time.name)
    return names | ({KAFKA_OFFSET, KAFKA_PARTITION} if source.arrival.kind == "kafka" else set())


def _create_input(source: _Input, delay: str, delay_origin: str) -> StreamInput:
    settings: Section = {
        "table": Setting(source.sample.name, source.sample.describe()),
        "event_time": Setting(source.event_time.setting, source.event_time_origin),
    }
    if (arrival := source.arrival.setting) is not None:
        settings["arrival"] = Setting(arrival, source.arrival_origin)
    settings["watermark_delay"] = Setting(delay, delay_origin)
    return StreamInput(source.sample.name, settings)


def _format(option: str, text: str) -> str:
    """Return a duration in the form of a pipeline file.

    Raises:
        UserError: The text is no duration.
    """
    try:
        return format_duration(parse_duration(0 if text.strip() == "0" else text.strip()))
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def _format_start(text: str) -> str:
    """Return an instant in the form of a pipeline file.

    Raises:
        UserError: The text is no instant.
    """
    try:
        return format_instant(parse_instant(text.strip()))
    except ValueError as error:
        raise UserError(f"{_START}: {error}") from None


def _format_length(text: str) -> str:
    """Return the length of a slice in the form of a pipeline file.

    Raises:
        UserError: The text is no positive duration.
    """
    every = _format(_EVERY, text)
    if parse_duration(every) <= timedelta():
        raise UserError(f"{_EVERY}: must be positive, such as '1 hour'.")
    return every
