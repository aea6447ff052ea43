"""How windows fire, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.clock.times import whole
from tidemark.joins.panes import PaneSpec
from tidemark.watermarks.buckets import Horizon

SPEC = tuple(PaneSpec.__dataclass_fields__)


@dataclass(frozen=True)
class Firing:
    """How windows fire: what `PaneSpec` has, as columns, so that lanes of one job may differ."""

    trigger: Column
    amount: Column
    purging: Column
    evictor: Column
    kept: Column
    evicts_after: Column
    processing: Column
    lateness: Column
    gap: Column

    @classmethod
    def of(cls, spec: PaneSpec) -> Firing:
        """The same for all rows."""
        whole_numbers = {"amount", "kept", "lateness"}
        columns = {k: whole(v) if k in whole_numbers else F.lit(v) for k, v in asdict(spec).items()}
        return cls(**{**columns, "evictor": columns["evictor"].cast("string"), "gap": columns["gap"].cast("long")})

    @property
    def columns(self) -> dict[str, Column]:
        """Under names of their own."""
        return {f"spec_{name}": getattr(self, name) for name in SPEC}


def by_lane(numbers: Sequence[int | None]) -> Column:
    """The number of a row's lane, long."""
    # One literal, which Spark parses once.
    text = ",".join("null" if number is None else str(number) for number in numbers)
    return F.get(F.from_json(F.lit(f"[{text}]"), "array<bigint>"), F.col("lane").cast("int"))


def drained_in(horizon: Horizon) -> Column:
    """The slice of the job in which a lane's input ends; null for none."""
    last = max(horizon.lines[0].ends)
    drains = [lane.drain if lane.drain is not None and lane.drain <= last else None for lane in horizon.lanes]
    return by_lane(drains)
