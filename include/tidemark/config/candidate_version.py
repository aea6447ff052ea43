"""Candidate versions of a pipeline, which are built next to the live version in tables of their own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tidemark.config.pipeline import Pipeline
from tidemark.errors import PipelineFileError, UserError

CANDIDATES_FOLDER = "candidates"
"""Folder of candidate versions in the folder of the pipeline's tables."""
DROP_MARKER = "dropped"
"""File that exists in a candidate's folder while its other files are being deleted."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")
_OUTPUT = re.compile(rf"(.*)/{CANDIDATES_FOLDER}/({_NAME.pattern})")


def to_candidate(pipeline: Pipeline, name: str | None) -> Pipeline:
    """Return the pipeline with the output folder of a candidate version, or unchanged if `name` is None.

    Raises:
        UserError: The name is not a valid folder name.
    """
    if name is None:
        return pipeline
    if not is_candidate_name(name):
        raise UserError(
            f"{name!r} is not a valid candidate name. Begin with a lower-case letter, and use at most 50 lower-case "
            "letters, digits, _ and -."
        )
    return pipeline.model_copy(update={"output": f"{pipeline.output}/{CANDIDATES_FOLDER}/{name}"})


def is_candidate_name(name: str) -> bool:
    """Return True if a name is valid for a candidate version.

    >>> is_candidate_name("wide-2"), is_candidate_name(".DS_Store")
    (True, False)
    """
    return _NAME.fullmatch(name) is not None


def to_live(pipeline: Pipeline) -> Pipeline:
    """Return the live version of a candidate; other pipelines are returned unchanged."""
    candidate = _OUTPUT.fullmatch(pipeline.output)
    return pipeline.model_copy(update={"output": candidate[1]}) if candidate else pipeline


def is_live_table(table: str, pipeline: Pipeline) -> bool:
    """Return True if a table has the emissions of the live version of this candidate.

    >>> from tidemark.config import load_pipeline
    >>> candidate = to_candidate(load_pipeline("include/pipelines/flights_weather.yaml"), "wide")
    >>> is_live_table("flights_weather/emissions", candidate), is_live_table("streamed/flights", candidate)
    (True, False)
    """
    candidate = _OUTPUT.fullmatch(pipeline.output)
    return candidate is not None and table == f"{candidate[1]}/emissions"


def get_candidate_name(pipeline: Pipeline) -> str | None:
    """Return the name of a candidate version; None for the live version."""
    candidate = _OUTPUT.fullmatch(pipeline.output)
    return candidate[2] if candidate else None


def format_version_name(pipeline: Pipeline) -> str:
    """Return the name of a pipeline, with that of its candidate version.

    >>> from tidemark.config import load_pipeline
    >>> format_version_name(to_candidate(load_pipeline("include/pipelines/flights_weather.yaml"), "wide"))
    'flights_weather --candidate wide'
    """
    return _append_candidate(pipeline, pipeline.name)


def format_cli_arguments(pipeline: Pipeline) -> str:
    """Return the command line arguments that select the file of this pipeline and its candidate version.

    >>> from tidemark.config import load_pipeline
    >>> format_cli_arguments(to_candidate(load_pipeline("include/pipelines/flights_weather.yaml"), "wide"))
    'flights_weather --candidate wide'
    """
    return _append_candidate(pipeline, shlex.quote(pipeline.command_argument))


def _append_candidate(pipeline: Pipeline, text: str) -> str:
    candidate = get_candidate_name(pipeline)
    return f"{text} --candidate {candidate}" if candidate else text


def with_stored_config(pipeline: Pipeline, settings: Mapping[str, Any]) -> Pipeline:
    """Return the pipeline with the output-affecting settings that the ledger has stored.

    Raises:
        PipelineFileError: The stored settings are those of an earlier Tidemark version, which this version cannot read.
    """
    # `explode` names the output columns itself; without it, the current `select` does.
    select = set() if settings.get("explode") else {"select"}
    current = pipeline.model_dump(mode="json", include={"name", "output", *select})
    try:
        stored = Pipeline.model_validate({**current, **settings})
    except ValidationError:
        raise PipelineFileError(
            f"An earlier Tidemark version stored the settings of {pipeline.name} in a form that this version cannot "
            "read. Name the pipeline file with these settings."
        ) from None
    return stored.with_command_argument(pipeline.command_argument)
