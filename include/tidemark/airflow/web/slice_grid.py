"""Arrange slices in the rows of a calendar, one page of it at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from tidemark.airflow.web.slice_states import STATES, PipelineSlices, SliceSummary, State
from tidemark.config.types import to_micros

Unit = Literal["minute", "hour", "day", "month", "year"]
UNITS: tuple[Unit, ...] = get_args(Unit)
"""Parts of a calendar. A page is one of them, its rows are the next smaller ones, and its siblings have one parent."""
_FIRST_INSTANT = (1, 1, 1, 0, 0)
"""Smallest year, month, day, hour and minute."""
_FORMATS: dict[Unit, str] = {
    "minute": "%Y-%m-%dT%H:%M",
    "hour": "%Y-%m-%dT%H",
    "day": "%Y-%m-%d",
    "month": "%Y-%m",
    "year": "%Y",
}
_ROW_LABELS: dict[Unit, str] = {"minute": "%H:%M", "hour": "%H:00", "day": "%a %d", "month": "%B", "year": "%Y"}
_MAX_COLUMNS = 60


@dataclass(frozen=True)
class Layout:
    """Units of the rows and pages of a grid."""

    row: Unit
    page: Unit

    @classmethod
    def from_slice_length(cls, length: timedelta) -> Layout:
        """Choose a layout with at most 1,500 slices on a page, for slices of a second or longer.

        >>> [Layout.from_slice_length(timedelta(**{unit: 1})).page for unit in ("seconds", "minutes", "hours", "days")]
        ['hour', 'day', 'month', 'year']
        """
        limits = ((timedelta(minutes=1), "minute"), (timedelta(minutes=30), "hour"), (timedelta(days=1), "day"))
        row: Unit = next((unit for limit, unit in limits if length < limit), "month")  # type: ignore[misc]
        return cls(row, UNITS[UNITS.index(row) + 1])

    @property
    def parent(self) -> Unit | None:
        """Unit whose pages are listed together; None if all pages are."""
        return None if self.page == "year" else UNITS[UNITS.index(self.page) + 1]


@dataclass(frozen=True)
class Cell:
    """A slice in the grid."""

    number: int
    column: int
    """Column in its row, from 1."""
    label: str
    """Start of the slice, UTC."""
    summary: SliceSummary


@dataclass(frozen=True)
class Row:
    """Slices that start in one unit of the calendar."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class PageLink:
    """A page of the grid."""

    key: str
    """Value of the parameter `page`."""
    state: State
    """Most urgent state of its slices."""
    slices: int
    is_current: bool


@dataclass(frozen=True)
class GridPage:
    """A page of the grid."""

    key: str
    rows: tuple[Row, ...]
    columns: int
    column_labels: tuple[str, ...]
    """Labels of the columns; empty if slices are not aligned with the rows."""
    siblings: tuple[PageLink, ...]
    earlier: str | None
    """Key of the last page before the siblings; None if there is none."""
    later: str | None
    """Key of the first page after the siblings; None if there is none."""


def find_end(slices: PipelineSlices, ended: int) -> int:
    """Return the number after the last slice of the grid.

    Args:
        slices: The slices.
        ended: Number of slices that have ended by now.
    """
    return max([slices.end, ended, *(number + 1 for number in slices.rejections)])


def build_page(slices: PipelineSlices, ended: int, key: str | None = None) -> GridPage | None:
    """Build a page of the grid.

    Args:
        slices: The slices.
        ended: Number of slices that have ended by now.
        key: Key of the page; None for the page with the last slice that is committed or rejected, or the first page.

    Returns:
        None if there is no slice, or no such page.
    """
    end = find_end(slices, ended)
    if end <= 0:
        return None
    calendar = _Calendar(slices, end)
    layout = calendar.layout
    if key is None:
        start = _floor(calendar.local_start(max(slices.summaries, default=0)), layout.page)
    elif (parsed := _parse_key(key, layout.page)) is not None:
        start = parsed
    else:
        return None
    numbers = calendar.numbers_in(start, layout.page)
    if not numbers:
        return None
    rows = tuple(calendar.build_rows(numbers))
    columns = max(cell.column for row in rows for cell in row.cells)
    labels = calendar.label_columns(columns, start)
    siblings = calendar.list_siblings(start)
    before, after = siblings[0][1].start - 1, siblings[-1][1].stop
    return GridPage(
        _format_key(start, layout.page),
        rows,
        min(columns if not labels else len(labels), _MAX_COLUMNS),
        labels,
        tuple(
            PageLink(_format_key(first, layout.page), calendar.find_worst(part), len(part), first == start)
            for first, part in siblings
        ),
        calendar.key_of(before) if before >= 0 else None,
        calendar.key_of(after) if after < end else None,
    )


