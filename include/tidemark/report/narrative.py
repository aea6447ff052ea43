"""What the charts and figures of a report say, in sentences."""

from __future__ import annotations

from datetime import timedelta

from tidemark.comparison import Comparison
from tidemark.comparison.what_if import Outcome
from tidemark.config.types import format_duration, parse_duration
from tidemark.formatting import brief_span, counted
from tidemark.report.data import CarriedState, Facts
from tidemark.report.lateness import EDGES, Lateness


def share(part: int, whole: int) -> str:
    """A share in per cent; neither all nor nothing by rounding alone.

    >>> share(99_999, 100_000), share(1, 100_000), share(3, 4)
    ('99.99%', '0.01%', '75.00%')
    """
    if not whole:
        return "100.00%"
    hundredths = round(10_000 * part / whole)
    if 0 < part < whole:
        hundredths = min(max(hundredths, 1), 9_999)
    return f"{hundredths / 100:.2f}%"


def verdict(facts: Facts) -> str:
    """The answer in a sentence."""
    comparison = facts.comparison
    pending = sum(cause.rows for cause in comparison.causes if cause.cause == "pending")
    return f"{_verdict(comparison)} {counted(pending, 'more row')} may come yet." if pending else _verdict(comparison)


def _verdict(comparison: Comparison) -> str:
    if not comparison.differences:
        return "No row differs."
    if comparison.unexplained:
        without = f"{comparison.unexplained:,} {'has' if comparison.unexplained == 1 else 'have'} no cause"
        return f"Of {counted(comparison.differences, 'row')} that differ, {without}."
    return f"Each of the {counted(comparison.differences, 'row')} that differ has a cause."


def agreement(facts: Facts) -> str:
    """Where the rows that differ are."""
    differ = {one: one.explained + one.unexplained for one in facts.periods}
    beside = (
        f" {counted(facts.nowhere, 'row')} of the stream belong to no slice that is known." if facts.nowhere else ""
    )
    among = f"{counted(len(differ), 'period')} of {facts.each}"
    touched = [one for one, rows in differ.items() if rows]
    if not touched:
        return f"Both sides agree in all {among}.{beside}"
    worst = max(touched, key=differ.__getitem__)
    most = f"{counted(differ[worst], 'row')}, {share(differ[worst], differ[worst] + worst.same)} of all"
    where = f"most of them in the one from {worst.start} ({most})"
    return f"Rows differ in {len(touched):,} of {among}, {where}.{beside}"


def lateness(one: Lateness) -> str:
    """How late an input's rows were, and which were rejected."""
    rejected = ", ".join(f"{rows:,} {reason.replace('_', ' ')}" for reason, rows in sorted(one.rejected.items()))
    beside = f" Rejected: {rejected}." if rejected else ""
    if not one.late:
        return f"None of {counted(one.read, 'row')} came behind the watermark.{beside}"
    p50, p99, most = (brief_span(one.behind_ms[name]) for name in ("p50", "p99", "max"))
    held = ", ".join(f"the {side} input for {rows:,}" for side, rows in one.held_by.items())
    return (
        f"{one.late:,} of {counted(one.read, 'row')} came behind the watermark: half of them by {p50} or less, 99% by "
        f"{p99} or less, the worst by {most}. The watermark was held by {held}.{beside}"
    )


def delay_marked(one: Lateness) -> str:
    """What the rule in a chart of `lateness` says."""
    if not one.delay_ms or one.delay_ms >= EDGES[-1]:
        return ""
    kept = ": with twice the delay the rows left of it would have been on time" if {*one.held_by} == {one.side} else ""
    return f"The dashed line is as far behind as the watermark delay is long, {delay(one)}{kept}."


def what_if(facts: Facts) -> str:
    """What the delays that were tried give."""
    varied, present = facts.what_if, now(facts)
    assert varied, "asked for where there is one"
    advice = varied.recommendation()
    at = f"With {present.value}, as now, {varied.kept(present):.1%} of pairs are kept. " if present else ""
    return f"{at}{advice[0].upper()}{advice[1:]}." if advice else at.strip()


def now(facts: Facts) -> Outcome | None:
    """The outcome of the setting as it is."""
    if not facts.what_if or facts.present is None:
        return None
    present = parse_duration(facts.present)
    return next((one for one in facts.what_if.outcomes if parse_duration(one.value) == present), None)


def outcomes(facts: Facts) -> list[Outcome]:
    """The outcomes to show in a table: each delay's, then the complete answer's."""
    varied = facts.what_if
    assert varied, "asked for where there is one"
    return [*varied.outcomes, *([varied.complete] if varied.complete else [])]


def delay(one: Lateness) -> str:
    """An input's watermark delay."""
    return format_duration(timedelta(milliseconds=one.delay_ms or 0))


def states(facts: Facts) -> str:
    """How much the pipelines carried."""
    return " ".join(map(_state, facts.state))


def _state(one: CarriedState) -> str:
    if not one.peak:
        return f"{one.pipeline} carried no row from slice to slice."
    worst = max(one.held, key=lambda held: held.rows)
    return f"{one.pipeline} carried {counted(one.peak, 'row')} at most, in the period of {one.each} from {worst.start}."
