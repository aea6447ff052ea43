"""Each mutant of `make mutants` still finds the one rule that it breaks."""

import pytest

from tests.semantics.mutants import PACKAGE, read_mutants


@pytest.mark.parametrize("mutant", read_mutants(), ids=lambda mutant: f"{mutant.vectors}: {mutant.name}")
def test_its_rule_stands_once_in_its_file(mutant):
    assert (PACKAGE / mutant.file).read_text().count(mutant.rule) == 1
    assert mutant.broken != mutant.rule