@dataclass(frozen=True)
class _Calendar:
    """Slices by local time without zone, in which all days have equal length."""

    slices: PipelineSlices
    end: int

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.slices.pipeline.slices.time_zone)

    @property
    def every(self) -> timedelta:
        return self.slices.pipeline.slices.every

    @property
    def layout(self) -> Layout:
        return Layout.from_slice_length(self.every)

    def local_start(self, number: int) -> datetime:
        return self.slices.grid.datetime_of(number).astimezone(self.zone).replace(tzinfo=None)

    def numbers_in(self, start: datetime, unit: Unit) -> range:
        """Return the slices that start in a unit of the calendar."""
        bounds = (start, _start_of_next(start, unit))
        first, end = (self.slices.grid.first_from(to_micros(bound.replace(tzinfo=self.zone))) for bound in bounds)
        return range(max(0, first), max(0, min(end, self.end)))

    def key_of(self, number: int) -> str:
        """Return the key of the page with a slice."""
        return _format_key(_floor(self.local_start(number), self.layout.page), self.layout.page)

    def summarize(self, number: int) -> SliceSummary:
        return self.slices.summarize(number)

    def find_worst(self, numbers: range) -> State:
        states = {self.summarize(number).state for number in numbers}
        return next(state for state in STATES if state in states)

    def list_siblings(self, start: datetime) -> list[tuple[datetime, range]]:
        """Return the pages with the same parent that have slices, with these."""
        layout = self.layout
        if layout.parent is None:
            first, end = (self.local_start(number) for number in (0, self.end - 1))
        else:
            first = _floor(start, layout.parent)
            end = _start_of_next(first, layout.parent) - timedelta(microseconds=1)
        pages, page = [], _floor(first, layout.page)
        while page <= end:
            if numbers := self.numbers_in(page, layout.page):
                pages.append((page, numbers))
            page = _start_of_next(page, layout.page)
        return pages

    def build_rows(self, numbers: range) -> Iterator[Row]:
        cells: dict[datetime, list[Cell]] = {}
        for number in numbers:
            start = self.local_start(number)
            first = _floor(start, self.layout.row)
            label = self.slices.grid.label(number)
            cell = Cell(number, (start - first) // self.every + 1, label, self.summarize(number))
            cells.setdefault(first, []).append(cell)
        for first, row in cells.items():
            yield Row(f"{first:{_ROW_LABELS[self.layout.row]}}", tuple(row))

    def label_columns(self, columns: int, page: datetime) -> tuple[str, ...]:
        """Return the labels of full rows; none if slices start at another offset in each row."""
        row, first = self.layout.row, self.local_start(0)
        if (first - _floor(first, row)) % self.every or columns > _MAX_COLUMNS:
            return ()
        if row == "month":
            return tuple(str(day) for day in range(1, 32)) if self.every == timedelta(days=1) else ()
        length = _start_of_next(page, row) - page
        if length % self.every:
            return ()
        offset_format = {"day": "%H" if not self.every % timedelta(hours=1) else "%H:%M", "hour": "%M"}.get(row, "%S")
        return tuple(f"{page + step * self.every:{offset_format}}" for step in range(length // self.every))


def _parse_key(key: str, unit: Unit) -> datetime | None:
    """Return the start of a page; None if the key is that of no page, or of the last page of the year 9999."""
    try:
        start = datetime.strptime(key, _FORMATS[unit])  # noqa: DTZ007 - a local time
        _start_of_next(start, unit)
    except (ValueError, OverflowError):
        return None
    return start


def _format_key(start: datetime, unit: Unit) -> str:
    return start.strftime(_FORMATS[unit])


def _floor(instant: datetime, unit: Unit) -> datetime:
    fields = (instant.year, instant.month, instant.day, instant.hour, instant.minute)
    larger = fields[: len(UNITS) - UNITS.index(unit)]
    year, month, day, hour, minute = (*larger, *_FIRST_INSTANT[len(larger) :])
    return datetime(year, month, day, hour, minute)  # noqa: DTZ001 - a local time


def _start_of_next(start: datetime, unit: Unit) -> datetime:
    """Return the start of the next unit."""
    if unit == "year":
        return start.replace(year=start.year + 1)
    if unit == "month":
        return _floor(start.replace(day=1) + timedelta(days=32), "month")
    return start + timedelta(**{f"{unit}s": 1})
