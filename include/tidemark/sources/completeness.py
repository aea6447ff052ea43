"""Measure up to when inputs are complete, by the pipeline file's rules, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidemark.config import CommitArrival, Completeness, Input, Pipeline, TimeBounds, TimeColumn
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_duration, format_instant, format_micros, from_micros, to_micros
from tidemark.delta.missing_table import explain_missing_table
from tidemark.delta.paths import resolve_path
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import InputError, suggest_name
from tidemark.sources.commit_time_source import find_last_commit_time
from tidemark.sources.file_time_ranges import FileTimeRange, read_time_ranges
from tidemark.sources.upstream import UpstreamState, read_upstreams
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import ResolvedTimeColumn

_MILLISECOND = 1000
_START_OF_TIME, _END_OF_TIME = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_MAX_LONG = 2**63 - 1


@dataclass(frozen=True)
class InputCompleteness:
    """The instant up to which an input is complete, with the reason."""

    side: SideName
    table: str
    until: datetime | None
    """Slices that end at this instant or before may run. None: no slice may run."""
    reason: str
    """The measurement by the input's rule."""

    def covers(self, end: datetime) -> bool:
        """Return True if the input is complete up to the end of a slice."""
        return self.until is not None and end <= self.until

    @property
    def until_text(self) -> str:
        """The instant for messages."""
        if self.until is None:
            return "no slice"
        return "any slice" if self.until == _END_OF_TIME else format_instant(self.until)

    def explain(self) -> str:
        """Describe in one line up to when the input is complete, and why."""
        return f"{self.table} is complete up to {self.until_text} ({self.reason})"

    def to_dict(self) -> dict[str, str | None]:
        """Return instant and reason as a JSON-ready dictionary."""
        return {"until": format_instant(self.until) if self.until else None, "reason": self.reason}


def measure_completeness(
    pipeline: Pipeline,
    lake: str,
    *,
    assets_updated: bool = False,
    upstreams: Sequence[UpstreamState] | None = None,
) -> tuple[InputCompleteness, ...]:
    """Measure up to when each input is complete that has the setting `complete`, or that another pipeline writes.

    Args:
        assets_updated: True if Airflow has received the events of the inputs' assets.
        upstreams: Pipelines whose output is an input, if their ledgers have been read.

    Raises:
        InputError: A table or column is missing, or the log lacks the statistics.
        ForbiddenPathError: The operator does not allow the path of a table.
    """
    sources: list[tuple[SideName, Input]] = [(side, getattr(pipeline, side)) for side in SIDES]
    if upstreams is None:
        upstreams = read_upstreams(pipeline, lake, applies_commits=False)
    measured = tuple(
        _measure_input(side, source, source.complete, pipeline.time_bounds, lake, assets_updated=assets_updated)
        for side, source in sources
        if source.complete
    )
    return (*(_from_upstream(upstream, pipeline) for upstream in upstreams), *measured)


def _from_upstream(upstream: UpstreamState, pipeline: Pipeline) -> InputCompleteness:
    """Return the completeness of an input that another pipeline writes."""
    grid = Grid.from_config(pipeline.slices)
    until = None if upstream.end is None else grid.datetime_of(upstream.end)
    reason = "by its ledger" if until else "it has no committed slice"
    return InputCompleteness(upstream.side, upstream.pipeline, until, reason)


def _measure_input(
    side: SideName, source: Input, rule: Completeness, bounds: TimeBounds | None, lake: str, *, assets_updated: bool
) -> InputCompleteness:
    if rule.by == "asset":
        reason = (
            f"Airflow has an event of asset {rule.asset}"
            if assets_updated
            else f"only Airflow has the events of asset {rule.asset}"
        )
        return InputCompleteness(side, source.table, _END_OF_TIME if assets_updated else None, reason)
    if rule.by == "marker":
        instant = _read_marker(rule, lake)
        reason = f"by marker table {rule.table}" if instant else f"marker table {rule.table} has no row for it"
        return InputCompleteness(side, source.table, instant, reason)
    log = _open_log(lake, source.table)
    if rule.by == "commit":
        commit_millis, description = log.last_insert_ms, "its last commit of new rows is"
        newest = None if commit_millis is None else commit_millis * _MILLISECOND
    else:
        newest, description = _find_newest_clock(log, source, bounds), "its last clock is"
    if newest is None:
        return InputCompleteness(side, source.table, None, "it has no rows")
    grace_period = f", minus grace_period {format_duration(rule.grace_period)}" if rule.grace_period else ""
    return InputCompleteness(
        side,
        source.table,
        _to_datetime(newest - to_micros(rule.grace_period)),
        f"{description} {format_micros(newest)}{grace_period}",
    )


