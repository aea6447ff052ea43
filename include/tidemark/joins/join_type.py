"""The type of a join, and what join types do with unmatched rows."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES, SideName

PADDING_TYPES = {"left": ("left", "full"), "right": ("right", "full")}
"""Join types that pad unmatched rows, by the row's side."""
SEMI_ANTI_TYPES = ("semi", "anti")
"""Join types that emit left rows alone."""


@dataclass(frozen=True)
class JoinType:
    """The type of a join: a literal in a job with one stream, a column if lanes differ."""

    column: Column
    types: frozenset[str]
    """Possible values of the column."""

    @classmethod
    def from_name(cls, name: str) -> JoinType:
        """Create a type that is the same for all rows."""
        return cls(F.lit(name), frozenset([name]))

    @property
    def padded_sides(self) -> list[SideName]:
        """Sides of which the join of some lane pads unmatched rows."""
        return [side for side in SIDES if self.types.intersection(PADDING_TYPES[side])]

    def is_in(self, *names: str) -> Column:
        """Return True if the type is one of these."""
        return self.column.isin(*names)

    def pads(self, side: str) -> Column:
        """Return True if the join pads unmatched rows of a side."""
        return self.is_in(*PADDING_TYPES[side])
