"""Results of replays under other settings: their order, and combinations to try next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations, islice, product
from operator import attrgetter

from tidemark.comparison.round_durations import is_round
from tidemark.comparison.setting_candidates import SettingChanges, is_valid
from tidemark.config import Pipeline
from tidemark.config.types import parse_duration
from tidemark.formatting import format_count

MAX_COMBINATIONS = 32
"""Number of combinations to try, the lanes of one replay."""
_LANE_SETTINGS = ("left.watermark_delay", "right.watermark_delay", "join.interval.lower", "join.interval.upper")
"""Durations in which the lanes of a replay may differ."""
_Oddness = tuple[int, int, bool, float, timedelta]


@dataclass(frozen=True)
class SettingTrial:
    """Result of a replay under other settings."""

    settings: dict[str, str | tuple[str, ...]]
    """Settings that differ from the pipeline's, by dotted name."""
    explains: int
    """Number of rows without another cause that the trial emits as often as the stream."""
    contradicts: int
    """Number of rows that the trial emits more or less often than the stream, beyond those that differ now."""

    @property
    def support(self) -> int:
        """Number of rows that the trial explains, less those that it contradicts."""
        return self.explains - self.contradicts

    @property
    def is_supported(self) -> bool:
        """True if the trial explains more rows than it contradicts."""
        return self.support > 0

    @property
    def summary(self) -> str:
        """The settings and both counts, in words. Several settings have common counts."""
        values = {name: value if isinstance(value, str) else ", ".join(value) for name, value in self.settings.items()}
        settings = " and ".join(f"{name}: {value}" for name, value in values.items())
        rows, contradicted = format_count(self.explains, "row"), f"{self.contradicts:,}"
        if len(self.settings) > 1:
            return f"{settings} together explain {rows} and contradict {contradicted}"
        return f"{settings} explains {rows} and contradicts {contradicted}"


def sort_trials(pipeline: Pipeline, trials: Iterable[SettingTrial]) -> list[SettingTrial]:
    """Sort trials, the best first.

    Of trials with equal support the first has fewer settings, then rounder values, then one factor for all durations,
    then smaller changes.
    """
    return sorted(
        trials, key=lambda trial: (-trial.support, len(trial.settings), _measure_oddness(pipeline, trial.settings))
    )


def combine_settings(pipeline: Pipeline, trials: Sequence[SettingTrial]) -> list[SettingChanges]:
    """Combine single settings in pairs that can be lanes of one replay, the most promising first.

    Two delays, or two bounds, may hide each other's effect: the later of two inputs holds the watermark. So all their
    values are combined. A delay and a bound act on rows of their own, so both must be supported alone.

    Args:
        pipeline: The pipeline that the trials change.
        trials: Trials of the pipeline; those with several settings are not combined again.

    Returns:
        At most `MAX_COMBINATIONS` valid combinations, none of which is among the trials.
    """
    singles = {name: [trial for trial in trials if list(trial.settings) == [name]] for name in _LANE_SETTINGS}
    tried = [trial.settings for trial in trials]
    pairs = [
        (first, second)
        for names in combinations(_LANE_SETTINGS, 2)
        for first, second in product(*(singles[name] for name in names))
        if _are_of_one_kind(*names) or (first.is_supported and second.is_supported)
    ]

    def sort_key(pair: tuple[SettingTrial, SettingTrial]) -> tuple[int, _Oddness]:
        return -sum(trial.support for trial in pair), _measure_oddness(pipeline, _merge(pair))

    merged = (_merge(pair) for pair in sorted(pairs, key=sort_key))
    valid = (changes for changes in merged if changes not in tried and is_valid(pipeline, changes))
    return list(islice(valid, MAX_COMBINATIONS))


def _merge(pair: tuple[SettingTrial, SettingTrial]) -> SettingChanges:
    first, second = pair
    return first.settings | second.settings


def _are_of_one_kind(first: str, second: str) -> bool:
    return first.endswith("delay") == second.endswith("delay")


def _measure_oddness(pipeline: Pipeline, changes: SettingChanges) -> _Oddness:
    """Return a sort key: less for settings that people are more likely to write.

    Returns:
        How many settings are no durations; how many durations are not round; if durations of one kind have changed by
        different factors; and how far they have changed, as a sum of shares and as a duration.
    """
    durations = list(_list_durations(pipeline, changes))
    odd = sum(not is_round(duration, configured) for configured, duration in durations)
    is_of_one_kind = all(_are_of_one_kind(*names) for names in combinations(changes, 2))
    factors = {duration / configured if configured else None for configured, duration in durations}
    changed_by = [(configured, abs(duration - configured)) for configured, duration in durations]
    share = sum(distance / (abs(configured) or distance) for configured, distance in changed_by)
    distance = sum((distance for _, distance in changed_by), timedelta())
    return len(changes) - len(durations), odd, is_of_one_kind and len(factors) > 1, share, distance


def _list_durations(pipeline: Pipeline, changes: SettingChanges) -> Iterator[tuple[timedelta, timedelta]]:
    """Yield the configured and the changed value of each duration."""
    for name in _LANE_SETTINGS:
        if name in changes:
            yield attrgetter(name)(pipeline), parse_duration(changes[name])
