"""A shadow: a new version of a pipeline that runs beside the one that is served, in tables of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tidemark.config.pipeline import Pipeline
from tidemark.errors import PipelineFileError, UserError

FOLDER = "shadows"
"""Where they are, in the folder of the pipeline's own tables."""
DROPPED = "dropped"
"""The file that a shadow's folder has from the moment it is dropped until all other files are gone."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")
_OUTPUT = re.compile(rf"(.*)/{FOLDER}/({_NAME.pattern})")


def shadow_of(pipeline: Pipeline, name: str | None) -> Pipeline:
    """The pipeline with its tables in those of a shadow; without a name, as it is.

    Raises:
        UserError: no name for a folder.
    """
    if name is None:
        return pipeline
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name for a shadow; use lower-case letters, digits, _ and -, a letter first, 50 at most"
        )
    return pipeline.model_copy(update={"output": f"{pipeline.output}/{FOLDER}/{name}"})


def served(pipeline: Pipeline) -> Pipeline:
    """The pipeline whose shadow this is; as it is, where it is none."""
    found = _OUTPUT.fullmatch(pipeline.output)
    return pipeline.model_copy(update={"output": found[1]}) if found else pipeline


def called(pipeline: Pipeline) -> str:
    """What a command takes to mean this pipeline.

    >>> from tidemark.config import load_pipeline
    >>> called(shadow_of(load_pipeline("include/pipelines/flights_weather.yaml"), "wide"))
    'flights_weather --shadow wide'
    """
    found = _OUTPUT.fullmatch(pipeline.output)
    return f"{pipeline.name} --shadow {found[2]}" if found else pipeline.name


def under(pipeline: Pipeline, settings: Mapping[str, Any]) -> Pipeline:
    """The pipeline as it was under other settings that decide the answer, as the ledger has them.

    Raises:
        PipelineFileError: an earlier version has stored them, whose settings this one does not read.
    """
    # Columns are named in one place or the other.
    named = set() if settings.get("flatten") else {"select"}
    kept = pipeline.model_dump(mode="json", by_alias=True, include={"name", "output", *named})
    try:
        return Pipeline.model_validate({**kept, **settings})
    except ValidationError:
        raise PipelineFileError(
            f"the settings under which {pipeline.name} has run were stored by an earlier version of Tidemark, and this "
            "one does not read them; name the pipeline file that has them"
        ) from None
