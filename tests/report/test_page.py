"""The report's files, and the page as a browser shows it."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pandas as pd
import pytest

from tests.report.facts import HOSTILE, START, facts, without_differences
from tidemark.comparison import CAUSES
from tidemark.comparison.causes import REMEDIES
from tidemark.config.local_days import DAY_MICROS
from tidemark.config.types import parse_instant, to_micros
from tidemark.errors import UserError
from tidemark.report import check_paths, write_report
from tidemark.report.data import MAX_PERIODS, _choose_period_length, _create_bounds, _resample, _to_local_times
from tidemark.report.lateness import choose_trial_delays, choose_varied_input
from tidemark.report.quality_trends import _create_spans, _SpanGrid
from tidemark.report.render import render_html, render_json, render_markdown
from tidemark.timegrid.slices import LocalDayGrid

PARTS = ["agreement", "causes", "lateness", "what-if", "state", "row-histories", "settings", "repeat"]
CONTRAST = """(() => {
  const light = text => {
    const linear = text.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
      .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * linear[0] + .7152 * linear[1] + .0722 * linear[2];
  };
  const behind = at => {
    for (; at; at = at.parentElement) {
      const found = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(found)) return found;
    }
  };
  const ratio = (at, colour) => {
    const [low, high] = [light(colour), light(behind(at))].sort((a, b) => a - b);
    return (high + .05) / (low + .05);
  };
  const seen = [...document.querySelectorAll("body *")].filter(at => at.getClientRects().length);
  const words = seen.filter(at => [...at.childNodes].some(one => one.nodeType == 3 && one.data.trim()));
  const shapes = seen.filter(at => at.matches("svg .role-mark path, svg .role-mark line"));
  const paint = at => { const s = getComputedStyle(at); return s.fill.startsWith("rgb") ? s.fill : s.stroke; };
  return {
    words: Math.min(...words.map(at => ratio(at, at.closest("svg") ? paint(at) : getComputedStyle(at).color))),
    shapes: Math.min(...shapes.map(at => ratio(at, paint(at)))),
    paper: getComputedStyle(document.body).backgroundColor,
  };
})()"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "report.html"
    write_report(facts(), [path])
    return path


def test_the_page_needs_nothing_else_and_runs_nothing(browser, page):
    browser.asked_for()
    browser.open(page)
    assert browser.asked_for() == {page.as_uri(), "data:,"} or browser.asked_for() == set()
    assert browser.complaints() == []
    assert browser.ask("document.title") == "orders and streamed/orders: 2 unexplained"
    assert browser.ask("document.scripts.length") == 0
    assert browser.ask("document.body.innerText").count(HOSTILE) >= 2, "what a table holds stays text"


