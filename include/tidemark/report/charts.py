"""The charts of a report, as SVG that follows the page: their colours are CSS variables, their font is the page's."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from html import escape
from typing import Any

import altair as alt

from tidemark.comparison.what_if import Outcome
from tidemark.config.types import format_duration, millis, parse_duration, parse_instant
from tidemark.report.data import CarriedState, Facts
from tidemark.report.lateness import EDGES, Lateness
from tidemark.report.quality_trends import Trend

INK, MUTED, RULE = "var(--ink)", "var(--muted)", "var(--rule)"
SAME, EXPLAINED, UNEXPLAINED = "var(--same)", "var(--explained)", "var(--unexplained)"
WIDTHS = {"wide": 720, "narrow": 330}
"""How wide a drawing is with its labels, in pixels: for a desk and for a phone."""
_LEFT, _RIGHT = 58, 14
_WHOLE = ",d"


def agreement(facts: Facts, width: int) -> str:
    """Rows that differ, and rows that agree, over time."""
    explained = [(one.start, one.end, 0, one.explained) for one in facts.periods]
    rest = [(one.start, one.end, one.explained, one.explained + one.unexplained) for one in facts.periods]
    same = [(one.start, one.end, 0, one.same) for one in facts.periods]
    parts = [_steps({"": same}, [SAME], "rows that agree", width, 70)]
    if any(one.unexplained for one in facts.periods):
        kinds = {"explained": explained, "no cause": rest}
        parts.insert(0, _steps(kinds, [EXPLAINED, UNEXPLAINED], "rows that differ", width, 110))
    elif any(one.explained for one in facts.periods):
        parts.insert(0, _steps({"": explained}, [EXPLAINED], "rows that differ, all explained", width, 110))
    return _svg(_below_each_other(parts), "Rows that differ and rows that agree over time")


def state(states: Sequence[CarriedState], width: int) -> str:
    """Rows carried from slice to slice, a chart for each pipeline, all on one scale."""
    parts = []
    for one in states:
        held = [(each.start, each.end, 0, each.rows) for each in one.held]
        parts.append(_steps({"": held}, [SAME], one.pipeline, width, 70))
    return _svg(_below_each_other(parts).resolve_scale(y="shared"), "Rows carried from slice to slice over time")


def trend(one: Trend, width: int) -> str:
    """What was measured in each stretch of time, from the least to the greatest; bounds as rules, failures as dots."""
    rows = [{"at": each.start, "low": each.low, "high": each.high} for each in one.spans]
    ends = [{**rows[-1], "at": one.spans[-1].end}]
    kept = [{"bound": bound} for bound in one.drawn_bounds]
    values = [value for each in one.spans for value in (each.low, each.high)] + [each["bound"] for each in kept]
    scale = alt.Scale(domain=_domain(values), nice=False)
    y = alt.Y("low:Q", scale=scale, axis=_counts(_form(values)), title=None)
    band = (
        alt.Chart(alt.InlineData(values=rows + ends))
        .mark_area(interpolate="step-after", fill=SAME, fillOpacity=1, stroke=SAME, strokeWidth=1.5)
        .encode(x=_time(rows + ends, width), y=y, y2="high")
    )
    layers = [band]
    if kept:
        rules = alt.Chart(alt.InlineData(values=kept)).mark_rule(stroke=INK, strokeDash=[3, 3])
        layers.append(rules.encode(y=alt.Y("bound:Q", scale=scale)))
    if broken := [{"at": each.start, "high": each.worst} for each in one.spans if each.broken]:
        dots = alt.Chart(alt.InlineData(values=broken)).mark_point(fill=UNEXPLAINED, filled=True, size=34, opacity=1)
        layers.append(dots.encode(x="at:T", y=alt.Y("high:Q", scale=scale)))
    chart = alt.layer(*layers).properties(width=_inner(width), height=90)
    return _svg(chart, escape(f"{one.name} over time"))


def _domain(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return [low - margin if low else 0.0, high + margin]


def _form(values: Sequence[float]) -> str:
    """Whole numbers as such; others in as few digits as tell them apart."""
    if max(values) <= 1 and min(values) >= 0:
        return ".2~%"
    return _WHOLE if all(value == int(value) for value in values) else ".3~s"


_Step = tuple[str, str, int, int]
"""A step of a chart: from (inclusive), to (exclusive), and how low and high it is."""


def _steps(kinds: Mapping[str, Sequence[_Step]], colours: Sequence[str], title: str, width: int, height: int) -> Any:
    """Bars over time without gaps, one area for each kind; named above if there are several."""
    rows = [
        {"kind": kind, "at": at, "low": low, "high": high}
        for kind, steps in kinds.items()
        for at, low, high in [*((start, low, high) for start, _, low, high in steps), *_end(steps)]
    ]
    legend = alt.Legend(title=None, orient="top-right", offset=-26, direction="horizontal", symbolType="square")
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_area(interpolate="step-after", fillOpacity=1)
        .encode(
            x=_time(rows, width),
            y=alt.Y("low:Q", axis=_counts()),
            y2="high",
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=list(kinds), range=list(colours)),
                legend=legend if len(kinds) > 1 else None,
            ),
        )
        .properties(width=_inner(width), height=height, title=alt.Title(title, limit=_inner(width)))
    )


def _end(steps: Sequence[_Step]) -> list[tuple[str, int, int]]:
    return [(end, low, high) for _, end, low, high in steps[-1:]]


def _below_each_other(parts: Sequence[Any]) -> Any:
    return alt.vconcat(*parts, spacing=22).resolve_scale(x="shared", color="independent")


def lateness(one: Lateness, width: int) -> str:
    """How far behind the watermark an input's rows were; a rule at its watermark delay."""
    used = [number for number, rows in enumerate(one.bins) if rows]
    first, last = max(used[0] - 1, 0), min(used[-1] + 2, len(EDGES))
    wide = width > WIDTHS["narrow"]
    label = "{:,}".format if wide else _compact
    rows = [
        {"from": number, "to": number + 1, "middle": number + 0.5, "none": 0, "rows": count, "label": label(count)}
        for number, count in enumerate(one.bins)
        if count
    ]
    labels = [*map(_short, EDGES), "more"]
    axis = alt.Axis(
        values=list(range(first, last + 1)),
        labelExpr=f"{labels}[datum.value]",
        labelOverlap="greedy",
        labelSeparation=5,
        title="behind the watermark",
    )
    base = alt.Chart(alt.InlineData(values=rows))
    x = alt.X("from:Q", axis=axis, scale=alt.Scale(domain=[first, last], nice=False))
    y = alt.Y("none:Q", axis=_counts(), scale=alt.Scale(domain=[0, 1.2 * max(one.bins)], nice=False))
    bars = base.mark_rect(fill=EXPLAINED, stroke="var(--paper)").encode(x=x, x2="to", y=y, y2="rows")
    numbers = base.mark_text(dy=-6, fill=MUTED, fontSize=11 if wide else 9)
    layers = [bars, numbers.encode(x="middle:Q", y="rows:Q", text="label:N")]
    if one.delay_ms and first <= (at := _place(one.delay_ms)) <= last:
        layers += _marked(at, f"delay {_short(one.delay_ms)}", first + 0.75 * (last - first) < at)
    chart = alt.layer(*layers).properties(width=_inner(width), height=150, title="late rows")
    return _svg(chart, f"Late rows of the {one.side} input by how far they were behind the watermark")


