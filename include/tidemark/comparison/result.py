"""Request and result of a comparison with a stream's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from tidemark.comparison.setting_search import SettingTrial
from tidemark.config import Budget


@dataclass(frozen=True)
class ComparisonRequest:
    """Table, range and options of a comparison."""

    table: str
    """The stream's table: a Delta path relative to the lake root, or a catalog name."""
    start: datetime | None = None
    """First slice (inclusive); by default the first committed one."""
    end: datetime | None = None
    """End of the last slice (exclusive); by default that of the last committed one."""
    until: datetime | None = None
    """Clock up to which the stream has read (exclusive); by default as far as the batch."""
    key_columns: tuple[str, ...] = ()
    """Columns that identify a row, to report changed values instead of missing rows. By default keys, event times and
    windows; all columns, if the emissions contain neither keys nor event times."""
    ignore_columns: tuple[str, ...] = ()
    """Columns to leave out."""
    float_tolerance: float = 0.0
    """Largest accepted difference of floating point and decimal numbers."""
    examples: int = 3
    """Number of rows to show per cause."""
    try_settings: bool = True
    """True to search other settings that explain rows without a cause; it replays all slices."""
    budget: Budget = field(default_factory=Budget)
    """Largest accepted number of differing rows."""


@dataclass(frozen=True)
class Cause:
    """Rows that differ for one reason."""

    cause: str
    missing_in: str
    """`stream` or `batch`."""
    rows: int
    examples: tuple[dict[str, Any], ...]
    """Rows, each with its `_number` among all examples, the columns `_changed` of a changed value, and `_left` and
    `_right`: the hashes of its input rows."""


@dataclass(frozen=True)
class Agreement:
    """Comparison of one slice: number of emissions in both tables and in one only, without pending ones."""

    slice: str | None
    """Start of the slice; None for rows of the stream that belong to no slice."""
    run: str | None
    """The ledger's run that was compared; None if the slice is not committed."""
    same: int
    only_batch: int
    only_stream: int
    unexplained: int
    pending: int
    causes: dict[str, int]
    """Rows by cause, pending ones included."""


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison: how many rows agree, and why the others differ."""

    pipeline: str
    table: str
    reference: str | None
    """The pipeline that describes how the stream ran."""
    start: str
    end: str
    same: int
    causes: tuple[Cause, ...]
    agreement: tuple[Agreement, ...]
    notes: tuple[str, ...]
    seconds: float
    leading_columns: tuple[str, ...] = ()
    """The most informative columns of a row: keys, event times and bounds of windows."""
    setting_trials: tuple[SettingTrial, ...] = ()
    """Other settings that were tried for rows without a cause, the best first."""
    over_budget: tuple[str, ...] = ()
    """A line for each part of the budget that is exceeded."""

    @property
    def likely_settings(self) -> SettingTrial | None:
        """Other settings under which the stream probably ran; None if none is supported."""
        return self.setting_trials[0] if self.setting_trials and self.setting_trials[0].is_supported else None

    def summarize_example(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """Select the leading columns of an example, and those that differ."""
        names = dict.fromkeys((*self.leading_columns, *example.get("_changed", ()))) or ("_slice",)
        return {name: example[name] for name in names if name in example}

    @property
    def differences(self) -> int:
        """Number of rows in one table only, without pending ones."""
        return sum(cause.rows for cause in self.causes if cause.cause != "pending")

    @property
    def unexplained(self) -> int:
        """Number of rows that differ without a cause."""
        return sum(cause.rows for cause in self.causes if cause.cause == "unexplained")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and both totals as a JSON-ready dictionary."""
        return {**asdict(self), "differences": self.differences, "unexplained": self.unexplained}


def check_budget(budget: Budget, agreements: Sequence[Agreement]) -> tuple[str, ...]:
    """Return a line for each part of a budget that is exceeded."""
    unexplained = sum(agreement.unexplained for agreement in agreements)
    differing = sum(agreement.only_batch + agreement.only_stream for agreement in agreements)
    compared = sum(agreement.same for agreement in agreements) + differing
    lines = []
    for name, rows, allowed in (
        ("unexplained", unexplained, budget.unexplained),
        ("differing", differing, budget.differing),
    ):
        if allowed is None or rows <= (limit := allowed.max_rows(compared)):
            continue
        share = f" ({allowed})" if allowed.is_share else ""
        lines.append(f"{rows:,} of {compared:,} rows {name}, {rows - limit:,} more than the budget of {limit:,}{share}")
    return tuple(lines)
