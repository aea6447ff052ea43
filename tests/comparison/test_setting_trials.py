"""Settings to try are values that people write, and the simplest set that explains most rows is the best."""

from datetime import timedelta

import pytest

from tidemark.comparison.round_durations import list_shorter, round_up
from tidemark.comparison.setting_trials import MAX_COMBINATIONS, SettingTrial, combine_settings, sort_trials
from tidemark.config.types import format_duration, parse_duration

LEFT, RIGHT, LOWER, UPPER = (
    "left.watermark_delay",
    "right.watermark_delay",
    "join.interval.lower",
    "join.interval.upper",
)


@pytest.fixture
def settings(pipeline):
    interval = {"lower": "-30 minutes", "upper": "30 minutes"}
    return pipeline(left__watermark_delay="45 minutes", right__watermark_delay="30 minutes", join__interval=interval)


def trial(explains, contradicts=0, /, **values):
    """Return a trial of settings by the names of the constants, in lower case."""
    names = {"left": LEFT, "right": RIGHT, "lower": LOWER, "upper": UPPER}
    return SettingTrial({names.get(name, name): value for name, value in values.items()}, explains, contradicts)


@pytest.mark.parametrize(
    ("configured", "shorter"),
    [
        ("45 minutes", ["22 minutes 30 seconds", "30 minutes", "20 minutes", "15 minutes", "10 minutes", "0 seconds"]),
        ("30 minutes", ["15 minutes", "20 minutes", "10 minutes", "5 minutes", "0 seconds"]),
        ("37 seconds", ["18 seconds 500 ms", "30 seconds", "20 seconds", "15 seconds", "10 seconds", "0 seconds"]),
        ("1 ms", ["0 seconds"]),
    ],
)
def test_list_shorter_delay_contains_half_and_round_values(configured, shorter):
    assert [format_duration(delay) for delay in list_shorter(parse_duration(configured))] == shorter


@pytest.mark.parametrize(
    ("duration", "configured", "rounded"),
    [
        ("44 minutes", "30 minutes", "45 minutes"),
        ("45 minutes", "30 minutes", "45 minutes"),
        ("80 minutes", "45 minutes", "1 hour 30 minutes"),
        ("1 ms", "0 seconds", "1 ms"),
        ("100 days 1 hour", "7 days", "101 days"),
    ],
)
def test_round_up_delay_is_round_or_double(duration, configured, rounded):
    assert format_duration(round_up(parse_duration(duration), parse_duration(configured))) == rounded


def test_combine_settings_of_two_delays_contains_all_values_of_both(settings):
    """The right delay alone explains nothing while the left input holds the watermark."""
    lefts = [trial(count, left=value) for count, value in ((40, "20 minutes"), (60, "22 minutes 30 seconds"))]
    rights = [trial(0, right=value) for value in ("15 minutes", "20 minutes")]
    combined = combine_settings(settings, [*lefts, *rights, trial(9, dialect="spark")])

    assert combined == [
        {LEFT: "22 minutes 30 seconds", RIGHT: "15 minutes"},
        {LEFT: "22 minutes 30 seconds", RIGHT: "20 minutes"},
        {LEFT: "20 minutes", RIGHT: "20 minutes"},
        {LEFT: "20 minutes", RIGHT: "15 minutes"},
    ]


def test_combine_settings_without_any_support_begins_with_common_factor(settings):
    delays = {"left": ("20 minutes", "22 minutes 30 seconds"), "right": ("10 minutes", "15 minutes")}
    trials = [trial(0, **{side: value}) for side, values in delays.items() for value in values]

    assert combine_settings(settings, trials)[0] == {LEFT: "22 minutes 30 seconds", RIGHT: "15 minutes"}


def test_combine_settings_of_two_kinds_needs_support_of_both(settings):
    trials = [trial(50, left="1 hour"), trial(3, 1, lower="-20 minutes"), trial(3, 3, upper="20 minutes")]

    assert combine_settings(settings, trials) == [
        {LEFT: "1 hour", LOWER: "-20 minutes"},
        {LOWER: "-20 minutes", UPPER: "20 minutes"},
    ]


def test_combine_settings_leaves_out_tried_and_invalid_ones(settings):
    trials = [trial(9, lower="40 minutes"), trial(9, lower="5 minutes"), trial(9, upper="20 minutes")]
    combined = {LOWER: "5 minutes", UPPER: "20 minutes"}

    assert combine_settings(settings, trials) == [combined]
    assert combine_settings(settings, [*trials, SettingTrial(combined, 9, 0)]) == []


def test_combine_settings_of_many_values_is_bounded(settings):
    minutes = [format_duration(timedelta(minutes=number)) for number in range(1, 20)]
    trials = [trial(number, **{side: value}) for side in ("left", "right") for number, value in enumerate(minutes)]
    combined = combine_settings(settings, trials)

    assert len(combined) == MAX_COMBINATIONS
    assert combined[0] == {LEFT: "19 minutes", RIGHT: "19 minutes"}


@pytest.mark.parametrize(
    "trials",
    [
        pytest.param(
            [trial(210, left="20 minutes", right="15 minutes"), trial(94, right="15 minutes")], id="more rows"
        ),
        pytest.param([trial(94, right="15 minutes"), trial(120, 30, left="20 minutes")], id="fewer contradictions"),
        pytest.param([trial(94, right="15 minutes"), trial(94, left="20 minutes", right="15 minutes")], id="fewer"),
        pytest.param([trial(94, right="15 minutes"), trial(94, right="16 minutes")], id="round"),
        pytest.param([trial(94, left="22 minutes 30 seconds"), trial(94, left="20 minutes")], id="half and nearer"),
        pytest.param([trial(94, right="45 minutes"), trial(94, right="1 hour")], id="nearer than the double"),
        pytest.param(
            [
                trial(94, left="22 minutes 30 seconds", right="15 minutes"),
                trial(94, left="22 minutes 30 seconds", right="20 minutes"),
            ],
            id="common factor",
        ),
        pytest.param(
            [
                trial(94, left="22 minutes 30 seconds", upper="10 minutes"),
                trial(94, left="15 minutes", upper="10 minutes"),
            ],
            id="factors of two kinds",
        ),
        pytest.param([trial(94, right="20 minutes"), trial(94, dialect="spark")], id="delay before dialect"),
    ],
)
def test_sort_trials_begins_with_simplest_of_most_rows(settings, trials):
    assert sort_trials(settings, trials)[0] == trials[0]
    assert sort_trials(settings, trials[::-1])[0] == trials[0]


def test_summary_of_two_settings_names_both_and_counts_once():
    summary = trial(210, 2, left="22 minutes 30 seconds", right="15 minutes").summary

    assert (
        summary == f"{LEFT}: 22 minutes 30 seconds and {RIGHT}: 15 minutes together explain 210 rows and contradict 2"
    )
