"""Names of the two inputs of a join, as used in pipeline files, tables and columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

SideName = Literal["left", "right"]
SIDES: tuple[SideName, SideName] = ("left", "right")
OTHER: Mapping[str, SideName] = {"left": "right", "right": "left"}
"""The opposite side of each side."""
