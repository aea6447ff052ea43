"""Each mutant of `make mutants` quotes a rule that is in its file exactly once."""

import pytest

from tests.semantics.mutants import PACKAGE, read_mutants


@pytest.mark.parametrize("mutant", read_mutants(), ids=lambda mutant: f"{mutant.vectors}: {mutant.name}")
def test_mutant_rule_in_source_occurs_once(mutant):
    assert (PACKAGE / mutant.file).read_text().count(mutant.rule) == 1
    assert mutant.broken != mutant.rule