def test_it_has_its_parts_in_order_and_can_be_read_without_seeing_it(browser, page):
    browser.open(page)
    assert browser.ask("[...document.querySelectorAll('main > section[id]')].map(one => one.id)") == PARTS
    assert (
        browser.ask("['header', 'main', 'nav', 'footer'].map(one => document.querySelectorAll(one).length)") == [1] * 4
    )
    assert browser.ask("document.documentElement.lang") == "en"
    nameless = "[...document.querySelectorAll('svg')].filter(one => !one.getAttribute('aria-label')).length"
    assert browser.ask(nameless) == 0
    assert browser.ask("document.querySelectorAll('th:not([scope])').length") == 0
    captions = browser.ask("[...document.querySelectorAll('figcaption')].map(one => one.innerText.trim().length)")
    assert len(captions) == browser.ask("document.querySelectorAll('figure').length") == 4
    assert min(captions) > 20
    ids = browser.ask("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    targets = browser.ask("[...document.querySelectorAll('a')].map(one => one.getAttribute('href'))")
    assert {"#life-1", *(f"#{part}" for part in PARTS)} <= set(targets) <= {f"#{one}" for one in ids}
    assert browser.ask("document.querySelector('.totals dd').innerText") == "2", "unexplained comes first"


@pytest.mark.parametrize("report", [facts, without_differences])
def test_a_phone_scrolls_it_one_way(browser, tmp_path, report):
    path = tmp_path / "report.html"
    write_report(report(), [path])
    browser.open(path, width=375)
    assert browser.ask("[innerWidth, document.documentElement.scrollWidth]") == [375, 375]
    if report is facts:
        assert browser.ask("[...document.querySelectorAll('.scroll')].some(one => one.scrollWidth > one.clientWidth)")
    drawn = browser.ask("[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect().width)")
    assert {width > 0 for width in drawn} == {True, False}, "the charts for a phone are shown, the others are not"
    assert max(drawn) <= 375
    smallest = "Math.min(...[...document.querySelectorAll('.narrow svg')].map(one => one.getScreenCTM().a))"
    assert browser.ask(smallest) > 0.9, "letters in charts are not shrunk"


def test_light_and_dark_are_two_pages_with_contrast(browser, page):
    papers = set()
    for scheme in ("light", "dark"):
        browser.open(page, scheme=scheme)
        told = browser.ask(CONTRAST)
        papers.add(told["paper"])
        assert told["words"] >= 4.5
        assert told["shapes"] >= 3
    assert len(papers) == 2


def test_no_difference_is_said_as_well():
    told = render_html(without_differences())
    assert "No row differs." in told
    assert 'class="first none"' in told
    assert "Both sides agree in all 40 periods of 1 day." in told
    assert "Other delays were not tried: orders runs in order of event time, where no delay decides." in told
    assert "rows that differ</text>" not in told
    assert render_markdown(without_differences()).startswith(
        "# orders and streamed/orders: 0 unexplained\n\nNo row differs."
    )


def test_markdown_has_whole_tables_and_no_markup():
    text = render_markdown(facts())
    assert "<script" not in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        header, rule, *rows = (line.replace(r"\|", "").count("|") for line in table.splitlines())
        assert {header} == {rule, *rows}, table
        assert rows, table
    assert not re.search(r"\n\n\n", text)
    for title in ("Causes", "Lateness", "Effect of other watermark delays", "State", "Settings"):
        assert f"\n\n## {title}\n\n" in text


def test_json_has_all_of_it():
    told = json.loads(render_json(facts()))
    assert told["comparison"]["unexplained"] == 2
    assert told["causes"][0]["examples"][0]["history_names"] == [told["row_histories"][0]["name"]]
    assert told["row_histories"][0]["history"]["row"] == {"k": HOSTILE}
    assert told["what_if"]["recommendation"]
    assert len(told["periods"]) == 40


def test_a_year_of_hours_is_drawn_by_days():
    hours = pd.date_range(START, periods=8_760, freq="h")
    assert _choose_period_length(hours, timedelta(hours=1)) == timedelta(days=1)
    assert _choose_period_length(hours[:MAX_PERIODS], timedelta(hours=1)) == timedelta(hours=1)
    century = pd.date_range(START, periods=36_500, freq="D")
    assert _choose_period_length(century, timedelta(days=1)) * MAX_PERIODS >= timedelta(days=36_500)
    assert len(render_html(facts(periods=366))) < 400_000


@pytest.mark.parametrize(
    ("zone", "start"),
    [
        ("Europe/London", "2026-03-27T00:00Z"),
        ("Europe/Berlin", "2026-10-22T22:00Z"),
        ("Africa/Cairo", "2026-04-21T22:00Z"),
        ("America/Havana", "2026-10-30T04:00Z"),
    ],
)
def test_local_days_are_drawn_each_by_itself(zone, start):
    grid = LocalDayGrid(to_micros(parse_instant(start)), DAY_MICROS, zone)
    assert {grid.every} != grid.lengths(range(6))
    instants = pd.Index([grid.datetime_of(number) for number in range(6)])
    bounds = [(grid.name(number), grid.name(number + 1)) for number in range(6)]
    drawn = _resample(pd.Series(range(6), index=_to_local_times(instants, ZoneInfo(zone))), timedelta(days=1)).sum()
    assert list(zip(drawn, _create_bounds(drawn.index, timedelta(days=1), ZoneInfo(zone)), strict=True)) == [
        *enumerate(bounds)
    ]
    spans = _create_spans(pd.Series(range(6), index=instants), _SpanGrid(grid, 2))
    assert [(one.start, one.end, one.min_value, one.max_value) for one in spans] == [
        (bounds[n][0], bounds[n + 1][1], n, n + 1) for n in (0, 2, 4)
    ]


def test_every_cause_has_a_remedy():
    assert list(REMEDIES) == list(CAUSES)


def test_delays_to_try_go_up_to_what_the_latest_row_asks_for():
    minutes = [value / timedelta(minutes=1) for value in choose_trial_delays(1_800_000, [59_999, 600_000, 78_000_000])]
    assert minutes == [0, 15, 30, 31, 41, 1331]
    assert choose_trial_delays(0, []) == [timedelta()]
    assert choose_trial_delays(4_000, []) == [timedelta(seconds=n) for n in range(5)]


def test_the_delay_to_vary_is_that_of_the_input_which_holds_most_back():
    late = facts().lateness
    assert choose_varied_input(late) == "left"
    held_by_right = replace(late.inputs[0], rows_by_watermark_input={"left": 1, "right": 2})
    assert choose_varied_input(replace(late, inputs=(held_by_right, late.inputs[1]))) == "right"
    without = tuple(replace(one, delay_ms=None) for one in late.inputs)
    assert choose_varied_input(replace(late, inputs=without)) is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("report.pdf", "unknown suffix. Use a file name that ends in .html, .md, .json"),
        ("nowhere/report.html", "the folder .*nowhere does not exist. "),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path, name, told):
    with pytest.raises(UserError, match=f"--report .*{name}: {told}"):
        check_paths([str(tmp_path / name)])
