"""Up to when an input is complete, by the rule in the pipeline file: what its log tells, without Spark and JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidemark.config import Commits, Completeness, Guard, Input, Pipeline, TimeColumn
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_duration, format_instant, from_micros, micros
from tidemark.delta.paths import place
from tidemark.delta.table import DeltaLog
from tidemark.errors import InputError, nearest
from tidemark.sources.commit_time_source import newest_commit
from tidemark.sources.file_time_ranges import FileClocks, file_clocks
from tidemark.timegrid.time_columns import Clock

_MILLISECOND = 1000
_ALWAYS = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Reach:
    """Up to when an input is complete."""

    side: SideName
    table: str
    until: datetime | None
    """Slices that end then or before may run; None for none."""
    because: str
    """By which rule, and what was found."""

    def covers(self, end: datetime) -> bool:
        """Whether the input is complete up to the end of a slice."""
        return self.until is not None and end <= self.until

    @property
    def name(self) -> str:
        """`until` as people write it."""
        if self.until is None:
            return "no slice"
        return "any slice" if self.until == _ALWAYS else format_instant(self.until)

    def told(self) -> str:
        """In a line: up to when, and why no further."""
        return f"{self.table} is complete up to {self.name} ({self.because})"

    def describe(self) -> dict[str, str | None]:
        """For scripts: JSON-ready."""
        return {"until": format_instant(self.until) if self.until else None, "because": self.because}


def reaches(pipeline: Pipeline, lake: str, *, assets_seen: bool = False) -> tuple[Reach, ...]:
    """Up to when the inputs that have a rule are complete; with `assets_seen` Airflow has seen their assets' events.

    Raises:
        InputError: a table or a column is missing, or its log does not tell.
        PlaceError: a table lies where the operator allows none.
    """
    sources: list[tuple[SideName, Input]] = [(side, getattr(pipeline, side)) for side in SIDES]
    return tuple(
        _reach(side, source, source.complete, pipeline.guard, lake, assets_seen=assets_seen)
        for side, source in sources
        if source.complete
    )


def _reach(
    side: SideName, source: Input, rule: Completeness, guard: Guard | None, lake: str, *, assets_seen: bool
) -> Reach:
    if rule.by == "asset":
        told = f"Airflow has seen asset {rule.asset}" if assets_seen else f"only Airflow knows of asset {rule.asset}"
        return Reach(side, source.table, _ALWAYS if assets_seen else None, told)
    if rule.by == "marker":
        found = _marked(rule, lake)
        says = f"says {rule.table}" if found is not None else f"{rule.table} has no instant of it"
        return Reach(side, source.table, found, says)
    log = _log(lake, source.table)
    if rule.by == "commit":
        written, what = log.written_at, "rows were last committed"
        at = None if written is None else from_micros(written * _MILLISECOND)
    else:
        newest, what = _newest(log, source, guard), "its last clock is"
        at = None if newest is None else from_micros(newest)
    if at is None:
        return Reach(side, source.table, None, "it has no rows")
    settle = f", and settle is {format_duration(rule.settle)}" if rule.settle else ""
    return Reach(side, source.table, at - rule.settle, f"{what} {format_instant(at)}{settle}")


def _log(lake: str, table: str) -> DeltaLog:
    log = DeltaLog.open(place(lake, table))
    if log is None:
        raise InputError(
            f"there is no Delta table {table} under {lake}, whose log would tell up to when it is complete; name its "
            "path, or let `complete` be by a marker or an asset"
        )
    return log


def _newest(log: DeltaLog, source: Input, guard: Guard | None) -> int | None:
    """The greatest usable clock of an input in microseconds, at most a ms too early; None without any."""
    if isinstance(source.arrival, Commits):
        return newest_commit(log)
    column = source.arrival or source.event_time
    assert isinstance(column, TimeColumn), "settings refuse a rule beside a trace"
    if column.column not in log.schema.names:
        raise InputError(f"input {source.table} has no column {column.column}; {_near(column.column, log)}")
    clock = Clock.of(column, log.schema, f"input {source.table}")
    files = list(file_clocks(log, clock))
    open_ = [one.path for one in files if not _tells(one, guard)]
    if open_ and not log.is_bare:
        raise InputError(
            f"input {source.table}: its log does not tell the greatest {clock.name}, so that `by: row` would need "
            "Spark; let `complete` be by commit, or by a marker"
        )
    known = [one.high // _MILLISECOND * _MILLISECOND for one in files if one.path not in open_ and one.high is not None]
    if open_:
        known += _read(log.read([clock.name], paths=open_)[clock.name], clock, guard)
    return max(known, default=None)


def _tells(file: FileClocks, guard: Guard | None) -> bool:
    """Whether a file's statistics tell its greatest usable clock."""
    if not file.is_known:
        return False
    return file.high is None or guard is None or file.high < micros(guard.latest)


def _read(values: pa.ChunkedArray, clock: Clock, guard: Guard | None) -> Iterator[int]:
    """The greatest usable clock of a column, if any."""
    latest = micros(guard.latest) if guard else 2**63 - 1
    if clock.per_second is None:
        instants = pc.cast(pc.cast(values, pa.timestamp("us", "UTC"), safe=False), pa.int64())
        found = pc.max(instants.filter(pc.less(instants, latest))).as_py()
    else:
        usable = pc.less(values, latest * clock.per_second // 1_000_000)
        found = clock.of_value(pc.max(values.filter(usable)).as_py())
    if found is not None:
        yield found


def _marked(rule: Completeness, lake: str) -> datetime | None:
    """The greatest instant in a marker table's rows of an input."""
    assert rule.table and rule.column, "settings see to it"  # noqa: PT018
    log = _log(lake, rule.table)
    for name in (rule.column, *rule.where):
        if name not in log.schema.names:
            raise InputError(f"marker table {rule.table} has no column {name}; {_near(name, log)}")
    if not log.is_bare:
        raise InputError(f"marker table {rule.table} has partitions or deletion vectors; write it plain, it is small")
    clock = Clock.of(TimeColumn(column=rule.column), log.schema, f"marker table {rule.table}")
    rows = log.read([rule.column, *rule.where])
    for name, text in rule.where.items():
        rows = rows.filter(ds.field(name).cast(pa.string()) == text)
    newest = max(_read(rows[rule.column], clock, None), default=None)
    return None if newest is None else from_micros(newest)


def _near(name: str, log: DeltaLog) -> str:
    return nearest(name, log.schema.names, "it has")
