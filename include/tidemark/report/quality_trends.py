"""What the gate has measured, and how late rows were, over committed slices: a page of charts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pandas as pd

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration, micros
from tidemark.delta.table import DeltaLog
from tidemark.execution.replay import STILL_IN
from tidemark.formatting import counted
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx.project import docs_page
from tidemark.quality.results_history import Seen, seen
from tidemark.report.render import environment
from tidemark.timegrid.slices import Grid

FORMATS = (".html",)
MOST_SPANS = 300
"""How many stretches of time a chart shows at most."""
_QUANTILES = {"median": 0.5, "99 %": 0.99}


@dataclass(frozen=True)
class _Stretch:
    """What is shown as one: so many slices."""

    grid: Grid
    slices: int


@dataclass(frozen=True)
class Span:
    """The slices that begin in [start, end), together."""

    start: str
    end: str
    low: float
    high: float
    broken: bool
    """Whether the expectation did not hold in one of them."""
    worst: float
    """Where it did not hold: that slice's value."""


@dataclass(frozen=True)
class Trend:
    """One figure over time."""

    name: str
    told: str
    """What it is, and how it came out."""
    spans: tuple[Span, ...]
    least: float | None = None
    greatest: float | None = None

    @property
    def drawn_bounds(self) -> list[float]:
        """The bounds that lie near enough to be drawn without flattening what was measured."""
        values = [value for one in self.spans for value in (one.low, one.high)]
        low, high = min(values), max(values)
        reach = 3 * max(high - low, abs(high) / 10, 1e-9)
        known = (bound for bound in (self.least, self.greatest) if bound is not None)
        return [bound for bound in known if low - reach <= bound <= high + reach]


@dataclass(frozen=True)
class Trends:
    """What the page shows."""

    pipeline: str
    start: str
    end: str
    slices: int
    each: str
    """How long each stretch of a chart is."""
    expected: tuple[Trend, ...]
    silent: tuple[Seen, ...]
    """Expectations that came to no number: their verdicts alone are known."""
    flow: tuple[Trend, ...]
    """Emissions, late rows and their delays."""
    docs: str


def gather(pipeline: Pipeline, ledger: Ledger, rows: pd.DataFrame) -> Trends:
    """The trends of all committed slices; `rows` are those of the table `quality`."""
    grid = ledger.grid
    numbers = list(ledger.entries)
    known = [grid.number_at(micros(at)) for at in rows["slice"].drop_duplicates()] + numbers
    stretch = _Stretch(grid, -(-(max(known, default=0) - min(known, default=0) + 1) // MOST_SPANS))
    found = seen(rows)
    silent = tuple(one for one in found if one.worst is None and not _values(rows, one).notna().any())
    expected = tuple(_expected(rows, one, stretch) for one in found if one not in silent)
    return Trends(
        pipeline.name,
        grid.name(numbers[0]) if numbers else "",
        grid.name(numbers[-1] + 1) if numbers else "",
        len(numbers),
        format_duration(stretch.slices * timedelta(microseconds=grid.every)),
        expected,
        silent,
        tuple(_flow(ledger, stretch)),
        docs_page(ledger.tables),
    )


def html(trends: Trends) -> str:
    """One page that needs nothing else: no network, no script, no font."""
    from tidemark.report import charts  # noqa: PLC0415 - a fifth of the time that any command takes to start

    return environment().get_template("trends.html.j2").render(trends=trends, charts=charts, counted=counted)


def _values(rows: pd.DataFrame, one: Seen) -> pd.Series[float]:
    mine = rows[(rows["expectation"] == one.expectation) & (rows["severity"] == one.severity)]
    return pd.Series(mine["value"].to_numpy(), index=pd.DatetimeIndex(mine["slice"]), dtype="float64")


def _expected(rows: pd.DataFrame, one: Seen, stretch: _Stretch) -> Trend:
    mine = rows[(rows["expectation"] == one.expectation) & (rows["severity"] == one.severity)]
    broken = pd.Series((mine["verdict"] != "passed").to_numpy(), index=pd.DatetimeIndex(mine["slice"]))
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in one.outcomes.items())
    worst = "" if one.worst is None else f"; the worst value, {one.worst:,.6g}, in {one.worst_in}"
    told = f"{one.severity}; {counted(one.judged, 'slice')}: {outcomes}{worst}"
    spans = tuple(_spans(_values(rows, one), stretch, broken))
    return Trend(one.expectation, told, spans, one.least, one.greatest)


def _flow(ledger: Ledger, stretch: _Stretch) -> Iterator[Trend]:
    rows = ledger.rows
    if rows.empty:
        return
    index = pd.DatetimeIndex(rows["slice"])
    yield Trend("emissions", "rows a slice", tuple(_spans(rows["emissions"].set_axis(index), stretch)))
    for side in SIDES:
        counts = pd.DataFrame(list(rows[side]), index=index)
        share = counts["late"] / counts["read"].where(counts["read"] > 0)
        joined = pd.to_numeric(rows["pairs"]).fillna(rows["emissions"]).set_axis(index)
        pairs = joined / counts["read"].where(counts["read"] > 0)
        told = "emissions of a slice by rows that it read: how much of the input meets the other one"
        yield Trend(f"emissions for each row, {side} input", told, tuple(_spans(pairs, stretch)))
        if share.notna().any():
            told = "late rows among those read, by slice"
            yield Trend(f"late share, {side} input", told, tuple(_spans(share, stretch)))
    behind = _behind(ledger)
    for (of, name), values in behind.items():
        told = f"seconds behind the watermark, {name} of a slice's late rows"
        yield Trend(f"delay, {name}, {of} input", told, tuple(_spans(values, stretch)))


def _behind(ledger: Ledger) -> dict[tuple[str, str], pd.Series[float]]:
    """Quantiles of how far a slice's late rows were behind, in seconds, by side and quantile."""
    log = DeltaLog.open(ledger.tables.late)
    if log is None:
        return {}
    rows = log.read(["_slice", "side", "reason", "behind_ms"]).to_pandas()
    rows = rows[rows["reason"].isin(["late", *STILL_IN])]
    found = {}
    for side, mine in rows.groupby("side"):
        by_slice = (mine["behind_ms"] / 1000).groupby(mine["_slice"])
        for name, part in _QUANTILES.items():
            found[str(side), name] = by_slice.quantile(part, interpolation="lower").sort_index()
    return found


def _spans(values: pd.Series[float], stretch: _Stretch, broken: pd.Series[bool] | None = None) -> Iterator[Span]:
    known = values.dropna()
    if known.empty:
        return
    numbers = stretch.grid.numbers_at(pd.DatetimeIndex(known.index).as_unit("us").asi8)
    for start, mine in known.groupby(numbers - (numbers - numbers[0]) % stretch.slices):
        wrong = mine[:0] if broken is None else mine[broken.loc[mine.index].to_numpy()]
        worst = float(wrong.max()) if len(wrong) else 0.0
        first, end = (stretch.grid.name(number) for number in (int(start), int(start) + stretch.slices))
        yield Span(first, end, float(mine.min()), float(mine.max()), bool(len(wrong)), worst)
