"""Model a pipeline file to be written: settings, each with the place that it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark.config.loader import PLACEHOLDER


@dataclass(frozen=True)
class Setting:
    """A value of the pipeline file, and the place that it comes from."""

    value: Any
    """Value in the form of a pipeline file."""
    origin: str
    """One line without a full stop. It becomes the comment."""

    @property
    def is_open(self) -> bool:
        """True if the user has to fill in the value."""
        return bool(self.value == PLACEHOLDER)


Section = dict[str, "Setting | Section"]
"""Settings by name, in the order of the file."""


@dataclass(frozen=True)
class Omission:
    """Something of the job that the pipeline file does not have."""

    subject: str
    """A noun phrase: the setting, the operator or the expression."""
    reason: str
    """A sentence, with what to do if the user can do something."""


@dataclass
class Draft:
    """A pipeline file to be written, and what it lacks."""

    title: str
    """The imported join, in one line."""
    settings: Section
    omissions: list[Omission] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    """Lines for the head of the file."""

    def get_content(self) -> dict[str, Any]:
        """Return the settings in the form of a parsed pipeline file."""
        return get_values(self.settings)

    def list_open_settings(self) -> list[str]:
        """Return the dotted names of the settings that the user has to fill in."""
        return [name for name, setting in flatten(self.settings) if setting.is_open]


def flatten(section: Mapping[str, Setting | Section], prefix: str = "") -> Iterable[tuple[str, Setting]]:
    """Yield the dotted name of each setting, and the setting."""
    for name, entry in section.items():
        if isinstance(entry, Setting):
            yield f"{prefix}{name}", entry
        else:
            yield from flatten(entry, f"{prefix}{name}.")


def get_values(section: Section) -> dict[str, Any]:
    """Return the values of a section's settings, without their origins."""
    return {name: entry.value if isinstance(entry, Setting) else get_values(entry) for name, entry in section.items()}
