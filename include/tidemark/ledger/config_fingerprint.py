"""The settings that decide an answer, as the ledger has them of each run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache

from tidemark.config import Pipeline
from tidemark.config.diff import flat
from tidemark.config.types import parse_instant
from tidemark.formatting import in_one_line
from tidemark.ledger.ledger import Entry
from tidemark.timegrid.slices import Grid

_RESTARTS = "restarts"
settings_of = cache(json.loads)
"""`Entry.settings` as data; nearly all entries have the same."""


def settings_text(pipeline: Pipeline) -> str:
    """The settings that decide a pipeline's answer, as `Entry.settings` has them."""
    return json.dumps(pipeline.semantic_settings(), sort_keys=True)


def settings_up_to(settings: str, grid: Grid, number: int) -> str:
    """Of settings those that decide the answer up to a slice, inclusive: without restarts behind it.

    Nor has a restart before any row come to anything.
    """
    told = settings_of(settings)
    if _RESTARTS not in told:
        return settings
    begins, ends = grid.datetime_of(0), grid.datetime_of(number + 1)
    met = [restart for restart in told[_RESTARTS] if begins < parse_instant(restart) < ends]
    others = {name: value for name, value in told.items() if name != _RESTARTS}
    return json.dumps({**others, **({_RESTARTS: met} if met else {})}, sort_keys=True)


def settings_apart(was: str, now: str) -> str:
    """In which settings two runs differ, in words; empty where in none.

    >>> settings_apart('{"join": {"keys": ["a"]}}', '{"join": {"keys": ["b"]}}')
    'join.keys.0 was a, now b'
    """
    if was == now:
        return ""
    old, new = flat(settings_of(was)), flat(settings_of(now))
    return "; ".join(
        f"{name} was {in_one_line(str(old.get(name)))}, now {in_one_line(str(new.get(name)))}"
        for name in sorted(old | new)
        if old.get(name) != new.get(name)
    )


def under_others(entries: Iterable[Entry], settings: str, grid: Grid) -> Iterator[tuple[int, str]]:
    """The slices that have run under other settings than these, and in which ones, in words."""
    for entry in entries:
        if apart := settings_apart(entry.settings, settings_up_to(settings, grid, entry.number)):
            yield entry.number, apart
