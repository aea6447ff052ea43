"""Parse results of Great Expectations into failures and measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

import numpy as np

from tidemark.config.allowed_expectations import ROWS, SQL_ARGUMENTS
from tidemark.quality.results import ExpectationResult, Measurement, format_expectation_name

ON_FAILURE_KEY, SCOPE_KEY = "tidemark_on_failure", "tidemark_scope"
"""Keys in an expectation's `meta` for its `on_failure` and scope in the pipeline file."""


def parse_failures(results: Iterable[Any]) -> list[ExpectationResult]:
    """Parse the failed expectations among results of Great Expectations."""
    return [_parse_failure(result.to_json_dict()) for result in results if not result.success]


def parse_measurements(results: Iterable[Any], expectations: Iterable[Any]) -> tuple[Measurement, ...]:
    """Parse measurements from results of Great Expectations, in the order of the expectations."""
    measurements = {}
    for result in results:
        name = get_name_and_severity(result.expectation_config.to_json_dict())
        measurements[name] = Measurement(*name, parse_observed_value(result.result), bool(result.success))
    names = (get_name_and_severity(expectation.configuration.to_json_dict()) for expectation in expectations)
    return tuple(measurements[name] for name in names)


def get_name(config: Mapping[str, Any]) -> str:
    """Return the name of an expectation from its configuration in Great Expectations."""
    arguments = {name: value for name, value in config["kwargs"].items() if name != "batch_id"}
    arguments |= {name: _format_condition(arguments[name]) for name in SQL_ARGUMENTS if name in arguments}
    return format_expectation_name(config["type"], arguments, (config.get("meta") or {}).get(SCOPE_KEY, ""))


def _format_condition(stored: str | dict[str, str]) -> str:
    """Format the SQL of a condition in one line. Great Expectations stores `row_condition` as an object."""
    condition = stored if isinstance(stored, str) else stored["pass_through_filter"]
    return " ".join(condition.split())


def get_name_and_severity(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and severity of an expectation from its configuration in Great Expectations."""
    return get_name(config), config["severity"]


def parse_observed_value(result: Mapping[str, Any]) -> float | None:
    """Parse `Measurement.value` from the details of a result of Great Expectations."""
    if "unexpected_percent" in result:
        percent = result["unexpected_percent"]
        return None if percent is None else percent / 100
    value = result.get("observed_value")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | np.number):
        return None
    number = float(value)
    return number if isfinite(number) else None


def list_exceptions(info: dict[str, Any]) -> list[dict[str, Any]]:
    """List the exceptions of an expectation, or of the metrics that it needs."""
    candidates = [info] if "exception_message" in info else info.values()
    return [candidate for candidate in candidates if candidate.get("raised_exception")]


def _parse_failure(result: dict[str, Any]) -> ExpectationResult:
    config = result["expectation_config"]
    message = _get_exception_message(result["exception_info"])
    detail = message or f"found {_describe_observation(config['type'], result['result'])}"
    action = (config.get("meta") or {}).get(ON_FAILURE_KEY, "stop")
    if message and action == "quarantine":  # The failing rows are unknown.
        action = "stop"
    return ExpectationResult(get_name(config), config["severity"], detail, action)


def _describe_observation(expectation_type: str, result: dict[str, Any]) -> str:
    if "unexpected_count" not in result:
        observed = result.get("observed_value", result)
        return "no value, because the slice has no rows or only nulls" if observed is None else str(observed)
    if expectation_type == ROWS:
        return f"{result['unexpected_count']} of {result['element_count']} rows"
    examples = result.get("partial_unexpected_list", [])[:3]
    suffix = f", such as {examples}" if examples else ""
    return f"{result['unexpected_count']} of {result['element_count']} values{suffix}"


def _get_exception_message(info: dict[str, Any]) -> str | None:
    messages = [str(exception["exception_message"]) for exception in list_exceptions(info)]
    return " ".join(messages[0].split()) if messages else None
