"""Fixtures of the tests of semantics."""

import pytest

from tests.semantics.replays import create_replay


@pytest.fixture(scope="module")
def replayed(spark):
    """Return a function that replays all cases of a dialect, and returns each case and its result by kind."""
    return create_replay(spark)
