"""Explain the examples of a comparison by the histories of their input rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark.comparison import CAUSES, Comparison
from tidemark.comparison.cause_descriptions import REMEDIES
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.multiset_diff import BATCH, STREAM
from tidemark.comparison.result import Cause
from tidemark.comparison.row_history import RowHistory, read_row_histories
from tidemark.comparison.row_lookup import find_minimal_key, is_nameable, is_scalar
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_micros
from tidemark.formatting import format_lateness


@dataclass(frozen=True)
class ExampleHistory:
    """History of an input row in one of the pipelines."""

    name: str
    """Name by which examples refer to it: `row-1` and so on."""
    pipeline: str
    is_reference: bool
    """True if the pipeline is the reference."""
    key: dict[str, str]
    """Values by which `tidemark explain` finds the row."""
    history: RowHistory
    command_argument: str | None = None
    """Argument with which `tidemark explain` finds the pipeline, if it is one before the compared pipelines in a chain.
    """


@dataclass(frozen=True)
class Example:
    """Row that differs."""

    row: dict[str, Any]
    """Columns that are not null, with `_slice` and `_emission`."""
    detail: str
    """Details of the cause; empty if unknown."""
    history_names: tuple[str, ...]
    """Names of the `ExampleHistory` of its input rows."""


@dataclass(frozen=True)
class ExplainedCause:
    """Rows that differ for one reason, with its meaning and remedy."""

    cause: str
    missing_in: str
    """`stream` or `batch`; `neither` for a changed row, which both have."""
    rows: int
    meaning: str
    remedy: str
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class _ExampleJoin:
    """The join in which an example has its cause: that of the compared pipeline, or one before it in a chain."""

    batch: CommittedView
    view: CommittedView
    """The pipeline with the reason: `batch`, or the reference."""
    row: Mapping[str, Any]
    """Columns of its emission."""


@dataclass
class ExampleCollector:
    """Collects the histories of input rows, each once."""

    batch: CommittedView
    reference: CommittedView | None
    histories: dict[tuple[object, ...], ExampleHistory] = field(default_factory=dict)

    def explain_causes(self, comparison: Comparison) -> tuple[ExplainedCause, ...]:
        """Explain the causes of a comparison, and add the histories of their examples to `histories`."""
        return tuple(
            ExplainedCause(
                cause.cause,
                cause.missing_in,
                cause.rows,
                CAUSES[cause.cause],
                REMEDIES[cause.cause],
                tuple(self._explain_example(cause, row) for row in cause.examples),
            )
            for cause in comparison.causes_by_row
        )

    def _explain_example(self, cause: Cause, row: Mapping[str, Any]) -> Example:
        # The pipeline of the side that lacks the row has the reason.
        only_in_batch = row["_only_in"] == BATCH if "_only_in" in row else cause.missing_in == STREAM
        view = self.reference if only_in_batch and self.reference else self.batch
        join = _find_join(self.batch, view, row)
        histories = [self._find_history(join, side) for side in SIDES if join and row.get("_input", side) == side]
        columns = {name: value for name, value in row.items() if name not in _DETAIL_COLUMNS}
        return Example(columns, _format_details(row), tuple(history.name for history in histories if history))

    def _find_history(self, join: _ExampleJoin, side: SideName) -> ExampleHistory | None:
        columns = join.batch.map_columns(side)
        view = join.view
        values = {
            columns[name]: _format_value(value)
            for name, value in join.row.items()
            if name in columns and is_scalar(value) and is_nameable(columns[name])
        }
        is_reference = view is not join.batch
        identity = (join.batch.pipeline.name, is_reference, side, *values.items())
        if values and identity not in self.histories and (key := find_minimal_key(view, side, values)):
            name = f"row-{len(self.histories) + 1}"
            history = read_row_histories(view, side, key)[0]
            argument = None if join.batch is self.batch else view.pipeline.command_argument
            self.histories[identity] = ExampleHistory(name, view.pipeline.name, is_reference, key, history, argument)
        return self.histories.get(identity)


def _find_join(batch: CommittedView, view: CommittedView, row: Mapping[str, Any]) -> _ExampleJoin | None:
    """Find the join in which an example has its cause; None if the reference is no such chain."""
    name = row.get("_pipeline", batch.pipeline.name)
    if name == batch.pipeline.name:
        return _ExampleJoin(batch, view, row)
    for side, upstream in batch.upstreams.items():
        emission = {source: row[column] for column, source in batch.map_columns(side).items() if column in row}
        other = upstream if view is batch else view.upstreams.get(side)
        join = other and _find_join(upstream, other, {**emission, "_pipeline": name})
        if join:
            return join
    return None


_DETAIL_COLUMNS = {
    "_only_in",
    "_input",
    "_watermark",
    "_lateness_ms",
    "_limiting_side",
    "_detail",
    "_pipeline",
    "_left",
    "_right",
}
"""Columns of an example that are not its own: details of the cause, and hashes of its input rows."""


def _format_details(row: Mapping[str, Any]) -> str:
    details = "; ".join(_list_details(row))
    return ": ".join(filter(None, (f"in {row['_pipeline']}" if "_pipeline" in row else "", details)))


def _list_details(row: Mapping[str, Any]) -> Iterator[str]:
    if "_lateness_ms" in row:
        watermark = format_micros(row["_watermark"] * 1000)
        suffix = f", determined by the {row['_limiting_side']} input" if "_limiting_side" in row else ""
        lateness = format_lateness(row["_lateness_ms"])
        yield f"its {row['_input']} row was {lateness}: the watermark was {watermark}{suffix}"
    elif "_input" in row:
        yield f"its {row['_input']} row"
    if "_detail" in row:
        yield str(row["_detail"]).replace("_", " ") if "_input" in row else str(row["_detail"])
    if "_only_in" in row:
        yield f"value in the {row['_only_in']}"


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