def _compact(number: int) -> str:
    """A number in at most four letters, below a thousand million.

    >>> _compact(999), _compact(1_240), _compact(12_400_000)
    ('999', '1.2k', '12M')
    """
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.{0 if number >= 10 * size else 1}f}{letter}"
    return str(number)


def _place(ms: int) -> float:
    """Where a span lies among `EDGES`: 2.5 is half way from the third to the fourth."""
    number = max(n for n, edge in enumerate(EDGES) if ms >= edge)
    if number + 1 == len(EDGES):
        return float(number)
    return number + (ms - EDGES[number]) / (EDGES[number + 1] - EDGES[number])


def what_if(facts: Facts, width: int) -> str:
    """The pairs that each delay keeps, and the rows it holds in state; a rule at the present delay."""
    varied = facts.what_if
    assert varied, "drawn where there is one"
    rows = [
        {"delay": _seconds(one), "kept": varied.kept(one), "state": one.state_rows}
        for one in sorted(varied.outcomes, key=_seconds)
    ]
    kept, state = _line(rows, "kept", ".1%"), _line(rows, "state", _WHOLE)
    if facts.present is not None:
        present = parse_duration(facts.present)
        leftwards = present.total_seconds() > rows[-1]["delay"] / 2
        named = _marked(present.total_seconds(), f"now {_short(millis(present))}", leftwards, field="delay")
        kept, state = alt.layer(kept, *named), alt.layer(state, named[0])
    kept = kept.properties(width=_inner(width), height=120, title="pairs kept, of all with no row late")
    state = state.properties(width=_inner(width), height=80, title="rows in state, on average")
    return _svg(_below_each_other([kept, state]), f"Pairs kept and rows in state by {varied.setting}")


