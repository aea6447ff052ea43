"""Find, read and validate pipeline files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from os.path import normpath
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tidemark.config.candidate_version import get_candidate_name
from tidemark.config.gx_suites import read_suite
from tidemark.config.output_stream import parse_input, to_input
from tidemark.config.pipeline import Pipeline
from tidemark.config.safe_yaml import read_yaml
from tidemark.config.sides import SIDES
from tidemark.config.validation_errors import explain_validation_error
from tidemark.errors import PipelineFileError, prefix_errors, suggest_name
from tidemark.formatting import to_single_line

Owners = dict[tuple[str, str], str]
"""Name of the first file with a value of a setting, by setting and value."""
PIPELINE = "pipeline"
"""Field of an input that names the pipeline whose output it is."""
_loading: ContextVar[tuple[Path, ...]] = ContextVar("_loading", default=())
"""Files whose inputs are being loaded, to detect a chain that reads itself."""
USE = "use"
"""Field of an input that names a shared input."""
PLACEHOLDER = "TODO"
"""Value of a setting that `tidemark import` leaves to the user."""
_FILLED_IN_SETTINGS = ("table", "event_time", "arrival", "every", "start", "time_zone")
"""Settings of inputs and slices that may have the placeholder, besides the columns of `select`. Elsewhere, such as in
`quality`, the word is a value."""
_SUFFIXES = (".yaml", ".yml")
_INPUTS_FOLDER = "inputs"
_INPUT_NAME = re.compile(r"\w[\w-]*")


def get_pipelines_folder() -> Path:
    """Return the folder of pipeline files: `TIDEMARK_PIPELINES`, or `include/pipelines` in the working directory."""
    return Path(os.environ.get("TIDEMARK_PIPELINES", "include/pipelines"))


def list_pipeline_files(folder: Path | None = None) -> list[Path]:
    """Return the pipeline files of a folder, by default of the pipelines folder, sorted by name."""
    folder = folder or get_pipelines_folder()
    return sorted(path for path in folder.glob("*") if path.suffix in _SUFFIXES)


def load_pipeline(name_or_path: str | Path, relative_to: Path | None = None) -> Pipeline:
    """Read and validate a pipeline file.

    Args:
        name_or_path: Path of the file, or name of a pipeline in the pipelines folder.
        relative_to: Folder that paths are relative to and that is searched first for names.

    Raises:
        PipelineFileError: The file does not exist, is not YAML, or is invalid. The message names file, field and value.
    """
    path = find_pipeline_file(str(name_or_path), relative_to)
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise PipelineFileError(f"{path} is not a pipeline. Write fields such as name, dialect, left and right.")
    resolved, location = _resolve_shared_inputs(_with_suite(content, path), path)
    resolved = _resolve_pipeline_inputs(resolved, path)
    _check_placeholders(resolved, location)
    with prefix_errors(location):
        pipeline = _validate(resolved)
        if get_candidate_name(pipeline):
            raise PipelineFileError(f"output: {pipeline.output} is the folder of a candidate version. Use another one.")
    return pipeline.with_command_argument(_shorten_path(path))


def find_conflicts(pipeline: Pipeline, file: str, owners: Owners) -> list[str]:
    """Describe the settings that must differ between pipeline files, and that an earlier file has.

    Args:
        pipeline: The pipeline of a file.
        file: Name of the file.
        owners: First file that has each value, by setting and value; the values of this file are added.

    Returns:
        Texts such as `the same name and output as orders.yaml`, one for each other file.
    """
    values = {"name": pipeline.name, "output": normpath(pipeline.output)}
    settings_by_owner = dict[str, list[str]]()
    for setting, value in values.items():
        settings_by_owner.setdefault(owners.setdefault((setting, value), file), []).append(setting)
    return [
        f"the same {' and '.join(settings)} as {owner}"
        for owner, settings in settings_by_owner.items()
        if owner != file
    ]


def load_reference(name_or_path: str | Path) -> Pipeline | None:
    """Load the pipeline that a pipeline file names in `compare.reference`, None if it names none.

    Raises:
        PipelineFileError: As `load_pipeline`, for either file.
    """
    path = find_pipeline_file(str(name_or_path))
    compare = load_pipeline(path).compare
    if compare is None or compare.reference is None:
        return None
    try:
        return load_pipeline(_find_reference_file(compare.reference, path.parent))
    except (PipelineFileError, OSError, ValueError) as error:  # the last two for names that no file can have
        raise PipelineFileError(to_single_line(f"{path}: compare.reference: {error}")) from None


def with_overrides(pipeline: Pipeline, overrides: Mapping[str, Any]) -> Pipeline:
    """Return a pipeline with some settings replaced.

    Args:
        pipeline: The pipeline to change.
        overrides: Values in the form of a pipeline file, by dotted names. None removes a setting.

    Raises:
        PipelineFileError: There is no setting of such a name, or the resulting settings are invalid.
    """
    content = pipeline.model_dump(mode="json", exclude_unset=True)
    for name, value in overrides.items():
        *parents, last = name.split(".")
        part = content
        for depth, parent in enumerate(parents, start=1):
            part[parent] = part = part.get(parent) or {}
            if not isinstance(part, dict):
                raise PipelineFileError(
                    f"{name}: there is no such setting. {'.'.join(parents[:depth])} is a value without fields."
                )
        if value is None:
            part.pop(last, None)
        else:
            part[last] = value
    try:
        changed = _validate(content)
    except PipelineFileError as error:
        if any(f"{name}: " in str(error) for name in overrides):
            raise
        raise PipelineFileError(f"{', '.join(overrides)}: {error}") from None
    return changed.with_command_argument(pipeline.command_argument)


def _validate(content: dict[str, Any]) -> Pipeline:
    """Validate content of a pipeline file.

    Raises:
        PipelineFileError: The settings are invalid.
    """
    try:
        return Pipeline.model_validate(content)
    except ValidationError as error:
        raise PipelineFileError(explain_validation_error(error, Pipeline)) from None


def _check_placeholders(content: dict[str, Any], location: str) -> None:
    """Check that an imported file has no placeholder left.

    Raises:
        PipelineFileError: Names all settings with the placeholder.
    """
    sections = {f"{name}.": content.get(name) for name in (*SIDES, "slices")}
    settings = {"time_zone": content.get("time_zone")} | {
        f"{prefix}{name}": section.get(name)
        for prefix, section in sections.items()
        if isinstance(section, dict)
        for name in _FILLED_IN_SETTINGS
    }
    if isinstance(select := content.get("select"), dict):
        settings |= {f"select.{name}": expression for name, expression in select.items()}
    if names := [name for name, value in settings.items() if value == PLACEHOLDER]:
        raise PipelineFileError(
            f"{location}: {', '.join(names)}: still {PLACEHOLDER}. Write a value; the comment in the line says which."
        )


def _with_suite(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Append the expectations of the suite that a pipeline file names to its own."""
    name = content.get("expectation_suite")
    expectations = content.get("quality") or []
    if not isinstance(name, str) or not isinstance(expectations, list):
        return content  # the validation of these fields describes the problem
    try:
        return {**content, "quality": [*expectations, *read_suite(name, path.parent, get_pipelines_folder())]}
    except PipelineFileError as error:
        raise PipelineFileError(f"{path}: {error}") from None


