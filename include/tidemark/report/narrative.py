"""Describe the charts and figures of a report in sentences."""

from __future__ import annotations

from datetime import timedelta

from tidemark.comparison import Comparison
from tidemark.comparison.what_if import Outcome
from tidemark.config.types import format_duration, parse_duration
from tidemark.formatting import format_count, format_span
from tidemark.report.data import CarriedState, ReportData
from tidemark.report.lateness import BIN_EDGES, InputLateness


def format_share(part: int, total: int) -> str:
    """Format a share in percent, so that rounding alone makes it neither 0% nor 100%.

    >>> format_share(99_999, 100_000), format_share(1, 100_000), format_share(3, 4)
    ('99.99%', '0.01%', '75.00%')
    """
    if not total:
        return "100.00%"
    hundredths = round(10_000 * part / total)
    if 0 < part < total:
        hundredths = min(max(hundredths, 1), 9_999)
    return f"{hundredths / 100:.2f}%"


def describe_result(data: ReportData) -> str:
    """Describe how many rows differ and whether all have a cause."""
    comparison = data.comparison
    pending = sum(cause.rows for cause in comparison.causes if cause.cause == "pending")
    summary = _describe_differences(comparison)
    return f"{summary} {format_count(pending, 'more row')} may still arrive." if pending else summary


def _describe_differences(comparison: Comparison) -> str:
    if not comparison.differences:
        return "No row differs."
    if comparison.unexplained:
        without_cause = f"{comparison.unexplained:,} {'has' if comparison.unexplained == 1 else 'have'} no cause"
        return f"Of {format_count(comparison.differences, 'row')} that differ, {without_cause}."
    return f"Each of the {format_count(comparison.differences, 'row')} that differ has a cause."


def describe_tables(data: ReportData) -> str:
    """Describe which table each of both words names."""
    comparison = data.comparison
    output, other = comparison.adapt_words("the batch"), comparison.adapt_words("the stream")
    sentence = f"{output} is the committed output of {comparison.pipeline}, {other} is the table {comparison.table}."
    return sentence[0].upper() + sentence[1:]


def describe_agreement(data: ReportData) -> str:
    """Describe in which periods rows differ."""
    differing = {period: period.explained_rows + period.unexplained_rows for period in data.periods}
    without_slice = ""
    if data.rows_without_slice:
        without_slice = data.comparison.adapt_words(
            f" {format_count(data.rows_without_slice, 'row')} of the stream cannot be assigned to a slice."
        )
    periods = f"{format_count(len(differing), 'period')} of {data.period_length}"
    affected = [period for period, rows in differing.items() if rows]
    if not affected:
        return f"Both sides agree in all {periods}.{without_slice}"
    worst = max(affected, key=differing.__getitem__)
    share = format_share(differing[worst], differing[worst] + worst.equal_rows)
    most = f"{format_count(differing[worst], 'row')}, {share} of all"
    return (
        f"Rows differ in {len(affected):,} of {periods}, most of them in the period from {worst.start} ({most})."
        f"{without_slice}"
    )


def describe_lateness(source: InputLateness) -> str:
    """Describe how late an input's rows were, and which were rejected."""
    counts = sorted(source.rejected_rows.items())
    rejected = ", ".join(f"{rows:,} {reason.replace('_', ' ')}" for reason, rows in counts)
    suffix = f" Rejected: {rejected}." if rejected else ""
    if not source.late_rows:
        return f"None of {format_count(source.rows_read, 'row')} was behind the watermark.{suffix}"
    p50, p99, maximum = (format_span(source.lateness_ms[name]) for name in ("p50", "p99", "max"))
    inputs = ", ".join(f"the {side} input for {rows:,}" for side, rows in source.rows_by_watermark_input.items())
    return (
        f"{source.late_rows:,} of {format_count(source.rows_read, 'row')} were behind the watermark: half of them by "
        f"{p50} or less, 99% by {p99} or less, the latest by {maximum}. The watermark was determined by {inputs}."
        f"{suffix}"
    )


def describe_delay_marker(source: InputLateness) -> str:
    """Describe the dashed line in the chart of lateness; empty if the chart has none."""
    if not source.delay_ms or source.delay_ms >= BIN_EDGES[-1]:
        return ""
    is_own_watermark = {*source.rows_by_watermark_input} == {source.side}
    suffix = " With twice that delay, the rows left of it would have been on time." if is_own_watermark else ""
    return f"The dashed line marks the watermark delay, {format_delay(source)}.{suffix}"


def describe_what_if(data: ReportData) -> str:
    """Describe the outcome of the current delay, and the recommended delay."""
    what_if, current = data.what_if, get_current_outcome(data)
    assert what_if, "described only with outcomes"
    recommendation = what_if.recommend()
    share = f"{what_if.matched_share(current):.1%}" if current else ""
    now = f"The current {current.value} keeps {share} of pairs. " if current else ""
    return f"{now}{recommendation[0].upper()}{recommendation[1:]}." if recommendation else now.strip()


def get_current_outcome(data: ReportData) -> Outcome | None:
    """Return the outcome of the setting's current value, if it was tried."""
    if not data.what_if or data.current_value is None:
        return None
    current = parse_duration(data.current_value)
    return next((outcome for outcome in data.what_if.outcomes if parse_duration(outcome.value) == current), None)


def list_outcomes(data: ReportData) -> list[Outcome]:
    """List the outcome of each delay, then the one without late rows."""
    what_if = data.what_if
    assert what_if, "listed only with outcomes"
    return [*what_if.outcomes, *([what_if.without_lateness] if what_if.without_lateness else [])]


def format_delay(source: InputLateness) -> str:
    """Format an input's watermark delay."""
    return format_duration(timedelta(milliseconds=source.delay_ms or 0))


def describe_states(data: ReportData) -> str:
    """Describe how many rows the pipelines carried."""
    return " ".join(map(_describe_state, data.states))


def _describe_state(state: CarriedState) -> str:
    if not state.peak_rows:
        return f"{state.pipeline} carried no row from slice to slice."
    worst = max(state.periods, key=lambda period: period.rows)
    rows = format_count(state.peak_rows, "row")
    return f"{state.pipeline} carried at most {rows}, in the period of {state.period_length} from {worst.start}."
