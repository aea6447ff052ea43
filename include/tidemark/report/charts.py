"""Draw the charts of a report as SVG with the colours and font of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from html import escape
from typing import Any

import altair as alt

from tidemark.comparison.what_if import Outcome
from tidemark.config.types import format_duration, parse_duration, parse_instant, to_millis
from tidemark.report.data import CarriedState, ReportData
from tidemark.report.lateness import BIN_EDGES, InputLateness
from tidemark.report.quality_trends import Trend

INK, MUTED, RULE = "var(--ink)", "var(--muted)", "var(--rule)"
SAME, EXPLAINED, UNEXPLAINED = "var(--same)", "var(--explained)", "var(--unexplained)"
WIDTHS = {"wide": 720, "narrow": 330}
"""Width of a chart with its labels, in pixels, on a desktop and on a phone."""
_LEFT, _RIGHT = 58, 14
_INTEGER_FORMAT = ",d"


def draw_agreement(data: ReportData, width: int) -> str:
    """Draw the rows that differ and those that agree over time."""
    explained = [(period.start, period.end, 0, period.explained_rows) for period in data.periods]
    unexplained = [
        (period.start, period.end, period.explained_rows, period.explained_rows + period.unexplained_rows)
        for period in data.periods
    ]
    equal = [(period.start, period.end, 0, period.equal_rows) for period in data.periods]
    parts = [_draw_steps({"": equal}, [SAME], "rows that agree", width, 70)]
    if any(period.unexplained_rows for period in data.periods):
        series = {"explained": explained, "no cause": unexplained}
        parts.insert(0, _draw_steps(series, [EXPLAINED, UNEXPLAINED], "rows that differ", width, 110))
    elif any(period.explained_rows for period in data.periods):
        parts.insert(0, _draw_steps({"": explained}, [EXPLAINED], "rows that differ, all explained", width, 110))
    return _render_svg(_stack(parts), "Rows that differ and rows that agree over time")


def draw_states(states: Sequence[CarriedState], width: int) -> str:
    """Draw the rows carried from slice to slice, a chart for each pipeline with a common scale."""
    parts = []
    for state in states:
        steps = [(period.start, period.end, 0, period.rows) for period in state.periods]
        parts.append(_draw_steps({"": steps}, [SAME], state.pipeline, width, 70))
    return _render_svg(_stack(parts).resolve_scale(y="shared"), "Rows carried from slice to slice over time")


def draw_trend(trend: Trend, width: int) -> str:
    """Draw the range of a metric in each span of time, with lines at its bounds and dots at failures."""
    rows = [{"at": span.start, "low": span.min_value, "high": span.max_value} for span in trend.spans]
    ends = [{**rows[-1], "at": trend.spans[-1].end}]
    bounds = [{"bound": bound} for bound in trend.drawn_bounds]
    values = [value for span in trend.spans for value in (span.min_value, span.max_value)]
    values += [bound["bound"] for bound in bounds]
    scale = alt.Scale(domain=_compute_domain(values), nice=False)
    y = alt.Y("low:Q", scale=scale, axis=_create_value_axis(_choose_number_format(values)), title=None)
    band = (
        alt.Chart(alt.InlineData(values=rows + ends))
        .mark_area(interpolate="step-after", fill=SAME, fillOpacity=1, stroke=SAME, strokeWidth=1.5)
        .encode(x=_encode_time(rows + ends, width), y=y, y2="high")
    )
    layers = [band]
    if bounds:
        lines = alt.Chart(alt.InlineData(values=bounds)).mark_rule(stroke=INK, strokeDash=[3, 3])
        layers.append(lines.encode(y=alt.Y("bound:Q", scale=scale)))
    if failures := [{"at": span.start, "high": span.worst_failure} for span in trend.spans if span.has_failure]:
        dots = alt.Chart(alt.InlineData(values=failures)).mark_point(fill=UNEXPLAINED, filled=True, size=34, opacity=1)
        layers.append(dots.encode(x="at:T", y=alt.Y("high:Q", scale=scale)))
    chart = alt.layer(*layers).properties(width=_get_inner_width(width), height=90)
    return _render_svg(chart, escape(f"{trend.name} over time"))


def _compute_domain(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return [low - margin if low else 0.0, high + margin]


def _choose_number_format(values: Sequence[float]) -> str:
    """Return the D3 format for shares, integers or other numbers."""
    if max(values) <= 1 and min(values) >= 0:
        return ".2~%"
    return _INTEGER_FORMAT if all(value == int(value) for value in values) else ".3~s"


_Step = tuple[str, str, int, int]
"""Step of a chart: start (inclusive), end (exclusive), lower and upper value."""


def _draw_steps(
    series: Mapping[str, Sequence[_Step]], colours: Sequence[str], title: str, width: int, height: int
) -> Any:
    """Draw each series as an area of steps over time, with a legend if there are several."""
    rows = [
        {"kind": name, "at": at, "low": low, "high": high}
        for name, steps in series.items()
        for at, low, high in [*((start, low, high) for start, _, low, high in steps), *_list_last_end(steps)]
    ]
    legend = alt.Legend(title=None, orient="top-right", offset=-26, direction="horizontal", symbolType="square")
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_area(interpolate="step-after", fillOpacity=1)
        .encode(
            x=_encode_time(rows, width),
            y=alt.Y("low:Q", axis=_create_value_axis()),
            y2="high",
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=list(series), range=list(colours)),
                legend=legend if len(series) > 1 else None,
            ),
        )
        .properties(width=_get_inner_width(width), height=height, title=alt.Title(title, limit=_get_inner_width(width)))
    )


def _list_last_end(steps: Sequence[_Step]) -> list[tuple[str, int, int]]:
    return [(end, low, high) for _, end, low, high in steps[-1:]]


def _stack(parts: Sequence[Any]) -> Any:
    return alt.vconcat(*parts, spacing=22).resolve_scale(x="shared", color="independent")


def draw_lateness(source: InputLateness, width: int) -> str:
    """Draw a histogram of how late an input's rows were, with a line at its watermark delay."""
    used = [number for number, rows in enumerate(source.histogram) if rows]
    first, last = max(used[0] - 1, 0), min(used[-1] + 2, len(BIN_EDGES))
    is_wide = width > WIDTHS["narrow"]
    format_label = "{:,}".format if is_wide else _abbreviate_number
    rows = [
        {
            "from": number,
            "to": number + 1,
            "middle": number + 0.5,
            "none": 0,
            "rows": count,
            "label": format_label(count),
        }
        for number, count in enumerate(source.histogram)
        if count
    ]
    labels = [*map(_abbreviate_span, BIN_EDGES), "more"]
    axis = alt.Axis(
        values=list(range(first, last + 1)),
        labelExpr=f"{labels}[datum.value]",
        labelOverlap="greedy",
        labelSeparation=5,
        title="behind the watermark",
    )
    base = alt.Chart(alt.InlineData(values=rows))
    x = alt.X("from:Q", axis=axis, scale=alt.Scale(domain=[first, last], nice=False))
    y_scale = alt.Scale(domain=[0, 1.2 * max(source.histogram)], nice=False)
    y = alt.Y("none:Q", axis=_create_value_axis(), scale=y_scale)
    bars = base.mark_rect(fill=EXPLAINED, stroke="var(--paper)").encode(x=x, x2="to", y=y, y2="rows")
    numbers = base.mark_text(dy=-6, fill=MUTED, fontSize=11 if is_wide else 9)
    layers = [bars, numbers.encode(x="middle:Q", y="rows:Q", text="label:N")]
    if source.delay_ms and first <= (at := _locate_among_bins(source.delay_ms)) <= last:
        is_label_left = first + 0.75 * (last - first) < at
        layers += _draw_marker(at, f"delay {_abbreviate_span(source.delay_ms)}", is_label_left)
    chart = alt.layer(*layers).properties(width=_get_inner_width(width), height=150, title="late rows")
    return _render_svg(chart, f"Late rows of the {source.side} input by how far they were behind the watermark")


