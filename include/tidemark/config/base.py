"""Base class of the pipeline file's settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Internal:
    """Mark of a field that is not in a file: code fills it in, so no message names it."""


INTERNAL = Internal()


class Settings(BaseModel):
    """Base class of all settings. Instances are frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
