"""Inputs that several pipelines have: a file each in the folder `inputs` beside the pipeline files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tidemark.config.safe_yaml import read_yaml
from tidemark.config.sides import SIDES
from tidemark.errors import PipelineFileError, nearest

FOLDER = "inputs"
USE = "use"
"""The field that names one, beside those that are told otherwise."""
_NAME = re.compile(r"\w[\w-]*")


def with_shared_inputs(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], str]:
    """A pipeline file's content with the fields of the inputs that it names, and where all of it stands.

    `left: orders` is that of `inputs/orders.yaml`; `left: {use: orders, watermark_delay: 1 hour}` the same with other
    fields in place of its own.

    Raises:
        PipelineFileError: there is no such file, or no input in it.
    """
    shared: dict[str, Any] = {}
    places = [str(path)]
    for side in SIDES:
        given = content.get(side)
        told = {USE: given} if isinstance(given, str) else given
        if not isinstance(told, dict) or USE not in told:
            continue
        name, own = told[USE], {field: value for field, value in told.items() if field != USE}
        try:
            shared[side] = {**_read(name, path.parent / FOLDER), **own}
        except PipelineFileError as error:
            raise PipelineFileError(f"{path}: {side}: {error}") from None
        places.append(f"{FOLDER}/{name}.yaml")
    return {**content, **shared}, " with ".join(dict.fromkeys(places))


def _read(name: Any, folder: Path) -> dict[str, Any]:
    file = folder / f"{name}.yaml"
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not file.is_file():
        known = sorted(one.stem for one in folder.glob("*.yaml"))
        raise PipelineFileError(f"there is no input {name} in {folder}; {nearest(str(name), known, 'known here:')}")
    found = read_yaml(file)
    if not isinstance(found, dict):
        raise PipelineFileError(f"{file} is no input: expected fields such as table, event_time")
    return found
