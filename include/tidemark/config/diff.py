"""What follows from a change of a pipeline file, setting by setting; no lake is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from tidemark.config.pipeline import Pipeline

Effect = Literal["other pipeline", "answer", "slices since", "next slice", "no row"]
"""The gravest first. `other pipeline`: its tables are elsewhere; `answer`: committed slices have to run again; `slices
since`: those do that lie behind the instant; `next slice`: slices from now on have other columns, or take landed rows
otherwise; `no row`: what the join gives stays as it is."""

_ELSEWHERE = ("name", "output")
_SINCE = ("restarts",)
_FROM_NOW_ON = ("select", "late_landing", "input_deletes")


@dataclass(frozen=True)
class Difference:
    """A setting that two pipeline files have differently."""

    setting: str
    """Its dotted name."""
    was: Any
    """JSON-ready; None where it was left out and has no default."""
    now: Any
    effect: Effect


def differences(old: Pipeline, new: Pipeline) -> list[Difference]:
    """Settings that differ, defaults filled in, the gravest first and then in the order of the file."""
    was, now = (flat(one.model_dump(mode="json", by_alias=True)) for one in (old, new))
    decides = {*flat(old.deciding_settings()), *flat(new.deciding_settings())}
    found = [
        Difference(name, was.get(name), now.get(name), _effect(name, decides))
        for name in was | now
        if was.get(name) != now.get(name)
    ]
    return sorted(found, key=lambda one: get_args(Effect).index(one.effect))


def flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Settings by their dotted names; places in lists are numbers.

    >>> flat({"join": {"keys": ["a"]}})
    {'join.keys.0': 'a'}
    """
    if not isinstance(settings, dict | list):
        return {prefix: settings}
    items = settings.items() if isinstance(settings, dict) else enumerate(settings)
    return {k: v for key, part in items for k, v in flat(part, f"{prefix}.{key}" if prefix else str(key)).items()}


def _effect(name: str, decides: set[str]) -> Effect:
    top = name.partition(".")[0]
    if top in _ELSEWHERE:
        return "other pipeline"
    if top in _SINCE:
        return "slices since"
    if name in decides:
        return "answer"
    return "next slice" if top in _FROM_NOW_ON else "no row"