def _line(rows: list[dict[str, Any]], field: str, form: str) -> Any:
    """A curve over the delays, which lie the closer the longer they are."""
    longest = rows[-1]["delay"]
    ticks = [edge // 1000 for edge in EDGES if not edge or longest / 64 <= edge / 1000 <= longest]
    labels = {tick: _short(tick * 1000) for tick in ticks}
    axis = alt.Axis(values=ticks, labelExpr=f"{labels}[datum.value]", labelOverlap="greedy", labelSeparation=6)
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(stroke=EXPLAINED, strokeWidth=2, point=alt.OverlayMarkDef(fill=EXPLAINED, size=28))
        .encode(
            x=alt.X("delay:Q", scale=alt.Scale(type="sqrt", domain=[0, longest], nice=False), axis=axis, title=None),
            y=alt.Y(f"{field}:Q", scale=alt.Scale(zero=field == "state"), axis=_counts(form)),
        )
    )


def _marked(at: float, label: str, leftwards: bool, field: str = "middle") -> list[Any]:  # noqa: FBT001
    """A rule across a chart, with its label beside it."""
    base = alt.Chart(alt.InlineData(values=[{field: at, "label": label}]))
    x = alt.X(f"{field}:Q")
    text = base.mark_text(
        align="right" if leftwards else "left", dx=-4 if leftwards else 4, y=-5, fill=INK, fontWeight="bold"
    )
    return [base.mark_rule(stroke=INK, strokeDash=[3, 3]).encode(x=x), text.encode(x=x, text="label:N")]


def _time(rows: Sequence[dict[str, Any]], width: int) -> Any:
    span = parse_instant(rows[-1]["at"]) - parse_instant(rows[0]["at"]) if rows else timedelta()
    form = "%-d %b %H:%M" if span < timedelta(days=4) else "%-d %b" if span < timedelta(days=400) else "%b %Y"
    axis = alt.Axis(labelExpr=f"utcFormat(datum.value, '{form}')", tickCount=max(2, width // 110), labelFlush=True)
    return alt.X("at:T", scale=alt.Scale(type="utc", nice=False), axis=axis, title=None)


def _counts(form: str = _WHOLE) -> Any:
    plain = alt.Axis(format=form, tickCount=3, title=None, domain=False, ticks=False, minExtent=50, labelPadding=6)
    return alt.Axis(**plain.to_dict(), tickMinStep=1) if form == _WHOLE else plain


def _inner(width: int) -> int:
    return width - _LEFT - _RIGHT


def _seconds(one: Outcome) -> float:
    return parse_duration(one.value).total_seconds()


def _short(ms: int) -> str:
    """A span in the fewest letters.

    >>> _short(5_400_000), _short(0)
    ('1 h 30 min', '0')
    """
    text = format_duration(timedelta(milliseconds=ms)) if ms else "0"
    for long, brief in (("day", "d"), ("hour", "h"), ("minute", "min"), ("second", "s")):
        text = re.sub(rf" {long}s?\b", f" {brief}", text)
    return text


def _svg(chart: Any, label: str) -> str:
    """An inline SVG that scales with the page and tells assistive technology what it is."""
    styled = chart.configure(background="transparent", aria=False, font="system-ui", padding={"right": _RIGHT})
    styled = styled.configure_view(stroke=None).configure_axis(
        grid=False, labelColor=MUTED, titleColor=MUTED, domainColor=RULE, tickColor=RULE, labelFontSize=11,
        titleFontWeight="normal", titleFontSize=11,
    )  # fmt: skip
    styled = styled.configure_title(
        anchor="start", frame="group", color=INK, fontSize=12, fontWeight="normal", offset=12
    )
    styled = styled.configure_legend(labelColor=INK, labelFontSize=11)
    drawn = io.StringIO()
    styled.save(drawn, format="svg")
    return drawn.getvalue().replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