def _abbreviate_number(number: int) -> str:
    """Format a number below a thousand million in at most four characters.

    >>> _abbreviate_number(999), _abbreviate_number(1_240), _abbreviate_number(12_400_000)
    ('999', '1.2k', '12M')
    """
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.{0 if number >= 10 * size else 1}f}{letter}"
    return str(number)


def _locate_among_bins(ms: int) -> float:
    """Locate a time span among `BIN_EDGES`: 2.5 is halfway from the third edge to the fourth."""
    number = max(n for n, edge in enumerate(BIN_EDGES) if ms >= edge)
    if number + 1 == len(BIN_EDGES):
        return float(number)
    return number + (ms - BIN_EDGES[number]) / (BIN_EDGES[number + 1] - BIN_EDGES[number])


def draw_what_if(data: ReportData, width: int) -> str:
    """Draw the share of pairs and the rows in state by watermark delay, with a line at the current delay."""
    what_if = data.what_if
    assert what_if, "drawn only with outcomes"
    rows = [
        {
            "delay": _get_seconds(outcome),
            "kept": what_if.matched_share(outcome),
            "state": outcome.state_rows,
        }
        for outcome in sorted(what_if.outcomes, key=_get_seconds)
    ]
    pairs, state = _draw_curve(rows, "kept", ".1%"), _draw_curve(rows, "state", _INTEGER_FORMAT)
    if data.current_value is not None:
        current = parse_duration(data.current_value)
        is_label_left = current.total_seconds() > rows[-1]["delay"] / 2
        label = f"now {_abbreviate_span(to_millis(current))}"
        marker = _draw_marker(current.total_seconds(), label, is_label_left, field="delay")
        pairs, state = alt.layer(pairs, *marker), alt.layer(state, marker[0])
    inner_width = _get_inner_width(width)
    pairs = pairs.properties(width=inner_width, height=120, title="pairs, compared with no row late")
    state = state.properties(width=inner_width, height=80, title="rows in state, on average")
    return _render_svg(_stack([pairs, state]), f"Pairs and rows in state by {what_if.setting}")


