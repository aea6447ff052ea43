"""Build expectations of Great Expectations from the pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark.config import Expectation, Pipeline
from tidemark.config.allowed_expectations import ROWS
from tidemark.errors import PipelineFileError
from tidemark.quality.baseline_checks import format_check_name
from tidemark.quality.gx.project import import_gx
from tidemark.quality.gx.result_parsing import ON_FAILURE_KEY, SCOPE_KEY, get_name

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation as GxExpectation

    from tidemark.quality.waivers import Waiver


def check_arguments(pipeline: Pipeline) -> None:
    """Check that every expectation of a pipeline file accepts its arguments.

    Raises:
        PipelineFileError: An argument is invalid. The message names it and the expectation.
    """
    for expectation in pipeline.quality:
        build_expectation(expectation)


def build_expectation(expectation: Expectation) -> GxExpectation:
    """Build the expectation of Great Expectations from its settings.

    Raises:
        PipelineFileError: An argument is invalid.
    """
    gx = import_gx()
    implementation = gx.expectations.registry.get_expectation_impl(expectation.type)
    arguments = dict(expectation.kwargs)
    if condition := arguments.get("row_condition"):
        # As Great Expectations itself stores SQL of Spark. Text is deprecated there.
        arguments["row_condition"] = gx.expectations.row_conditions.PassThroughCondition(pass_through_filter=condition)
    if expectation.type == ROWS:  # Data Docs have no sentence of their own for it.
        arguments["description"] = _describe_rule(expectation.kwargs)
    try:
        built: GxExpectation = implementation(
            **arguments,
            severity=expectation.severity,
            notes=expectation.notes,
            meta=expectation.meta | {ON_FAILURE_KEY: expectation.on_failure, SCOPE_KEY: expectation.scope},
        )
    except (ValueError, TypeError) as error:
        raise PipelineFileError(f"quality: {expectation.type}: {_describe_error(error)}") from None
    return built


def _describe_error(error: Exception) -> str:
    """Describe an argument that Great Expectations refuses, without the other forms that it might have."""
    problems = error.errors() if hasattr(error, "errors") else []
    first = {".".join(map(str, problem["loc"])): problem["msg"] for problem in reversed(problems)}
    return ". ".join(f"{name}: {message}" for name, message in first.items()) or " ".join(str(error).split())


def _describe_rule(arguments: Mapping[str, Any]) -> str:
    """Describe an expectation `rows` in the form of Great Expectations' own sentences."""
    condition, mostly = arguments.get("row_condition"), arguments.get("mostly", 1)
    start = f"If {condition}, then rows" if condition else "Rows"
    end = f", at least {100 * mostly:g} % of the time" if mostly < 1 else ""
    return " ".join(f"{start} must meet {arguments['that']}{end}.".split())


def get_expectation_name(expectation: Expectation) -> str:
    """Return the name of an expectation as results have it."""
    if expectation.on == "history":
        return format_check_name(expectation)
    return get_name(build_expectation(expectation).configuration.to_json_dict())


def with_waiver_note(expectation: GxExpectation, waivers: Mapping[str, Waiver]) -> GxExpectation:
    """Add the waiver, if any, to an expectation's notes, and to its description, the only one that Data Docs show."""
    name = get_name(expectation.configuration.to_json_dict())
    if (waiver := waivers.get(name)) is None:
        return expectation
    notes = waiver.format_note()
    annotated: GxExpectation = expectation.copy(update={"notes": notes, "description": f"{name}: {notes}"})
    return annotated
