"""Specification of when windows fire and which rows a firing sees: trigger, evictor and time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.timegrid.time_columns import lit_long


@dataclass(frozen=True, kw_only=True)
class WindowFiringSpec:
    """Firing rules of the windows of a key, times in ms."""

    trigger: str
    trigger_amount: int
    """Interval, count or threshold of the trigger."""
    is_purging: bool
    evictor: Literal["count", "time"] | None
    evictor_amount: int
    """Rows that a count evictor keeps, or the time before the newest row that a time evictor keeps."""
    evicts_after: bool
    """True if the evictor runs after the window function, not before it."""
    is_processing_time: bool
    """True if windows are of processing time."""
    lateness: int
    gap: int | None
    """Gap of sessions; None for aligned windows."""

    @property
    def has_processing_time_timers(self) -> bool:
        """True if the trigger's timers are of processing time."""
        return self.trigger in {"processing_time", "continuous_processing_time"}

    @property
    def has_both_times(self) -> bool:
        """True if windows of one time have a trigger of the other."""
        return self.trigger not in {"count", "delta"} and self.has_processing_time_timers != self.is_processing_time

    @property
    def has_closed_form(self) -> bool:
        """True if aligned windows have a closed form, as `window_firing_closed_form.has_closed_form`."""
        has_own_time = self.trigger == "count" or (self.trigger != "delta" and not self.has_both_times)
        return has_own_time and not (self.is_processing_time and self.evictor == "time")

    @property
    def is_continuous(self) -> bool:
        """True if the trigger fires repeatedly."""
        return self.trigger.startswith("continuous")


SPEC_FIELDS = tuple(WindowFiringSpec.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class FiringColumns:
    """The fields of `WindowFiringSpec` as columns, so that the lanes of a job may differ."""

    trigger: Column
    trigger_amount: Column
    is_purging: Column
    evictor: Column
    evictor_amount: Column
    evicts_after: Column
    is_processing_time: Column
    lateness: Column
    gap: Column

    @classmethod
    def from_spec(cls, spec: WindowFiringSpec) -> FiringColumns:
        """Create literals, the same for all rows."""
        integers = {"trigger_amount", "evictor_amount", "lateness"}
        columns = {name: lit_long(value) if name in integers else F.lit(value) for name, value in asdict(spec).items()}
        return cls(**{**columns, "evictor": columns["evictor"].cast("string"), "gap": columns["gap"].cast("long")})

    @property
    def columns(self) -> dict[str, Column]:
        """Columns by a name that is unique among those of rows."""
        return {f"spec_{name}": getattr(self, name) for name in SPEC_FIELDS}
