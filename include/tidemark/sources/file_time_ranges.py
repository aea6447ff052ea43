"""Between which clocks the rows of an input's files lie, by the statistics that Delta keeps of each file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import unquote

from tidemark.delta.row_commit_times import FileArrival
from tidemark.delta.table import DeltaLog
from tidemark.timegrid.time_columns import Clock

_CUT = 1000
"""Statistics of times may be cut to whole milliseconds: microseconds."""
_ROUNDED = 1
"""Spark rounds numbers that are not whole before it floors them, and may come to the next microsecond."""


@dataclass(frozen=True)
class FileClocks:
    """One file of an input."""

    path: str
    size: int
    """Bytes."""
    rows: int | None
    """None where there are no statistics."""
    timeless: int | None
    """How many rows have no clock; None where that is not known: statistics pass over what is no number."""
    low: int | None
    """No row has a lesser clock, in microseconds; None where that is not known."""
    high: int | None
    """No row has a greater one."""

    @property
    def is_known(self) -> bool:
        """Whether its statistics say all of that."""
        if self.rows is None or self.timeless is None:
            return False
        return self.rows == self.timeless or None not in {self.low, self.high}


def file_clocks(log: DeltaLog, clock: Clock) -> Iterator[FileClocks]:
    """The files of a table by a column of it."""
    files, name = log.files, clock.name
    told = (log.nulls(name), log.least(name), log.greatest(name))
    for path, size, count, nulls, least, greatest in zip(*(files[key] for key in files), *told, strict=True):
        yield FileClocks(
            path,
            int(size),
            None if math.isnan(count) else int(count),
            None if isinstance(least, float) else nulls,
            _bound(clock, least, -1),
            _bound(clock, greatest, 1),
        )


def committed_clocks(log: DeltaLog, arrivals: Mapping[str, FileArrival]) -> Iterator[FileClocks]:
    """The files of a table by when their rows were committed, `arrivals` by paths that are decoded."""
    for path, size, count in zip(*(log.files[key] for key in ("path", "size", "rows")), strict=True):
        arrival = arrivals[unquote(path)]
        rows = None if math.isnan(count) else int(count)
        yield FileClocks(path, int(size), rows, 0, arrival.low, arrival.high)


def _bound(clock: Clock, value: Any, beyond: Literal[-1, 1]) -> int | None:
    """The microseconds that no row is before, or after, whatever Spark makes of a value on its way."""
    if isinstance(value, float):  # Spark goes by the digits that Java writes of it
        value = math.nextafter(value, beyond * math.inf)
    found = clock.of_value(value)
    if found is None:
        return None
    if isinstance(value, float | Decimal):
        return found + beyond * _ROUNDED
    if beyond > 0 and clock.per_second is None and found % _CUT == 0:
        return found + _CUT - 1
    return found
