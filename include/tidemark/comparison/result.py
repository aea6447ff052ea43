"""Request and result of a comparison with a stream's table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import zip_longest
from typing import Any

from tidemark.comparison.multiset_diff import BATCH, OTHER_TABLE, STREAM
from tidemark.comparison.setting_trials import SettingTrial
from tidemark.config import Budget

CHANGED_VALUE = "changed value"
"""Cause of a row that both tables have, with another value."""
NEITHER = "neither"
"""Table that lacks a changed row."""
_BATCH_WORDS, _STREAM_WORDS = re.compile(r"\bthe (batch|pipeline)\b"), re.compile(r"\bthe stream\b")


@dataclass(frozen=True)
class ComparisonRequest:
    """Table, range and options of a comparison."""

    table: str
    """The stream's table: a Delta path relative to the lake root, or a catalog name."""
    version: int | None = field(default=None, kw_only=True)
    """Version of the table to compare; by default the newest."""
    origin: str = field(default="compare.table", kw_only=True)
    """Option or field with the table, for messages."""
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
    """`stream` or `batch`; `neither` for changed rows (`Comparison.causes_by_row`)."""
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
    changed: int = 0
    """Rows with a changed value, which `only_batch` and `only_stream` both count."""

    @property
    def differing(self) -> int:
        """Number of rows that differ, each changed row counted once."""
        return self.only_batch + self.only_stream - self.changed


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
    table_version: int | None = None
    """Version of the stream's table that was compared."""
    ignore_columns: tuple[str, ...] = ()
    """Columns that identify no input row: those ignored by request, or compared with a tolerance."""
    leading_columns: tuple[str, ...] = ()
    """The most informative columns of a row: keys, event times and bounds of windows."""
    setting_trials: tuple[SettingTrial, ...] = ()
    """Other settings that were tried for rows without a cause, the best first."""
    over_budget: tuple[str, ...] = ()
    """A line for each part of the budget that is exceeded."""
    labels: tuple[str, str] = (BATCH, STREAM)
    """Words for the pipeline's output and for the other table: `batch` and `stream`, or `candidate` and `live`."""

    def summarize_example(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """Select the leading columns of an example, and those that differ."""
        names = dict.fromkeys((*self.leading_columns, *example.get("_changed", ()))) or ("_slice",)
        return {name: example[name] for name in names if name in example}

    @property
    def causes_by_row(self) -> tuple[Cause, ...]:
        """Causes that count each changed row once. Its examples have `_only_in`: the table that has this value.

        A side can have more rows with a changed value than the other. They stay rows of this side.
        """
        values = [cause for cause in self.causes if cause.cause == CHANGED_VALUE]
        if not self.changed or len(values) < len((BATCH, STREAM)):
            return self.causes
        by_side = [
            [{"_only_in": OTHER_TABLE[cause.missing_in], **row} for row in cause.examples] for cause in reversed(values)
        ]
        examples = tuple(row for pair in zip_longest(*by_side) for row in pair if row is not None)
        rest = (replace(cause, rows=cause.rows - self.changed, examples=()) for cause in values)
        changed = (Cause(CHANGED_VALUE, NEITHER, self.changed, examples), *(cause for cause in rest if cause.rows))
        first = self.causes.index(values[0])
        others = [cause for cause in self.causes if cause.cause != CHANGED_VALUE]
        return (*others[:first], *changed, *others[first:])

    @property
    def differences(self) -> int:
        """Number of rows that differ, without pending ones. A changed row counts once, although both have it."""
        return self.changed + self.missing + self.extra

    @property
    def changed(self) -> int:
        """Number of rows that both tables have, with another value."""
        return sum(agreement.changed for agreement in self.agreement)

    @property
    def missing(self) -> int:
        """Number of rows that the stream lacks, without changed and pending ones."""
        return self._count_missing(STREAM)

    @property
    def extra(self) -> int:
        """Number of rows that only the stream has, without changed and pending ones."""
        return self._count_missing(BATCH)

    def _count_missing(self, table: str) -> int:
        rows = sum(cause.rows for cause in self.causes if cause.missing_in == table and cause.cause != "pending")
        return rows - self.changed

    @property
    def unexplained(self) -> int:
        """Number of rows that differ without a cause."""
        return sum(cause.rows for cause in self.causes if cause.cause == "unexplained")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the totals as a JSON-ready dictionary."""
        totals = ("differences", "changed", "missing", "extra", "unexplained")
        return {**asdict(self), **{name: getattr(self, name) for name in totals}}

    def describe_differences(self) -> str:
        """Describe how many rows differ, and in which way: `3 differ: 2 changed, 1 missing in the stream`."""
        kinds = self.describe_kinds()
        return f"{self.differences:,} differ" + (f": {kinds}" if kinds else "")

    def describe_kinds(self) -> str:
        """Describe how many rows are changed, missing in the stream or extra in it; empty without differences."""
        kinds = ("changed", "missing in the stream", "extra in the stream")
        counts = zip((self.changed, self.missing, self.extra), kinds, strict=True)
        return ", ".join(f"{rows:,} {self.adapt_words(kind)}" for rows, kind in counts if rows)

    def label_table(self, table: str) -> str:
        """Return the word for a table, `batch` or `stream`."""
        return self.labels[0] if table == BATCH else self.labels[1]

    def label_other_table(self, missing_in: str) -> str:
        """Return the word for the table that has rows which `missing_in` (as of a `Cause`) lacks."""
        return "in both" if missing_in == NEITHER else self.label_table(OTHER_TABLE[missing_in])

    def adapt_words(self, text: str) -> str:
        """Replace the words for both tables in a text, where versions of a pipeline are compared.

        >>> comparison = Comparison("p", "t", None, "", "", 0, (), (), (), 0.0, labels=("candidate", "live"))
        >>> comparison.adapt_words("an input row was late in the stream")
        'an input row was late in the live version'
        """
        if self.labels == (BATCH, STREAM):
            return text
        text = _BATCH_WORDS.sub(f"the {self.labels[0]} version", text)
        return _STREAM_WORDS.sub(f"the {self.labels[1]} version", text)


def check_budget(budget: Budget, agreements: Sequence[Agreement]) -> tuple[str, ...]:
    """Return a line for each part of a budget that is exceeded."""
    unexplained = sum(agreement.unexplained for agreement in agreements)
    differing = sum(agreement.differing for agreement in agreements)
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
