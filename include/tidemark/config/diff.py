"""Compare two pipeline files setting by setting, with the effect of each change on output rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from tidemark.config.pipeline import Pipeline
from tidemark.formatting import ToDict, to_single_line

Effect = Literal["new pipeline", "new output", "all slices", "slices since", "new slices", "no rows"]
"""Effect of a change, from the most to the least severe.

`new pipeline`: the tables are in another folder. `new output`: committed slices cannot be continued or recomputed.
`all slices`: committed slices must be recomputed. `slices since`: those after the changed instant. `new slices`: slices
that run from now on have other columns, or handle late-arriving and deleted rows differently. `no rows`: output rows do
not change.
"""

_LOCATION_SETTINGS = ("name", "output")
_INSTANT_SETTINGS = ("restarts",)
_NEW_SLICE_SETTINGS = ("select", "on_late_arriving_rows", "on_input_delete")


@dataclass(frozen=True)
class SettingChange(ToDict):
    """A setting with different values in two pipeline files."""

    setting: str
    """Dotted name."""
    old: Any
    """Old value, JSON-ready; None if it is absent and has no default."""
    new: Any
    """New value, as `old`."""
    effect: Effect


def diff_pipelines(old: Pipeline, new: Pipeline) -> list[SettingChange]:
    """Compare two pipelines including defaults.

    Returns:
        The changes, the most severe effects first, then in the order of the file.
    """
    old_settings, new_settings = (flatten_settings(pipeline.model_dump(mode="json")) for pipeline in (old, new))
    affecting = {
        name
        for pipeline in (old, new)
        for name in flatten_settings(pipeline.output_affecting_settings(include_defaults=True))
    }
    changes = [
        SettingChange(name, old_settings.get(name), new_settings.get(name), _effect_of(name, affecting))
        for name in old_settings | new_settings
        if old_settings.get(name) != new_settings.get(name)
    ]
    return sorted(changes, key=lambda change: get_args(Effect).index(change.effect))


def flatten_settings(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names; positions in lists become numbers.

    >>> flatten_settings({"join": {"keys": ["a"]}})
    {'join.keys.0': 'a'}
    """
    if not isinstance(settings, dict | list):
        return {prefix: settings}
    items = settings.items() if isinstance(settings, dict) else enumerate(settings)
    return {
        name: value
        for key, part in items
        for name, value in flatten_settings(part, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def format_setting(value: Any) -> str:
    """Format a setting's flattened value on a single line: `not set` if it is absent.

    >>> format_setting(None)
    'not set'
    """
    return "not set" if value is None else to_single_line(str(value))


def _effect_of(name: str, affecting: set[str]) -> Effect:
    top = name.partition(".")[0]
    if top in _LOCATION_SETTINGS:
        return "new pipeline"
    if top in _INSTANT_SETTINGS:
        return "slices since"
    if name in affecting and top == "slices":
        return "new output"
    if name in affecting:
        return "all slices"
    return "new slices" if top in _NEW_SLICE_SETTINGS else "no rows"
