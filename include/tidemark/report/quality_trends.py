"""Chart validation results and lateness of committed slices over time on a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pandas as pd

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration, to_micros
from tidemark.delta.table import DeltaTableHandle
from tidemark.execution.replay import LATE_BUT_BUFFERED_REASONS
from tidemark.formatting import format_count
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx.data_docs import get_docs_index
from tidemark.quality.results_table import ExpectationHistory, summarize_results
from tidemark.report.render import create_environment
from tidemark.timegrid.slices import Grid

FORMATS = (".html",)
MAX_SPANS = 300
"""Maximum number of time spans in a chart."""
_QUANTILES = {"median": 0.5, "99 %": 0.99}


@dataclass(frozen=True)
class _SpanGrid:
    """Grid of a chart, whose spans consist of several slices."""

    grid: Grid
    slices_per_span: int


@dataclass(frozen=True)
class Span:
    """Values of the slices that begin in [start, end)."""

    start: str
    end: str
    min_value: float
    max_value: float
    has_failure: bool
    """True if the expectation failed in one of the slices."""
    worst_failure: float
    """Largest value of a slice in which the expectation failed; 0 without failures."""


@dataclass(frozen=True)
class Trend:
    """Values over time."""

    name: str
    caption: str
    spans: tuple[Span, ...]
    min_value: float | None = None
    """Lower bound of an expectation."""
    max_value: float | None = None
    """Upper bound of an expectation."""

    @property
    def drawn_bounds(self) -> list[float]:
        """Bounds that are close enough to the values to be drawn without flattening the chart."""
        values = [value for span in self.spans for value in (span.min_value, span.max_value)]
        low, high = min(values), max(values)
        reach = 3 * max(high - low, abs(high) / 10, 1e-9)
        bounds = (bound for bound in (self.min_value, self.max_value) if bound is not None)
        return [bound for bound in bounds if low - reach <= bound <= high + reach]


@dataclass(frozen=True)
class QualityTrends:
    """Content of the page."""

    pipeline: str
    start: str
    end: str
    slices: int
    span_length: str
    expectation_trends: tuple[Trend, ...]
    histories_without_value: tuple[ExpectationHistory, ...]
    """Expectations whose results contain no number."""
    flow_trends: tuple[Trend, ...]
    """Emissions, late rows and their lateness."""
    docs_index: str


def collect_trends(pipeline: Pipeline, ledger: Ledger, rows: pd.DataFrame) -> QualityTrends:
    """Collect the trends of all committed slices from the ledger and the rows of the table `quality`."""
    grid = ledger.grid
    numbers = list(ledger.entries)
    all_numbers = [grid.number_at(to_micros(start)) for start in rows["slice"].drop_duplicates()] + numbers
    extent = max(all_numbers, default=0) - min(all_numbers, default=0) + 1
    span_grid = _SpanGrid(grid, -(-extent // MAX_SPANS))
    histories = summarize_results(rows)
    without_value = tuple(
        history
        for history in histories
        if history.worst_value is None and not _select_values(rows, history).notna().any()
    )
    with_value = (history for history in histories if history not in without_value)
    return QualityTrends(
        pipeline.name,
        grid.label(numbers[0]) if numbers else "",
        grid.label(numbers[-1] + 1) if numbers else "",
        len(numbers),
        format_duration(span_grid.slices_per_span * timedelta(microseconds=grid.every)),
        tuple(_create_expectation_trend(rows, history, span_grid) for history in with_value),
        without_value,
        tuple(_create_flow_trends(ledger, span_grid)),
        get_docs_index(ledger.tables),
    )


def render_html(trends: QualityTrends) -> str:
    """Render the trends as a self-contained page, without network requests, scripts or fonts."""
    from tidemark.report import charts  # noqa: PLC0415 - a fifth of the time that any command takes to start

    template = create_environment().get_template("trends.html.j2")
    return template.render(trends=trends, charts=charts, format_count=format_count)


def _select_rows(rows: pd.DataFrame, history: ExpectationHistory) -> pd.DataFrame:
    return rows[(rows["expectation"] == history.expectation) & (rows["severity"] == history.severity)]


def _select_values(rows: pd.DataFrame, history: ExpectationHistory) -> pd.Series[float]:
    selected = _select_rows(rows, history)
    return pd.Series(selected["value"].to_numpy(), index=pd.DatetimeIndex(selected["slice"]), dtype="float64")


def _create_expectation_trend(rows: pd.DataFrame, history: ExpectationHistory, span_grid: _SpanGrid) -> Trend:
    selected = _select_rows(rows, history)
    failed = pd.Series((selected["outcome"] != "passed").to_numpy(), index=pd.DatetimeIndex(selected["slice"]))
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in history.outcomes.items())
    worst = ""
    if history.worst_value is not None:
        label = "value nearest to a bound" if history.worst_outcome == "passed" else "worst value"
        worst = f"; {label} {history.worst_value:,.6g} in {history.worst_slice}"
    caption = f"{history.severity}; {format_count(history.evaluated, 'slice')}: {outcomes}{worst}"
    spans = tuple(_create_spans(_select_values(rows, history), span_grid, failed))
    return Trend(history.expectation, caption, spans, history.min_value, history.max_value)


def _create_flow_trends(ledger: Ledger, span_grid: _SpanGrid) -> Iterator[Trend]:
    rows = ledger.rows
    if rows.empty:
        return
    index = pd.DatetimeIndex(rows["slice"])
    emissions = rows["emissions"].set_axis(index)
    yield Trend("emissions", "rows per slice", tuple(_create_spans(emissions, span_grid)))
    for side in SIDES:
        counts = pd.DataFrame(list(rows[side]), index=index)
        rows_read = counts["read"].where(counts["read"] > 0)
        pairs = pd.to_numeric(rows["pairs"]).fillna(rows["emissions"]).set_axis(index)
        caption = f"emissions of a slice per row read from the {side} input"
        yield Trend(f"emissions per row, {side} input", caption, tuple(_create_spans(pairs / rows_read, span_grid)))
        late_share = counts["late"] / rows_read
        if late_share.notna().any():
            caption = "late rows as a share of the rows read, by slice"
            yield Trend(f"late share, {side} input", caption, tuple(_create_spans(late_share, span_grid)))
    for (side_name, quantile), values in _read_lateness(ledger).items():
        caption = f"seconds behind the watermark, {quantile} of a slice's late rows"
        yield Trend(f"lateness, {quantile}, {side_name} input", caption, tuple(_create_spans(values, span_grid)))


def _read_lateness(ledger: Ledger) -> dict[tuple[str, str], pd.Series[float]]:
    """Read quantiles of the lateness of each slice's late rows, in seconds, by side and quantile."""
    log = DeltaTableHandle.open(ledger.tables.late)
    if log is None:
        return {}
    rows = log.read(["_slice", "side", "reason", "lateness_ms"]).to_pandas()
    rows = rows[rows["reason"].isin(["late", *LATE_BUT_BUFFERED_REASONS])]
    quantiles = {}
    for side, group in rows.groupby("side"):
        by_slice = (group["lateness_ms"] / 1000).groupby(group["_slice"])
        for name, share in _QUANTILES.items():
            quantiles[str(side), name] = by_slice.quantile(share, interpolation="lower").sort_index()
    return quantiles


def _create_spans(
    values: pd.Series[float], span_grid: _SpanGrid, failed: pd.Series[bool] | None = None
) -> Iterator[Span]:
    # By position: a slice has several values of a check that an earlier pipeline file had twice.
    rows = pd.DataFrame({"value": values, "failed": False if failed is None else failed.to_numpy()}).dropna()
    if rows.empty:
        return
    numbers = span_grid.grid.numbers_at(pd.DatetimeIndex(rows.index).as_unit("us").asi8)
    for start, group in rows.groupby(numbers - (numbers - numbers[0]) % span_grid.slices_per_span):
        group_values, failures = group["value"], group.loc[group["failed"].to_numpy(), "value"]
        worst = float(failures.max()) if len(failures) else 0.0
        first, end = (span_grid.grid.label(number) for number in (int(start), int(start) + span_grid.slices_per_span))
        yield Span(first, end, float(group_values.min()), float(group_values.max()), bool(len(failures)), worst)
