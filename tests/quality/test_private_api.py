"""Private parts of Great Expectations: an update that moves one fails here, by its name, before any slice does."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest
from great_expectations.expectations.registry import get_metric_provider

from tidemark.quality.gx import batched_engine, grouped_metrics, private_api
from tidemark.quality.gx.private_api import METRICS, PRIVATE_PARTS

PACKAGE = Path(private_api.__file__).parent
PUBLIC_MARK = "--Public API--"
"""Beginning of the docstrings of Great Expectations' public API."""


def list_imported_names():
    """List what the package imports from Great Expectations, as MODULE:NAME."""
    for file in sorted(PACKAGE.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("great_expectations."):
                yield from (f"{node.module.removeprefix('great_expectations.')}:{alias.name}" for alias in node.names)


def is_public(path):
    module, _, name = path.partition(":")
    return PUBLIC_MARK in (getattr(importlib.import_module(f"great_expectations.{module}"), name).__doc__ or "")


def list_moved_parts(parts_by_module):
    """List the private parts that the installed version lacks, or that no longer have a parameter. Takes seconds."""
    return [
        f"{module}: {problem}"
        for module, parts in parts_by_module.items()
        for part in parts.strip().splitlines()
        if (problem := find_problem(part.strip()))
    ]


def find_problem(part):
    path, _, listed = part.rstrip(")").partition("(")
    module, _, names = path.partition(":")
    try:
        part_object = importlib.import_module(f"great_expectations.{module}")
    except ImportError:
        return f"there is no module {module}"
    for name in names.split("."):
        if not has_name(part_object, name):
            return f"{module} has no {names}"
        part_object = getattr(part_object, name, None)
    parameters = listed.split(", ") if listed else []
    if parameters and not callable(part_object):
        return f"{module}:{names} is not callable"
    missing = [name for name in parameters if name not in inspect.signature(part_object).parameters]
    return f"{module}:{names} has no parameter {', '.join(missing)}" if missing else ""


def has_name(owner, name):
    """Return True if a module or class has an attribute, or declares one that its instances have."""
    return hasattr(owner, name) or name in inspect.get_annotations(owner)


def test_list_moved_parts_is_empty_for_the_installed_version():
    assert list_moved_parts(PRIVATE_PARTS) == []


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("validator.nowhere:Validator", "x: there is no module validator.nowhere"),
        ("validator.validator:Validator.graph_judge", "x: validator.validator has no Validator.graph_judge"),
        (
            "validator.validation_graph:ValidationGraph.add(edge, weight)",
            "x: validator.validation_graph:ValidationGraph.add has no parameter weight",
        ),
    ],
)
def test_list_moved_parts_names_a_missing_part(part, problem):
    assert list_moved_parts({"x": part}) == [problem]


def test_private_parts_have_all_that_the_package_imports():
    listed = {line.strip().partition("(")[0] for parts in PRIVATE_PARTS.values() for line in parts.splitlines()}

    imported = {path for path in list_imported_names() if not is_public(path)}

    assert len(imported) > 10
    assert {path for path in imported if not any(f"{name}.".startswith(f"{path}.") for name in listed)} == set()


def test_metrics_known_by_name_are_registered_for_spark():
    known = {
        *grouped_metrics._METRICS_BY_NAME,
        *batched_engine._SCHEMA_METRICS,
        *batched_engine._DERIVED_METRICS,
        *(f"{name}.unexpected_count" for name in batched_engine._NULL_MAP_METRICS),
        batched_engine._ROW_COUNT,
        batched_engine._NULL_COUNT,
    }
    assert known == set(METRICS)
    engine = batched_engine.SparkDFExecutionEngine.__new__(batched_engine.SparkDFExecutionEngine)
    for name in METRICS:
        provider, _ = get_metric_provider(name, engine)
        assert provider is not None
