"""Propose a streaming join from samples of two tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np

from tidemark.config.join import JoinTypeName
from tidemark.config.pipeline import Dialect
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_duration, format_instant, from_micros, parse_duration, parse_instant, to_micros
from tidemark.errors import UserError
from tidemark.importing.choice import Candidate, Choice, DecisionMaker, Entry
from tidemark.importing.delay_proposal import compute_late_share, create_delay_choice, describe_disorder
from tidemark.importing.draft import Draft, Section, Setting
from tidemark.importing.draft_completion import DEFAULT_SLICE, ImportOptions, create_draft
from tidemark.importing.key_candidates import KeyValues, create_key_choice, measure_distances, select_keys
from tidemark.importing.stream_join import StreamInput, StreamJoin
from tidemark.importing.table_sample import TableSample
from tidemark.importing.time_candidates import (
    EVENT_TIME,
    KAFKA_OFFSET,
    KAFKA_PARTITION,
    ArrivalValues,
    TimeValues,
    create_arrival_choice,
    create_event_time_choice,
    format_share,
    select_candidate,
    select_valid_rows,
)
from tidemark.watermarks.disorder import Arrivals, find_late_rows, measure_disorder

_MS = timedelta(milliseconds=1)
_UNKNOWN_DISORDER = "The disorder is unknown, because the sample has no row with a valid arrival and event time."
_SHAPES = ("join.interval", "join.window", "join.event_time_equality", "join.window_inequality")
"""Settings of which `--set` can set one in place of the bounds."""


@dataclass(frozen=True)
class TableJoinOptions:
    """Settings that the user has decided. None and empty: not decided."""

    name: str = ""
    dialect: Dialect = "flink-sql"
    join_type: JoinTypeName = "inner"
    keys: tuple[str, ...] = ()
    event_times: Mapping[SideName, str | None] = field(default_factory=dict)
    arrivals: Mapping[SideName, str | None] = field(default_factory=dict)
    delays: Mapping[SideName, str | None] = field(default_factory=dict)
    max_late: float = 0.001
    """Greatest share of late rows that a proposed delay accepts."""
    lower: str | None = None
    upper: str | None = None
    window: str | None = None
    start: str | None = None
    every: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the pipeline file by dotted names."""


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
            measure_distances(key_values, {side: inputs[side].event_time for side in SIDES}) if key_values else ""
        )
        shape = self._decide_shape(distances)
        every = self._decide_every()
        start = self._decide_start(inputs, every)
        delays, delay_origins, notes = self._decide_delays(inputs, start, every)
        join = StreamJoin(
            title=f"{self._options.join_type} join of {self._samples['left'].name} with {self._samples['right'].name}",
            name="_".join(self._samples[side].name.rstrip("/").rsplit("/", 1)[-1] for side in SIDES),
            name_origin="names of the tables; --name",
            dialect=Setting(self._options.dialect, "--dialect"),
            inputs={side: _create_input(inputs[side], delays[side], delay_origins[side]) for side in SIDES},
            join={
                "type": Setting(self._options.join_type, "--type"),
                "keys": Setting(keys, key_origin),
                **shape,
            },
            slices={"start": start},
            notes=notes,
        )
        completion = ImportOptions(
            self._options.name, arrival=EVENT_TIME, every=every, overrides=self._options.overrides
        )
        return create_draft(join, completion)

    def _decide_inputs(self) -> dict[SideName, _Input]:
        times: dict[SideName, tuple[Choice, Candidate]] = {}
        for side in SIDES:
            choice = create_event_time_choice(self._samples[side], side)
            times[side] = choice, self._decide(choice, self._options.event_times.get(side))
        inputs: dict[SideName, _Input] = {}
        for side in SIDES:
            choice, chosen = times[side]
            arrivals = create_arrival_choice(self._samples[side], chosen.value, side)
            arrival = self._decide(arrivals, self._options.arrivals.get(side))
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
        return inputs

    def _decide(self, choice: Choice, label: str | None) -> Candidate:
        if label is not None:
            return select_candidate(choice, label, choice.option)
        return self._decisions.choose(choice)

    def _decide_keys(self, inputs: dict[SideName, _Input]) -> tuple[list[Any], str, KeyValues | None]:
        times = {side: _list_stream_columns(inputs[side]) for side in SIDES}
        try:
            choice = create_key_choice(self._samples, times)
        except UserError:
            if not self._options.keys:
                raise
            choice = None
        if self._options.keys:
            settings, values = select_keys(choice, list(self._options.keys))
            figures = [str(item) for item in choice.candidates if item.label in self._options.keys] if choice else []
            return settings, "; ".join(["--key", *figures]), values
        assert choice, "it was created"
        chosen = self._decisions.choose(choice)
        return [chosen.value.setting], choice.explain(chosen), chosen.value

    def _decide_shape(self, distances: str) -> Section:
        """Return the bounds or the window. No figure shows them, so they are never proposed."""
        options = self._options
        if any(name.startswith(_SHAPES) for name in options.overrides):
            return {}
        if options.window is not None:
            if options.lower is not None or options.upper is not None:
                raise UserError("--window cannot be combined with --lower and --upper. Pass bounds or a window.")
            return {"window": {"tumbling": Setting(_format("--window", options.window), "--window")}}
        bounds = {}
        for name in ("lower", "upper"):
            text = getattr(options, name)
            if text is None:
                text = self._decisions.enter(
                    Entry(
                        f"{name} bound of right time - left time",
                        f"--{name}",
                        "'1 hour', or --window for windows",
                        partial(_format, f"--{name}"),
                        distances,
                    )
                )
            bounds[name] = Setting(_format(f"--{name}", text), f"--{name}")
        bounds["lower"] = Setting(bounds["lower"].value, f"--lower; {distances}" if distances else "--lower")
        return {"interval": dict(bounds)}

    def _decide_every(self) -> str:
        text = self._options.every
        if text is None and self._options.dialect == "spark":
            subject = "time between two micro-batches, which are the slices,"
            entry = Entry(subject, "--every", "'10 minutes'", partial(_format, "--every"))
            text = self._decisions.enter(entry)
        every = _format("--every", DEFAULT_SLICE if text is None else text)
        if parse_duration(every) <= timedelta():
            raise UserError("--every: must be positive, such as '1 hour'.")
        return every

    def _decide_start(self, inputs: dict[SideName, _Input], every: str) -> Setting:
        if self._options.start is not None:
            return Setting(_format_start(self._options.start), "--start")
        earliest = [input_.arrival.earliest for input_ in inputs.values() if input_.arrival.earliest is not None]
        if not earliest:
            entry = Entry("start of the first slice", "--start", "2024-01-01T00:00Z", _format_start)
            return Setting(self._decisions.enter(entry), "--start")
        length = to_micros(parse_duration(every))
        start = format_instant(from_micros(min(earliest) // length * length))
        return Setting(start, f"first arrival {format_instant(from_micros(min(earliest)))}, rounded down")

    def _decide_delays(
        self, inputs: dict[SideName, _Input], start: Setting, every: str
    ) -> tuple[dict[SideName, str], dict[SideName, str], tuple[str, ...]]:
        origin, length = to_micros(parse_instant(start.value)), to_micros(parse_duration(every))
        rows = {side: self._get_arrivals(inputs[side], origin, length) for side in SIDES}
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
            origins[side] += f"; {format_share(float(np.mean(is_late)))} late for the lower watermark of both inputs"
        return delays, origins, ()

    def _get_arrivals(self, source: _Input, start: int, every: int) -> Arrivals | None:
        """Return the valid rows of a sample in the order of the dialect; None if their arrival is unknown."""
        if source.arrival.micros is None:
            return None
        valid = select_valid_rows(source.event_time, source.arrival)
        clock = source.arrival.micros
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
        option, subject = f"--{side}-delay", f"watermark delay of the {side} input"
        text = self._options.delays.get(side)
        if rows is None or not len(rows):
            entry = Entry(subject, option, "'10 minutes'", partial(_format, option), _UNKNOWN_DISORDER)
            delay = self._decisions.enter(entry) if text is None else _format(option, text)
            return delay, f"{option}; {_UNKNOWN_DISORDER}"
        disorder = measure_disorder(rows, self._options.dialect)
        choice = create_delay_choice(disorder, self._options.max_late, subject, option)
        figures = describe_disorder(choice, disorder)
        if text is None:
            chosen = self._decisions.choose(choice)
            return chosen.label, figures
        delay = _format(option, text)
        share = format_share(compute_late_share(disorder, parse_duration(delay)))
        return delay, f"{option}, {share} late; {figures}"


def _other_kind(inputs: dict[SideName, _Input]) -> str:
    return next(source.arrival.kind for source in inputs.values() if source.arrival.kind != EVENT_TIME)


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
        return format_duration(parse_duration(text.strip()))
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
        raise UserError(f"--start: {error}") from None
