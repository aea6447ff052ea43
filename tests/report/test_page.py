"""Tests of the report's files, and of the page in a browser."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pandas as pd
import pytest

from tests.report.sample_reports import HOSTILE, START, create_report, create_report_without_differences
from tidemark.comparison import CAUSES
from tidemark.comparison.cause_descriptions import REMEDIES
from tidemark.config import load_pipeline
from tidemark.config.candidate_version import to_candidate
from tidemark.config.local_days import DAY_MICROS
from tidemark.config.types import parse_instant, to_micros
from tidemark.errors import UserError
from tidemark.report import Invocation, check_paths, write_report
from tidemark.report.data import (
    MAX_PERIODS,
    _choose_period_length,
    _create_bounds,
    _create_explain_command,
    _list_commands,
    _resample,
    _to_local_times,
)
from tidemark.report.lateness import choose_trial_delays, choose_varied_input
from tidemark.report.quality_trends import _create_spans, _SpanGrid
from tidemark.report.render import create_environment, render_html, render_json, render_markdown
from tidemark.timegrid.slices import Grid, LocalDayGrid

PARTS = ["agreement", "causes", "lateness", "what-if", "state", "row-histories", "settings", "repeat"]
CONTRAST = """(() => {
  const light = text => {
    const linear = text.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
      .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * linear[0] + .7152 * linear[1] + .0722 * linear[2];
  };
  const background = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
  };
  const ratio = (node, colour) => {
    const [low, high] = [light(colour), light(background(node))].sort((a, b) => a - b);
    return (high + .05) / (low + .05);
  };
  const visible = [...document.querySelectorAll("body *")].filter(node => node.getClientRects().length);
  const texts = visible.filter(node => [...node.childNodes].some(child => child.nodeType == 3 && child.data.trim()));
  const shapes = visible.filter(node => node.matches("svg .role-mark path, svg .role-mark line"));
  const paint = node => { const s = getComputedStyle(node); return s.fill.startsWith("rgb") ? s.fill : s.stroke; };
  return {
    texts: Math.min(...texts.map(
      node => ratio(node, node.closest("svg") ? paint(node) : getComputedStyle(node).color))),
    shapes: Math.min(...shapes.map(node => ratio(node, paint(node)))),
    page: getComputedStyle(document.body).backgroundColor,
  };
})()"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "report.html"
    write_report(create_report(), [path])
    return path


def test_page_requests_nothing_and_runs_no_script(browser, page):
    browser.pop_requested_urls()

    browser.open(page)

    assert browser.pop_requested_urls() == {page.as_uri(), "data:,"} or browser.pop_requested_urls() == set()
    assert browser.get_console_messages() == []
    assert browser.evaluate("document.title") == "orders and streamed/orders: 2 unexplained"
    assert browser.evaluate("document.scripts.length") == 0
    assert browser.evaluate("document.body.innerText").count(HOSTILE) >= 2, "values of tables are text"


@pytest.mark.promise("The report of a comparison shows its parts in a browser.")
def test_page_has_parts_in_order_and_accessible_names(browser, page):
    browser.open(page)

    assert browser.evaluate("[...document.querySelectorAll('main > section[id]')].map(node => node.id)") == PARTS
    landmarks = "['header', 'main', 'nav', 'footer'].map(name => document.querySelectorAll(name).length)"
    assert browser.evaluate(landmarks) == [1] * 4
    assert browser.evaluate("document.documentElement.lang") == "en"
    nameless = "[...document.querySelectorAll('svg')].filter(node => !node.getAttribute('aria-label')).length"
    assert browser.evaluate(nameless) == 0
    assert browser.evaluate("document.querySelectorAll('th:not([scope])').length") == 0
    captions = browser.evaluate(
        "[...document.querySelectorAll('figcaption')].map(node => node.innerText.trim().length)"
    )
    assert len(captions) == browser.evaluate("document.querySelectorAll('figure').length") == 4
    assert min(captions) > 20
    ids = browser.evaluate("[...document.querySelectorAll('[id]')].map(node => node.id)")
    assert len(ids) == len(set(ids))
    targets = browser.evaluate("[...document.querySelectorAll('a')].map(node => node.getAttribute('href'))")
    assert {"#life-1", *(f"#{part}" for part in PARTS)} <= set(targets) <= {f"#{name}" for name in ids}
    assert browser.evaluate("document.querySelector('.totals dd').innerText") == "2", "unexplained comes first"


