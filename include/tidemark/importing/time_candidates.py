"""Find the columns of a sampled table that may be its event time or its arrival."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import types as T

from tidemark.config.inputs import COMMIT, EpochUnit
from tidemark.config.loader import PLACEHOLDER
from tidemark.config.pipeline import TimeBounds
from tidemark.config.sides import SideName
from tidemark.config.types import format_micros, to_micros
from tidemark.errors import InputError, UserError, suggest_name
from tidemark.formatting import format_count
from tidemark.importing.choice import Candidate, Choice
from tidemark.importing.column_names import is_arrival_name, rank_event_time_name
from tidemark.importing.table_sample import SampledColumn, TableSample
from tidemark.watermarks.disorder import Longs

KAFKA_OFFSET, KAFKA_PARTITION = "offset", "partition"
"""Columns that `arrival: {kafka: COLUMN}` reads, too."""
EVENT_TIME = "event-time"
"""Label of no arrival: rows arrive in the order of their event times."""
_MIN_COMMITS = 10
"""Commits from which the commit time is proposed as arrival without asking."""
_MIN_COMMIT_SPAN = 0.5
"""Share of the span of event times that the commits must span for that."""
_QUANTILES = (0.05, 0.95)
"""Quantiles between which a span is measured, so that a few odd times do not count."""
_COMPLETE = 0.9
"""Share of rows with a valid time from which a column counts as complete."""
_PLAUSIBLE_EPOCH = (946_684_800_000_000, 4_102_444_800_000_000)
"""The years 2000 to 2100 in microseconds: numbers of an epoch are recognized by their values."""
_UNITS: dict[EpochUnit, int] = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}
"""Microseconds per unit; 0 for nanoseconds."""
_BOUNDS = TimeBounds()
_MAX_SKEW = to_micros(_BOUNDS.max_ahead_of_arrival)


@dataclass(frozen=True, eq=False)
class TimeValues:
    """A time column with its values in the sample."""

    name: str
    unit: EpochUnit | None
    type_name: str
    micros: Longs
    """Microseconds since 1970 UTC, 0 where invalid."""
    is_valid: npt.NDArray[np.bool_]
    """True where the time is not null and within the default `time_bounds`."""
    earliest: int | None
    """Least valid time of the sample and of the log's statistics, from the year 2000 on if there is one; None without
    a valid time."""

    log_span: float | None
    """Microseconds between the 5 % and the 95 % quantile of the table's times by the log's statistics; None without."""

    @property
    def setting(self) -> Any:
        """Value in the form of a pipeline file. A name that has another meaning is written as a mapping."""
        if self.unit:
            return {"column": self.name, "unit": self.unit}
        return {"column": self.name} if self.name in (COMMIT, PLACEHOLDER) else self.name

    @property
    def valid_share(self) -> float:
        """Share of rows with a valid time; 0 for an empty sample."""
        return float(self.is_valid.mean()) if len(self.is_valid) else 0.0

    def describe(self) -> str:
        """Describe type and values in one line."""
        unit = f" in {self.unit}" if self.unit else ""
        if not self.is_valid.any():
            return f"{self.type_name}{unit}, no valid time in the sample"
        valid = self.micros[self.is_valid]
        span = f"{format_micros(int(valid.min()))} to {format_micros(int(valid.max()))}"
        invalid = len(self.is_valid) - len(valid)
        problem = f", {format_share(invalid / len(self.is_valid))} null or out of bounds" if invalid else ""
        return f"{self.type_name}{unit}, {span}{problem}"


@dataclass(frozen=True, eq=False)
class ArrivalValues:
    """Arrival of an input: the setting, and the arrival of each sampled row if it was measured."""

    kind: str
    """column, kafka, commit, commit-time (in a table with a column `commit`), or event-time."""
    time: TimeValues | None
    """The column; None for `commit` and `event-time`."""
    micros: Longs | None
    """Arrival of each sampled row; None if unknown."""
    earliest: int | None
    """First arrival, in microseconds."""

    @property
    def setting(self) -> Any:
        """Value in the form of a pipeline file; None for no setting."""
        match self.kind:
            case "kafka":
                assert self.time, "it has a column"
                return {"kafka": self.time.name}
            case "commit":
                return COMMIT
            case "commit-time":
                return {COMMIT: True}
        return self.time.setting if self.time else None


def format_share(share: float) -> str:
    """Format a share as percent, in two significant digits unless it is tiny.

    >>> [format_share(share) for share in (0, 0.5, 0.01234, 0.000001)]
    ['0 %', '50 %', '1.2 %', 'less than 0.01 %']
    """
    return "less than 0.01 %" if 0 < share < 0.0001 else f"{float(f'{100 * share:.2g}'):g} %"  # noqa: PLR2004


def list_time_columns(sample: TableSample) -> list[TimeValues]:
    """List the columns that may have times: times, dates, and numbers whose values are an epoch's."""
    columns = (_read_times(sample, column) for column in sample.columns if column.leaf.is_column)
    return [column for column in columns if column]


