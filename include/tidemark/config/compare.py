"""Settings of comparisons with a streamed table."""

from __future__ import annotations

from pydantic import Field

from tidemark.config.base import Settings
from tidemark.config.types import PositiveDuration, RowAllowance


class Budget(Settings):
    """Maximum differences before a comparison fails: a number of rows, or a share of compared rows such as 0.1 %."""

    unexplained: RowAllowance = Field(default=0, validate_default=True)
    """Maximum number of differences without a known cause."""
    differing: RowAllowance | None = None
    """Maximum number of all differences except pending rows. Default: unlimited."""


class CompareSettings(Settings):
    """Defaults of `tidemark compare`, which its options override."""

    table: str
    """Streamed table to compare with: a Delta path relative to the lake root, or a catalog name."""
    reference: str | None = None
    """Pipeline that describes how the stream ran: a pipeline name, or a pipeline file in the folder of this file or in
    the pipelines folder. Default: none."""
    key_columns: list[str] = []
    """Columns that identify a row. Used to report changed values instead of missing rows. Default: keys, event times
    and windows."""
    ignore_columns: list[str] = []
    """Columns to exclude from the comparison."""
    float_tolerance: float = Field(default=0.0, ge=0)
    """Maximum absolute difference between floating-point values that count as equal."""
    try_settings: bool = True
    """Search other settings that explain rows without a cause. Each trial replays all slices."""
    every: PositiveDuration | None = None
    """Airflow: comparison interval, a multiple of `slices.every` counted from `slices.start`. Default: after each
    commit."""
    stream_lag: PositiveDuration | None = None
    """Maximum delay of the stream relative to this machine's clock. Rows that were due within this time are pending,
    not lost. Default: none."""
    budget: Budget = Budget()
    """Maximum differences before a comparison fails."""