def _draw_curve(rows: list[dict[str, Any]], field: str, number_format: str) -> Any:
    """Draw a field over the delay, on a square-root scale so that short delays are readable."""
    longest = rows[-1]["delay"]
    ticks = [edge // 1000 for edge in BIN_EDGES if not edge or longest / 64 <= edge / 1000 <= longest]
    labels = {tick: _abbreviate_span(tick * 1000) for tick in ticks}
    axis = alt.Axis(values=ticks, labelExpr=f"{labels}[datum.value]", labelOverlap="greedy", labelSeparation=6)
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(stroke=EXPLAINED, strokeWidth=2, point=alt.OverlayMarkDef(fill=EXPLAINED, size=28))
        .encode(
            x=alt.X("delay:Q", scale=alt.Scale(type="sqrt", domain=[0, longest], nice=False), axis=axis, title=None),
            y=alt.Y(f"{field}:Q", scale=alt.Scale(zero=field == "state"), axis=_create_value_axis(number_format)),
        )
    )


def _draw_marker(at: float, label: str, is_label_left: bool, field: str = "middle") -> list[Any]:  # noqa: FBT001
    """Draw a vertical line and its label."""
    base = alt.Chart(alt.InlineData(values=[{field: at, "label": label}]))
    x = alt.X(f"{field}:Q")
    text = base.mark_text(
        align="right" if is_label_left else "left", dx=-4 if is_label_left else 4, y=-5, fill=INK, fontWeight="bold"
    )
    return [base.mark_rule(stroke=INK, strokeDash=[3, 3]).encode(x=x), text.encode(x=x, text="label:N")]


def _encode_time(rows: Sequence[dict[str, Any]], width: int) -> Any:
    span = parse_instant(rows[-1]["at"]) - parse_instant(rows[0]["at"]) if rows else timedelta()
    date_format = "%-d %b %H:%M" if span < timedelta(days=4) else "%-d %b" if span < timedelta(days=400) else "%b %Y"
    label = f"utcFormat(datum.value, '{date_format}')"
    axis = alt.Axis(labelExpr=label, tickCount=max(2, width // 110), labelFlush=True)
    return alt.X("at:T", scale=alt.Scale(type="utc", nice=False), axis=axis, title=None)


def _create_value_axis(number_format: str = _INTEGER_FORMAT) -> Any:
    axis = alt.Axis(
        format=number_format, tickCount=3, title=None, domain=False, ticks=False, minExtent=50, labelPadding=6
    )
    return alt.Axis(**axis.to_dict(), tickMinStep=1) if number_format == _INTEGER_FORMAT else axis


def _get_inner_width(width: int) -> int:
    return width - _LEFT - _RIGHT


def _get_seconds(outcome: Outcome) -> float:
    return parse_duration(outcome.value).total_seconds()


def _abbreviate_span(ms: int) -> str:
    """Format a time span with abbreviated units.

    >>> _abbreviate_span(5_400_000), _abbreviate_span(0)
    ('1 h 30 min', '0')
    """
    text = format_duration(timedelta(milliseconds=ms)) if ms else "0"
    for unit, abbreviation in (("day", "d"), ("hour", "h"), ("minute", "min"), ("second", "s")):
        text = re.sub(rf" {unit}s?\b", f" {abbreviation}", text)
    return text


def _render_svg(chart: Any, label: str) -> str:
    """Render a chart as inline SVG that scales with the page and has a label for assistive technology."""
    styled = chart.configure(background="transparent", aria=False, font="system-ui", padding={"right": _RIGHT})
    styled = styled.configure_view(stroke=None).configure_axis(
        grid=False, labelColor=MUTED, titleColor=MUTED, domainColor=RULE, tickColor=RULE, labelFontSize=11,
        titleFontWeight="normal", titleFontSize=11,
    )  # fmt: skip
    styled = styled.configure_title(
        anchor="start", frame="group", color=INK, fontSize=12, fontWeight="normal", offset=12
    )
    styled = styled.configure_legend(labelColor=INK, labelFontSize=11)
    output = io.StringIO()
    styled.save(output, format="svg")
    return output.getvalue().replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
