"""Compare metrics of a slice with those of earlier slices in the ledger, and bound them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pandas as pd

from tidemark.config import Expectation
from tidemark.config.baseline_metrics import BASELINE_SUFFIX, METRICS, ROWS_AHEAD
from tidemark.config.local_days import DAY_MICROS
from tidemark.ledger.entry import Counts, Entry
from tidemark.quality.results import ExpectationResult, Measurement, format_expectation_name
from tidemark.timegrid.slices import Grid

BASELINE_SLICES = 28
"""Number of earlier slices in a baseline: those at the same time of day, one per day. If slices do not divide a day
evenly: the preceding slices."""
MIN_BASELINE_SLICES = 7
"""Minimum number of them with a value; with fewer the baseline is NaN."""
MIN_BASELINE_ROWS = 50
"""Minimum baseline of a count; below it the ratio is NaN. By chance alone, a Poisson count with this mean is less than
half of it or more than twice of it about once in 20,000 slices."""
MIN_EXPECTED_ROWS = 10
"""Minimum number of rows that a slice would have by the baseline of a rate or share, such as late rows; below it the
ratio is NaN. By chance alone, a Poisson count with this mean is more than three times of it less than once in a million
slices."""
_DENOMINATORS = {
    "match_rate": "left_rows",
    "late_share": "rows",
    "left_late_share": "left_rows",
    "right_late_share": "right_rows",
    "rejected_share": "rows",
}
"""Metrics that are rates or shares, with the count that they are divided by. Other metrics are counts."""


MetricDetails = Mapping[tuple[int, str], str]
"""Details of metric values, by slice number and metric column: sentences without a final stop."""


def compare_with_baseline(
    entries: Mapping[int, Entry], new: Iterable[Entry], slices: range, grid: Grid
) -> pd.DataFrame:
    """Compute the metrics of slices, and their ratios to the baseline.

    Args:
        entries: The ledger's entries when the job began.
        new: The job's own entries.
        slices: Slice numbers of the job.
        grid: Grid of the slices.

    Returns:
        One row per slice, indexed by its number. A ratio is NaN without a baseline, and if the baseline expects fewer
        rows than `MIN_BASELINE_ROWS` or `MIN_EXPECTED_ROWS`.
    """
    by_number = {number: entry for number, entry in entries.items() if number < slices.start and entry.counts}
    by_number |= {entry.number: entry for entry in new}
    offsets = _list_baseline_offsets(grid)
    numbers = range(max(0, slices.start - int(offsets.max())), slices.stop)
    metrics = pd.DataFrame([_compute_metrics(by_number.get(n)) for n in numbers], index=numbers, dtype="float")
    job_indices = np.arange(slices.start - numbers.start, len(numbers))
    baseline_indices = job_indices[:, None] - offsets
    baselines = {name: _compute_baseline(metrics[name].to_numpy(), baseline_indices) for name in metrics.columns}
    job_metrics = metrics.loc[slices.start :]
    ratios = {
        f"{name}{BASELINE_SUFFIX}": _divide_by_baseline(job_metrics, name, baseline)
        for name, baseline in baselines.items()
    }
    return job_metrics.assign(**ratios)


def _list_baseline_offsets(grid: Grid) -> npt.NDArray[np.int64]:
    """Return how many slices earlier each slice of the baseline is."""
    step = DAY_MICROS // grid.every if DAY_MICROS % grid.every == 0 else 1
    return np.arange(1, BASELINE_SLICES + 1) * step


def _compute_metrics(entry: Entry | None) -> dict[str, float]:
    if entry is None or entry.counts is None or entry.emissions is None:
        return dict.fromkeys(METRICS, np.nan)
    left, right = entry.counts
    rows = left.read + right.read
    return {
        "rows": rows,
        "left_rows": left.read,
        "right_rows": right.read,
        "emissions": entry.emissions,
        "match_rate": _divide(entry.emissions if entry.pairs is None else entry.pairs, left.read),
        "late_share": _divide(left.late + right.late, rows),
        "left_late_share": _compute_late_share(left),
        "right_late_share": _compute_late_share(right),
        **_list_rows_ahead(entry),
        "rejected_share": _divide(left.rejected + right.rejected, rows),
        "carried_rows": left.carried_out + right.carried_out,
        "left_carried_rows": left.carried_out,
        "right_carried_rows": right.carried_out,
    }


def _list_rows_ahead(entry: Entry) -> dict[str, float]:
    counts = entry.rows_ahead or (np.nan, np.nan)
    return dict(zip(ROWS_AHEAD.values(), counts, strict=True))


def _compute_late_share(counts: Counts) -> float:
    return _divide(counts.late, counts.read)


def _divide(part: int, total: int) -> float:
    return part / total if total else np.nan


def _compute_baseline(values: npt.NDArray[np.float64], indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the median of the values at each row of indices; indices below 0 have no value."""
    selected = np.where(indices >= 0, values[np.maximum(indices, 0)], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy warns of slices without any value.
        median = np.nanmedian(selected, axis=1)
    return np.where(np.isfinite(selected).sum(axis=1) >= MIN_BASELINE_SLICES, median, np.nan)


def _divide_by_baseline(metrics: pd.DataFrame, name: str, baseline: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the ratio of a metric to its baseline, or NaN if so few rows are expected that chance decides."""
    if denominator := _DENOMINATORS.get(name):
        is_comparable = baseline * metrics[denominator].to_numpy() >= MIN_EXPECTED_ROWS
    else:
        is_comparable = baseline >= MIN_BASELINE_ROWS
    return np.where(is_comparable, metrics[name].to_numpy() / np.where(is_comparable, baseline, 1), np.nan)


def evaluate_baseline_checks(
    metrics: pd.DataFrame, checks: Sequence[Expectation], details: MetricDetails = MappingProxyType({})
) -> list[tuple[tuple[ExpectationResult, ...], tuple[Measurement, ...]]]:
    """Evaluate expectations on history. They pass where a metric is NaN.

    Args:
        metrics: Metrics of each slice, indexed by its number (`compare_with_baseline`).
        checks: The expectations.
        details: Details for the messages about failures.

    Returns:
        Failures and measurements of each slice, in the order of the checks.
    """
    by_check = [_evaluate_check(metrics[check.kwargs["column"]], check, details) for check in checks]
    by_slice = ([results[index] for results in by_check] for index in range(len(metrics)))
    return [
        (tuple(failure for failure, _ in results if failure), tuple(measurement for _, measurement in results))
        for results in by_slice
    ]


def format_check_name(check: Expectation) -> str:
    """Format the name of an expectation on history, which is never built as one of Great Expectations."""
    return format_expectation_name(check.type, check.kwargs, check.scope)


def _evaluate_check(
    values: pd.Series[float], check: Expectation, details: MetricDetails
) -> list[tuple[ExpectationResult | None, Measurement]]:
    name = format_check_name(check)
    results = []
    for number, value in zip(values.index.tolist(), values.tolist(), strict=True):
        is_nan = value != value  # noqa: PLR0124
        passed = is_nan or _is_within_bounds(value, check)
        sentences = [f"found {value:.3g}", details.get((number, check.kwargs["column"]), "")]
        detail = ". ".join(filter(None, sentences))
        failure = None if passed else ExpectationResult(name, check.severity, detail, check.on_failure)
        results.append((failure, Measurement(name, check.severity, None if is_nan else value, passed)))
    return results


def _is_within_bounds(value: float, check: Expectation) -> bool:
    low, high = check.kwargs.get("min_value"), check.kwargs.get("max_value")
    is_above = low is None or (value > low if check.kwargs.get("strict_min") else value >= low)
    return is_above and (high is None or (value < high if check.kwargs.get("strict_max") else value <= high))
