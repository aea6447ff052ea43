"""An existing suite of Great Expectations, as its projects store it: JSON of 1.x, or of 0.18."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidemark.config.allowed_expectations import check_expectation
from tidemark.config.quality import Expectation
from tidemark.config.safe_yaml import ROOTS
from tidemark.errors import PipelineFileError
from tidemark.formatting import in_one_line

MOST_BYTES = 1_000_000
"""Of a suite, which may hold how each of its expectations was drawn."""
_DROPPED = {"meta", "id", "ge_cloud_id", "description", "rendered_content", "success_on_last_run"}
"""What Great Expectations says of an expectation; `meta` has forms of its own in each version."""
_TAKEN = ("severity", "notes")


def read_suite(name: str, folder: Path, pipelines: Path) -> list[dict[str, Any]]:
    """The expectations of a suite, as a pipeline file would have them.

    The path is relative to the pipeline file's folder, and lies in it, in that of pipelines, or under a root that the
    operator allows (`TIDEMARK_ROOTS`).

    Raises:
        PipelineFileError: no such file there, no suite, or one with what no pipeline file may have; names the place.
    """
    path = (folder / name).resolve()
    roots = [Path(root.strip()) for root in os.environ.get(ROOTS, "").split(",") if root.strip()]
    if path.suffix != ".json" or not any(path.is_relative_to(one.resolve()) for one in (folder, pipelines, *roots)):
        raise PipelineFileError(
            f"suite: {name} is no .json file in {folder} or {pipelines}; put it there, or let the operator allow its "
            f"root in {ROOTS}"
        )
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        content = json.loads(text) if len(text) <= MOST_BYTES else None
    except OSError as error:
        raise PipelineFileError(f"suite: {name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise PipelineFileError(f"suite: {name} is not JSON") from None
    if len(text) > MOST_BYTES:
        raise PipelineFileError(f"suite: {name} has more than {MOST_BYTES:,} bytes")
    found = content.get("expectations") if isinstance(content, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise PipelineFileError(f"suite: {name} is no suite of Great Expectations: it has no list of expectations")
    return [_expectation(one, f"suite: {name}: expectation {number}") for number, one in enumerate(found, 1)]


def _expectation(stored: dict[str, Any], where: str) -> dict[str, Any]:
    kind, kwargs = stored.get("type", stored.get("expectation_type")), stored.get("kwargs") or {}
    told = {"type", "expectation_type", "kwargs", *_TAKEN}
    if other := sorted(name for name, value in stored.items() if value and name not in told | _DROPPED):
        raise PipelineFileError(in_one_line(f"{where}: {', '.join(other)}: is not taken over; leave it out"))
    if not isinstance(kwargs, dict):
        raise PipelineFileError(f"{where}: kwargs has to be arguments by their names")
    arguments = {name: value for name, value in kwargs.items() if value is not None and name != "batch_id"}
    taken = {"type": kind, "kwargs": arguments, **{name: stored[name] for name in _TAKEN if stored.get(name)}}
    try:
        check_expectation(str(kind), arguments)
        Expectation.model_validate(taken)
    except ValidationError as error:
        raise PipelineFileError(in_one_line(f"{where}: {error.errors()[0]['msg']}")) from None
    except ValueError as error:
        raise PipelineFileError(in_one_line(f"{where}: {error}")) from None
    return taken
