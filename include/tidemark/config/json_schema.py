"""Build the JSON Schema of pipeline files for editors."""

from __future__ import annotations

from typing import Any

from tidemark.config.inputs import PipelineInput
from tidemark.config.loader import USE
from tidemark.config.pipeline import Pipeline
from tidemark.config.sides import SIDES

_USE_DESCRIPTION = "Shared input: its file name, without .yaml, in the folder `inputs` next to the pipeline file."


def build_json_schema() -> dict[str, Any]:
    """Build the JSON Schema (draft 2020-12) of a pipeline file, short forms included."""
    schema = Pipeline.model_json_schema()
    properties, definitions = schema["properties"], schema["$defs"]
    properties["output"].pop("default", None)
    properties["time_bounds"]["anyOf"] = [{"$ref": "#/$defs/TimeBounds"}, {"enum": [True, False, "on", "off"]}]
    for name in ("TimeColumn", "KeyPair", "Completeness"):
        _allow(definitions, name, {"type": "string"})
    _allow(definitions, "Trigger", {"enum": ["event_time", "processing_time"]})
    definitions["Expectation"]["additionalProperties"] = True
    definitions["Input"]["properties"].pop("upstream")  # the loader fills it in from `pipeline`
    definitions.pop("Upstream")
    definitions["PipelineInput"] = PipelineInput.model_json_schema()
    _add_shared_inputs(properties, definitions)
    kafka = {"type": "object", "properties": {"kafka": {"$ref": "#/$defs/TimeColumn"}}, "required": ["kafka"]}
    definitions["Input"]["properties"]["arrival"]["anyOf"].insert(1, kafka | {"additionalProperties": False})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Tidemark pipeline", **schema}


def _allow(definitions: dict[str, Any], name: str, short_form: dict[str, Any]) -> None:
    """Allow a short form of a definition."""
    full = definitions[name]
    definitions[name] = {"description": full.pop("description", ""), "anyOf": [short_form, full]}


def _add_shared_inputs(properties: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Allow the name of a shared input, or `use` with overridden fields, for both inputs."""
    shared = {name: part for name, part in definitions["Input"].items() if name not in {"required", "description"}}
    shared["properties"] = {
        USE: {"type": "string", "description": _USE_DESCRIPTION},
        **definitions["Input"]["properties"],
    }
    definitions["SharedInput"] = {**shared, "title": "SharedInput", "required": [USE]}
    for side in SIDES:
        names = ("Input", "SharedInput", "PipelineInput")
        forms: list[dict[str, Any]] = [{"$ref": f"#/$defs/{name}"} for name in names]
        description = f"{side.title()} input: its settings, the name of a shared input, or the output of a pipeline."
        forms.append({"type": "string", "description": _USE_DESCRIPTION})
        properties[side] = {"description": description, "anyOf": forms}
