"""Examples in docstrings give the results that they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "include" / "tidemark"
MODULES = [
    "tidemark." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_of_module_pass(name):
    result = doctest.testmod(import_module(name))

    assert result.attempted
    assert not result.failed