def _open_log(lake: str, table: str) -> DeltaTableHandle:
    path = resolve_path(lake, table)
    log = DeltaTableHandle.open(path)
    if log is None:
        remedy = "Its completeness cannot be measured. Name its path, or set `complete` to a marker or an asset."
        raise InputError(explain_missing_table(table, path, remedy))
    return log


def _find_newest_clock(log: DeltaTableHandle, source: Input, bounds: TimeBounds | None) -> int | None:
    """Find the greatest usable clock of an input in microseconds, at most 1 ms too early; None without any."""
    if isinstance(source.arrival, CommitArrival):
        return find_last_commit_time(log)
    column = source.arrival or source.event_time
    assert isinstance(column, TimeColumn), "settings forbid a rule together with a streaming checkpoint"
    if column.column not in log.schema.names:
        raise InputError(f"input {source.table} has no column {column.column}. {_suggest_column(column.column, log)}")
    clock = ResolvedTimeColumn.from_config(column, log.schema, f"input {source.table}")
    files = list(read_time_ranges(log, clock))
    is_partition = clock.name in log.partition_columns
    unresolved = [file.path for file in files if not _has_newest_clock(file, bounds, is_partition=is_partition)]
    if unresolved and (not log.has_plain_data_files or is_partition):
        raise InputError(
            f"input {source.table}: its log lacks the maximum of {clock.name}, so complete: row would need Spark. "
            "Set `complete` to commit or to a marker."
        )
    clocks = [
        file.latest // _MILLISECOND * _MILLISECOND
        for file in files
        if file.path not in unresolved and file.latest is not None
    ]
    if unresolved:
        clocks += _find_maximum(log.read([clock.name], paths=unresolved)[clock.name], clock, bounds)
    return max(clocks, default=None)


def _has_newest_clock(file: FileTimeRange, bounds: TimeBounds | None, *, is_partition: bool) -> bool:
    """Return True if a file's statistics or partition value have its greatest usable clock."""
    if not file.is_complete and not is_partition:
        return False
    return file.latest is None or bounds is None or file.latest < to_micros(bounds.latest)


def _find_maximum(values: pa.ChunkedArray, clock: ResolvedTimeColumn, bounds: TimeBounds | None) -> Iterator[int]:
    """Yield the greatest usable clock of a column, if any."""
    latest = to_micros(bounds.latest) if bounds else _MAX_LONG
    if clock.units_per_second is None:
        instants = pc.cast(pc.cast(values, pa.timestamp("us", "UTC"), safe=False), pa.int64())
        maximum = pc.max(instants.filter(pc.less(instants, latest))).as_py()
    else:
        limit = min(latest * clock.units_per_second // 1_000_000, _MAX_LONG)
        is_float = pa.types.is_floating(values.type)
        usable = pc.less(values, pa.scalar(float(limit), values.type) if is_float else limit)
        maximum = clock.convert_value(pc.max(values.filter(usable)).as_py())
    if maximum is not None:
        yield maximum


def _to_datetime(micros: int) -> datetime:
    """Convert microseconds to an instant. Without `time_bounds` they can be outside the years 1 to 9999."""
    return from_micros(max(to_micros(_START_OF_TIME), min(micros, to_micros(_END_OF_TIME))))


def _read_marker(rule: Completeness, lake: str) -> datetime | None:
    """Return the greatest instant in a marker table's rows for an input."""
    assert rule.table and rule.column, "settings are validated"  # noqa: PT018
    log = _open_log(lake, rule.table)
    for name in (rule.column, *rule.where):
        if name not in log.schema.names:
            raise InputError(f"marker table {rule.table} has no column {name}. {_suggest_column(name, log)}")
    if not log.is_plain_parquet:
        raise InputError(f"marker table {rule.table} has partitions or deletion vectors. Write it without them.")
    clock = ResolvedTimeColumn.from_config(TimeColumn(column=rule.column), log.schema, f"marker table {rule.table}")
    rows = log.read([rule.column, *rule.where])
    for name, value in rule.where.items():
        rows = rows.filter(ds.field(name).cast(pa.string()) == value)
    newest = max(_find_maximum(rows[rule.column], clock, None), default=None)
    return None if newest is None else _to_datetime(newest)


def _suggest_column(name: str, log: DeltaTableHandle) -> str:
    return suggest_name(name, log.schema.names)
