"""Compare the output-affecting settings that the ledger records for each run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache

from tidemark.config import Pipeline
from tidemark.config.diff import flatten_settings, format_setting
from tidemark.config.types import parse_instant
from tidemark.ledger.entry import Entry
from tidemark.timegrid.slices import Grid

_RESTARTS = "restarts"
parse_settings = cache(json.loads)
"""Parse `Entry.settings`. Cached, because nearly all entries have the same settings."""


def serialize_settings(pipeline: Pipeline) -> str:
    """Serialize a pipeline's output-affecting settings as in `Entry.settings`."""
    return json.dumps(pipeline.output_affecting_settings(), sort_keys=True)


def remove_later_restarts(settings: str, grid: Grid, number: int) -> str:
    """Remove restarts after a slice, and restarts before the first slice, which have no effect.

    Returns:
        The settings that affect the output up to slice `number` (inclusive).
    """
    parsed = parse_settings(settings)
    if _RESTARTS not in parsed:
        return settings
    begins, ends = grid.datetime_of(0), grid.datetime_of(number + 1)
    restarts = [restart for restart in parsed[_RESTARTS] if begins < parse_instant(restart) < ends]
    rest = {name: value for name, value in parsed.items() if name != _RESTARTS}
    return json.dumps({**rest, **({_RESTARTS: restarts} if restarts else {})}, sort_keys=True)


def describe_setting_diff(was: str, now: str) -> str:
    """Describe the settings in which two runs differ, in words; empty if they are equal.

    >>> describe_setting_diff('{"join": {"keys": ["a"]}}', '{"join": {"keys": ["b"]}}')
    'join.keys.0 was a, now b'
    """
    if was == now:
        return ""
    old, new = flatten_settings(parse_settings(was)), flatten_settings(parse_settings(now))
    return "; ".join(
        f"{name} was {format_setting(old.get(name))}, now {format_setting(new.get(name))}"
        for name in sorted(old | new)
        if old.get(name) != new.get(name)
    )


def find_slices_with_other_settings(entries: Iterable[Entry], settings: str, grid: Grid) -> Iterator[tuple[int, str]]:
    """Yield slices that ran under other settings, with a description of the difference."""
    for entry in entries:
        if setting_diff := describe_setting_diff(entry.settings, remove_later_restarts(settings, grid, entry.number)):
            yield entry.number, setting_diff
