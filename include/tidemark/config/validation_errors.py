"""Explain the errors of pydantic in terms of the fields of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tidemark.config.base import INTERNAL
from tidemark.config.inputs import ARRIVAL_TAGS
from tidemark.errors import suggest_name
from tidemark.formatting import to_single_line

_INTERNAL_PARTS = ("function-", "list[", "dict[", "[key]", "constrained-", *ARRIVAL_TAGS)
"""Beginnings of parts of a location that are not in the file: members of a union, and validators."""
_NO_MAPPING = ("model_type", "model_attributes_type", "dict_type")
_NOT_TEXT = ("string_type", "invalid_key", *_NO_MAPPING)
"""Types of errors about a value that is neither a name nor the fields that it may stand for."""
_WRONG_TYPE = ("string_type", "list_type", "int_type", *_NO_MAPPING)
"""Types of errors about a value that has the form of another member of a union."""


def explain_validation_error(
    error: ValidationError, model: type[BaseModel], locate: Callable[[Sequence[str | int]], str] = lambda _: ""
) -> str:
    """Describe all problems of a validation in one line, each with field, value and remedy.

    Args:
        error: The error.
        model: Model of the validated content.
        locate: Returns a prefix for the problem at a location, such as file and line.
    """
    problems = [
        f"{locate(problem['loc'])}{_explain_problem(problem, model)}"
        for problem in _drop_other_union_members(error.errors(include_url=False))
    ]
    return to_single_line(" ".join(text if text.endswith((".", "?")) else f"{text}." for text in problems))


def _explain_problem(error: Any, root: type[BaseModel]) -> str:
    location = _locate_in_file(error)
    whole = "the pipeline" if root.__name__ == "Pipeline" else "the file"
    return f"{'.'.join(map(str, location)) or whole}: {_explain_value(error, root, location)}"


def _explain_value(error: Any, root: type[BaseModel], location: list[Any]) -> str:
    match error["type"], error["input"]:
        case "extra_forbidden", _:
            names = _list_fields(root, location[:-1])
            return f"unknown field. {suggest_name(str(location[-1]), names, cutoff=0.5)}"
        case "missing", _:
            return "is missing"
        case "value_error", _:
            return str(error["ctx"]["error"])
        case "string_pattern_mismatch", value:
            return f"{value!r} is not valid. {_describe_field(root, location)}"
        case type_, bool() if type_ in _NOT_TEXT:
            return "is true or false instead of a name. Write the name in quotes."
    return _suggest_list_or_value(error) or _describe_type(error, root, location)


def _suggest_list_or_value(error: Any) -> str | None:
    """Suggest a list for a value that stands in its place, or a value for a list; None for other problems."""
    match error["type"], error["input"]:
        case "string_type", [value]:
            return f"should be a single value, not a list. Write {value}."
        case "list_type", dict():
            return "should be a list. Begin each entry with '- '."
        case "list_type", None:
            return "should be a list. Write its entries, or remove the setting."
        case "list_type", value:
            return f"should be a list. Write [{value}]."
        case "model_type", str(value) if isinstance(error["loc"][-1], int):
            return f"{value} needs settings. Write the entry as {{{value}: {{...}}}}."
    return None


def _describe_type(error: Any, root: type[BaseModel], location: list[Any]) -> str:
    """Describe the type or the values of a field whose value has another one."""
    match error["type"].split("_"):
        case ["too", "short"]:
            return "is empty. Write at least one entry."
        case ["bool", _]:
            expected = "should be true or false"
        case ["int", *_]:
            expected = "should be a whole number"
        case ["string", "type"]:
            expected = "should be a text in quotes" if isinstance(error["input"], int | float) else "should be a text"
        case ["model", *_]:
            fields = ", ".join(_list_fields(root, location))
            return f"should be a mapping, not {error['input']!r}. Its fields: {fields}."
        case ["dict" | "mapping", _]:
            expected = "should be a mapping"
        case _:
            expected = error["msg"].replace("Input should", "should").replace("String should", "should")
    return f"{expected}, not {error['input']!r}"


def _locate_in_file(error: Any) -> list[Any]:
    """Return the location of an error without the parts that are not in the file."""
    location = error["loc"][: -1 if error["type"] == "invalid_key" else None]
    return [part for part in location if not (isinstance(part, str) and part.startswith(_INTERNAL_PARTS))]


def _drop_other_union_members(errors: Sequence[Any]) -> list[Any]:
    """Drop the errors of the forms of a setting that its value does not have, such as the list form of a mapping.

    If the value has none of the forms, the list is suggested, or else the first one.
    """
    list_unions = {loc[:-1] for error in errors if (loc := error["loc"]) and str(loc[-1]).startswith("list[")}
    others = ("dict_type", "string_type")
    errors = [error for error in errors if error["type"] not in others or error["loc"][:-1] not in list_unions]
    locations = [_locate_in_file(error) for error in errors]

    def is_dropped(index: int) -> bool:
        location = locations[index]
        return errors[index]["type"] in _WRONG_TYPE and any(
            other < index or errors[other]["type"] not in _WRONG_TYPE or locations[other] != location
            for other in range(len(errors))
            if other != index and locations[other][: len(location)] == location
        )

    return [error for index, error in enumerate(errors) if not is_dropped(index)]


def _describe_field(root: type[BaseModel], location: list[Any]) -> str:
    """Return the description of the field at a location."""
    names = [part for part in location if isinstance(part, str)]
    field = _find_model(root, names[:-1]).model_fields.get(names[-1])
    return " ".join(((field and field.description) or "").split())


def _list_fields(root: type[BaseModel], location: list[Any]) -> list[str]:
    """Return the fields that a file may have at a location."""
    fields = _find_model(root, location).model_fields
    return [name for name, field in fields.items() if INTERNAL not in field.metadata]


def _find_model(model: type[BaseModel], location: list[Any]) -> type[BaseModel]:
    """Return the model of the settings at a location in a file whose content a model validates."""
    for part in location:
        if isinstance(part, int) or part not in model.model_fields:
            continue
        inner = _list_models(model.model_fields[part].annotation)
        model = inner[0] if inner else model
    return model


def _list_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _list_models(argument)]