@pytest.mark.parametrize("create", [create_report, create_report_without_differences])
def test_page_narrow_viewport_scrolls_vertically_only(browser, tmp_path, create):
    path = tmp_path / "report.html"
    write_report(create(), [path])

    browser.open(path, width=375)

    assert browser.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [375, 375]
    if create is create_report:
        is_scrollable = "[...document.querySelectorAll('.scroll')].some(node => node.scrollWidth > node.clientWidth)"
        assert browser.evaluate(is_scrollable)
    widths = browser.evaluate("[...document.querySelectorAll('svg')].map(node => node.getBoundingClientRect().width)")
    assert {width > 0 for width in widths} == {True, False}, "only charts for narrow screens are visible"
    assert max(widths) <= 375
    min_scale = "Math.min(...[...document.querySelectorAll('.narrow svg')].map(node => node.getScreenCTM().a))"
    assert browser.evaluate(min_scale) > 0.9, "text in charts is not shrunk"


def test_page_light_and_dark_scheme_have_contrast(browser, page):
    backgrounds = set()
    for scheme in ("light", "dark"):
        browser.open(page, scheme=scheme)
        contrast = browser.evaluate(CONTRAST)
        backgrounds.add(contrast["page"])
        assert contrast["texts"] >= 4.5
        assert contrast["shapes"] >= 3
    assert len(backgrounds) == 2


def test_render_html_without_differences_states_agreement():
    page = render_html(create_report_without_differences())

    assert "No row differs." in page
    assert 'class="first none"' in page
    assert "Both sides agree in all 40 periods of 1 day." in page
    assert "Other delays were not tried: orders runs in order of event time, where no delay decides." in page
    assert "rows that differ</text>" not in page
    assert render_markdown(create_report_without_differences()).startswith(
        "# orders and streamed/orders: 0 unexplained\n\nNo row differs."
    )


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_report_of_versions_names_candidate_and_live(render):
    report = create_report()
    versions = replace(report.comparison, table="orders/emissions", labels=("candidate", "live"))

    text = render(replace(report, comparison=versions, versions={}, commands=()))

    assert (
        "The candidate version is the committed output of orders, the live version is the table orders/emissions."
        in text
    )
    assert "Late in the live version" in text
    assert "Pipeline with the settings of the live version: orders_by_arrival" in text
    body = text.partition("</head>")[2] or text
    assert not re.search(r"\b(batch|stream)\b", body), "the words of a comparison with a stream"


def test_render_markdown_has_complete_tables_and_no_markup():
    text = render_markdown(create_report())

    assert "<script" not in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        header, rule, *rows = (line.replace(r"\|", "").count("|") for line in table.splitlines())
        assert {header} == {rule, *rows}, table
        assert rows, table
    assert not re.search(r"\n\n\n", text)
    for title in ("Causes", "Lateness", "Effect of other watermark delays", "State", "Settings"):
        assert f"\n\n## {title}\n\n" in text


def test_render_rows_quotes_strings_with_blank_ends():
    report = create_report()

    assert "| 2024-01-01T00:20Z | 'B7 ' |" in render_markdown(report)
    assert "<td>&#39;B7 &#39;</td>" in render_html(report)


def test_render_json_has_all_parts():
    content = json.loads(render_json(create_report()))

    assert content["comparison"]["unexplained"] == 2
    assert content["causes"][0]["examples"][0]["history_names"] == [content["row_histories"][0]["name"]]
    assert content["row_histories"][0]["history"]["row"] == {"k": HOSTILE}
    assert content["what_if"]["recommendation"]
    assert len(content["periods"]) == 40


def test_choose_period_length_long_range_has_at_most_max_periods():
    hours = pd.date_range(START, periods=8_760, freq="h")
    assert _choose_period_length(hours, timedelta(hours=1)) == timedelta(days=1)
    assert _choose_period_length(hours[:MAX_PERIODS], timedelta(hours=1)) == timedelta(hours=1)

    century = pd.date_range(START, periods=36_500, freq="D")
    assert _choose_period_length(century, timedelta(days=1)) * MAX_PERIODS >= timedelta(days=36_500)
    assert len(render_html(create_report(periods=366))) < 400_000


