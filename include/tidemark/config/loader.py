"""Pipeline files: finding one, reading it, and saying in one line what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tidemark.config.gx_suites import read_suite
from tidemark.config.inputs import ARRIVAL_TAGS
from tidemark.config.pipeline import Pipeline
from tidemark.config.safe_yaml import read_yaml
from tidemark.config.shared_inputs import USE, with_shared_inputs
from tidemark.config.sides import SIDES
from tidemark.errors import PipelineFileError, nearest
from tidemark.formatting import in_one_line

_SUFFIXES = (".yaml", ".yml")
_USED = "An input that pipelines share: its name in the folder `inputs` beside the pipeline file."


def pipelines_folder() -> Path:
    """Where pipelines are looked up by name: `TIDEMARK_PIPELINES`, else `include/pipelines` where the command runs."""
    return Path(os.environ.get("TIDEMARK_PIPELINES", "include/pipelines"))


def pipeline_files(folder: Path | None = None) -> list[Path]:
    """All pipeline files of a folder, in the order of their names."""
    folder = folder or pipelines_folder()
    return sorted(p for p in folder.glob("*") if p.suffix in _SUFFIXES)


def load_pipeline(name_or_path: str | Path, beside: Path | None = None) -> Pipeline:
    """Read and validate the pipeline file at a path, or of that name in `pipelines_folder()`.

    With a folder `beside`, a path is relative to that and a name is looked for there first.

    Raises:
        PipelineFileError: no such file, not YAML, or not valid; names file, field, value and remedy.
    """
    path = _find(str(name_or_path), beside)
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise PipelineFileError(f"{path} is not a pipeline: expected fields such as name, dialect, left, right")
    return _validated(*with_shared_inputs(_with_suite(content, path), path))


def load_reference(name_or_path: str | Path) -> Pipeline | None:
    """The pipeline that `compare.told_by` of another one's file names, None where it names none.

    Raises:
        PipelineFileError: as `load_pipeline`, of either file.
    """
    path = _find(str(name_or_path))
    compare = load_pipeline(path).compare
    if compare is None or compare.told_by is None:
        return None
    try:
        return load_pipeline(_beside(compare.told_by, path.parent))
    except (PipelineFileError, OSError, ValueError) as error:  # the last two for a name that no file can have
        raise PipelineFileError(in_one_line(f"{path}: compare.told_by: {error}")) from None


def _with_suite(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """A pipeline file's content with the expectations of the suite that it names behind its own."""
    name, own = content.get("suite"), content.get("quality") or []
    if not isinstance(name, str) or not isinstance(own, list):
        return content  # what is wrong is told of the field
    try:
        return {**content, "quality": [*own, *read_suite(name, path.parent, pipelines_folder())]}
    except PipelineFileError as error:
        raise PipelineFileError(f"{path}: {error}") from None


def _validated(content: dict[str, Any], where: str) -> Pipeline:
    """The settings in a pipeline file's content.

    Raises:
        PipelineFileError: not valid; names `where` it stands, field, value and remedy.
    """
    try:
        return Pipeline.model_validate(content)
    except ValidationError as error:
        raise PipelineFileError(f"{where}: {explain(error)}") from None


def changed(pipeline: Pipeline, changes: Mapping[str, Any]) -> Pipeline:
    """A pipeline with some settings, by their dotted names, as a pipeline file would have them; None leaves one out.

    Raises:
        PipelineFileError: they do not go together.
    """
    content = pipeline.model_dump(mode="json", exclude_unset=True, by_alias=True)
    for name, value in changes.items():
        *path, last = name.split(".")
        part = content
        for step in path:
            part[step] = part = part.get(step) or {}
        if value is None:
            part.pop(last, None)
        else:
            part[last] = value
    return _validated(content, ", ".join(changes))