def _resolve_shared_inputs(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], str]:
    """Replace references to shared inputs by the fields of these inputs.

    `left: orders` stands for the content of `inputs/orders.yaml`. `left: {use: orders, watermark_delay: 1 hour}` is the
    same with one field overridden.

    Returns:
        The resolved content, and the names of the files that it was read from.

    Raises:
        PipelineFileError: A shared input does not exist or is no mapping.
    """
    inputs: dict[str, Any] = {}
    files = [str(path)]
    for side in SIDES:
        value = content.get(side)
        fields = {USE: value} if isinstance(value, str) else value
        if not isinstance(fields, dict) or USE not in fields:
            continue
        name = fields[USE]
        overrides = {field: value for field, value in fields.items() if field != USE}
        try:
            inputs[side] = {**_read_shared_input(name, path.parent / _INPUTS_FOLDER), **overrides}
        except PipelineFileError as error:
            raise PipelineFileError(f"{path}: {side}: {error}") from None
        files.append(f"{_INPUTS_FOLDER}/{name}.yaml")
    return {**content, **inputs}, " with ".join(dict.fromkeys(files))


def _resolve_pipeline_inputs(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Replace inputs that name a pipeline by inputs that read its output stream.

    Raises:
        PipelineFileError: The pipeline does not exist, reads this one, or cannot be an input.
    """
    inputs: dict[str, Any] = {}
    for side in SIDES:
        fields = content.get(side)
        if not isinstance(fields, dict) or PIPELINE not in fields:
            continue
        try:
            reference = parse_input(fields)
            upstream = _load_upstream(reference.pipeline, path)
            inputs[side] = to_input(reference, upstream)
        except (PipelineFileError, ValueError) as error:
            raise PipelineFileError(to_single_line(f"{path}: {side}: {error}")) from None
    return {**content, **inputs}


def _load_upstream(name: str, path: Path) -> Pipeline:
    """Load a pipeline that another one reads."""
    file = _find_reference_file(name, path.parent)
    if file in (chain := (*_loading.get(), path.resolve())):
        names = " reads ".join(path.stem for path in (*chain, file))
        raise PipelineFileError(f"{names}. A chain must not read its own output.")
    token = _loading.set(chain)
    try:
        return load_pipeline(file)
    finally:
        _loading.reset(token)


def _read_shared_input(name: Any, folder: Path) -> dict[str, Any]:
    file = folder / f"{name}.yaml"
    if not isinstance(name, str) or not _INPUT_NAME.fullmatch(name) or not file.is_file():
        names = sorted(path.stem for path in folder.glob("*.yaml"))
        raise PipelineFileError(f"there is no input {name} in {folder}. {suggest_name(str(name), names)}")
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise PipelineFileError(f"{file} is not an input. Write fields such as table and event_time.")
    return content


def find_pipeline_file(name: str, relative_to: Path | None = None) -> Path:
    """Return the path of a pipeline file.

    Args:
        name: Path of the file, or name of a pipeline in the pipelines folder.
        relative_to: Folder that paths are relative to and that is searched first for names.

    Raises:
        PipelineFileError: The file does not exist.
    """
    path = Path(relative_to or "", name)
    if path.suffix in _SUFFIXES or path.is_file():
        if path.is_file():
            return path
        raise PipelineFileError(f"there is no pipeline file {path}. Check the path.")
    folders = dict.fromkeys([relative_to, get_pipelines_folder()] if relative_to else [get_pipelines_folder()])
    for path in (folder / f"{name}{suffix}" for folder in folders for suffix in _SUFFIXES):
        if path.is_file():
            return path
    names = [path.stem for folder in folders for path in list_pipeline_files(folder)]
    remedy = (
        suggest_name(name, names)
        if names
        else "The folder has no pipeline file. Pass the path of a file, or set TIDEMARK_PIPELINES to their folder."
    )
    raise PipelineFileError(f"there is no pipeline {name} in {' or '.join(map(str, folders))}. {remedy}")


def _shorten_path(path: Path) -> str:
    """Return the name of a pipeline file in the pipelines folder, or the path of another file."""
    try:
        is_found_by_name = find_pipeline_file(path.stem).samefile(path)
    except PipelineFileError:
        is_found_by_name = False
    return path.stem if is_found_by_name else str(path)


def _find_reference_file(name: str, folder: Path) -> Path:
    """Find a reference pipeline in a folder or the pipelines folder; other files are never read."""
    path = find_pipeline_file(name, folder).resolve()
    allowed = (folder, get_pipelines_folder())
    if path.suffix in _SUFFIXES and any(path.is_relative_to(root.resolve()) for root in allowed):
        return path
    raise PipelineFileError(f"{name} is not a pipeline file in {folder} or {get_pipelines_folder()}. Move it there.")
