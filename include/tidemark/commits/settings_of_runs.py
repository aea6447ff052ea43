"""The settings that decide an answer, as the ledger has them of each run."""

from __future__ import annotations

import json
from functools import cache

from tidemark.settings import Pipeline
from tidemark.settings.differences import flat
from tidemark.wording import in_one_line

settings_of = cache(json.loads)
"""`Entry.settings` as data; nearly all entries have the same."""


def settings_text(pipeline: Pipeline) -> str:
    """The settings that decide a pipeline's answer, as `Entry.settings` has them."""
    return json.dumps(pipeline.semantic_settings(), sort_keys=True)


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
