"""How windows fire, as columns."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.joins.window_operator_simulation import PaneSpec
from tidemark.timegrid.time_columns import whole

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
