"""Between which clocks the rows of an input's files lie, by the statistics that Delta keeps of each file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.clock.times import Clock
from tidemark.delta.log import DeltaLog

_CUT = 1000
"""Statistics of times may be cut to whole milliseconds: microseconds."""


@dataclass(frozen=True)
class FileClocks:
    """One file of an input."""

    path: str
    size: int
    """Bytes."""
    rows: int | None
    """None where there are no statistics."""
    timeless: int
    """How many rows have no clock."""
    low: int | None
    """No row has a lesser clock, in microseconds; None where that is not known."""
    high: int | None
    """No row has a greater one."""

    @property
    def is_known(self) -> bool:
        """Whether its statistics say all of that."""
        return self.rows is not None and (self.rows == self.timeless or None not in {self.low, self.high})


def file_clocks(log: DeltaLog, clock: Clock) -> Iterator[FileClocks]:
    """The files of a table by a column of it."""
    files, name = log.files, clock.name
    told = (log.nulls(name), log.least(name), log.greatest(name))
    for path, size, count, timeless, least, greatest in zip(*(files[key] for key in files), *told, strict=True):
        low, high = clock.of_value(least), clock.of_value(greatest)
        if high is not None and clock.per_second is None and high % _CUT == 0:
            high += _CUT - 1
        known = None if count != count or timeless is None else int(count)  # noqa: PLR0124 - NaN
        yield FileClocks(path, int(size), known, int(timeless or 0), low, high)