@pytest.mark.parametrize(
    ("zone", "start"),
    [
        ("Europe/London", "2026-03-27T00:00Z"),
        ("Europe/Berlin", "2026-10-22T22:00Z"),
        ("Africa/Cairo", "2026-04-21T22:00Z"),
        ("America/Havana", "2026-10-30T04:00Z"),
    ],
)
def test_resample_local_days_gives_a_period_per_day(zone, start):
    grid = LocalDayGrid(to_micros(parse_instant(start)), DAY_MICROS, zone)
    assert {grid.every} != grid.get_lengths(range(6))
    instants = pd.Index([grid.datetime_of(number) for number in range(6)])
    bounds = [(grid.label(number), grid.label(number + 1)) for number in range(6)]
    local_times = _to_local_times(instants, ZoneInfo(zone))

    sums = _resample(pd.Series(range(6), index=local_times), timedelta(days=1)).sum()
    periods = _create_bounds(sums.index, timedelta(days=1), ZoneInfo(zone))
    spans = _create_spans(pd.Series(range(6), index=instants), _SpanGrid(grid, 2))

    assert list(zip(sums, periods, strict=True)) == [*enumerate(bounds)]
    assert [(span.start, span.end, span.min_value, span.max_value) for span in spans] == [
        (bounds[n][0], bounds[n + 1][1], n, n + 1) for n in (0, 2, 4)
    ]


def test_trend_of_check_with_two_results_per_slice_has_failures_of_both():
    """Tables that a file with the same check twice has written."""
    instants = pd.DatetimeIndex(["2024-01-01T00:00Z", "2024-01-01T00:00Z", "2024-01-01T01:00Z"])
    values, failed = pd.Series([1.0, 3.0, 2.0], index=instants), pd.Series([False, True, False], index=instants)

    spans = list(_create_spans(values, _SpanGrid(Grid(0, 3_600_000_000), 1), failed))

    assert [(span.max_value, span.worst_failure) for span in spans] == [(3, 3), (2, 0)]


def test_cell_of_a_markdown_table_has_no_links_and_images():
    cell = create_environment().filters["cell"]

    assert cell("![x](http://y) [a](b) `c` <d> e|f \\") == r"!\[x\](http://y) \[a\](b) \`c\` &lt;d> e\|f \\"


def test_commands_of_a_report_use_the_candidate():
    live = load_pipeline("flights_weather")
    candidate = to_candidate(live, "wide")
    invocation = Invocation(("compare", "report"), "flights_weather", None, None)
    views = [
        SimpleNamespace(pipeline=pipeline, grid=SimpleNamespace(label=str), end=7) for pipeline in (candidate, live)
    ]
    example = create_report().row_histories[0]

    first, second, _ = _list_commands(invocation, views)
    assert first == "tidemark run flights_weather --candidate wide --to 7"
    assert second == f"tidemark run {live.command_argument} --to 7"
    command = _create_explain_command(invocation, candidate, replace(example, is_reference=False, key={"k": "x"}))
    assert command == "tidemark explain flights_weather --candidate wide --left k=x"


def test_each_cause_has_a_remedy():
    assert list(REMEDIES) == list(CAUSES)


def test_choose_trial_delays_extend_to_the_latest_row():
    minutes = [value / timedelta(minutes=1) for value in choose_trial_delays(1_800_000, [59_999, 600_000, 78_000_000])]
    assert minutes == [0, 15, 30, 31, 41, 1331]
    assert choose_trial_delays(0, []) == [timedelta()]
    assert choose_trial_delays(4_000, []) == [timedelta(seconds=n) for n in range(5)]


def test_choose_varied_input_prefers_input_that_makes_most_rows_late():
    lateness = create_report().lateness
    late_by_right = replace(lateness.inputs[0], rows_by_watermark_input={"left": 1, "right": 2})
    without_delay = tuple(replace(side, delay_ms=None) for side in lateness.inputs)

    assert choose_varied_input(lateness) == "left"
    assert choose_varied_input(replace(lateness, inputs=(late_by_right, lateness.inputs[1]))) == "right"
    assert choose_varied_input(replace(lateness, inputs=without_delay)) is None


@pytest.mark.parametrize(
    ("name", "expected_message"),
    [
        ("report.pdf", "unknown suffix. Use a file name that ends in .html, .md, .json"),
        ("nowhere/report.html", "the folder .*nowhere does not exist. "),
    ],
)
def test_check_paths_unwritable_file_raises(tmp_path, name, expected_message):
    with pytest.raises(UserError, match=f"^FILE .*{name}: {expected_message}"):
        check_paths([str(tmp_path / name)])
