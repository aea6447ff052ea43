"""The examples of a comparison, each with the lives of the input rows that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark.comparison import CAUSES, Comparison
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.compare import Cause
from tidemark.comparison.row_history import Life, lives, telling
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_instant, from_micros
from tidemark.formatting import brief_span
from tidemark.report.remedies import REMEDIES


@dataclass(frozen=True)
class Story:
    """An input row's life in one of the pipelines."""

    name: str
    """The name by which examples refer to it: `life-1` and so on."""
    pipeline: str
    tells_stream: bool
    """Whether that is the pipeline which says how the stream ran."""
    told: dict[str, str]
    """What tells the row: `tidemark explain` finds it by these values."""
    life: Life


@dataclass(frozen=True)
class Example:
    """A row that differs."""

    row: dict[str, Any]
    """The row's columns that are not null, `_slice` and `_emission` among them."""
    why: str
    """More than the cause says, where it is known."""
    stories: tuple[str, ...]
    """Names of `Story`."""


@dataclass(frozen=True)
class ExplainedCause:
    """Rows that differ for one reason, what it means and what one can do."""

    cause: str
    missing_in: str
    """`stream` or `batch`."""
    rows: int
    meaning: str
    remedy: str
    examples: tuple[Example, ...]


@dataclass
class Stories:
    """Tells lives, each of them once."""

    batch: CommittedView
    reference: CommittedView | None
    told: dict[tuple[object, ...], Story] = field(default_factory=dict)

    def of(self, comparison: Comparison) -> tuple[ExplainedCause, ...]:
        """The causes of a comparison with their examples' stories, which are then in `told`."""
        return tuple(
            ExplainedCause(
                cause.cause,
                cause.missing_in,
                cause.rows,
                CAUSES[cause.cause],
                REMEDIES[cause.cause],
                tuple(self._example(cause, row) for row in cause.examples),
            )
            for cause in comparison.causes
        )

    def _example(self, cause: Cause, row: Mapping[str, Any]) -> Example:
        # Why a side lacks the row is told by the pipeline of that side.
        view = self.reference if cause.missing_in == "stream" and self.reference else self.batch
        stories = [self._story(view, side, row) for side in SIDES if row.get("_input", side) == side]
        shown = {name: value for name, value in row.items() if name not in _TOLD}
        return Example(shown, _why(row), tuple(one.name for one in stories if one))

    def _story(self, view: CommittedView, side: SideName, row: Mapping[str, Any]) -> Story | None:
        columns = self.batch.columns(side)
        part = {columns[name]: _text(value) for name, value in row.items() if name in columns and _is_plain(value)}
        key = (view is self.reference, side, *part.items())
        if part and key not in self.told and (known := telling(view, side, part)):
            name = f"life-{len(self.told) + 1}"
            self.told[key] = Story(name, view.pipeline.name, view is self.reference, known, lives(view, side, known)[0])
        return self.told.get(key)


_TOLD = {"_input", "_watermark", "_behind_ms", "_held_by", "_detail", "_left", "_right"}
"""What an example's row has beside its columns: what `_why` says, and hashes."""


def _why(row: Mapping[str, Any]) -> str:
    return "; ".join(_reasons(row))


def _reasons(row: Mapping[str, Any]) -> Iterator[str]:
    if "_behind_ms" in row:
        watermark = format_instant(from_micros(row["_watermark"] * 1000))
        held = f", which the {row['_held_by']} input held" if "_held_by" in row else ""
        yield f"its {row['_input']} row was {brief_span(row['_behind_ms'])} behind the watermark {watermark}{held}"
    elif "_input" in row:
        yield f"its {row['_input']} row"
    if "_detail" in row:
        yield str(row["_detail"]).replace("_", " ") if "_input" in row else str(row["_detail"])


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