def _read_times(sample: TableSample, column: SampledColumn) -> TimeValues | None:
    dtype = column.leaf.dtype
    unit: EpochUnit | None = None
    if isinstance(dtype, T.NumericType):
        if (unit := _find_unit(column)) is None:
            return None
    elif not isinstance(dtype, T.TimestampType | T.TimestampNTZType | T.DateType):
        return None
    return _create_times(sample, column, unit)


def _create_times(sample: TableSample, column: SampledColumn, unit: EpochUnit | None) -> TimeValues:
    name = column.leaf.path[0]
    micros = _to_micros(column.numbers, unit)
    is_valid = ~column.is_null & _is_within_bounds(micros)
    # A time before 2000 is often a stand-in for none. Slices from there on would be many, and empty.
    minima = [micros[is_valid], _to_micros(sample.minima[name], unit) if name in sample.minima else micros[:0]]
    times = np.concatenate([times[_is_within_bounds(times)] for times in minima])
    plausible = times[times >= _PLAUSIBLE_EPOCH[0]]
    earliest = plausible if len(plausible) else times
    return TimeValues(
        name,
        unit,
        column.leaf.dtype.simpleString(),
        np.where(is_valid, micros, 0),
        is_valid,
        int(earliest.min()) if len(earliest) else None,
        _estimate_span(sample, name, unit),
    )


def _estimate_span(sample: TableSample, name: str, unit: EpochUnit | None) -> float | None:
    """Return the span of a column's times in the table by the least and greatest time of each file.

    Each of both stands for half of the file's rows, unless it is implausible, such as a stand-in for no time.
    """
    if name not in sample.minima or name not in sample.maxima:
        return None
    times = np.concatenate([_to_micros(values[name], unit) for values in (sample.minima, sample.maxima)])
    weights = np.tile(sample.file_rows, 2)
    is_plausible = (times >= _PLAUSIBLE_EPOCH[0]) & (times < _PLAUSIBLE_EPOCH[1]) & (weights > 0)
    return _measure_span(times[is_plausible], weights[is_plausible]) if is_plausible.any() else None


def _measure_span(times: Longs, weights: npt.NDArray[np.float64] | None = None) -> float:
    """Return the distance between the 5 % and the 95 % quantile of times, of which there is at least one.

    >>> _measure_span(np.arange(100)), _measure_span(np.array([0, 50, 90]), np.array([98.0, 1.0, 1.0]))
    (90.0, 0.0)
    """
    order = np.argsort(times, kind="stable")
    shares = np.cumsum(np.ones(len(times)) if weights is None else weights[order])
    first, last = np.searchsorted(shares, np.array(_QUANTILES) * shares[-1])
    return float(times[order[last]] - times[order[first]])


def _find_unit(column: SampledColumn) -> EpochUnit | None:
    """Return the unit in which most values of a numeric column are plausible times; None if there is none."""
    present = column.numbers[~column.is_null]
    for unit in _UNITS:
        micros = _to_micros(present, unit)
        plausible = (micros >= _PLAUSIBLE_EPOCH[0]) & (micros < _PLAUSIBLE_EPOCH[1])
        if len(present) and plausible.mean() >= _COMPLETE:
            return unit
    return None