def pipeline_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a pipeline file, for editors to complete and check it."""
    schema = Pipeline.model_json_schema()
    properties = schema["properties"]
    properties["output"].pop("default", None)
    properties["guard"]["anyOf"] = [{"$ref": "#/$defs/Guard"}, {"enum": [True, False, "on", "off"]}]
    definitions = schema["$defs"]
    for short in ("TimeColumn", "KeyPair", "Completeness"):
        full = definitions[short]
        definitions[short] = {"description": full.pop("description", ""), "anyOf": [{"type": "string"}, full]}
    bare = {"enum": ["event_time", "processing_time"]}
    definitions["Trigger"] = {
        "description": definitions["Trigger"].pop("description"),
        "anyOf": [bare, definitions["Trigger"]],
    }
    definitions["Expectation"]["additionalProperties"] = True
    used = {name: part for name, part in definitions["Input"].items() if name not in {"required", "description"}}
    used["properties"] = {USE: {"type": "string", "description": _USED}, **definitions["Input"]["properties"]}
    definitions["SharedInput"] = {**used, "title": "SharedInput", "required": [USE]}
    for side in SIDES:
        both = [{"$ref": f"#/$defs/{one}"} for one in ("Input", "SharedInput")]
        properties[side] = {"anyOf": [*both, {"type": "string", "description": _USED}]}
    kafka = {"type": "object", "properties": {"kafka": {"$ref": "#/$defs/TimeColumn"}}, "required": ["kafka"]}
    definitions["Input"]["properties"]["arrival"]["anyOf"].insert(1, kafka | {"additionalProperties": False})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Tidemark pipeline", **schema}


def explain(error: ValidationError) -> str:
    """All findings of a validation in one line, each with its field, its value and the remedy."""
    return in_one_line("; ".join(_finding(e) for e in error.errors(include_url=False)))


def _find(name: str, beside: Path | None = None) -> Path:
    path = Path(beside or "", name)
    if path.suffix in _SUFFIXES or path.is_file():
        if path.is_file():
            return path
        raise PipelineFileError(f"there is no pipeline file {path}")
    folders = dict.fromkeys([beside, pipelines_folder()] if beside else [pipelines_folder()])
    for path in (folder / f"{name}{suffix}" for folder in folders for suffix in _SUFFIXES):
        if path.is_file():
            return path
    known = [path.stem for folder in folders for path in pipeline_files(folder)]
    hint = nearest(name, known, "known here:")
    raise PipelineFileError(f"there is no pipeline {name} in {' or '.join(map(str, folders))}; {hint}")


def _beside(name: str, folder: Path) -> Path:
    """The pipeline file of that name or path, in a folder or in that of pipelines; no other file is read."""
    path = _find(name, folder).resolve()
    if path.suffix in _SUFFIXES and any(path.is_relative_to(one.resolve()) for one in (folder, pipelines_folder())):
        return path
    raise PipelineFileError(f"{name} is no pipeline file in {folder} or {pipelines_folder()}; put it there")


def _finding(error: Any) -> str:
    # Union members and before-validators add levels to `loc` that no user wrote.
    inner = ("function-", "list[", "dict[", *ARRIVAL_TAGS)
    named = error["loc"][: -1 if error["type"] == "invalid_key" else None]
    location = [p for p in named if not (isinstance(p, str) and p.startswith(inner))]
    field = ".".join(str(p) for p in location) or "the pipeline"
    if error["type"] == "extra_forbidden":
        hint = nearest(str(location[-1]), _fields_at(location[:-1]), "known here:", cutoff=0.5)
        return f"{field}: unknown field; {hint}"
    if error["type"] == "missing":
        return f"{field}: is missing"
    if isinstance(error["input"], bool) and error["type"] in _NOT_TEXT:
        return f"{field}: true and false without quotes are no names; write the name in quotes"
    if error["type"] == "value_error":
        return f"{field}: {error['ctx']['error']}"
    return f"{field}: {error['msg'].replace('Input should', 'should')}, not {error['input']!r}"


_NOT_TEXT = ("string_type", "model_type", "model_attributes_type", "invalid_key")
"""What pydantic says of a value that is neither a name nor the fields that may stand for one."""


def _fields_at(location: list[Any]) -> list[str]:
    model: type[BaseModel] = Pipeline
    for part in location:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        inner = _models_in(model.model_fields[part].annotation)
        model = inner[0] if inner else model
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models_in(a)]
