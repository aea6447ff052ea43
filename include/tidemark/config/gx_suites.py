"""Read stored Great Expectations suites (JSON of 1.x or 0.18)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidemark.config.allowed_expectations import check_expectation
from tidemark.config.quality import Expectation
from tidemark.config.safe_yaml import ALLOWED_ROOTS_VARIABLE
from tidemark.errors import PipelineFileError
from tidemark.formatting import to_single_line

MAX_BYTES = 1_000_000
"""Maximum size of a suite file, which may include renderings of its expectations."""
_IGNORED_FIELDS = {"meta", "id", "ge_cloud_id", "description", "rendered_content", "success_on_last_run"}
"""Fields without effect on a validation; the form of `meta` differs by version."""
_COPIED_FIELDS = ("severity", "notes")


def read_suite(name: str, folder: Path, pipelines: Path) -> list[dict[str, Any]]:
    """Read the expectations of a suite in the form of a pipeline file.

    Args:
        name: Path of the suite, relative to the pipeline file's folder. The file must be in that folder, in the
            pipelines folder, or under a root that the operator allows (`TIDEMARK_ALLOWED_ROOTS`).
        folder: Folder of the pipeline file.
        pipelines: The pipelines folder.

    Raises:
        PipelineFileError: The file is missing, forbidden or no suite, or has content that pipeline files must not have.
    """
    path = (folder / name).resolve()
    variable = os.environ.get(ALLOWED_ROOTS_VARIABLE, "")
    roots = [Path(root.strip()) for root in variable.split(",") if root.strip()]
    if path.suffix != ".json" or not any(path.is_relative_to(root.resolve()) for root in (folder, pipelines, *roots)):
        raise PipelineFileError(
            f"expectation_suite: {name} is not a .json file in {folder} or {pipelines}. Move it there, or ask the "
            f"operator to allow its root in {ALLOWED_ROOTS_VARIABLE}."
        )
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        content = json.loads(text) if len(text) <= MAX_BYTES else None
    except OSError as error:
        raise PipelineFileError(
            f"expectation_suite: {name} cannot be read: {error.strerror}. Check the path."
        ) from None
    except (ValueError, RecursionError):
        raise PipelineFileError(f"expectation_suite: {name} is not JSON. Export the suite again.") from None
    if len(text) > MAX_BYTES:
        raise PipelineFileError(f"expectation_suite: {name} has more than {MAX_BYTES:,} bytes. Split it.")
    stored = content.get("expectations") if isinstance(content, dict) else None
    if not isinstance(stored, list) or not all(isinstance(entry, dict) for entry in stored):
        raise PipelineFileError(
            f"expectation_suite: {name} has no list of expectations. Name a suite of Great Expectations."
        )
    return [
        _read_expectation(entry, f"expectation_suite: {name}: expectation {number}")
        for number, entry in enumerate(stored, 1)
    ]


def _read_expectation(stored: dict[str, Any], location: str) -> dict[str, Any]:
    type_, kwargs = stored.get("type", stored.get("expectation_type")), stored.get("kwargs") or {}
    supported = {"type", "expectation_type", "kwargs", *_COPIED_FIELDS, *_IGNORED_FIELDS}
    if unsupported := sorted(name for name, value in stored.items() if value and name not in supported):
        raise PipelineFileError(to_single_line(f"{location}: {', '.join(unsupported)}: not supported. Remove it."))
    if not isinstance(kwargs, dict):
        raise PipelineFileError(f"{location}: kwargs is not a mapping. Write arguments by their names.")
    arguments = {name: value for name, value in kwargs.items() if value is not None and name != "batch_id"}
    copied = {name: stored[name] for name in _COPIED_FIELDS if stored.get(name)}
    expectation = {"type": type_, "kwargs": _unwrap_condition(arguments), **copied}
    try:
        check_expectation(str(type_), expectation["kwargs"])
        Expectation.model_validate(expectation)
    except ValidationError as error:
        raise PipelineFileError(to_single_line(f"{location}: {error.errors()[0]['msg']}")) from None
    except ValueError as error:
        raise PipelineFileError(to_single_line(f"{location}: {error}")) from None
    return expectation


def _unwrap_condition(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with a condition for Spark as plain SQL; stored as an object since 1.9, as text before."""
    match arguments:
        case {"row_condition": {"type": "pass_through", "pass_through_filter": condition}}:
            arguments = {**arguments, "row_condition": condition}
    return {name: value for name, value in arguments.items() if (name, value) != ("condition_parser", "spark")}