def _to_micros(values: npt.NDArray[Any], unit: EpochUnit | None) -> Longs:
    if unit is None:
        return values.astype(np.int64)
    if np.issubdtype(values.dtype, np.integer):
        limit = np.iinfo(np.int64).max // (_UNITS[unit] or 1)
        safe = np.clip(values.astype(np.int64), -limit, limit)
        return safe * _UNITS[unit] if _UNITS[unit] else safe // 1000
    with np.errstate(all="ignore"):
        scaled = np.floor(values * (_UNITS[unit] or 0.001))
    return np.where(np.isfinite(scaled) & (abs(scaled) < 2**62), scaled, -1).astype(np.int64)


def _is_within_bounds(micros: Longs) -> npt.NDArray[np.bool_]:
    return (micros >= to_micros(_BOUNDS.earliest)) & (micros < to_micros(_BOUNDS.latest))


def create_event_time_choice(sample: TableSample, side: SideName) -> Choice:
    """Rank the columns that may be the event time of an input.

    Raises:
        InputError: The table has no such column.
    """
    kafka = _find_kafka_column(sample)
    candidates = [
        Candidate(
            time.name,
            time,
            time.describe(),
            (
                int(time.valid_share >= _COMPLETE),
                _rank_name(time, kafka),
                int(time.type_name != "date"),
                int(time.unit is None),
            ),
        )
        for time in list_time_columns(sample)
    ]
    if not candidates:
        reason = "has no row to recognize times by" if not sample.rows else "has no column with times"
        names = ", ".join(sample.column_names) or "none"
        raise InputError(
            f"{side} table {sample.name} {reason}: no timestamp or date, and no number that is an epoch of the years "
            f"2000 to 2100. Add such a column where the table is written. Columns: {names}."
        )
    criteria = "few nulls, a name such as event or time, a type more precise than a date, not a number"
    subject = f"event time of the {side} input"
    choice = Choice.create(subject, f"--set {side}.event_time=COLUMN", criteria, candidates)
    best_name = max(candidate.rank[1] for candidate in candidates)
    return choice if choice.candidates[0].rank[1] >= min(max(best_name, 0), 1) else replace(choice, can_default=False)


def _rank_name(time: TimeValues, kafka: str | None) -> int:
    """Rank a column by its name: -1 for a number without the name of a time, which may be anything."""
    rank = rank_event_time_name(time.name)
    if time.unit and rank == 1:
        return -1
    return 0 if time.name == kafka else rank


def create_arrival_choice(sample: TableSample, event_time: TimeValues, side: SideName) -> Choice:
    """Rank the possible arrivals of an input: Kafka's timestamp, a column, by commit, and none."""
    candidates = [_create_event_order(event_time), *_create_commit_order(sample, event_time)]
    kafka = _find_kafka_column(sample)
    for time in list_time_columns(sample):
        if time.name == kafka:
            candidates.append(_create_column_order(time, event_time, "kafka", 4))
        if time.name != event_time.name:
            candidates.append(_create_column_order(time, event_time, "column", 3 if is_arrival_name(time.name) else 0))
    criteria = (
        f"Kafka's timestamp, a column named like an arrival, at least {_MIN_COMMITS} commits during the event times, "
        "few nulls, times after the event"
    )
    choice = Choice.create(
        f"arrival of the {side} input",
        f"--arrival for both inputs, or --set {side}.arrival=ARRIVAL,",
        criteria,
        candidates,
    )
    is_clear = choice.candidates[0].rank[0] > 1
    return choice if is_clear else replace(choice, can_default=False)


def create_epoch_candidate(sample: TableSample, choice: Choice, name: str, unit: Any) -> Candidate:
    """Return a numeric column with a given unit as event time.

    Raises:
        UserError: There is no such column or unit.
    """
    column = sample.find_column(name)
    if unit not in _UNITS or column is None or not isinstance(column.leaf.dtype, T.NumericType):
        raise UserError(
            f"{choice.option}: {name} is no column of numbers, or {unit} no unit of an epoch. Use s, ms, us or ns."
        )
    time = _create_times(sample, column, unit)
    return Candidate(name, time, time.describe(), ())


def read_arrival_label(value: Any, side: SideName) -> str | None:
    """Return the label of the candidate that a setting `arrival` names; None for no setting.

    Raises:
        UserError: The arrival cannot be measured, such as that of a streaming checkpoint.
    """
    match value:
        case None | str():
            return value
        case {"kafka": name}:
            return f"kafka:{name}"
        case {"commit": True}:
            return COMMIT
        case {"column": name}:
            return f"column {name}" if name in (COMMIT, EVENT_TIME) else str(name)
    raise UserError(f"{side}.arrival: {value} cannot be measured. Use a column, commit, kafka:COLUMN or {EVENT_TIME}.")


