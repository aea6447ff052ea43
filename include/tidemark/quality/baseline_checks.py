"""A slice's figures beside those of earlier slices, by the ledger alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from tidemark.config import Expectation
from tidemark.config.baseline_metrics import FIGURES, TO_USUAL
from tidemark.config.local_days import DAY
from tidemark.ledger.ledger import Counts, Entry
from tidemark.quality.results import LOOKS_AT, Finding, Measure, called
from tidemark.timegrid.slices import Grid

DAYS = 28
"""The usual is that of the slices at the same time of day in so many days before; where slices do not divide a day, of
so many slices before."""
ENOUGH = 7
"""Of fewer earlier slices with a figure nothing usual is known."""
FEW = 20
"""Nor of slices whose usual number of rows is below."""


def history(entries: Mapping[int, Entry], new: Iterable[Entry], slices: range, grid: Grid) -> pd.DataFrame:
    """The figures of slices, and how many times the usual ones they are: a row per slice, by its number.

    `entries` are those of the ledger when the job began, `new` the job's own.
    """
    known = {number: entry for number, entry in entries.items() if number < slices.start and entry.counts}
    known |= {entry.number: entry for entry in new}
    before = _steps(grid)
    numbers = range(max(0, slices.start - int(before.max())), slices.stop)
    figures = pd.DataFrame([_figures(known.get(number)) for number in numbers], index=numbers, dtype="float")
    mine = np.arange(slices.start - numbers.start, len(numbers))
    places = mine[:, None] - before
    usual = {name: _usual(figures[name].to_numpy(), places) for name in figures.columns}
    ratios = {f"{name}{TO_USUAL}": _ratio(figures[name].to_numpy()[mine], usual[name], usual["rows"]) for name in usual}
    return figures.loc[slices.start :].assign(**ratios)


def _steps(grid: Grid) -> npt.NDArray[np.int64]:
    """How many slices before a slice those are that it is compared with."""
    each = DAY // grid.every if DAY % grid.every == 0 else 1
    return np.arange(1, DAYS + 1) * each


def _figures(entry: Entry | None) -> dict[str, float]:
    if entry is None or entry.counts is None or entry.emissions is None:
        return dict.fromkeys(FIGURES, np.nan)
    left, right = entry.counts
    rows = left.read + right.read
    return {
        "rows": rows,
        "left_rows": left.read,
        "right_rows": right.read,
        "emissions": entry.emissions,
        "match_rate": _share(entry.emissions if entry.pairs is None else entry.pairs, left.read),
        "late_share": _share(left.late + right.late, rows),
        "left_late_share": _late(left),
        "right_late_share": _late(right),
        "rejected_share": _share(left.rejected + right.rejected, rows),
    }


def _late(counts: Counts) -> float:
    return _share(counts.late, counts.read)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else np.nan


def _usual(values: npt.NDArray[np.float64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    found = np.where(places >= 0, values[np.maximum(places, 0)], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of slices without any
        median = np.nanmedian(found, axis=1)
    return np.where(np.isfinite(found).sum(axis=1) >= ENOUGH, median, np.nan)


def _ratio(
    values: npt.NDArray[np.float64], usual: npt.NDArray[np.float64], rows: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    comparable = (usual > 0) & (rows >= FEW)
    return np.where(comparable, values / np.where(comparable, usual, 1), np.nan)


def judged_by_history(
    figures: pd.DataFrame, expectations: Sequence[Expectation]
) -> list[tuple[tuple[Finding, ...], tuple[Measure, ...]]]:
    """What expectations on history come to in each slice; where a figure is not known they hold."""
    told = [_judged(figures[one.kwargs["column"]].to_numpy(), one) for one in expectations]
    return [
        (tuple(found for found, _ in here if found), tuple(measure for _, measure in here))
        for here in ([one[place] for one in told] for place in range(len(figures)))
    ]


def called_beside_history(asked: Expectation) -> str:
    """What findings call an expectation on history, which Great Expectations never sees."""
    return called({"type": asked.type, "kwargs": asked.kwargs, "meta": {LOOKS_AT: asked.looks_at}})


def _judged(values: npt.NDArray[np.float64], asked: Expectation) -> list[tuple[Finding | None, Measure]]:
    name, found = called_beside_history(asked), []
    for value in values.tolist():
        known = value == value  # noqa: PLR0124 - not NaN
        passed = not known or _within(value, asked)
        measure = Measure(name, asked.severity, value if known else None, passed)
        found.append(
            (None if passed else Finding(name, asked.severity, f"found {value:.3g}", asked.on_failure), measure)
        )
    return found


def _within(value: float, asked: Expectation) -> bool:
    low, high = asked.kwargs.get("min_value"), asked.kwargs.get("max_value")
    above = low is None or (value > low if asked.kwargs.get("strict_min") else value >= low)
    return above and (high is None or (value < high if asked.kwargs.get("strict_max") else value <= high))