def select_candidate(choice: Choice, label: str) -> Candidate:
    """Return the candidate with a label.

    Raises:
        UserError: There is none.
    """
    for candidate in choice.candidates:
        if candidate.label == label:
            return candidate
    hint = suggest_name(label, [candidate.label for candidate in choice.candidates])
    raise UserError(f"{label} cannot be the {choice.subject}. {hint}")


def _find_kafka_column(sample: TableSample) -> str | None:
    """Return the column with the timestamps of Kafka records, if the table has the standard columns of records."""
    names = {column.leaf.path[0]: column.leaf.dtype for column in sample.columns if column.leaf.is_column}
    has_record_columns = isinstance(names.get(KAFKA_OFFSET), T.IntegralType) and KAFKA_PARTITION in names
    is_time = isinstance(names.get("timestamp"), T.TimestampType | T.TimestampNTZType)
    return "timestamp" if has_record_columns and is_time else None


def _create_event_order(event_time: TimeValues) -> Candidate:
    value = ArrivalValues(EVENT_TIME, None, event_time.micros, event_time.earliest)
    return Candidate(EVENT_TIME, value, "in the order of event times, so that no row is late", (0, 0, 0))


def _create_commit_order(sample: TableSample, event_time: TimeValues) -> list[Candidate]:
    if sample.commit_problem or not sample.commit_count:
        return []
    kind = "commit" if COMMIT not in sample.column_names else "commit-time"
    value = ArrivalValues(kind, None, sample.commit_times, sample.first_commit)
    is_many = sample.commit_count >= _MIN_COMMITS
    figures = f"{format_count(sample.commit_count, 'commit')} with rows, the rows of a commit at the same time"
    share = _compare_spans(sample, event_time)
    if share is not None:
        is_many = is_many and share >= _MIN_COMMIT_SPAN
        figures += f", during {format_share(min(share, 1))} of the span of the event times"
    return [Candidate(COMMIT, value, figures, (2 if is_many else 1, 0, 0))]


def _compare_spans(sample: TableSample, event_time: TimeValues) -> float | None:
    """Return the span of commits as a share of the span of event times; None if one of them is unknown.

    A table that was loaded at once has a tiny share: its commits do not show when the stream read its rows. The
    spans are those of the whole table if they are known, because a sample can have rows of one commit only.
    """
    commit_times, span = sample.log_commit_times, event_time.log_span
    if sample.is_whole_table or span is None:
        if sample.commit_times is None or not event_time.is_valid.any():
            return None
        if not sample.is_whole_table and len(np.unique(sample.commit_times)) < _MIN_COMMITS:
            return None
        commit_times, span = sample.commit_times, _measure_span(event_time.micros[event_time.is_valid])
    return _measure_span(commit_times) / span if span else 1.0


def _create_column_order(time: TimeValues, event_time: TimeValues, kind: str, rank: int) -> Candidate:
    both = time.is_valid & event_time.is_valid
    after = float((time.micros >= event_time.micros)[both].mean()) if both.any() else 0.0
    label = f"kafka:{time.name}" if kind == "kafka" else time.name
    if label in (COMMIT, EVENT_TIME):
        label = f"column {label}"
    figures = f"{time.describe()}, at or after the event time in {format_share(after)} of rows"
    value = ArrivalValues(kind, time, time.micros, time.earliest)
    is_usable = time.valid_share >= _COMPLETE and after >= 0.5  # noqa: PLR2004 - most rows
    return Candidate(label, value, figures, (rank if is_usable else 0, int(is_usable), 0))


def select_valid_rows(event_time: TimeValues, arrival: ArrivalValues) -> npt.NDArray[np.bool_]:
    """Return the rows that a pipeline does not reject for their times, by the default `time_bounds`."""
    is_valid = event_time.is_valid
    if arrival.time:
        is_valid = is_valid & arrival.time.is_valid
    if arrival.micros is not None:
        is_valid = is_valid & (event_time.micros - arrival.micros <= _MAX_SKEW)
    return is_valid
